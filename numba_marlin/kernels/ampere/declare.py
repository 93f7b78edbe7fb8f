"""What others want to know of the kernel ``ampere``, beside it."""

from numba_marlin.kernels.ampere import choose
from numba_marlin.kernels.ampere.config import THREADS, AmpereConfig
from numba_marlin.kernels.ampere.kernel import make
from numba_marlin.kernels.language.about import About, Demo, MachineCost, Stages, Trial
from numba_marlin.kernels.language.definition import KernelDefinition

STRIPES = (
    "Marlin cuts all tiles, one tile column after the other, into equal stripes, so blocks need not"
    " hold a rectangle."
)


def stages(config: AmpereConfig) -> Stages:
    """A, then B, then scales: of each all stages in a row, scales at the end of shared memory."""
    pitches = (config.a_stage_bytes, config.b_stage_bytes, config.s_stage_bytes)
    return [
        [
            (first + stage * pitch, first + (stage + 1) * pitch)
            for first, pitch in zip((0, config.b_at, config.scales_at), pitches)
        ]
        for stage in range(config.stages)
    ]


# of 16 rows, 128 columns and 128 of k
DEEP_TILES = AmpereConfig(1, 8, 8, group_blocks=8, stages=4)

KERNEL = KernelDefinition(
    name="ampere",
    summary="the faithful Marlin kernel: stripes, a cp.async pipeline, mma.sync, two reductions",
    rung=40,  # orders the ladder; the README counts it as the fourth
    config_type=AmpereConfig,
    parameters=(
        ("a", "u64"),
        ("b", "u64"),
        ("c", "u64"),
        ("scales", "u64"),
        ("partials", "u64"),
        ("locks", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    min_arch="sm_80",
    order_of_sums=lambda config: config.order_of_sums,
    chooser=choose,
    about=About(
        machine_cost=MachineCost(weight=0.1, product=0.0004, result=0.52, warp=1.45),
        sections={
            "setup": ("own_slice", "slice_pointers"),
            "copy": ("fetch_to_shared",),
            "multiply": ("fetch_to_registers", "matmul"),
            "reduce_block": ("thread_block_reduce",),
            "reduce_grid": ("global_reduce", "barrier_release"),
            "write": ("write_result", "scale_columns"),
        },
        waits={"wait_block": ("barrier_acquire",)},
        stages=stages,
        tile=lambda config: (config.tile_m, config.tile_n),
        division=STRIPES,
        demo=Demo(first=True),
        trials=(
            Trial(config=DEEP_TILES, sizes=(4, 256, 768), group_size=128, sms=3),
            Trial(
                what="whole slices",  # each a whole tile column
                config=DEEP_TILES,
                sizes=(4, 512, 256),
                group_size=128,
                sms=2,
                places=(1,),
            ),
        ),
    ),
)
