"""Cells of kernels that declare their problems as trials (``numba_marlin.testing.trials``): of a
mixture's experts, and of activations in 8 bits. A cell's problems are those of one configuration,
of other sizes than the trial's where that takes more ways through the kernel."""

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from numba_marlin.formats.routing import Routing
from numba_marlin.kernels.experts.moe.declare import IDS
from numba_marlin.kernels.experts.moe.declare import SMALL as SMALL_EXPERTS
from numba_marlin.kernels.experts.moe_wgmma.declare import SMALL as SMALL_TILES
from numba_marlin.kernels.experts.w4a8.config import MoeFp8Config, MoeInt8Config
from numba_marlin.kernels.experts.w4a8.definition import small as small_bytes
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.kernels.w4a8.config import WgmmaFp8Config, WgmmaInt8Config
from numba_marlin.kernels.w4a8.few_rows import config as few_rows
from numba_marlin.kernels.w4a8.few_rows.definition import small as small_few_rows
from numba_marlin.mutation.judge import Launch
from numba_marlin.testing import experts, launches
from numba_marlin.testing.trials import SmallActivations, SmallExperts


@dataclass(frozen=True)
class Smalls:
    """A kernel in one configuration. problems: (shape, multiprocessors that the grid is made for,
    the experts of each token or ()), which ``of`` prepares; or (class that prepares it, ...)."""

    name: str
    of: type
    config: object
    problems: tuple

    @property
    def definition(self):
        return kernel_of(self.config)

    @property
    def kernel(self):
        return self.definition.name

    @cached_property
    def prepared(self):
        """(Prepared, result as it must be), of every problem."""
        chosen = (each if len(each) > 3 else (self.of, *each) for each in self.problems)
        made = (
            of(self.definition, self.config, shape, sms, (), ids).problem
            for of, shape, sms, ids in chosen
        )
        return [(prepare(), expected) for prepare, expected in made]

    @cached_property
    def compiled(self):
        return self.prepared[0][0].compiled

    @cached_property
    def launches(self):
        return tuple(launch_of_prepared(*each) for each in self.prepared)


class ExpertsElsewhere(SmallExperts):
    """The experts of all tokens are another device's: nothing is written. ids: whatever."""

    @cached_property
    def problem(self):
        _, n, k, _ = self.shape
        config = self.config
        given = experts.layer(config, self.ids, n, k, seed=1, integers=True)
        there = np.array(self.ids) + config.experts
        routing = Routing.of(there, given.routing.weights, 2 * config.experts)
        given = replace(given, routing=routing.local(0, config.experts))
        return partial(experts.prepare, given, sms=self.sms), None


class ExpertsActivated(SmallExperts):
    """activation(gate) * up has no exact result. What must be there is what the intact kernel
    leaves in the machine's own order, within the bounds: it has the same bits in every order."""

    @cached_property
    def problem(self):
        _, n, k, _ = self.shape
        given = experts.layer(self.config, self.ids, n, k, seed=1)
        prepare = partial(experts.prepare, given, sms=self.sms)
        intact, allowed = prepare(), given.bounds()
        launches.on_machine(intact)
        (result,) = intact.binding.with_role("result")
        found = intact.buffers[result]
        # NaN is beyond any bound
        assert (abs(found.astype(np.float64) - allowed.product) <= allowed.rounded).all()
        return prepare, found


def launch_of_prepared(prepared, expected):
    """-> numba_marlin.mutation.judge.Launch. expected: None for a result that nobody writes."""
    m, n, k, _ = prepared.sizes
    binding = prepared.binding
    (result,) = binding.with_role("result")
    known = {} if expected is None else {result: expected}
    if "locks" in prepared.buffers:
        known["locks"] = np.zeros_like(prepared.buffers["locks"])
    return Launch(
        f"m={m} n={n} k={k}, {prepared.grid[0]} blocks",
        prepared.compiled.entry,
        prepared.grid,
        prepared.compiled.threads,
        prepared.compiled.shared_bytes,
        prepared.kernel.cluster(prepared.config),
        prepared.buffers,
        known,
        tuple(name for name in ("partials",) if name in prepared.buffers),
        tuple(binding.used_by_the_launch_before),
        lambda addresses: prepared.arguments(
            addresses, lambda tensor_map, address: tensor_map.encode(address)
        ),
    )


DOWN = replace(SMALL_EXPERTS, combine=True, x_of_pairs=True)
# a tile that more blocks share than fit in a round of loads; a ring that goes round in one block,
# with two row blocks of an expert; blocks without work; no work at all
OF_EXPERTS = (
    ((4, 72, 96, 32), 2, ((1, 0), (0, 1), (1, 4), (1, 0))),
    ((len(IDS), 136, 96, 32), 3, IDS),
    ((2, 64, 512, 32), 15, ((1, 3), (3, 1))),
    ((len(IDS), 72, 352, 32), 1, IDS),
    ((2, 64, 64, 32), 7, ((3, 1), (3, 1))),
    (ExpertsElsewhere, (2, 64, 64, 32), 2, ((3, 1), (3, 1))),
)
# tiles of two, three, four and nine blocks; two row blocks of an expert; a ring that goes round in
# one block; blocks without work; no work at all
OF_TILES = (
    ((4, 72, 320, 64), 4, ((1, 0), (0, 1), (1, 4), (1, 0))),
    ((2 * len(IDS), 136, 128, 64), 3, 2 * IDS),
    ((2, 64, 576, 64), 18, ((1, 3), (3, 1))),
    ((len(IDS), 72, 320, 64), 1, IDS),
    ((2, 64, 256, 64), 9, ((1, 3), (3, 1))),
    (ExpertsElsewhere, (2, 64, 128, 64), 2, ((3, 1), (3, 1))),
)


def of_activations(config_type):
    small = config_type(tile_m=16, tile_n=64, warpgroups=1, stages=2)
    name = kernel_of(small).name
    turns = replace(small, tile_n=128, warpgroups=2, ordered=True)
    # tails of m and n; a block that has several tiles, whose ring goes round; a single step
    groups = (
        ((20, 72, 384, 128), 3, ()),
        ((20, 200, 640, 128), 1, ()),
        ((5, 64, 256, 128), 4, ()),
    )
    columns = (((20, 72, 384, -1), 3, ()), ((20, 200, 640, -1), 1, ()), ((5, 64, 128, -1), 2, ()))
    return (
        Smalls(f"{name}, groups of 128", SmallActivations, small, groups),
        Smalls(
            f"{name}, a scale per column",
            SmallActivations,
            replace(small, group_blocks=-1),
            columns,
        ),
        Smalls(f"{name}, two warpgroups in turns", SmallActivations, turns, groups),
    )


def of_offsets():
    """Codes as bytes, with offsets of x: after each tile's stages one more, and of more than 64
    groups of 128 two."""
    small = WgmmaFp8Config(tile_m=16, tile_n=64, warpgroups=1, stages=2, offsets=True)
    turns = replace(small, tile_n=128, warpgroups=2, ordered=True)
    # as of_activations; an odd number of stages in each of several tiles; two stages of offsets
    groups = (
        ((20, 72, 384, 128), 3, ()),
        ((20, 200, 512, 128), 1, ()),
        ((5, 64, 256, 128), 4, ()),
        ((5, 64, 8320, 128), 1, ()),
    )
    columns = (
        ((20, 72, 384, -1), 3, ()),
        ((20, 200, 768, -1), 1, ()),
        ((5, 64, 128, -1), 2, ()),
        ((5, 64, 8320, -1), 1, ()),
    )
    return (
        Smalls("wgmma_fp8, codes with offsets", SmallActivations, turns, groups),
        Smalls(
            "wgmma_fp8, codes with offsets, a scale per column",
            SmallActivations,
            replace(small, group_blocks=-1),
            columns,
        ),
    )


def of_parts():
    """Tiles that blocks share along k: a team has several of them, or fewer than another; parts of
    unequal numbers of steps; rings that go round, in a tile and over several."""
    small = WgmmaInt8Config(tile_m=16, tile_n=64, warpgroups=1, stages=2)
    turns = WgmmaFp8Config(
        tile_m=16, tile_n=128, warpgroups=2, stages=2, ordered=True, offsets=True, parts=2
    )
    return (
        Smalls(
            "wgmma_int8, groups of 128, three parts",
            SmallActivations,
            replace(small, parts=3),
            (
                ((20, 72, 640, 128), 9, ()),
                ((20, 200, 512, 128), 3, ()),
                ((5, 64, 1280, 128), 3, ()),
                ((5, 64, 384, 128), 3, ()),
            ),
        ),
        Smalls(
            "wgmma_int8, a scale per column, two parts",
            SmallActivations,
            replace(small, group_blocks=-1, parts=2),
            (
                ((20, 72, 592, -1), 6, ()),
                ((20, 200, 384, -1), 2, ()),
                ((5, 64, 1152, -1), 2, ()),
                ((5, 64, 256, -1), 2, ()),
            ),
        ),
        # more sums than a thread has registers for at once
        Smalls(
            "wgmma_int8, a part after the other",
            SmallActivations,
            replace(small, tile_m=64, parts=8),
            (
                ((70, 72, 1408, 128), 16, ()),
                ((130, 72, 1152, 128), 8, ()),
                ((5, 64, 3200, 128), 8, ()),
                ((5, 64, 1024, 128), 8, ()),
            ),
        ),
        # offsets in the first part only; in both; in the second two stages of them
        Smalls(
            "wgmma_fp8, codes with offsets, two parts",
            SmallActivations,
            turns,
            (
                ((20, 136, 640, 128), 6, ()),
                ((20, 264, 384, 128), 2, ()),
                ((5, 128, 256, 128), 2, ()),
                ((5, 64, 16512, 128), 2, ()),
            ),
        ),
        Smalls(
            "wgmma_fp8, codes with offsets, a scale per column, two parts",
            SmallActivations,
            replace(turns, tile_n=64, warpgroups=1, ordered=False, group_blocks=-1),
            (
                ((20, 72, 592, -1), 6, ()),
                ((20, 200, 384, -1), 2, ()),
                ((5, 64, 256, -1), 2, ()),
                ((5, 64, 16400, -1), 2, ()),
            ),
        ),
    )


# as OF_EXPERTS; of gate and up two panels of 64 columns each, in two tiles of moe's
OF_GATES = (
    ((4, 256, 96, 32), 5, ((1, 0), (0, 1), (1, 4), (1, 0))),
    ((len(IDS), 256, 96, 32), 3, IDS),
    ((2, 128, 512, 32), 15, ((1, 3), (3, 1))),
    ((len(IDS), 128, 352, 32), 1, IDS),
    ((2, 128, 64, 32), 7, ((3, 1), (3, 1))),
)
# those of moe_wgmma: a tile has both, one panel of each
OF_GATE_TILES = (
    ((4, 256, 320, 64), 4, ((1, 0), (0, 1), (1, 4), (1, 0))),
    ((2 * len(IDS), 256, 128, 64), 3, 2 * IDS),
    ((2, 128, 576, 64), 18, ((1, 3), (3, 1))),
    ((len(IDS), 128, 320, 64), 1, IDS),
    ((2, 128, 256, 64), 9, ((1, 3), (3, 1))),
)

# whole tiles: two row blocks of an expert; rings that go round, in a tile and over several; blocks
# without work; no work at all
OF_BYTES = (
    ((4, 72, 384, 128), 3, ((1, 0), (0, 1), (1, 4), (1, 0))),
    ((2 * len(IDS), 136, 256, 128), 3, 2 * IDS),
    ((len(IDS), 72, 640, 128), 1, IDS),
    ((2, 64, 256, 128), 9, ((1, 3), (3, 1))),
    (ExpertsElsewhere, (2, 64, 128, 128), 2, ((3, 1), (3, 1))),
)
# of both experts more rows than the 64 of a tile
MORE_THAN_A_TILE = ((70, 72, 256, 128), 3, ((1, 0),) * 70)


def of_experts_bytes(config_type):
    """Cells of experts with activations in 8 bits. In turns: tiles of 64 rows, from which on words
    are loaded ahead."""
    name, small = f"moe_wgmma_{config_type.activations}", small_bytes(config_type)
    turns = {"tile_m": 64, "tile_n": 128, "warpgroups": 2, "ordered": True}
    return (
        Smalls(
            f"{name}, rows for a sum",
            SmallExperts,
            replace(small, combine=True, x_of_pairs=True),
            OF_BYTES,
        ),
        Smalls(
            f"{name}, two warpgroups in turns",
            SmallExperts,
            replace(small, **turns),
            (*OF_BYTES, MORE_THAN_A_TILE),
        ),
    )


def of_few_rows(config_type):
    """``decode_int8`` or ``decode_fp8``, on the problems of ``decode``."""
    return Smalls(
        f"decode_{config_type.activations}, groups of 64",
        SmallActivations,
        small_few_rows(config_type),
        (
            ((3, 384, 640, 64), 5, ()),
            ((9, 256, 512, 64), 3, ()),
            ((2, 128, 1024, 64), 8, ()),
            ((2, 128, 512, 64), 1, ()),
        ),
    )


SMALL_CELLS = (
    *of_activations(WgmmaInt8Config),
    *of_activations(WgmmaFp8Config),
    *of_offsets(),
    *of_parts(),
    Smalls("moe, rows for a sum", SmallExperts, DOWN, OF_EXPERTS),
    Smalls("moe, rows of pairs", SmallExperts, SMALL_EXPERTS, OF_EXPERTS),
    Smalls(
        "moe_wgmma, rows for a sum",
        SmallExperts,
        replace(SMALL_TILES, combine=True, x_of_pairs=True),
        OF_TILES,
    ),
    Smalls("moe_wgmma, rows of pairs", SmallExperts, SMALL_TILES, OF_TILES),
    Smalls(
        "moe, gate and up", ExpertsActivated, replace(SMALL_EXPERTS, activation="silu"), OF_GATES
    ),
    Smalls(
        "moe_wgmma, gate and up",
        ExpertsActivated,
        replace(SMALL_TILES, activation="silu", tile_n=128),
        OF_GATE_TILES,
    ),
    *map(of_few_rows, few_rows.CONFIGS.values()),
    *of_experts_bytes(MoeInt8Config),
    *of_experts_bytes(MoeFp8Config),
)
