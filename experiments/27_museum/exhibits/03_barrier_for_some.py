"""A barrier that only some warps come to."""

from numba import cuda, float32

from numba_marlin import judge

ISSUES = ("ggml-org/llama.cpp#13469", "ggml-org/llama.cpp#13438")
SEEN = """A barrier that was to mend a race in FlashAttention kernels made results wrong, once the
context was long enough."""
CAUSE = """The new barrier stood in a branch that some warps do not take. A barrier only counts:
their next one is taken for this one, and from then on the two groups of warps meet at different
places of the program."""
FIX = "The barrier stands where all warps come by."
KIND = "race"
THREADS = 128

task = judge.Task(
    title="sums of reversed tiles",
    sizes={"tiles": judge.Size(1, 4)},
    arguments=[
        judge.Input("x", "float32", ("tiles", THREADS), fill="integers"),
        judge.Output("y", "float32", (THREADS,)),
    ],
    reference=lambda x: x[:, ::-1].sum(0),
    grid=1,
    block=THREADS,
)


@cuda.jit
def broken(x, y):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(x.shape[0]):
        tile[t] = x[i, t]
        cuda.syncthreads()
        if t < THREADS // 2:
            cuda.syncthreads()
        total += tile[THREADS - 1 - t]
        cuda.syncthreads()
    y[t] = total


@cuda.jit
def fixed(x, y):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(x.shape[0]):
        tile[t] = x[i, t]
        cuda.syncthreads()
        total += tile[THREADS - 1 - t]
        cuda.syncthreads()
    y[t] = total
