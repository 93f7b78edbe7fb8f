"""The producer of the Hopper kernel (``wgmma``): one thread that keeps the stages of the ring full.

A stage holds x (tile_m rows of 128 bytes, swizzled), then four k16 rows of packed weights, then the
scales and the zero points of its groups: one tensor copy each. What lies outside a matrix arrives
as zeros. (Measured: with a bulk copy for each k16 row, and its tails worked out by the same thread,
that thread was the limit: about 1000 cycles a stage, 2.0 TB/s whatever the batch and the
consumers.)

All but x does not depend on the kernel before this one on the stream: a ring full of it is on its
way before that kernel has ended.
"""

from types import SimpleNamespace

from numba_marlin.kernels.wgmma.config import STAGE_K, STAGE_ROWS
from numba_marlin.kernels.wgmma.schedule import schedule_verbs


def load_verbs(lang, config, pipeline, copy_weights=None):
    """-> namespace of two device functions; maps: those of x, weights, scales and zero points;
    copy_weights: another way to copy a stage's weights than ``copy_box``. ``fill_first(shared,
    barriers, place, item, work, maps, sizes) -> (place, item)``: waits for the kernel before this
    one, and fills as many stages of the block's first item as the ring has; what comes back are the
    others. ``fill_stages`` (the same) -> place: fills all stages of an item.
    """
    ptx = lang.ptx
    uint32, int32 = lang.uint32, lang.int32
    corner = schedule_verbs(lang, config).corner
    wait_empty, expect, full, advance = (
        pipeline.wait_empty,
        pipeline.expect,
        pipeline.full,
        pipeline.advance,
    )
    STAGES, STAGE, W_SHARED, S_SHARED, Z_SHARED = (
        config.stages,
        config.stage_bytes,
        config.x_stage_bytes,
        config.s_shared,
        config.z_shared,
    )
    BYTES, TILE_M, grouped, SCALE_BLOCKS, SCALE_WORDS, block_scaled = (
        config.copied_bytes,
        config.tile_m,
        config.grouped,
        config.scale_blocks,
        config.scale_words,
        config.block_scaled,
    )
    # columns of a number that zero points are copied in
    COLUMNS_PER_ZERO = 32 // config.bits if config.zeros == "integer" else 1
    scaled, zeroed = not config.scales_columns, config.zeros is not None
    # of 8 bytes, a column
    BOXES, BOX_BYTES, BOX_COLUMNS, NUMBERS = (
        config.w_boxes,
        config.w_box_bytes,
        config.w_box_columns,
        config.bits // 4,
    )

    @lang.device
    def copy_box(target, b_map, column, step, barrier, policy, sizes):
        """The weights of a stage, the step-th of k, to ``target``. Those that only one row of tiles
        reads make room in L2 at once."""
        for box in range(BOXES):
            part, x, y = (
                target + uint32(box * BOX_BYTES),
                int32((column + uint32(box * BOX_COLUMNS)) * uint32(NUMBERS)),
                int32(step * uint32(STAGE_ROWS)),
            )
            if sizes[0] <= uint32(TILE_M):
                ptx.cp_async_bulk_tensor_2d_g2s_hint(part, b_map, x, y, barrier, policy)
            else:
                ptx.cp_async_bulk_tensor_2d_g2s(part, b_map, x, y, barrier)

    copy_weights = copy_weights or copy_box

    @lang.device
    def fetch_weights(shared, barriers, place, column, step, maps, policy, sizes):
        """Weights, scales and zero points of a stage, after the word to its barrier how many bytes
        are to come, x included."""
        a_map, b_map, s_map, z_map = maps
        target = shared + place[0] * uint32(STAGE)
        barrier = full(barriers, place)
        expect(barriers, place, uint32(BYTES))
        copy_weights(target + uint32(W_SHARED), b_map, column, step, barrier, policy, sizes)
        group = int32(step * uint32(STAGE_ROWS) // uint32(SCALE_BLOCKS)) if grouped else int32(0)
        if block_scaled:
            ptx.cp_async_bulk_tensor_2d_g2s(
                target + uint32(S_SHARED),
                s_map,
                int32(group * int32(SCALE_WORDS)),
                int32(column // uint32(64)),
                barrier,
            )
        elif scaled:
            ptx.cp_async_bulk_tensor_2d_g2s(
                target + uint32(S_SHARED), s_map, int32(column), group, barrier
            )
        if zeroed:
            ptx.cp_async_bulk_tensor_2d_g2s(
                target + uint32(Z_SHARED),
                z_map,
                int32(column // uint32(COLUMNS_PER_ZERO)),
                group,
                barrier,
            )

    @lang.device
    def fetch_x(shared, barriers, place, row, step, maps):
        ptx.cp_async_bulk_tensor_2d_g2s(
            shared + place[0] * uint32(STAGE),
            maps[0],
            int32(step * uint32(STAGE_K)),
            int32(row),
            full(barriers, place),
        )

    @lang.device
    def fill_first(shared, barriers, place, item, work, maps, sizes):
        tile, first, steps, position, wave = item
        row, column = corner(work, tile)
        policy = ptx.create_policy_evict_first()
        ahead = uint32(min(steps, uint32(STAGES)))
        at, behind = uint32(0), place
        while at < ahead:
            fetch_weights(shared, barriers, place, column, uint32(first + at), maps, policy, sizes)
            place = advance(place)
            at = uint32(at + uint32(1))
        ptx.griddepcontrol_wait()
        at = uint32(0)
        while at < ahead:
            fetch_x(shared, barriers, behind, row, uint32(first + at), maps)
            behind = advance(behind)
            at = uint32(at + uint32(1))
        return place, (tile, uint32(first + ahead), uint32(steps - ahead), position, wave)

    @lang.device
    def fill_stages(shared, barriers, place, item, work, maps, sizes):
        row, column = corner(work, item[0])
        policy = ptx.create_policy_evict_first()
        step, remaining = item[1], item[2]
        while remaining != uint32(0):
            wait_empty(barriers, place)
            fetch_weights(shared, barriers, place, column, step, maps, policy, sizes)
            fetch_x(shared, barriers, place, row, step, maps)
            place = advance(place)
            step = uint32(step + uint32(1))
            remaining = uint32(remaining - uint32(1))
        return place

    return SimpleNamespace(fill_first=fill_first, fill_stages=fill_stages)
