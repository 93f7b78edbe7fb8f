"""A barrier does not wait for asynchronous copies."""

from numba import cuda, float32

from numba_marlin import judge, ptx

ISSUES = ("NVIDIA/Fuser#3428", "NVIDIA/Fuser#3438")
SEEN = """racecheck reported a race in a generated kernel of a layer norm's gradient: a row that
some threads copied with `cp.async` was read by others."""
CAUSE = """Only the first row of threads copies the bias. All meet at a barrier, which says that
the copies were *asked for*. The wait came later, and each thread waits for its own copies only:
the other rows had none of the bias to wait for."""
FIX = "Wait first, then the barrier: the barrier passes on what the waiting threads know."
KIND = "race"
WIDTH = 32

task = judge.Task(
    title="rows plus a bias",
    sizes={"rows": judge.Size(1, 4)},
    arguments=[
        judge.Input("x", "float32", ("rows", WIDTH)),
        judge.Input("bias", "float32", (WIDTH,)),
        judge.Output("y", "float32", ("rows", WIDTH)),
    ],
    reference=lambda x, bias: x + bias,
    grid=1,
    block=lambda rows: (WIDTH, rows),
)


@cuda.jit
def broken(x, bias, y):
    shared_bias = cuda.shared.array(WIDTH, float32, alignment=16)
    i, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row == 0 and i < WIDTH // 4:
        ptx.cp_async_16(ptx.cvta_to_shared(shared_bias, 4 * i), ptx.cvta_to_global(bias, 4 * i))
    ptx.cp_async_commit_group()
    cuda.syncthreads()
    ptx.cp_async_wait_group(n=0)
    y[row, i] = x[row, i] + shared_bias[i]


@cuda.jit
def fixed(x, bias, y):
    shared_bias = cuda.shared.array(WIDTH, float32, alignment=16)
    i, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row == 0 and i < WIDTH // 4:
        ptx.cp_async_16(ptx.cvta_to_shared(shared_bias, 4 * i), ptx.cvta_to_global(bias, 4 * i))
    ptx.cp_async_commit_group()
    ptx.cp_async_wait_group(n=0)
    cuda.syncthreads()
    y[row, i] = x[row, i] + shared_bias[i]
