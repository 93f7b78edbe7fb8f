"""The faithful kernel with its tiles brought by TMA: ``ampere`` as it is, but for the copies into
the stages and the waits for them.

One thread announces a tile's bytes to the mbarrier of its stage and starts three tensor copies: the
box of A, that of b and that of the scales. All threads wait at the mbarrier, then meet as they did
before, so that nobody still reads the stage that is refilled next. There is no warp that only
copies, and no barrier for empty stages: what differs is how bytes come, and nothing else.

TMA's swizzle wants shared memory to begin at a multiple of 1024 bytes, which lets the compiler
combine addresses, whoever copies. So the kernel with cp.async is there once more, aligned.

Tiles of 256 columns and 64 of k only. There a row of A in a stage has 128 bytes, and TMA's 128-byte
swizzle is Marlin's own XOR, so that what reads a stage stays as it is. (In tiles of 128 columns a
row has 256 bytes, and Marlin's XOR is no swizzle of TMA's. A bulk copy of a row cannot swizzle.)
"""

from dataclasses import dataclass, replace

from variants import Variant, with_loader

from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.ampere import kernel as ampere
from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.ampere.load import NEXT_A, NEXT_B
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES, TensorMap

BARRIER_BYTES = 8


@dataclass(frozen=True)
class AlignedAmpereConfig(AmpereConfig):
    """With what shared memory may take to begin at a multiple of the swizzle's pattern."""

    @property
    def shared_bytes(self):
        return super().shared_bytes + SWIZZLE_PATTERN_BYTES


@dataclass(frozen=True)
class TensorAmpereConfig(AmpereConfig):
    """``AmpereConfig`` of wide tiles with scales of groups. Behind all else in shared memory a
    stage has a barrier."""

    def __post_init__(self):
        super().__post_init__()
        if self.thread_n_blocks != 16 or not self.grouped:
            raise ValueError(f"{self}: must have tiles of 256 columns, and groups")

    @property
    def tile_bytes(self):
        """What is announced for a tile; what lies outside of a matrix comes as zeros and counts."""
        return self.a_stage_bytes + self.b_stage_bytes + self.s_stage_bytes

    @property
    def barriers_at(self):
        return super().shared_bytes

    @property
    def shared_bytes(self):
        """Aligned, too."""
        return super().shared_bytes + BARRIER_BYTES * self.stages + SWIZZLE_PATTERN_BYTES


def load_verbs(lang, config):
    """As ``ampere.load.load_verbs``. In ``pointers`` are the addresses of the tensor maps of A and
    of b; ``state.source.scales`` is that of the scales'."""
    cuda, ptx, int32, base_of = lang.cuda, lang.ptx, lang.int32, lang.shared_base
    cfg = lang.constants(config)

    @lang.device
    def slice_pointers(pointers, a, b, slice_, thread, sizes):
        """Barriers begin anew with every slice, so that a tile's lap, from 0 in each slice, is that
        of its barrier's phase."""
        pointers[NEXT_A], pointers[NEXT_B] = a, b
        # the epilogue of the slice before stored where copies will
        ptx.fence_proxy_async_shared()
        if thread.number == 0:
            for stage in range(cfg.stages):
                ptx.mbarrier_init(base_of() + cfg.barriers_at + 8 * stage, 1)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

    # for scales per column, which ``TensorAmpereConfig`` refuses
    @lang.device
    def fetch_scales(state, n_tile, stage, step, valid):
        pass

    @lang.device
    def fetch_to_shared(state, slice_, stage, step):
        """Of what lies past the slice's end one tile is read (and not multiplied): it comes as
        zeros, from outside of the matrices."""
        if state.thread.number == 0 and step <= slice_.end_step:
            base, tile = state.shared.base, slice_.output_tile
            if step == slice_.end_step:
                step = (state.sizes.k + (cfg.tile_k - 1)) // cfg.tile_k
            barrier = base + cfg.barriers_at + 8 * stage
            ptx.mbarrier_arrive_expect_tx(barrier, cfg.tile_bytes)
            ptx.cp_async_bulk_tensor_2d_g2s(
                base + cfg.a_stage_bytes * stage,
                state.source.pointers[NEXT_A],
                int32(step * cfg.tile_k),
                int32(tile.row_first),
                barrier,
            )
            ptx.cp_async_bulk_tensor_2d_g2s_hint(
                base + cfg.b_at + cfg.b_stage_bytes * stage,
                state.source.pointers[NEXT_B],
                int32(tile.n_tile * cfg.tile_n),
                int32(step * cfg.thread_k_blocks),
                barrier,
                state.source.policy,
            )
            ptx.cp_async_bulk_tensor_2d_g2s(
                base + cfg.scales_at + cfg.s_stage_bytes * stage,
                state.source.scales,
                int32(tile.n_tile * cfg.tile_n),
                int32(step * cfg.thread_k_blocks // cfg.group_blocks),
                barrier,
            )

    @lang.device
    def wait_for_stage(state, slice_, stage, step):
        lap = (step - slice_.first_step) // cfg.stages
        barrier = state.shared.base + cfg.barriers_at + 8 * stage
        while not ptx.mbarrier_try_wait_parity(barrier, lap % 2):
            pass
        cuda.syncthreads()

    @lang.device
    def wait_for_all(state):
        cuda.syncthreads()
        if state.thread.number == 0:
            for stage in range(cfg.stages):
                ptx.mbarrier_inval(state.shared.base + cfg.barriers_at + 8 * stage)

    return lang.namespace(
        "load",
        slice_pointers=slice_pointers,
        fetch_scales=fetch_scales,
        fetch_to_shared=fetch_to_shared,
        wait_for_stage=wait_for_stage,
        wait_for_all=wait_for_all,
    )


class Aligned:
    """A language whose shared memory begins where the pattern of TMA's swizzle does."""

    def __init__(self, lang):
        self._lang = lang
        shared_base, mask = lang.shared_base, 2**32 - SWIZZLE_PATTERN_BYTES

        @lang.device
        def aligned():
            return (shared_base() + (SWIZZLE_PATTERN_BYTES - 1)) & mask

        self.shared_base = aligned

    def __getattr__(self, name):
        return getattr(self._lang, name)


def make_aligned(lang, config):
    return ampere.make(Aligned(lang), config)


def make(lang, config):
    return with_loader(ampere, load_verbs)(Aligned(lang), config)


def tensor_maps(config, m, n, k, a_stride):
    """-> {parameter: (matrix, TensorMap)}. Elements of b's map are uint64, a column of a k16 row
    each: a box has 256 elements a side at most."""
    groups = k // (16 * config.group_blocks)
    return {
        "a": ("a", TensorMap("float16", (m, k), (2 * k, 2), (config.tile_m, config.tile_k), 128)),
        "b": (
            "b",
            TensorMap(
                "uint64", (k // 16, n), (8 * n, 8), (config.thread_k_blocks, config.tile_n), 0, 256
            ),
        ),
        "scales": (
            "scales",
            TensorMap(
                "float16", (groups, n), (2 * n, 2), (config.groups_per_tile, config.tile_n), 0, 128
            ),
        ),
    }


AMPERE_ALIGNED = replace(
    AMPERE,
    name="ampere_aligned",
    summary="the faithful kernel, its shared memory aligned as TMA wants it",
    config_type=AlignedAmpereConfig,
    make=make_aligned,
)
AMPERE_TENSOR = replace(
    AMPERE,
    name="ampere_tensor",
    summary="the faithful kernel, its tiles brought by TMA",
    config_type=TensorAmpereConfig,
    parameters=tuple(
        (name, "tensormap" if name in ("a", "b", "scales") else kind)
        for name, kind in AMPERE.parameters
    ),
    make=make,
    tensor_maps=tensor_maps,
    min_arch="sm_90",
)

FAITHFUL = {
    "ampere": Variant("ampere", "cp.async", AMPERE),
    "ampere_aligned": Variant("ampere", "cp.async, aligned", AMPERE_ALIGNED),
    "ampere_tensor": Variant("ampere", "TMA", AMPERE_TENSOR),
}
