"""The configurations of ``decode_int8`` and ``decode_fp8`` for a problem. A launch is taken to last
as long as ``decode``'s with the same weights, whose arrangements they have and whose bytes they
read, and MARGIN more. With the quantisation of x before it, which it loads weights under, a
product took 0 to 7 us more than decode's alone (four sizes, m = 1 to 16, an H200, 2026-11-29;
experiments/23_w4a8). That holds where the main loop has about as many instructions as decode's.
Counted in the SASS, a warp's part of a stage in groups of 128:

    batch, warps_n, warps_k, stage_k   decode   decode_int8   decode_fp8
    8, 1, 8, 512                       217      170           224
    16, 1, 8, 512                      251      233           266
    16, 4, 2, 256                      440      338           472
    32, 2, 4, 128                      218      291           232

With 32 rows ``decode_int8`` promotes twice as many sums, and it spills 8 bytes where warps_k = 1.
``decode_fp8`` has decode's loop, and a conversion more for each register of x: 2 for each k16 row
and 8 rows of x. With groups and warps_k = 1 it spills 4 to 32 bytes of 32 rows, and 12 of 16 rows
with zero points and groups of 64. None of these is proposed (``has_registers``), and nothing that
is spills, in any type. Problems have MOST_ROWS rows at most.

Nor are arrangements with two blocks on a multiprocessor proposed, which decode has for 28672 x
8192. Behind the quantisation they took 39 to 56 us there (groups of 128, m = 1 and 8: int8 42 and
45, fp8 53 and 56), where without the early start it had been 40 to 43 in all, and arrangements with
one block 39 to 41 (m = 16). A guess, not tried: while another kernel runs, shared memory is set
apart for one block."""

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
from numba_marlin.kernels.w4a8.few_rows.config import CONFIGS, DecodeBytesConfig, most_exact_k
from numba_marlin.problems import ActivationsProblem

MARGIN, MOST_ROWS = 1.03, 64


def configurations(problem: ActivationsProblem, device: Device) -> list[DecodeBytesConfig]:
    """Those of ``decode`` that were timed, where a step has about as many instructions."""
    arrangements = [
        each for each in decode.FITTED if each.resident == 1 and has_registers(each, problem)
    ]
    return _arranged(arrangements, problem) if problem.m <= MOST_ROWS else []


def invariant_configurations(
    problem: ActivationsProblem, device: Device
) -> list[DecodeBytesConfig]:
    """None: m may be anything there, and ``wgmma_int8`` and ``wgmma_fp8`` have one order for
    all."""
    return []


def has_registers(arrangement: decode.Arrangement, problem: ActivationsProblem) -> bool:
    """Whether nothing is known to spill; of int8, nor more sums than decode's to be promoted."""
    if problem.activations == "int8":
        return arrangement.batch <= 16
    promotes = group_blocks_of(problem) != -1
    many = arrangement.batch > (16 if problem.zeros is None else 8)
    return not (promotes and many and arrangement.warps_k == 1)


def is_deep(problem: ActivationsProblem) -> bool:
    """Whether sums of int8 are rounded before they are complete (``DecodeInt8Config.deep``)."""
    return (
        problem.activations == "int8"
        and group_blocks_of(problem) == -1
        and problem.k > most_exact_k(problem.zeros)
    )


def _arranged(arrangements, problem: ActivationsProblem) -> list[DecodeBytesConfig]:
    found, config_type = [], CONFIGS[problem.activations]
    depth = {"deep": True} if is_deep(problem) else {}
    for arrangement in arrangements:
        settings = asdict(arrangement)
        ragged = bool(
            problem.k % arrangement.stage_k or problem.n % (COLUMNS * arrangement.warps_n)
        )
        found.append(
            with_stages_that_fit(
                config_type,
                settings.pop("stages"),
                2,
                **settings,
                group_blocks=group_blocks_of(problem),
                ragged=ragged,
                **depth,
                **types_of(config_type, problem),
            )
        )
    return [config for config in found if config is not None]


def described(
    problem: ActivationsProblem, config: DecodeBytesConfig, device: Device
) -> Description:
    found = decode.described(problem, config, device)
    time = "the time is decode's and 3% more, the quantisation of x not counted"
    return Description(MARGIN * found.us, (*found.reasons, time), found.work)


check = decode.check
