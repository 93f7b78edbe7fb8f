"""An output that one block sets to zero, and all add to."""

from dataclasses import replace

from numba import cuda, float32

from numba_marlin import judge

ISSUES = ("vllm-project/vllm#30719", "sgl-project/sglang#29748")
SEEN = """Products with GPTQ weights were wrong, up to 45 times the right value, wherever k is long
enough for two blocks; the test passed by luck, since fresh memory is often zero."""
CAUSE = """The first of the blocks that share an output set it to zero, and `__syncthreads`
followed: but that is a barrier of one block. Another block may add before the zero is written, and
lose what it added."""
FIX = "The output is zero before the launch, and the kernel only adds."
KIND = "race"
PART = 32

task = judge.Task(
    title="vector by matrix, k split over blocks",
    sizes={"k": judge.Size(PART, 4 * PART, multiple_of=PART), "n": judge.Size(1, 70)},
    arguments=[
        judge.Input("x", "float32", ("k",), fill="integers"),
        judge.Input("w", "float32", ("k", "n"), fill="integers"),
        judge.Output("y", "float32", ("n",)),
    ],
    reference=lambda x, w: x @ w,
    grid=lambda k, n: (-(-n // 64), k // PART),
    block=64,
)
fixed_task = replace(
    task, arguments=[*task.arguments[:2], judge.Output("y", "float32", ("n",), begins=0)]
)


@cuda.jit
def broken(x, w, y):
    n, part = cuda.grid(1), cuda.blockIdx.y
    if n < y.size:
        if part == 0:
            y[n] = 0
    cuda.syncthreads()
    if n < y.size:
        total = float32(0)
        for i in range(part * PART, (part + 1) * PART):
            total += x[i] * w[i, n]
        cuda.atomic.add(y, n, total)


@cuda.jit
def fixed(x, w, y):
    n, part = cuda.grid(1), cuda.blockIdx.y
    if n < y.size:
        total = float32(0)
        for i in range(part * PART, (part + 1) * PART):
            total += x[i] * w[i, n]
        cuda.atomic.add(y, n, total)
