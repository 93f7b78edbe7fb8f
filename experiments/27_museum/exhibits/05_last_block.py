"""The last block reads what the others wrote, and never said that it wants to see it."""

from numba import cuda, float32, int32

from numba_marlin import judge

ISSUES = ("pytorch/pytorch#128455", "NVIDIA/Fuser#2391")
SEEN = "A reproduction takes eight GPUs and some minutes, its author says, so there is no test."
CAUSE = """Each block writes its partial sum, a fence, and counts itself; who finds that it is the
last adds all parts. Its atomic has no order with its own later reads: without a fence behind the
atomic it may read a part that it had before."""
FIX = "A fence behind the atomic as well: release and acquire are a pair."
KIND = "race"
THREADS = 32

task = judge.Task(
    title="a sum in two stages",
    sizes={"blocks": judge.Size(1, 5)},
    arguments=[
        judge.Input("x", "float32", (lambda blocks: blocks * THREADS,), fill="integers"),
        judge.Workspace("parts", "float32", ("blocks",), begins=None),
        judge.Workspace("count", "int32", (1,)),
        judge.Output("y", "float32", (1,)),
    ],
    reference=lambda x: x.sum(keepdims=True),
    grid=lambda blocks: blocks,
    block=THREADS,
)


@cuda.jit
def broken(x, parts, count, y):
    t, block = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        part = float32(0)
        for i in range(THREADS):
            part += x[block * THREADS + i]
        parts[block] = part
        cuda.threadfence()
        before = cuda.atomic.add(count, 0, int32(1))
        if before == cuda.gridDim.x - 1:
            total = float32(0)
            for i in range(cuda.gridDim.x):
                total += parts[i]
            y[0] = total


@cuda.jit
def fixed(x, parts, count, y):
    t, block = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        part = float32(0)
        for i in range(THREADS):
            part += x[block * THREADS + i]
        parts[block] = part
        cuda.threadfence()
        before = cuda.atomic.add(count, 0, int32(1))
        if before == cuda.gridDim.x - 1:
            cuda.threadfence()
            total = float32(0)
            for i in range(cuda.gridDim.x):
                total += parts[i]
            y[0] = total
