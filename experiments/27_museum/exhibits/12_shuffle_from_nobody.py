"""A shuffle from lanes that are not there."""

from numba import cuda

from numba_marlin import judge

ISSUES = ("apache/tvm#12274", "apache/tvm#12275")
SEEN = "The maximum of a row of 11 negative numbers was 0."
CAUSE = """A tree over fewer lanes than a warp has shuffles from lanes outside of the mask. What
comes back is undefined; it happened to be 0, which no test of sums could notice."""
FIX = "A lane takes what it gets only if it came from a lane that takes part."
KIND = "shuffle-from-outside"
WIDTH = 11
MASK = (1 << WIDTH) - 1

task = judge.Task(
    title="row maxima, 11 lanes",
    sizes={"rows": judge.Size(1, 4)},
    arguments=[
        judge.Input("x", "float32", ("rows", WIDTH), fill=lambda rng, shape: -rng.random(shape)),
        judge.Output("y", "float32", ("rows",)),
    ],
    reference=lambda x: x.max(1),
    grid=lambda rows: rows,
    block=WIDTH,
)


@cuda.jit
def broken(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, lane]
    step = 8
    while step:
        other = cuda.shfl_down_sync(MASK, best, step)
        best = max(best, other)
        step //= 2
    if lane == 0:
        y[row] = best


@cuda.jit
def fixed(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, lane]
    step = 8
    while step:
        other = cuda.shfl_down_sync(MASK, best, step)
        if lane + step < WIDTH:
            best = max(best, other)
        step //= 2
    if lane == 0:
        y[row] = best
