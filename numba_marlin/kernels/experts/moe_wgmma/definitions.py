"""How ``moe_wgmma`` is launched: ``MOE_WGMMA``, a KernelDefinition, as ``moe``'s. m: tokens."""

from __future__ import annotations

from numba_marlin.kernels.experts.moe_wgmma.config import MoeWgmmaConfig
from numba_marlin.kernels.experts.moe_wgmma.kernel import make, tensor_maps
from numba_marlin.kernels.hopper.shared import ALIGNMENT
from numba_marlin.kernels.language.about import About, MachineCost, stages_in_a_row
from numba_marlin.kernels.language.definition import KernelDefinition

MOE_WGMMA = KernelDefinition(
    name="moe_wgmma",
    summary="experts of a mixture, many tokens: wgmma's main loop, ragged over experts",
    config_type=MoeWgmmaConfig,
    parameters=(
        ("a", "u64"),
        ("b_map", "tensormap"),
        ("s_map", "tensormap"),
        ("z_map", "tensormap"),
        ("c", "u64"),
        ("scales", "u64"),
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
    tensor_maps=tensor_maps,
    blocks_per_sm=lambda config: 1,
    dependent=lambda config: True,
    reads_early=(),
    method=lambda config: "weights" if config.scales_weights else "sums",
    waits=False,
    min_arch="sm_90a",
    about=About(
        machine_cost=MachineCost(weight=0.108, result=0.2, warp=8),
        shared_alignment=ALIGNMENT,
        stages=lambda config: stages_in_a_row(
            config.stages, config.stage_bytes, (0, config.stage_bytes)
        ),
        tile=lambda config: (config.tile_m, config.tile_n),
    ),
)
