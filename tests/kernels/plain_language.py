"""Kernel source as plain Python: a ``lang`` in which device functions are functions and numbers are
ints, for verbs that only count.

So the arithmetic that a test exhausts is the kernel's own source, not a second copy of it. What a
compiler makes of the same source is compared on the machine (``test_partitions``).
"""

from types import SimpleNamespace

from numba_marlin.compiler.language import constants, namespace, record_class


def uint32(value):
    """An int that fits, for nothing in a schedule is meant to wrap."""
    assert 0 <= int(value) < 2**32, f"{value} does not fit 32 bits"
    return int(value)


def plain_language(block, blocks):
    """As block ``block`` of ``blocks`` sees it."""
    cuda = SimpleNamespace(blockIdx=SimpleNamespace(x=block), gridDim=SimpleNamespace(x=blocks))
    return SimpleNamespace(
        cuda=cuda,
        device=lambda function: function,
        uint32=uint32,
        record=record_class,
        namespace=namespace,
        constants=constants,
    )
