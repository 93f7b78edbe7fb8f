"""Contract under test, without running anything: the Hopper kernel compiles as its tile asks, in
the configurations that are used most and with other types."""

from dataclasses import replace
from itertools import product

import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.kernels.wgmma import KERNEL
from numba_marlin.kernels.wgmma.config import SHARED_LIMIT, WgmmaConfig
from tests.kernels.harness import cases

SHARED_BY_NOBODY = [
    replace(config, split=False)
    for config in (
        WgmmaConfig(16, 128, 1, 12, k_groups=2),
        WgmmaConfig(64, 256, stages=8),
        WgmmaConfig(128, 128, 1, 6, k_groups=2),
        WgmmaConfig(256, 128, stages=4),
    )
]
PRODUCTION = (
    *SHARED_BY_NOBODY,
    WgmmaConfig(256, 128, stages=4),
    WgmmaConfig(128, 256, parts=4, split=False),
    WgmmaConfig(128, 128, stages=7, cluster=2, split=False),
)
TYPES = (
    ("float16", 8, None),
    ("float16", 4, "integer"),
    ("bfloat16", 8, "integer"),
    ("bfloat16", 4, "float16"),
)
LARGEST, SMALLEST = (
    WgmmaConfig(128, 256, split=False),
    WgmmaConfig(32, 256, k_groups=2, split=False),
)


def check_gates(config):
    compiled = compiler.build(KERNEL, config)
    assert not gates.broken_promises(compiled)
    assert gates.opcode_count(compiled, "wgmma.mma_async") == 4 * config.strips
    assert compiled.shared_bytes <= SHARED_LIMIT
    if gates.machine_count(compiled, "HGMMA") is not None:
        assert gates.machine_count(compiled, "HGMMA") == 4 * config.strips
        assert gates.machine_count(compiled, "WARPGROUP.DEPBAR") == 5, (
            "the assembler put waits of its own between the multiplies"
        )
        assert gates.machine_count(compiled, "USETMAXREG") == (
            0 if config.consumer_registers is None else 2
        )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config, group_blocks",
    cases(
        product(PRODUCTION, (-1, 8)),
        # the same as in test_hopper_gates, parts among them; a pair with per-column scales
        lambda config, group_blocks: (
            group_blocks == (-1 if config.cluster == 2 else 8)
            and config not in (SHARED_BY_NOBODY[2], SHARED_BY_NOBODY[3])
            and config.parts == 1
        ),
    ),
    ids=lambda c: (
        f"{c.tile_m}x{c.tile_n}g{c.warpgroups}k{c.k_groups}c{c.cluster}p{c.parts}s{c.split}"
        if isinstance(c, WgmmaConfig)
        else str(c)
    ),
)
def test_gates(config, group_blocks):
    """No spills, no local memory, no float64; one wgmma for each strip and k16 row of a stage; none
    made to wait for another by the assembler."""
    check_gates(replace(config, group_blocks=group_blocks))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config, dtype, bits, zeros",
    cases(
        ((config, *types) for config in (LARGEST, SMALLEST) for types in TYPES),
        lambda config, dtype, bits, zeros: config == LARGEST and (dtype, bits) == ("bfloat16", 4),
    ),
)
def test_gates_of_other_types(config, dtype, bits, zeros):
    check_gates(replace(config, dtype=dtype, bits=bits, zeros=zeros, stages=4))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config, group_blocks",
    cases(
        product((SMALLEST, WgmmaConfig(64, 256, stages=8)), (4, 8)),
        lambda config, group_blocks: group_blocks == 8 and config != SMALLEST,
    ),
)
def test_gates_of_scaled_sums(config, group_blocks):
    check_gates(replace(config, scaling="sums", group_blocks=group_blocks))
