"""What ``test_hopper_on_gpu`` runs: problems, and the configurations that ``heuristics`` would
choose for them. Pure."""

import itertools
from dataclasses import dataclass, replace

from numba_marlin import heuristics
from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem
from numba_marlin.kernels.decode import choose as decode_choices
from numba_marlin.kernels.wgmma import choose as wgmma_choices

H200 = devices.device("H200")
CHOICES = {"decode": decode_choices, "wgmma": wgmma_choices}
LARGEST_DECODE = 64  # rows; beyond that nobody would choose it
TABLE = {  # k, n of the table of goals: batches
    (135168, 33792): (1, 16, 64, 256),
    (28672, 8192): (1, 16, 64, 256, 1024),
    (8192, 57344): (1, 16, 64, 256, 1024),
    (8192, 8192): (1, 16, 32, 64, 128, 256, 1024),
    (4096, 4096): (1, 16, 32, 64, 128, 256, 4096),
}
# k, n, group size
RAGGED = (
    (10944, 7392, 64),
    (10944, 576, -1),
    (7168, 7392, 256),
    (7168, 576, 128),
    (7168, 7368, 32),
)
# rows, about every multiple of 8 and 16 that ends a tile
TAILS = (
    1,
    2,
    7,
    8,
    9,
    15,
    16,
    17,
    23,
    24,
    25,
    31,
    32,
    33,
    47,
    48,
    49,
    63,
    64,
    65,
    79,
    95,
    96,
    97,
    127,
    128,
    129,
    160,
    191,
    192,
    193,
    255,
    256,
    257,
)
GROUP_SIZES = (-1, 32, 64, 128, 256)
NAMED = (
    "batch",
    "warps_n",
    "warps_k",
    "tile_m",
    "tile_n",
    "k_groups",
    "cluster",
    "parts",
    "split",
    "whole",
)


@dataclass(frozen=True)
class Cell:
    """A problem and the configuration to run it with: the one that leads, if none is given."""

    kernel: str
    problem: Problem
    config: object = None

    def __post_init__(self):
        object.__setattr__(
            self,
            "config",
            self.config or heuristics.candidate(self.problem, H200, self.kernel).config,
        )

    def __str__(self):
        return f"{self.kernel}, {self.problem}, {self.config}"

    @property
    def name(self):
        p = self.problem
        return f"{self.kernel}-m{p.m}-{p.k}x{p.n}-g{p.group_size}-" + "-".join(
            f"{each}{getattr(self.config, each)}" for each in NAMED if hasattr(self.config, each)
        )

    @property
    def definition(self):
        return heuristics.find_kernel(self.kernel)

    @property
    def method(self):
        """How the kernel multiplies: which bound its results are under."""
        return self.definition.method(self.config)


def led(kernel, *problem, **types):
    return Cell(kernel, Problem(*problem, **types))


def arrangements(kernel, problem):
    """A cell for each that the kernel's module of ``heuristics`` proposes."""
    return tuple(
        Cell(kernel, problem, config) for config in CHOICES[kernel].configurations(problem, H200)
    )


def table_cells(k, n):
    return tuple(
        led(kernel, m, n, k, 128)
        for m in TABLE[k, n]
        for kernel in CHOICES
        if m <= LARGEST_DECODE or kernel != "decode"
    )


def ragged_cells(kernel, k, n, group_size):
    return tuple(
        led(kernel, m, n, k, group_size) for m in TAILS if m <= LARGEST_DECODE or kernel != "decode"
    )


def rows_of(config):
    return config.batch if hasattr(config, "batch") else config.tile_m


def kinds_of(kernel):
    """(group size, dtype, bits, zeros): symmetric 4-bit weights with every group and type; what
    else the kernel takes, with two groups and the types in turns."""
    takes = heuristics.find_kernel(kernel).takes
    usual = [
        (group_size, dtype, 4, None)
        for group_size in GROUP_SIZES
        for dtype in ("float16", "bfloat16")
    ]
    others = [pair for pair in itertools.product(takes.bits, takes.zeros) if pair != (4, None)]
    return usual + [
        (group_size, ("float16", "bfloat16")[(number + column) % 2], *pair)
        for number, pair in enumerate(others)
        for column, group_size in enumerate((-1, 64))
    ]


def typed_cells(kernel, turn, group_size, dtype, bits, zeros):
    """Two arrangements, the second with a bias, others at each ``turn``; rows that leave a tile
    unfilled, and fill one."""
    found = []
    for bias in (False, True):
        problem = Problem(
            600, 200, 768, group_size, dtype, bits, zeros, scale_dtype=dtype, bias=bias
        )
        all_of = arrangements(kernel, problem)
        config = all_of[(2 * turn + bias) % len(all_of)].config
        found += [
            Cell(kernel, replace(problem, m=m), config)
            for m in (1, rows_of(config), rows_of(config) + 3)
        ]
    return tuple(found)


TYPED = {
    f"{kernel}-g{kind[0]}-{kind[1]}-{kind[2]}bit-{kind[3]}": typed_cells(kernel, turn, *kind)
    for kernel in CHOICES
    for turn, kind in enumerate(kinds_of(kernel))
}
REPEATED = (
    # few tiles, each shared by many blocks
    *arrangements("decode", Problem(7, 576, 7168)),
    *arrangements("wgmma", Problem(150, 576, 7168)),
    led("decode", 1, 8192, 8192),
    led("decode", 16, 8192, 8192),
    led("decode", 40, 1984, 4096, 32),
    led("wgmma", 64, 4096, 4096),
    led("wgmma", 257, 320, 10944, 64),
)
STREAMED = tuple(
    led(kernel, m, 4096, 4096)
    for kernel, m in (("decode", 1), ("decode", 16), ("wgmma", 64), ("wgmma", 150))
)
LAYERS = {  # two of them, the second reading what the first one wrote
    f"{first}-{second}-m{m}": (led(first, m, 2048, 8192), led(second, m, 1032, 2048))
    for first, second, m in (
        ("decode", "decode", 1),
        ("decode", "decode", 8),
        ("decode", "decode", 16),
        ("decode", "decode", 30),
        ("wgmma", "wgmma", 30),
        ("wgmma", "wgmma", 64),
        ("wgmma", "wgmma", 150),
        ("decode", "wgmma", 16),
        ("wgmma", "decode", 32),
    )
}


def invariant_cells(n, k, group_size):
    """What leads, of any kernel, where a row must have the same bits whatever m is."""
    problems = [Problem(m, n, k, group_size, batch_invariant=True) for m in TAILS]
    best = [heuristics.rank(problem, H200)[0] for problem in problems]
    return tuple(Cell(each.kernel, problem, each.config) for problem, each in zip(problems, best))
