"""Split-K: the last one adds up.

When a product has few outputs, several blocks share one: each sums a part of k, and somebody must
add the parts, in the same order in every run. The blocks write their parts, then count themselves:
whoever is the last (the counter was at blocks - 1) adds them all.

Memory keeps no order by itself: another block may see the counter's new value before the parts. The
barrier orders a block's threads among each other, so thread 0 may speak for all of them: behind the
barrier, and before it counts, it needs cuda.threadfence(). The reader needs one too, after it has
counted; that one is there. Find the place of the first: it must be thread 0's own.
"""

import numpy as np
from numba import cuda


def spec(x):
    return x.sum(axis=0), x, np.array([x.shape[0]], np.int32)


@cuda.jit
def reduce_rows(x, y, parts, counter):
    last = cuda.shared.array(1, np.int32)
    block, i = cuda.blockIdx.x, cuda.threadIdx.x
    parts[block, i] = x[block, i]  # stands for the sum of this block's part of k
    cuda.syncthreads()
    if i == 0:
        # >>> solution
        cuda.threadfence()
        # >>> start
        # <<<
        last[0] = cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1
        cuda.threadfence()
    cuda.syncthreads()
    if last[0]:
        total = np.float32(0)
        for each in range(cuda.gridDim.x):
            total += parts[each, i]
        y[i] = total


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

KERNEL = "reduce_rows"
HINT = "Barrier, then thread 0: fence, atomic, fence; then the barrier that is there."
CASES = [
    Case(
        {"x": (np.arange(64 * blocks) % 9).astype(np.float32).reshape(blocks, 64)},
        grid=(blocks,),
        block=(64,),
        zeroed=("counter",),
    )
    for blocks in (4, 1)
]
RULES = []
