"""Which configurations of the decode kernel suit a problem, and how long each is likely to take. Pure.

``choices(m, n, k, group_size, sms, ...)`` -> tuple of Choice(config, microseconds), the fastest first. The times are modelled: a fixed part, and the bytes
that the busiest multiprocessor reads, at a rate. Both were fitted, an arrangement at a time, to runs on an H200 (132 multiprocessors, launches back
to back, weights not in L2): m = 1 to 32, 4096 x 4096 to 33792 x 33792. Within 10% of those, except that 4096 x 4096 is up to 20% faster. The rates
for 32 rows are those of a form that spilled a few registers and, for the narrower tile, had stages of 256: as they stand they were not timed.

What was seen: a warp wants four k16 rows of a stage or more. A tile of 64 columns that is one block's alone costs no workspace (2.5 us), and wins
where such tiles come out even, but each reads all of x: 6% as many bytes as weights at m = 1, as many at m = 16. From 9 rows on wide tiles win
where there are enough of them. Three blocks an SM of four warps, or two of eight, were no faster than one of eight that waits less for registers.
"""
from dataclasses import dataclass

from numba_marlin.kernels.decode_config import DecodeConfig
from numba_marlin.kernels.definition import ceil_div

X_SHARE = 0.27  # what a byte of x costs, beside one of weights: it comes from L2


@dataclass(frozen=True)
class Arrangement:
    """The fields of a configuration that the problem does not fix; fixed_us: of a launch; bytes_per_ns: what a multiprocessor takes in."""
    batch: int
    warps_n: int
    warps_k: int
    stage_k: int
    stages: int
    resident: int
    whole: bool
    fixed_us: float
    bytes_per_ns: float


ARRANGEMENTS = (
    Arrangement(8, 1, 8, 512, 7, 1, True, 2.6, 30.9),
    Arrangement(8, 2, 8, 512, 4, 1, False, 5.0, 34.9),
    Arrangement(8, 4, 2, 128, 5, 2, False, 5.7, 36.7),
    Arrangement(16, 1, 8, 512, 5, 1, True, 2.9, 28.6),
    Arrangement(16, 4, 2, 256, 4, 1, False, 7.5, 35.0),
    Arrangement(16, 8, 1, 256, 3, 1, False, 9.5, 36.0),
    Arrangement(32, 2, 4, 128, 6, 1, False, 6.5, 22.0),
    Arrangement(32, 8, 1, 128, 4, 1, False, 9.5, 24.0),
)


@dataclass(frozen=True)
class Choice:
    """microseconds: modelled, see the module."""
    config: DecodeConfig
    microseconds: float


def choices(m, n, k, group_size, sms, dtype="float16", scale_dtype="float16", bias=False):
    """Choices for C[m, n] = A[m, k] @ W[k, n] on a device of ``sms`` multiprocessors with Hopper's shared memory, the fastest first."""
    found = []
    for arrangement in ARRANGEMENTS:
        config = deepest(arrangement, -1 if group_size == -1 else group_size // 16, bool(k % arrangement.stage_k or n % (64 * arrangement.warps_n)),
                         dtype, scale_dtype, bias)
        found.append(Choice(config, predicted_us(arrangement, config, m, n, k, sms)))
    return tuple(sorted(found, key=lambda choice: choice.microseconds))


def deepest(arrangement, group_blocks, ragged, dtype, scale_dtype, bias):
    """The configuration with as many stages as the arrangement has, or as there is room for where small groups bring more scales."""
    fixed = (arrangement.batch, arrangement.warps_n, arrangement.warps_k, arrangement.stage_k)
    for stages in range(arrangement.stages, 1, -1):
        try:
            return DecodeConfig(*fixed, stages, group_blocks, ragged, 1, arrangement.resident, arrangement.whole, dtype, scale_dtype, bias)
        except ValueError:
            if stages == 2:
                raise


def predicted_us(arrangement, config, m, n, k, sms):
    tiles, blocks = ceil_div(n, config.columns) * ceil_div(m, config.batch), config.grid(m, n, k, sms)[0]
    weight_bytes = k * config.columns / 2 + (k / (16 * config.group_blocks) if config.grouped else 1) * config.columns * 2
    tile_bytes = weight_bytes + X_SHARE * 2 * k * min(m, config.batch)
    busiest = ceil_div(tiles, blocks) * tile_bytes if config.whole else tiles * tile_bytes / blocks
    # blocks of the next launch run beside those of this one where they take no more than half of the device
    overlap = 0.5 if config.whole and 2 * blocks <= sms else 1.0
    return arrangement.fixed_us + overlap * busiest / (1000 * arrangement.bytes_per_ns)
