"""The configurations of ``decode_int8`` for a problem. A launch is taken to last as long as
``decode``'s with the same weights, whose arrangements it has and whose bytes it reads, and MARGIN
more: on an H200 it took 0.93 to 1.18 of that (four sizes, m = 16; experiments/23_w4a8). That holds
where its main loop has no more instructions than decode's. Counted in the SASS, a warp's part of a
stage in groups of 128:

    batch, warps_n, warps_k, stage_k   decode   decode_int8
    8, 1, 8, 512                       217      170
    16, 1, 8, 512                      251      233
    16, 4, 2, 256                      440      338
    32, 2, 4, 128                      218      291   promotion of twice as many sums: not proposed

With 32 rows and warps_k = 1 it spills 8 bytes. So tiles have MOST_BATCH rows at most, and problems
MOST_ROWS."""

from __future__ import annotations

from dataclasses import asdict

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.decode import choose as decode
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.language.choice import (
    Description,
    group_blocks_of,
    types_of,
    with_stages_that_fit,
)
from numba_marlin.kernels.w4a8.decode_int8.config import DecodeInt8Config
from numba_marlin.problems import ActivationsProblem

MARGIN, MOST_ROWS, MOST_BATCH = 1.1, 64, 16


def configurations(problem: ActivationsProblem, device: Device) -> list[DecodeInt8Config]:
    """Those of ``decode`` that were timed, where a step has no more instructions."""
    arrangements = [each for each in decode.FITTED if each.batch <= MOST_BATCH]
    return _arranged(arrangements, problem) if problem.m <= MOST_ROWS else []


def invariant_configurations(problem: ActivationsProblem, device: Device) -> list[DecodeInt8Config]:
    """None: m may be anything there, and ``wgmma_int8`` has one order for all."""
    return []


def _arranged(arrangements, problem: ActivationsProblem) -> list[DecodeInt8Config]:
    found = []
    for arrangement in arrangements:
        settings = asdict(arrangement)
        ragged = bool(
            problem.k % arrangement.stage_k or problem.n % (COLUMNS * arrangement.warps_n)
        )
        found.append(
            with_stages_that_fit(
                DecodeInt8Config,
                settings.pop("stages"),
                2,
                **settings,
                group_blocks=group_blocks_of(problem),
                ragged=ragged,
                **types_of(DecodeInt8Config, problem),
            )
        )
    return [config for config in found if config is not None]


def described(problem: ActivationsProblem, config: DecodeInt8Config, device: Device) -> Description:
    found = decode.described(problem, config, device)
    reasons = (*found.reasons, "the time is decode's and a tenth more: it was within 18% of that")
    return Description(MARGIN * found.us, reasons, found.work)


check = decode.check
