"""The producer warp of ``moe``: as that of ``decode``, but the routing says which weights it takes,
and rows of x are gathered, each where its token lies.

Nothing is copied before ``griddepcontrol.wait``: the routing may come from the launch before. Where
a tile's rows of x begin is looked up once, and kept in registers: a load of ``pairs`` before each
copy would be a round trip to L1 that the lane waits for, as many as 32 for each stage.
"""

from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.decode.load import copy_verbs
from numba_marlin.kernels.experts.tables import WORD_BYTES


def load_verbs(lang, config, ring, schedule):
    """-> ``produce``, a device function for one lane."""
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64 = lang.uint32, lang.uint64
    cfg = lang.constants(config)
    copies = copy_verbs(lang, config, ring, schedule)
    pairs_per_row = 1 if config.x_of_pairs else config.top_k

    @lang.device
    def find_rows(places, pairs, tile, sizes):
        """Where the tile's rows of x begin, to places, in units of 8 elements: 32 bits suffice for
        64 GiB of x, and 64 would be too many registers for 32 rows."""
        for row in range(cfg.batch):
            places[row] = 0
            if row < tile.x_rows:
                pair = ptx.ld_global_b32(pairs + uint64(tile.row_first + row) * WORD_BYTES)
                places[row] = pair // pairs_per_row * (sizes.a_stride // 8)

    @lang.device
    def gather_x(a, places, tile, k_step, shared, place, sizes):
        """x of one stage, a copy per row; its bytes are announced already."""
        row_bytes = schedule.k16_rows_of(k_step, sizes) * 32
        column = a + uint64(k_step) * (2 * cfg.stage_k)
        target = shared.base + place.stage * cfg.stage_bytes + cfg.x_at
        barrier = ring.full(shared.barriers, place)
        for row in range(cfg.batch):
            if row < tile.x_rows:
                source = column + uint64(places[row]) * 16
                ptx.cp_async_bulk_g2s(target + row * cfg.x_pitch, source, row_bytes, barrier)

    @lang.device
    def of_expert(source, expert, sizes):
        """Where an expert's weights, scales and zero points are: each at so many times the bytes of
        one expert's. (Those of 64 columns: the formats count so.)"""
        k16_rows = sizes.k // 16
        rows = uint64(expert) * (sizes.n_packed // COLUMNS)
        groups = k16_rows // cfg.k16_rows_per_scale_row if cfg.grouped else 1
        scale_rows = (sizes.k + 31) // 32 if cfg.block_scaled else groups
        return copies.Source(
            source.a,
            source.b + rows * k16_rows * cfg.warp_row_bytes,
            source.scales + rows * scale_rows * cfg.scale_bytes,
            source.zeros + rows * groups * cfg.zero_bytes,
            source.policy,
        )

    @lang.device
    def produce(a, b, scales, zeros, pairs, shared, stripe, sizes):
        first_expert = copies.Source(a, b, scales, zeros, ptx.create_policy_evict_first())
        places = cuda.local.array(cfg.batch, uint32)
        position, place = stripe.begin, ring.producer_start()
        while position < stripe.end:
            item = schedule.item_at(position, stripe.end, sizes)
            source = of_expert(first_expert, item.tile.expert, sizes)
            find_rows(places, pairs, item.tile, sizes)
            k_step = item.first_k_step
            end_k_step = k_step + item.steps
            while k_step < end_k_step:
                ring.wait_empty(shared.barriers, place)
                step = schedule.step_of(item, k_step)
                copies.copy_weights_and_scales(source, step, shared, place, sizes)
                gather_x(a, places, item.tile, k_step, shared, place, sizes)
                place = ring.advance(place)
                k_step += 1
            position += item.steps

    return produce
