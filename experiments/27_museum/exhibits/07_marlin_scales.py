"""Marlin's group scales: one slot for two."""

from numba import cuda, float32

from numba_marlin import judge, ptx

ISSUES = (
    "vllm-project/vllm#11205",
    "vllm-project/vllm#11493",
    "huggingface/optimum-quanto#332",
)
SEEN = """Marlin's products were corrupted for some shapes, at other places in every run. racecheck
named reads in the main loop and the writes of `cp_async4`."""
CAUSE = """Tiles of weights stand in a ring of stages, and so do their scales; but where a group of
weights is longer than a tile, several stages share a slot of scales. The slot is refilled while a
slow warp may still read it: the barrier that protects the ring stands a stage later. (What stands
here is the slot alone; [experiment 1](../experiments/01_faithful) has the kernel.)"""
FIX = "Ours: each stage has a slot of its own."
KIND = "race"
THREADS = 64

task = judge.Task(
    title="tiles by their group's scales",
    sizes={"groups": judge.Size(1, 4)},
    arguments=[
        judge.Input("w", "float32", ("groups", THREADS), fill="integers"),
        judge.Input("scales", "float32", ("groups", THREADS), fill="integers"),
        judge.Output("y", "float32", (THREADS,)),
    ],
    reference=lambda w, scales: (w * scales[:, ::-1]).sum(0),
    grid=1,
    block=THREADS,
)


@cuda.jit
def broken(w, scales, y):
    slots = cuda.shared.array((1, THREADS), float32, alignment=16)
    t = cuda.threadIdx.x
    total = float32(0)
    if t < THREADS // 4:
        ptx.cp_async_16(
            ptx.cvta_to_shared(slots, (0, 4 * t)), ptx.cvta_to_global(scales, (0, 4 * t))
        )
    ptx.cp_async_commit_group()
    for group in range(w.shape[0]):
        ptx.cp_async_wait_group(n=0)
        cuda.syncthreads()
        scale = slots[0, THREADS - 1 - t]
        if group + 1 < w.shape[0] and t < THREADS // 4:
            ptx.cp_async_16(
                ptx.cvta_to_shared(slots, (0, 4 * t)),
                ptx.cvta_to_global(scales, (group + 1, 4 * t)),
            )
        ptx.cp_async_commit_group()
        total += w[group, t] * scale
    y[t] = total


@cuda.jit
def fixed(w, scales, y):
    slots = cuda.shared.array((2, THREADS), float32, alignment=16)
    t = cuda.threadIdx.x
    total = float32(0)
    if t < THREADS // 4:
        ptx.cp_async_16(
            ptx.cvta_to_shared(slots, (0, 4 * t)), ptx.cvta_to_global(scales, (0, 4 * t))
        )
    ptx.cp_async_commit_group()
    for group in range(w.shape[0]):
        ptx.cp_async_wait_group(n=0)
        cuda.syncthreads()
        scale = slots[group % 2, THREADS - 1 - t]
        if group + 1 < w.shape[0] and t < THREADS // 4:
            ptx.cp_async_16(
                ptx.cvta_to_shared(slots, ((group + 1) % 2, 4 * t)),
                ptx.cvta_to_global(scales, (group + 1, 4 * t)),
            )
        ptx.cp_async_commit_group()
        total += w[group, t] * scale
    y[t] = total
