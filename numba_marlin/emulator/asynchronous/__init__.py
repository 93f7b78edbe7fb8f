"""What happens outside of program order, as late as the ISA allows.

``copies``: cp.async and its groups. ``bulk``: bulk and tensor copies, whose places in memory
``tensor_copies`` computes. ``mbarriers`` count their bytes; ``copy_arrivals``: cp.async at them.
``barriers`` are those of a block; ``clusters``: blocks that reach each other, and their barrier.
``proxies``: what the asynchronous proxy does not see yet. Imports ``state``, ``text`` and
``errors``.
"""
