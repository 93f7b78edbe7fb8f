"""What a running kernel has, and nothing of when things happen.

``lanes``: who executes; ``paths``: how the lanes of a warp part and meet; ``ends``: how a basic
block can end. ``registers`` and ``register_pool``; ``memory`` is the door to ``global_memory`` and
``block_memory`` (shared and local), ``local_owners`` whose a local address is, ``operand_chunks``
what descriptors name. ``numerics``, ``doubles`` and ``small_floats`` round. ``listener``: functions
called during a run, with an ``access`` each. Imports ``text`` and ``errors``.
"""
