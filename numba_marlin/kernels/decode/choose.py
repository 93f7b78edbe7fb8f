"""The decode kernel's configurations for a problem, and how long each is likely to take.

The times are modelled: a fixed part, and the bytes that the busiest SM reads, at a rate. Both were
fitted, an arrangement at a time, to runs on an H200 (132 SMs, launches back to back, weights not in
L2): m = 1 to 32, 32 real layers and larger ones (experiments/25_every_cell, ``refit``, 2026-11-29).
The rates for 32 rows, which were not fitted anew, are those of a form that spilled a few registers
and, for the narrower tile, had stages of 256. 8 bits and zero points were not timed: there it is
the bytes that say how long it takes. Another device's memory scales the rate.
Block-scaled FP4 takes its own bytes at INT4's rates: 5% off on average, 13% at most
(experiments/06_nvfp4).

What was seen: a warp wants four k16 rows of a stage or more. A tile of 64 columns that is one
block's alone costs no workspace (2.5 us), and wins where such tiles come out even, but each reads
all of x: 6% as many bytes as weights at m = 1, as many at m = 16. From 9 rows on wide tiles win
where there are enough of them. Three blocks an SM of four warps, or two of eight, were no faster
than one of eight that waits less for registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.decode.config import COLUMNS, DecodeConfig
from numba_marlin.kernels.language.choice import (
    FITTED_BANDWIDTH_PER_SM,
    Description,
    check_groups,
    check_types,
    group_blocks_of,
    types_of,
    with_stages_that_fit,
)
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.problems import WeightProblem


@dataclass(frozen=True)
class Arrangement:
    """The fields of a configuration that the problem does not fix."""

    batch: int
    warps_n: int
    warps_k: int
    stage_k: int
    stages: int
    resident: int
    whole: bool

    def like(self, config: DecodeConfig) -> bool:
        """Whether ``config`` is arranged so, be it with fewer stages."""
        return all(
            getattr(config, name) == value
            for name, value in asdict(self.of_types(config.bits, config.zeros)).items()
            if name != "stages"
        )

    def has_registers(self, problem: WeightProblem) -> bool:
        """Whether it is known not to spill registers, batches being those of ``of_types``. With
        warps_k > 1 nothing does, nor do 4-bit codes without zero points. Others with warps_k = 1,
        where a warp has all k16 rows of a stage, spill with 32 rows (8 to 176 bytes), and with 16
        if zero points are float16 (40). (No arrangement has 8 rows and warps_k = 1.)"""
        plain = (problem.bits, problem.zeros) == (4, None)
        return self.warps_k > 1 or plain or (self.batch == 16 and problem.zeros != "float16")

    def of_types(self, bits: int, zeros: str | None) -> Arrangement:
        """What was timed with 4 bits, with as many bytes of weights in a stage, where that leaves
        every warp two k16 rows of it; and 24 rows where 32 would spill (4 to 40 bytes)."""
        stage_k = self.stage_k * 4 // bits
        return replace(
            self,
            stage_k=stage_k if stage_k >= max(64, 32 * self.warps_k) else self.stage_k,
            batch=24 if self.batch == 32 and (bits == 8 or zeros == "float16") else self.batch,
        )


FITTED = {  # us of a launch, bytes that an SM takes in a ns
    Arrangement(8, 1, 8, 512, 7, 1, True): (2.39, 30.1),
    Arrangement(8, 2, 8, 512, 4, 1, False): (3.66, 31.2),
    Arrangement(8, 4, 2, 128, 5, 2, False): (4.47, 34.3),
    Arrangement(16, 1, 8, 512, 5, 1, True): (2.66, 28.3),
    Arrangement(16, 4, 2, 256, 4, 1, False): (7.52, 37.1),
    Arrangement(16, 8, 1, 256, 3, 1, False): (8.93, 34.2),
    Arrangement(32, 2, 4, 128, 6, 1, False): (6.86, 22),
    Arrangement(32, 8, 1, 128, 4, 1, False): (9.5, 24),
}
# Two blocks an SM have to be asked for, by a configuration's fields. In a model, where other
# kernels stand between two products, blocks of the next product pile up beside those of the one
# before on some SMs and leave others empty: on an H200 decode steps of 8B at m=4 took longer with
# that arrangement than without, and products in a row did not. No rows of that were recorded, so no
# figures stand here. (The times modelled here say up to 6.5% longer without.) Both are timed by
# ``experiments/21_model/run.py --parts warmup,decode,between --batches 4 --glue fused``, once as
# it is and once with FITTED in the place of ALONE in ``configurations``.
ALONE = tuple(each for each in FITTED if each.resident == 1)
# by batch, for arrangements that nobody measured
OTHERWISE = {
    8: (5.5, 34.0),
    16: (7.5, 33.0),
    24: (8.0, 28.0),
    32: (8.0, 23.0),
}


@dataclass(frozen=True, eq=False)
class Costs:
    """What the prediction is made of. ``experiments/25_every_cell`` fits it to rows."""

    #: what a byte of x costs, beside one of weights: it comes from L2
    x_share: float = 0.251
    #: of a ring, where the next launch has SMs of its own
    read_ahead: float = 0.598
    #: {Arrangement: (us of a launch, bytes that an SM takes in a ns)}
    fitted: Mapping[Arrangement, tuple[float, ...]] = field(default_factory=lambda: FITTED)

    def fit_of(self, config: DecodeConfig) -> tuple[float, float]:
        found = (fit for each, fit in self.fitted.items() if each.like(config))
        us, rate = next(found, OTHERWISE[config.batch])
        return us, rate


COSTS = Costs()

# For the batch-invariant mode one of more rows, which nobody timed. (Of 32 rows it spills 20
# bytes.)
WHOLE = tuple(each for each in FITTED if each.whole) + (Arrangement(24, 1, 8, 512, 4, 1, True),)


def configurations(problem: WeightProblem, device: Device) -> list[DecodeConfig]:
    """Every arrangement that was measured, but for those of two blocks an SM (``ALONE``)."""
    return _arranged(ALONE, problem)


def invariant_configurations(problem: WeightProblem, device: Device) -> list[DecodeConfig]:
    """Whole tiles, of which every batch size adds up its sums alike."""
    return _arranged(WHOLE, problem)


def _arranged(arrangements, problem: WeightProblem) -> list[DecodeConfig]:
    """With fewer stages where small groups' scales and zero points take their place."""
    found = []
    for arrangement in (
        each.of_types(problem.bits, problem.zeros)
        for each in arrangements
        if each.has_registers(problem)
    ):
        settings = asdict(arrangement)
        ragged = bool(
            problem.k % arrangement.stage_k or problem.n % (COLUMNS * arrangement.warps_n)
        )
        found.append(
            with_stages_that_fit(
                DecodeConfig,
                settings.pop("stages"),
                2,
                **settings,
                group_blocks=group_blocks_of(problem),
                ragged=ragged,
                **types_of(DecodeConfig, problem),
            )
        )
    return [config for config in found if config is not None]


def described(
    problem: WeightProblem, config: DecodeConfig, device: Device, costs: Costs = COSTS
) -> Description:
    return Description(
        predicted_us(problem, config, device, costs),
        reasons(problem, config, device.sms, costs),
        work(problem, config, device.sms),
    )


def check(config: DecodeConfig, problem: WeightProblem) -> None:
    """ValueError unless ``config`` was made for the problem's types, groups and tails."""
    check_types(config, problem)
    check_groups(config, problem)
    if not config.ragged and (problem.n % config.columns or problem.k % config.stage_k):
        raise ValueError(
            f"config.ragged=False needs n={problem.n} to be a multiple of {config.columns} and"
            f" k={problem.k} of {config.stage_k}"
        )


def work(problem: WeightProblem, config: DecodeConfig, sms: int) -> dict:
    """Figures, under the names that all kernels have for them. Here, where a tile has all of k,
    "tiles" counts steps along k and tiles along n and m, and "tiles_per_block" steps."""
    blocks = config.grid(problem.m, problem.n, problem.k, sms)[0]
    tiles = {
        "k": ceil_div(problem.k, config.stage_k),
        "n": ceil_div(problem.n, config.columns),
        "m": ceil_div(problem.m, config.batch),
    }
    k_steps, tile_count = tiles["k"], tiles["n"] * tiles["m"]
    per_block = (
        ceil_div(tile_count, blocks) * k_steps
        if config.whole
        else ceil_div(tile_count * k_steps, blocks)
    )
    return {
        "tiles": tiles,
        "tiles_per_block": per_block,
        "busy": round(tile_count * k_steps / (per_block * max(blocks, sms)), 3),
    }


def predicted_us(
    problem: WeightProblem, config: DecodeConfig, device: Device, costs: Costs = COSTS
) -> float:
    m, n, k = problem.m, problem.n, problem.k
    fixed_us, rate = costs.fit_of(config)
    if device.bandwidth_bytes:
        rate *= device.bandwidth_bytes / device.sms / FITTED_BANDWIDTH_PER_SM
    tiles, blocks = (
        ceil_div(n, config.columns) * ceil_div(m, config.batch),
        config.grid(m, n, k, device.sms)[0],
    )
    scale_rows = k / (16 * config.k16_rows_per_scale_row) if config.grouped else 1
    # those of columns come with every stage
    zero_rows = scale_rows if config.grouped else ceil_div(k, config.stage_k)
    group_bytes = (
        config.scale_bytes / COLUMNS * scale_rows + config.zero_bytes / COLUMNS * zero_rows
    )
    x_bytes = config.x_element_bytes * k * min(m, config.batch)
    tile_bytes = config.columns * (k * config.bits / 8 + group_bytes) + costs.x_share * x_bytes
    steps = 1 if config.whole else ceil_div(k, config.stage_k)  # of a tile; stripes have whole ones
    busiest = ceil_div(tiles * steps, blocks) * tile_bytes / steps
    if config.whole and blocks < device.sms:
        # blocks of the next launch, or some of them, run beside those of this one: what they read
        # before they must wait is no more than their ring
        beside = min(1, device.sms / blocks - 1)
        ring = config.stages * config.columns * config.stage_k * config.bits / 8
        busiest -= beside * min(costs.read_ahead * ring, busiest / 2)
    return fixed_us + busiest / (1000 * rate)


def was_timed(config: DecodeConfig, costs: Costs = COSTS) -> bool:
    plain = (config.bits, config.zeros) == (4, None)
    return plain and any(each.like(config) for each in costs.fitted)


def reasons(
    problem: WeightProblem, config: DecodeConfig, sms: int, costs: Costs = COSTS
) -> tuple[str, ...]:
    m, tiles = problem.m, ceil_div(problem.n, config.columns) * ceil_div(problem.m, config.batch)
    found = [
        f"rows come in eights: m={m} pays for {min(config.batch, 8 * ceil_div(m, 8))}, tiles of 16"
        f" for {16 * ceil_div(m, 16)}"
    ]
    if m > config.batch:
        found.append(
            f"m={m} takes {ceil_div(m, config.batch)} passes of {config.batch} rows: weights are"
            " read that often"
        )
    if config.whole:
        found.append(
            f"{tiles} tiles of {config.columns} columns, each one block's alone: no sums to"
            " exchange, but every block reads all of x"
        )
    else:
        found.append(
            f"all blocks take equal parts of {tiles} tiles of {config.columns} columns, cut along"
            " k; who comes last adds up, nobody waits"
        )
    tails = [
        f"{name}={size} % {tile}"
        for name, size, tile in (("n", problem.n, config.columns), ("k", problem.k, config.stage_k))
        if size % tile
    ]
    if tails:
        found.append(f"a tail is left by {' and '.join(tails)}: the kernel with bounds checks")
    if not was_timed(config, costs):
        found.append("nobody timed this arrangement with these types: its time is a guess")
    return tuple(found)
