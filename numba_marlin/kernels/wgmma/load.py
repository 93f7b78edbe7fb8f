"""The producer of ``wgmma``: one thread that keeps the stages of the ring full.

A stage takes one tensor copy (TMA) each of x, weights, scales and zero points; of weights one per
box (``shared`` has the map of a stage). What lies outside a matrix arrives as zeros. (Measured:
with a bulk copy per k16 row, and its tails worked out by the same thread, that thread was the
limit: about 1000 cycles per stage, 2.0 TB/s whatever the batch and the consumers.)

All but x does not depend on the kernel before this one on the stream: a ring full of it is on its
way before that kernel has ended.
"""

from numba_marlin.kernels.wgmma.schedule import schedule_verbs
from numba_marlin.kernels.wgmma.shared import STAGE_K, STAGE_ROWS


def load_verbs(lang, config, ring, copy_weights=None):
    """-> namespace of two device functions and of a record. copy_weights: another way to copy a
    stage's weights than ``copy_boxes``.

    ``fill_first(shared, place, item, plan, maps, sizes) -> (place, item)``: waits for the kernel
    before this one, and fills as many stages of the block's first item as the ring has; what comes
    back is the rest of the item. ``fill_stages`` (the same) ``-> place`` fills all stages of an
    item. ``Maps``: addresses of the tensor maps of what is copied.
    """
    ptx = lang.ptx
    cfg = lang.constants(config)
    schedule = schedule_verbs(lang, config)
    copies_scales, copies_zeros = not config.scales_columns, config.zeros is not None

    Maps = lang.record("Maps", "x weights scales zeros")
    # in shared memory: a stage that is being filled, and the barrier that counts its bytes
    Filling = lang.record("Filling", "address barrier")

    @lang.device
    def filling_at(shared, place):
        address = shared.base + place.stage * cfg.stage_bytes
        return Filling(address, ring.full(shared.barriers, place))

    @lang.device
    def copy_boxes(filling, weights, column, step, policy, sizes):
        """The weights of a stage, whose first column is ``column``, the step-th of k. Those that
        only one row of tiles reads make room in L2 at once."""
        for box in range(cfg.w_boxes):
            target = filling.address + (cfg.weights_at + box * cfg.w_box_bytes)
            x = (column + box * cfg.w_box_columns) * cfg.w_numbers
            y = step * STAGE_ROWS
            if sizes.m <= cfg.tile_m:
                ptx.cp_async_bulk_tensor_2d_g2s_hint(target, weights, x, y, filling.barrier, policy)
            else:
                ptx.cp_async_bulk_tensor_2d_g2s(target, weights, x, y, filling.barrier)

    copy_weights = copy_weights or copy_boxes

    @lang.device
    def fetch_weights(shared, place, column, step, maps, policy, sizes):
        """Weights, scales and zero points of a stage, after the word to its barrier how many bytes
        are to come, x included."""
        filling = filling_at(shared, place)
        ring.expect(shared.barriers, place, cfg.copied_bytes)
        copy_weights(filling, maps.weights, column, step, policy, sizes)
        group = step * STAGE_ROWS // cfg.scale_blocks if cfg.grouped else 0
        if copies_scales:
            x = group * cfg.scale_words if cfg.block_scaled else column
            y = column // 64 if cfg.block_scaled else group
            ptx.cp_async_bulk_tensor_2d_g2s(
                filling.address + cfg.scales_at, maps.scales, x, y, filling.barrier
            )
        if copies_zeros:
            ptx.cp_async_bulk_tensor_2d_g2s(
                filling.address + cfg.zeros_at,
                maps.zeros,
                column // cfg.z_number_columns,
                group,
                filling.barrier,
            )

    @lang.device
    def fetch_x(shared, place, row, step, maps):
        filling = filling_at(shared, place)
        ptx.cp_async_bulk_tensor_2d_g2s(
            filling.address, maps.x, step * STAGE_K, row, filling.barrier
        )

    @lang.device
    def fill_first(shared, place, item, plan, maps, sizes):
        tile = schedule.tile_of(item, plan)
        policy = ptx.create_policy_evict_first()
        ahead = min(item.steps, cfg.stages)
        at, behind = 0, place
        while at < ahead:
            step = item.first_step + at
            fetch_weights(shared, place, tile.column_first, step, maps, policy, sizes)
            place = ring.advance(place)
            at += 1
        ptx.griddepcontrol_wait()
        at = 0
        while at < ahead:
            fetch_x(shared, behind, tile.row_first, item.first_step + at, maps)
            behind = ring.advance(behind)
            at += 1
        rest = schedule.WorkItem(
            item.tile, item.first_step + ahead, item.steps - ahead, item.position, item.wave
        )
        return place, rest

    @lang.device
    def fill_stages(shared, place, item, plan, maps, sizes):
        tile = schedule.tile_of(item, plan)
        policy = ptx.create_policy_evict_first()
        step, remaining = item.first_step, item.steps
        while remaining != 0:
            ring.wait_empty(shared.barriers, place)
            fetch_weights(shared, place, tile.column_first, step, maps, policy, sizes)
            fetch_x(shared, place, tile.row_first, step, maps)
            place = ring.advance(place)
            step += 1
            remaining -= 1
        return place

    return lang.namespace("load", Maps=Maps, fill_first=fill_first, fill_stages=fill_stages)
