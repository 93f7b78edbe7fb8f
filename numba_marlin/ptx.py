"""Inline PTX for anybody's kernels: ``ptx.NAME(...)`` is the instruction of ``ptx/NAME.ptx``.

    from numba import cuda                  # or: from numba_cuda_mlir import cuda
    from numba_marlin import ptx

    @cuda.jit
    def kernel(x, y):
        tile = cuda.shared.array((16, 16), np.float16, alignment=16)
        ...
        ptx.cp_async_16(ptx.cvta_to_shared(tile, (row, 0)), ptx.cvta_to_global(x, (row, 0)))
        ptx.cp_async_commit_group()
        ptx.cp_async_wait_group(n=0)
        cuda.syncthreads()
        a = ptx.ldmatrix_x4(ptx.cvta_to_shared(tile, (lane % 16, lane // 16 * 8)))

Operands are numbers; integers convert to the declared type, floats to f32 only. A vector operand or
result is a tuple. ``help(ptx.ldmatrix_x4)`` says what an instruction takes and gives, and links its
section of the PTX ISA; ``dir(ptx)`` lists them all.

Immediates, numbers that are part of the instruction, are keywords. In a kernel they must be
literals or global constants; outside, ``wait = ptx.cp_async_wait_group(n=2)`` gives the instruction
with its immediates filled in, for a kernel to call.

Two functions turn places of arrays into the addresses that instructions want:

    cvta_to_global(array, index) -> uint64      where array[index] lies in global memory
    cvta_to_shared(array, index) -> uint32      where array[index] of a cuda.shared.array lies in
                                                the block's shared memory

index is an int or a tuple of ints, as for ``cuda.atomic.add``; it is not checked.

Which of the two compilers a kernel is for is found out when it asks for a function's type, so that
the same object serves both. Importing this module loads no compiler. It touches no GPU.
"""

from numba_marlin.row_stack import restore_row_stack

# A kernel that uses these instructions is compiled by Numba alone, which may need it.
restore_row_stack()

ADDRESSES = ("cvta_to_global", "cvta_to_shared")


def _names():
    from numba_marlin.isa.directory import ptx_directory

    return sorted([*ADDRESSES, *(path.stem for path in ptx_directory().glob("*.ptx"))])


def __getattr__(name):
    if name == "__all__":
        return _names()
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numba_marlin.compiler import public_ptx

    found = public_ptx.address(name) if name in ADDRESSES else public_ptx.instruction(name)
    if found is None:
        raise AttributeError(f"there is no ptx/{name}.ptx, see dir(numba_marlin.ptx)")
    globals()[name] = found
    return found


def __dir__():
    return _names()
