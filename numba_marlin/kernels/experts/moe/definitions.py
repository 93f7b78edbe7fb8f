"""How ``moe`` is launched: ``MOE``, a KernelDefinition, so that it is compiled, cached and launched
as all kernels are; but its problems are none of ``problems.KINDS`` yet, so the registry does not
have it. m: tokens."""

from __future__ import annotations

from numba_marlin.kernels.experts.moe.config import MoeConfig
from numba_marlin.kernels.experts.moe.kernel import make
from numba_marlin.kernels.language.about import About, MachineCost
from numba_marlin.kernels.language.definition import KernelDefinition

MOE = KernelDefinition(
    name="moe",
    summary="experts of a mixture: decode's main loop, ragged over experts in one launch",
    config_type=MoeConfig,
    parameters=(
        ("a", "u64"),
        ("b", "u64"),
        ("c", "u64"),
        ("scales", "u64"),
        ("zeros", "u64"),
        ("factors", "u64"),
        ("bias", "u64"),
        ("partials", "u64"),
        ("locks", "u64"),
        ("pairs", "u64"),
        ("offsets", "u64"),
        ("weights", "u64"),
        ("n", "i32"),
        ("k", "i32"),
        ("a_stride", "i32"),
    ),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    blocks_per_sm=lambda config: config.resident,
    dependent=lambda config: True,
    reads_early=(),
    method=lambda config: (
        "weights" if config.block_scaled else "offset" if config.zeros == "float16" else "sums"
    ),
    waits=False,
    min_arch="sm_90",
    about=About(
        machine_cost=MachineCost(weight=0.078, result=1.5, warp=3.5),
        tile=lambda config: (config.batch, config.columns),
    ),
)
