"""The producer warp of ``moe``: as that of ``decode``, but the routing says which weights it takes,
and rows of x are gathered, each where its token lies.

Nothing is copied before ``griddepcontrol.wait``: the routing may come from the launch before. The
number of a row is read from ``pairs`` for each copy of it; the words of a tile are in L1 then.
"""

from numba_marlin.kernels.decode.load import copy_verbs
from numba_marlin.kernels.moe.config import WORD_BYTES


def load_verbs(lang, config, ring, schedule):
    """-> ``produce``, a device function for one lane."""
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    copies = copy_verbs(lang, config, ring, schedule)
    pairs_per_row = 1 if config.x_of_pairs else config.top_k

    @lang.device
    def gather_x(a, pairs, tile, k_step, shared, place, sizes):
        """x of one stage, a copy per row; its bytes are announced already."""
        row_bytes = schedule.k16_rows_of(k_step, sizes) * 32
        target = shared.base + place.stage * cfg.stage_bytes + cfg.x_at
        barrier = ring.full(shared.barriers, place)
        x_row = 0
        while x_row < tile.x_rows:
            pair = ptx.ld_global_b32(pairs + uint64(tile.row_first + x_row) * WORD_BYTES)
            first = uint64(pair // pairs_per_row) * sizes.a_stride + k_step * cfg.stage_k
            ptx.cp_async_bulk_g2s(target + x_row * cfg.x_pitch, a + first * 2, row_bytes, barrier)
            x_row += 1

    @lang.device
    def produce(a, b, scales, pairs, shared, stripe, sizes):
        source = copies.Source(a, b, scales, uint64(0), ptx.create_policy_evict_first())
        position, place = stripe.begin, ring.producer_start()
        while position < stripe.end:
            item = schedule.item_at(position, stripe.end, sizes)
            k_step = item.first_k_step
            end_k_step = k_step + item.steps
            while k_step < end_k_step:
                ring.wait_empty(shared.barriers, place)
                step = schedule.step_of(item, k_step)
                copies.copy_weights_and_scales(source, step, shared, place, sizes)
                gather_x(a, pairs, item.tile, k_step, shared, place, sizes)
                place = ring.advance(place)
                k_step += 1
            position += item.steps

    return produce
