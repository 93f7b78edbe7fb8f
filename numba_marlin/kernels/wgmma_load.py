"""The producer of the Hopper kernel (``wgmma``): one thread that keeps the stages of the ring full.

A stage holds x (tile_m rows of 128 bytes, swizzled), then four k16 rows of packed weights, then the scales of its groups: one tensor copy each. What
lies outside a matrix arrives as zeros. (Measured: with a bulk copy for each k16 row, and its tails worked out by the same thread, that thread was the limit:
about 1000 cycles a stage, 2.0 TB/s whatever the batch and the consumers.)
"""
from types import SimpleNamespace

from numba_marlin.kernels.wgmma_config import STAGE_K, STAGE_ROWS
from numba_marlin.kernels.wgmma_schedule import schedule_verbs


def load_verbs(lang, config, pipeline):
    """-> namespace with ``fill_stages(shared, barriers, place, item, work, maps, sizes) -> place``; maps: those of x, of the weights and of the scales"""
    ptx = lang.ptx
    uint32, int32 = lang.uint32, lang.int32
    corner = schedule_verbs(lang, config).corner
    wait_empty, expect, full, advance = pipeline.wait_empty, pipeline.expect, pipeline.full, pipeline.advance
    STAGE, W_SHARED, S_SHARED = config.stage_bytes, config.x_stage_bytes, config.x_stage_bytes + STAGE_ROWS * config.w_row_bytes
    BYTES, TILE_M, grouped, GROUP_BLOCKS = config.copied_bytes, config.tile_m, config.grouped, config.group_blocks

    @lang.device
    def fill_stages(shared, barriers, place, item, work, maps, sizes):
        a_map, b_map, s_map = maps
        row, column = corner(work, item[0])
        once = sizes[0] <= uint32(TILE_M)  # weights that only one row of tiles reads make room in L2 at once
        policy = ptx.create_policy_evict_first()
        step, remaining = item[1], item[2]
        while remaining != uint32(0):
            target = shared + place[0] * uint32(STAGE)
            barrier = full(barriers, place)
            wait_empty(barriers, place)
            expect(barriers, place, uint32(BYTES))
            if once:
                ptx.cp_async_bulk_tensor_2d_g2s_hint(target + uint32(W_SHARED), b_map, int32(column), int32(step * uint32(STAGE_ROWS)), barrier, policy)
            else:
                ptx.cp_async_bulk_tensor_2d_g2s(target + uint32(W_SHARED), b_map, int32(column), int32(step * uint32(STAGE_ROWS)), barrier)
            ptx.cp_async_bulk_tensor_2d_g2s(target, a_map, int32(step * uint32(STAGE_K)), int32(row), barrier)
            if grouped:
                ptx.cp_async_bulk_tensor_2d_g2s(target + uint32(S_SHARED), s_map, int32(column), int32(step * uint32(STAGE_ROWS) // uint32(GROUP_BLOCKS)), barrier)
            place = advance(place)
            step = uint32(step + uint32(1))
            remaining = uint32(remaining - uint32(1))
        return place

    return SimpleNamespace(fill_stages=fill_stages)
