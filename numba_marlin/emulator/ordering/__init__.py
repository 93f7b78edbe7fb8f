"""Happens-before: which accesses nothing orders, and how a race is reported.

``races`` is the way in (``HappensBefore``): it is told what orders. ``conflicts`` is told every
access; ``clocks`` are vector clocks of threads and asynchronous operations, ``news`` what of them
travels, ``shadow`` who last touched each unit of memory, ``messages`` what release and acquire pass
on, ``race_report`` the sentence; ``affordable`` reckons beforehand what all of it may take.
``fenced_inits`` is what fence.mbarrier_init releases, ``seen_arrivals`` which arrivals of other
blocks are over.
``weak_memory`` is a memory as weak as the model allows, ``views`` what of its writes a thread sees.
``global_proxies``: what other ways to global memory than ordinary loads do not see. Follows the
memory consistency model of the PTX ISA:
https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
Imports ``state``, ``text`` and ``errors``.
"""
