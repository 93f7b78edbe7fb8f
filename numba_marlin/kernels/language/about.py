"""What the views of a run, the profile and the command line want to know of a kernel.

A kernel declares it beside itself (``KernelDefinition.about``): which of its device functions
belong to which section of time, what its warps do, where its stages lie, what it is shown on.
Nothing of it changes the code that is generated. ``tests/kernels/test_registry.py`` holds every
name in it against the sources: a device function that was renamed there, and not here, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

# Sections of a profile's time (``profile.instrument.sections``) that device functions of this room
# and of ``dequantize``, which several kernels share, belong to.
SHARED_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "setup": ("initialise",),
    "multiply": (
        "load_float16",
        "load_bfloat16",
        "extract",
        "load_code",
        "load_scale",
        "load_zero",
    ),
    "write": ("store_float16", "store_bfloat16"),
}
# What is waited for at a barrier in a device function that several kernels share.
SHARED_WAITS: Mapping[str, tuple[str, ...]] = {"wait_room": ("wait_empty",)}
# Device functions in which a warp stands at a ring's barrier (``pipeline``).
RING_WAITS = ("wait_full", "wait_empty")

Stages = list[list[tuple[int, int]]]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A ring through which roles of a block hand things to each other (``pipeline``: a full and an
    empty barrier per stage)."""

    #: What is handed on.
    name: str
    #: The configuration's field with the place of the first barrier, in bytes.
    barriers: str
    #: Its field with the number of stages, 0 where a configuration has no such ring; None for one.
    stages: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Demo:
    """The problems that a kernel is shown on where nothing else is asked for."""

    #: m, n and k of the run that ``trace`` records: small, with work for every warp.
    trace: tuple[int, int, int] = (16, 256, 1024)
    #: Fields of its configuration that are not the chooser's.
    trace_changes: Mapping[str, Any] = field(default_factory=dict)
    #: Why these, a sentence.
    trace_why: str = ""
    #: SMs that the PTX machine plays then, None for as many as it has.
    trace_sms: int | None = None
    #: m, n and k of the problem that ``profile`` counts or measures.
    profile: tuple[int, int, int] = (16, 4096, 4096)
    #: Whether ``trace`` shows this kernel where none is asked for.
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A small problem on which everything that a kernel does for order's sake matters: its rings go
    round, blocks share tiles, a block has more than one. On these the PTX machine looks for races
    in every order in which warps, blocks and copies may make progress (``Schedule``)."""

    #: Which of the kernel's trials, "" for the first.
    what: str = ""
    #: The configuration.
    config: Any
    #: m, n and k.
    sizes: tuple[int, int, int]
    #: Of the weights; None for a kernel of two operands.
    group_size: int | None = None
    #: The experts of each token, for a kernel of a mixture's experts.
    ids: tuple[tuple[int, ...], ...] = ()
    #: SMs that the grid is made for.
    sms: int = 1
    #: Numbers of resident blocks, below all there are, with which the kernel must work too.
    places: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MachineCost:
    """What a launch costs on the PTX machine, seen in runs (``execution.expected`` has how near).
    The tiles are ``About.tile``'s, 1 x 1 without; those at the edges count as whole ones."""

    #: Warp instructions per weight and tile of rows: to unpack it.
    weight: float = 0
    #: Per multiplication, also with rows of a tile that m has not.
    product: float = 0
    #: Per result, of these rows too.
    result: float = 0
    #: Microseconds of two cores per warp instruction ...
    warp: float
    #: ... and per instruction, however many warps execute it together.
    step: float = 0

    def instructions(self, m: int, n: int, k: int, tile: tuple[int, int] | None) -> float:
        """Warp instructions of a product."""
        rows, columns = tile or (1, 1)
        down, across = -(-m // rows), -(-n // columns) * columns
        per_column = down * (k * (self.weight + rows * self.product) + rows * self.result)
        return across * per_column

    def seconds(self, instructions: float, warps: int) -> float:
        """Of so many warp instructions, by so many warps that are resident."""
        return 1e-6 * instructions * (self.warp + self.step / warps)


@dataclass(frozen=True, kw_only=True, eq=False)
class About:
    """See the module's docstring; the defaults are those of a kernel that has nothing to say."""

    #: Section of time -> device functions whose instructions belong to it. A function that is named
    #: nowhere belongs to the one that called it.
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Section of waiting -> device functions in which a barrier is waited at for it, instead of for
    #: copies or for the other warps.
    waits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Role -> device functions that only its warps call, where warps have roles.
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    #: What the start of dynamic shared memory is rounded up to.
    shared_alignment: int = 1
    #: (config) -> [stage][part] of (start, stop): bytes behind that start, of the stages that
    #: copies fill; [] for a kernel without.
    stages: Callable[[Any], Stages] = lambda config: []
    #: In the order in which they are shown.
    rings: tuple[Ring, ...] = ()

    #: (config) -> rows and columns of the result that a block makes at a time, None if that is
    #: nothing to look at.
    tile: Callable[[Any], tuple[int, int] | None] = lambda config: None
    #: (config) -> (warps of a block, blocks of a cluster) that share the k of such a tile.
    k_shares: Callable[[Any], tuple[int, int]] = lambda config: (1, 1)
    #: How tiles are divided among blocks, beside the picture of it; a sentence.
    division: str = ""

    #: What it is shown on.
    demo: Demo = Demo()
    #: What its order is tried on.
    trials: tuple[Trial, ...] = ()
    #: (config, m) -> rows that tiles are made of; more than m where a row of x is multiplied more
    #: than once.
    rows: Callable[[Any, int], int] = lambda config, m: m
    #: What it costs on the PTX machine; default: as kernels with mma that are not tuned.
    machine_cost: MachineCost = MachineCost(product=0.012, warp=3)
    #: Whether its products are of 16-bit floats, so that cuBLAS's fp16 rate is a ceiling for it.
    half_products: bool = True
    #: What is known of its time where neither this run nor a recorded one measured it; a phrase.
    unmeasured: str = ""

    def instructions(self, config: Any, m: int, n: int, k: int) -> float:
        """Warp instructions of a product on the PTX machine, by ``machine_cost``."""
        return self.machine_cost.instructions(self.rows(config, m), n, k, self.tile(config))

    def of_run(self, config: Any, shared_base: int) -> dict[str, Any]:
        """What a recorded run keeps of it (``trace``), JSON: ``stages`` [stage][part] of [start,
        stop) and ``rings`` [name, first barrier, stages], in shared addresses of a block whose
        dynamic shared memory begins at ``shared_base``; ``roles``, ``sections`` (with the
        shared ones), ``ring_waits``, ``tile``, ``k_shares`` and ``division``."""
        base = -(-shared_base // self.shared_alignment) * self.shared_alignment
        tile = self.tile(config)
        return {
            "stages": [
                [[base + start, base + stop] for start, stop in stage]
                for stage in self.stages(config)
            ],
            "rings": [
                [
                    ring.name,
                    base + getattr(config, ring.barriers),
                    1 if ring.stages is None else getattr(config, ring.stages),
                ]
                for ring in self.rings
                if ring.stages is None or getattr(config, ring.stages) > 0
            ],
            "roles": {role: list(verbs) for role, verbs in self.roles.items()},
            "sections": {
                name: [*self.sections.get(name, ()), *SHARED_SECTIONS.get(name, ())]
                for name in dict.fromkeys((*self.sections, *SHARED_SECTIONS))
            },
            "ring_waits": list(RING_WAITS),
            "tile": None if tile is None else list(tile),
            "k_shares": list(self.k_shares(config)),
            "division": self.division,
        }


def stages_in_a_row(stages: int, pitch: int, edges: tuple[int, ...]) -> Stages:
    """Of stages ``pitch`` bytes apart, whose parts lie between neighbours of ``edges``."""
    return [
        [(stage * pitch + start, stage * pitch + stop) for start, stop in pairwise(edges)]
        for stage in range(stages)
    ]
