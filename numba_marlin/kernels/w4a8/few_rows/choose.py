"""The configurations of ``decode_int8`` and ``decode_fp8`` for a problem, and how long each is
likely to take behind the quantisation of x, under which it loads weights. Modelled as ``decode``
is, with constants of their own: fitted to what launches of both took less those of the
quantisation alone (m = 1 to 32, six sizes, an H200, 2026-11-29; ``arrangements.py`` in
experiments/23_w4a8): 3 to 4% off on average. Those of 32 rows were not fitted; they are decode's
and 3% more.

Arrangements are decode's, and one of 8 rows and 256 columns: a main loop of e4m3 has about as many
instructions as decode's, and one of int8 fewer, so that rows that are not there cost more beside
it. (Not 128 columns of 16 rows with eight warps along k: they spill up to 8 bytes, and since
``wgmma_int8`` and ``wgmma_fp8`` take parts they are the fastest in no cell that was timed.) Counted
in the SASS, a warp's part of a stage in groups of 128:

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

Dead end: two blocks on a multiprocessor, which decode has for 28672 x 8192. Behind the quantisation
they took 42 to 56 us there, m = 1 and 8, where arrangements with one block took 36 to 38: while a
block of the quantisation is on a multiprocessor, little of its memory is set apart as shared, and
only one of these finds room. With all of it asked for (the function attribute
PREFERRED_SHARED_MEMORY_CARVEOUT = 100, of both kernels) they took 36 to 39 us: as long, so that
nobody asks."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.decode import choose as decode
from numba_marlin.kernels.decode.choose import Arrangement
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.language.choice import (
    Description,
    group_blocks_of,
    types_of,
    with_stages_that_fit,
)
from numba_marlin.kernels.w4a8.few_rows.config import CONFIGS, DecodeBytesConfig, most_exact_k
from numba_marlin.problems import ActivationsProblem

MOST_ROWS = 64
# us of a launch; bytes that an SM takes in a ns, with groups and with one scale per column
FITTED = {
    "int8": {
        Arrangement(8, 1, 8, 512, 7, 1, True): (2.23, 28.8, 31.7),
        Arrangement(8, 2, 8, 512, 4, 1, False): (4.73, 34.6, 34.9),
        Arrangement(8, 4, 2, 256, 4, 1, False): (4.98, 34.5, 33.8),
        Arrangement(16, 1, 8, 512, 5, 1, True): (2.42, 28.1, 32.2),
        Arrangement(16, 4, 2, 256, 4, 1, False): (6.31, 35.1, 34.0),
        Arrangement(16, 8, 1, 256, 3, 1, False): (11.4, 36.9, 36.1),
    },
    "fp8": {
        Arrangement(8, 1, 8, 512, 7, 1, True): (2.88, 28.2, 30.5),
        Arrangement(8, 2, 8, 512, 4, 1, False): (5.2, 33.8, 34.5),
        Arrangement(8, 4, 2, 256, 4, 1, False): (5.61, 33.0, 32.7),
        Arrangement(16, 1, 8, 512, 5, 1, True): (3.14, 28.3, 29.9),
        Arrangement(16, 4, 2, 256, 4, 1, False): (7.29, 33.2, 32.7),
        Arrangement(16, 8, 1, 256, 3, 1, False): (13.27, 36.7, 35.5),
        Arrangement(32, 2, 4, 128, 6, 1, False): (7.07, 21.4, 21.4),
        Arrangement(32, 8, 1, 128, 4, 1, False): (9.8, 23.3, 23.3),
    },
}
X_SHARE, READ_AHEAD = {"int8": 0.622, "fp8": 0.591}, {"int8": 0.201, "fp8": 0.243}


@dataclass(frozen=True, eq=False)
class Costs(decode.Costs):
    """What the prediction is made of, ``fitted`` as above."""

    def fit_of(self, config: DecodeBytesConfig) -> tuple[float, float]:
        found = next((fit for each, fit in self.fitted.items() if each.like(config)), None)
        if found is None:
            return super().fit_of(config)
        us, grouped, columns = found
        return us, grouped if config.grouped else columns


COSTS = {kind: Costs(X_SHARE[kind], READ_AHEAD[kind], fitted) for kind, fitted in FITTED.items()}


def configurations(problem: ActivationsProblem, device: Device) -> list[DecodeBytesConfig]:
    """Those of ``FITTED``, where a step has about as many instructions as decode's."""
    arrangements = [each for each in FITTED[problem.activations] if has_registers(each, problem)]
    return _arranged(arrangements, problem) if problem.m <= MOST_ROWS else []


def invariant_configurations(
    problem: ActivationsProblem, device: Device
) -> list[DecodeBytesConfig]:
    """None: m may be anything there, and ``wgmma_int8`` and ``wgmma_fp8`` have one order for
    all."""
    return []


def has_registers(arrangement: Arrangement, problem: ActivationsProblem) -> bool:
    """Whether nothing is known to spill."""
    promotes = group_blocks_of(problem) != -1
    many = arrangement.batch > (16 if problem.zeros is None else 8)
    return not (problem.activations == "fp8" and promotes and many and arrangement.warps_k == 1)


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
    found = decode.described(problem, config, device, COSTS[problem.activations])
    time = "the time is that behind the quantisation of x, which is not counted"
    return Description(found.us, (*found.reasons, time), found.work)


check = decode.check
