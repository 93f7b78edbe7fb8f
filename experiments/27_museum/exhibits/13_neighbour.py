"""Padding that is written over the neighbour."""

from numba import cuda, float32

from numba_marlin import judge

ISSUES = ("ggml-org/llama.cpp#28358",)
SEEN = """racecheck reported hazards in FlashAttention with heads of 64; the results were right, by
luck of the scheduling."""
CAUSE = """A warp stores 32 numbers, those behind the first 16 being zeros for padding. For small
heads there is room for 16, and behind it stand the scales, which two of the lanes store at the
same time."""
FIX = "Ours: a lane without a number stores nothing."
KIND = "race"
NUMBERS, ROOM = 16, 48

task = judge.Task(
    title="numbers and their scales",
    arguments=[
        judge.Input("x", "float32", (NUMBERS,)),
        judge.Output("y", "float32", (NUMBERS,)),
    ],
    reference=lambda x: 2 * x,
    grid=1,
    block=32,
)


@cuda.jit
def broken(x, y):
    room = cuda.shared.array(ROOM, float32)
    lane = cuda.threadIdx.x
    room[lane] = x[lane] if lane < NUMBERS else float32(0)
    if lane % 8 == 0 and lane < NUMBERS:
        room[NUMBERS + lane // 8] = 2
    cuda.syncwarp()
    if lane < NUMBERS:
        y[lane] = room[lane] * room[NUMBERS + lane // 8]


@cuda.jit
def fixed(x, y):
    room = cuda.shared.array(ROOM, float32)
    lane = cuda.threadIdx.x
    if lane < NUMBERS:
        room[lane] = x[lane]
    if lane % 8 == 0 and lane < NUMBERS:
        room[NUMBERS + lane // 8] = 2
    cuda.syncwarp()
    if lane < NUMBERS:
        y[lane] = room[lane] * room[NUMBERS + lane // 8]
