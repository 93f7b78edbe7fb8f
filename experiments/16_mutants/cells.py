"""The kernels whose mutants are judged, each in one configuration, and the problems that they are
judged on.

A problem is small, but takes every way through its kernel: several blocks to a tile and several
tiles to a block, more stages of k than the ring has, tails of m, n and k. Numbers are small
integers, so that every correct result is exact; x has NaN between its rows, C and the workspace are
NaN before.
"""

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from problems import Case
from problems import Launch as Prepared
from small_cells import SMALL_CELLS

from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.operands import BLOCK_FORMATS
from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.buffered import BufferedConfig
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.general import GeneralConfig
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_mma import KERNEL as BLOCK_MMA
from numba_marlin.kernels.nvfp4.block_mma.config import BlockMmaConfig
from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.kernels.nvfp4.tcgen05 import KERNEL as TCGEN05
from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.kernels.tiled import TiledConfig
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.mutation.judge import Launch
from numba_marlin.quantizers.operands import quantize_blocks
from numba_marlin.testing import operands

TARGET, COMPILER = "sm_90a", "numba-cuda"
# The machine looks for races: it need not meet the one schedule that does harm, only take the ways
# that a slow warp, or a block ahead of the others, takes. The slowest warps of 0 and 17 are, of
# block_scaled's only block, the one that loads and the one that hands out tiles.
SCHEDULES = (
    None,
    Schedule(1, "slowest warp", "early"),
    *(Schedule(seed, "one block ahead", "late") for seed in (2, 3)),
    *(Schedule(seed, "slowest warp", "late") for seed in (0, 17)),
    *(Schedule(seed) for seed in (4, 5, 6)),
)
SMALL = WgmmaConfig(tile_m=16, tile_n=64, warpgroups=1, stages=2, group_blocks=-1)
SMALL_BLOCKS = BlockScaledConfig(tile_m=128, tile_n=64, stages=2, expanded_stages=3)
FEW_ROWS = BlockDecodeConfig(tokens=8, k_warps=2, split=2, stages=2, source=True, bias=True)
PLAIN = DecodeConfig(
    batch=8, warps_n=2, warps_k=2, stage_k=128, stages=2, resident=1, group_blocks=4
)


@dataclass(frozen=True)
class Cell:
    """A kernel in one configuration. problems: (m, n, k, multiprocessors that the grid is made
    for)."""

    name: str
    kernel: str
    config: object
    problems: tuple

    @property
    def group_size(self):
        blocks = getattr(self.config, "group_blocks", None)
        return self.config.group_size if blocks is None else -1 if blocks == -1 else 16 * blocks

    @cached_property
    def compiled(self):
        return self.cases[0].build(COMPILER, TARGET)

    @cached_property
    def cases(self):
        # these take rows of x that lie side by side
        padding = 0 if self.kernel in ("tiled", "buffered", "ampere") else 8
        return tuple(
            Case(
                self.kernel,
                m,
                n,
                k,
                self.group_size,
                "exact",
                sms=sms,
                chosen=self.config,
                padding=padding,
            )
            for m, n, k, sms in self.problems
        )

    @cached_property
    def launches(self):
        return tuple(launch_of(case, self.compiled) for case in self.cases)


@dataclass(frozen=True)
class HopperBlocks:
    """A kernel of two NVFP4 operands with its epilogue. problems: as those of a Cell."""

    name: str
    config: object
    problems: tuple

    @property
    def kernel(self):
        return kernel_of(self.config).name

    @cached_property
    def prepared(self):
        """(Prepared, D and its scales as they must be), of every problem."""
        added = {"c_dtype": operands.c_dtype_of(self.config), "bias": self.config.bias}
        found = []
        for m, n, k, sms in self.problems:
            problem = operands.small_integers(m, n, k, seed=m + n + k, **added)
            found.append((operands.prepare(problem, self.config, sms), self.result(problem)))
        return found

    def result(self, problem):
        numbers, _ = problem.bounds(self.config.activation)
        if self.config.result not in BLOCK_FORMATS:
            return {"d": round_to(numbers, self.config.result)}
        blocks = quantize_blocks(
            numbers.astype(np.float32), self.config.result, global_scale=problem.global_scale
        ).with_scales("128x4")
        return {"d": blocks.data, "sfd": blocks.scales}

    @cached_property
    def compiled(self):
        return self.prepared[0][0].compiled

    @cached_property
    def launches(self):
        return tuple(launch_of_blocks(*each) for each in self.prepared)


@dataclass(frozen=True)
class BlackwellBlocks:
    """A kernel of two block-scaled operands on Blackwell. problems: as those of a Cell."""

    name: str
    definition: object
    config: object
    problems: tuple

    @property
    def kernel(self):
        return self.definition.name

    @cached_property
    def prepared(self):
        """(Prepared, D as it must be), of every problem."""
        found = []
        for m, n, k, sms in self.problems:
            a, b = (
                operands.exact_operand(rows, k, self.config.format, seed=rows + k)
                for rows in (m, n)
            )
            expected = 0.5 * (operands.values(a) @ operands.values(b).T)
            product = operands.BlockProduct(a.with_scales("128x4"), b.with_scales("128x4"), 0.5)
            found.append(
                (
                    operands.prepare(product, self.config, sms),
                    {"d": expected.astype(np.float32).astype(self.config.result)},
                )
            )
        return found

    @cached_property
    def compiled(self):
        return self.prepared[0][0].compiled

    @cached_property
    def launches(self):
        return tuple(launch_of_blocks(*each) for each in self.prepared)


def launch_of_blocks(prepared, expected):
    """-> numba_marlin.mutation.judge.Launch"""
    m, n, k, _ = prepared.sizes
    if "locks" in prepared.buffers:
        expected = expected | {"locks": np.zeros_like(prepared.buffers["locks"])}
    return Launch(
        f"m={m} n={n} k={k}, {prepared.grid[0]} blocks",
        prepared.compiled.entry,
        prepared.grid,
        prepared.compiled.threads,
        prepared.compiled.shared_bytes,
        prepared.kernel.cluster(prepared.config),
        prepared.buffers,
        expected,
        (),
        tuple(prepared.buffers) if prepared.kernel.dependent(prepared.config) else (),
        lambda addresses: prepared.arguments(
            addresses, lambda tensor_map, address: tensor_map.encode(address)
        ),
    )


def compiler_of(cell):
    """What made the PTX: another version of it may put a kernel's instructions in another order."""
    return ", ".join(
        f"{name} {cell.compiled.versions[name]}"
        for name in ("numba-cuda", "nvidia-nvvm")
        if name in cell.compiled.versions
    )


def launch_of(case, compiled):
    """-> numba_marlin.mutation.judge.Launch"""
    prepared, kernel = Prepared(case), case.definition
    expected = {"c": prepared.exact.expected}
    if "locks" in prepared.buffers:
        expected["locks"] = np.zeros_like(prepared.buffers["locks"])
    scratch = tuple(name for name in ("partials",) if name in prepared.buffers)
    weights = ("b", "scales", "zeros", "bias")
    earlier = (
        tuple(name for name in prepared.buffers if name not in weights)
        if kernel.dependent(case.config)
        else ()
    )
    return Launch(
        f"m={case.m} n={case.n} k={case.k}, {case.grid[0] * case.grid[1]} blocks",
        compiled.entry,
        case.grid,
        compiled.threads,
        compiled.shared_bytes,
        kernel.cluster(case.config),
        prepared.buffers,
        expected,
        scratch,
        earlier,
        lambda addresses: prepared.arguments(
            addresses, lambda tensor_map, address: tensor_map.encode(address)
        ),
    )


ENDS = tuple((20, 48, k, 1) for k in (544, 1024, 1312, 2048))  # a tile; each at another stage
CELLS = {
    cell.name: cell
    for cell in (
        Cell("general, a scale per column", "general", GeneralConfig(-1), ((3, 72, 48, 1),)),
        Cell(
            "general, groups, zero points",
            "general",
            GeneralConfig(16, zeros="integer", bias=True),
            ((3, 72, 48, 1),),
        ),
        Cell("tiled, groups", "tiled", TiledConfig(16), ((20, 128, 208, 1), (3, 64, 48, 1))),
        Cell(
            "buffered, groups", "buffered", BufferedConfig(16), ((20, 128, 208, 1), (3, 64, 48, 1))
        ),
        # a block without work, a stripe of many tiles, tiles that are all there is of k
        Cell(
            "ampere, one row of tiles",
            "ampere",
            AmpereConfig(),
            ((4, 256, 1408, 3), (4, 128, 640, 4), (16, 128, 384, 2), (4, 384, 768, 2)),
        ),
        Cell(
            "ampere, ragged, a scale per column, two rows",
            "ampere",
            AmpereConfig(2, 16, 4, -1, 4, True),
            (
                (20, 320, 624, 5),
                (40, 192, 912, 1),
                (20, 256, 320, 4),
                (20, 576, 384, 2),
                (5, 192, 16, 2),
            ),
        ),
        Cell(
            "ampere, ragged, groups of 32",
            "ampere",
            AmpereConfig(1, 8, 8, 2, 4, True),
            (
                (5, 192, 672, 3),
                (20, 64, 1376, 1),
                (5, 128, 640, 4),
                (5, 320, 768, 2),
                (5, 192, 64, 2),
            ),
        ),
        # a tile that more blocks share than fit in a round of loads, each with a single stage of it
        Cell(
            "decode, groups of 64",
            "decode",
            PLAIN,
            # the last: two rows of x in a ring that goes round
            ((3, 384, 640, 5), (9, 256, 512, 3), (2, 128, 1024, 8), (2, 128, 512, 1)),
        ),
        Cell(
            "decode, NVFP4",
            "decode",
            replace(PLAIN, group_blocks=1, codes="e2m1", scale_dtype="e5m3"),
            ((3, 384, 640, 5), (9, 256, 512, 3), (2, 128, 1024, 8), (2, 128, 512, 1)),
        ),
        Cell(
            "wgmma, one word, tiles shared",
            "wgmma",
            SMALL,
            (
                (20, 200, 336, 4),
                (33, 128, 320, 1),
                (5, 64, 320, 4),
                (5, 64, 576, 9),
                (5, 64, 128, 2),
            ),
        ),
        Cell(
            "wgmma, pairs of blocks, two rows of consumers",
            "wgmma",
            replace(SMALL, tile_m=32, tile_n=128, cluster=2, k_groups=2, stages=4, split=False),
            ((72, 136, 272, 4), (40, 72, 848, 2), (3, 72, 48, 2)),
        ),
        Cell(
            "wgmma, tiles in two parts",
            "wgmma",
            replace(SMALL, tile_m=32, parts=2, split=False),
            ((72, 136, 272, 4), (40, 72, 848, 2), (3, 72, 48, 2), (5, 64, 128, 2)),
        ),
        Cell(
            "wgmma, NVFP4",
            "wgmma",
            replace(SMALL, group_blocks=1, codes="e2m1"),
            (
                (20, 200, 336, 4),
                (33, 128, 320, 1),
                (5, 64, 320, 4),
                (5, 64, 576, 9),
                (5, 64, 128, 2),
            ),
        ),
        # two tiles a block, of one step each that ends inside; more tiles and steps than the rings
        # have places
        HopperBlocks(
            "block_scaled, C and a bias",
            replace(SMALL_BLOCKS, source=True, bias=True),
            ((140, 128, 96, 2), (140, 72, 352, 1)),
        ),
        HopperBlocks(
            "block_scaled, NVFP4 results",
            replace(SMALL_BLOCKS, result="nvfp4"),
            ((140, 128, 96, 2), (140, 80, 352, 1), (140, 208, 96, 1)),
        ),
        # more steps than the ring has places for both blocks, and none for the second; tokens for
        # two blocks; rings that go round three times, and one step
        HopperBlocks(
            "block_decode, two blocks share k",
            replace(FEW_ROWS, tokens=32, k_warps=4, result="float32", source=False),
            ((40, 136, 2336, 1), (3, 136, 96, 1)),
        ),
        HopperBlocks(
            "block_decode, C and a bias",
            replace(FEW_ROWS, split=1),
            ((9, 40, 1312, 1), (5, 8, 64, 1)),
        ),
        # the second: three tiles for a place of sums; each ends at another stage, or parity
        BlackwellBlocks(
            "tcgen05",
            TCGEN05,
            Tcgen05Config(),
            (
                (150, 136, 288, 2),
                (700, 24, 800, 1),
                (20, 24, 544, 1),
                (20, 24, 1184, 1),
                (20, 24, 1312, 1),
                (20, 24, 1024, 1),
                (500, 24, 32, 1),
            ),
        ),
        # C's ring goes round in a tile; three tiles for each place of sums; a lone last scale block
        HopperBlocks(
            "tcgen05, C and NVFP4 results",
            Tcgen05Config(result="nvfp4", source=True, bias=True, c_dtype="float32"),
            ((150, 144, 96, 2), (700, 16, 288, 1), (500, 16, 32, 1), *ENDS),
        ),
        BlackwellBlocks(
            "block_mma", BLOCK_MMA, BlockMmaConfig(), ((40, 72, 96, 1), (20, 24, 2336, 1))
        ),
        *SMALL_CELLS,
    )
}
# Of which results.jsonl has no rows yet. `run.py` judges them as every other; then they leave this.
WAITING = ()
