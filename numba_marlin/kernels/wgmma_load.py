"""The producer of the Hopper kernel (``wgmma``): one thread that keeps the stages of the ring full.

A stage holds x as a tensor copy lays it down (tile_m rows of 128 bytes, swizzled), then four k16 rows of packed weights, then the scales of its groups.
What lies outside a matrix: of x it arrives as zeros; weights and scales beyond the last k16 row or column block are not copied, and what the stage held
before multiplies zeros of x, or ends in columns that are not written. Scales are always those of a group that exists: they must be finite.
"""
from types import SimpleNamespace

from numba_marlin.kernels.wgmma_config import STAGE_K, STAGE_ROWS
from numba_marlin.kernels.wgmma_schedule import schedule_verbs


def load_verbs(lang, config, pipeline):
    """-> namespace with ``fill_stages(shared, barriers, place, item, work, a_map, b, scales, sizes) -> place``"""
    ptx = lang.ptx
    uint32, uint64, int32 = lang.uint32, lang.uint64, lang.int32
    corner = schedule_verbs(lang, config).corner
    wait_empty, expect, full, advance = pipeline.wait_empty, pipeline.expect, pipeline.full, pipeline.advance
    STAGE, W_SHARED, W_ROW = config.stage_bytes, config.x_stage_bytes, config.w_row_bytes
    S_SHARED, S_ROW, GROUPS, GROUP_BLOCKS = W_SHARED + STAGE_ROWS * W_ROW, config.s_row_bytes, config.groups_per_stage, config.group_blocks
    X_BYTES, TILE_N, TILE_M = config.x_stage_bytes, config.tile_n, config.tile_m

    @lang.device
    def copy_weights(target, source, byte_count, barrier, policy, once):
        """Weights that only one row of tiles reads make room in L2 at once."""
        if once:
            ptx.cp_async_bulk_g2s_hint(target, source, byte_count, barrier, policy)
        else:
            ptx.cp_async_bulk_g2s(target, source, byte_count, barrier)

    @lang.device
    def fill_stages(shared, barriers, place, item, work, a_map, b, scales, sizes):
        m, n, k = sizes
        row, column = corner(work, item[0])
        columns = uint32((n + uint32(63)) // uint32(64) * uint32(64))
        width = uint32(min(uint32(columns - column), uint32(TILE_N)))
        k_rows = uint32(k // uint32(16))
        w_pitch = uint64(columns) * uint64(8)
        step, remaining = item[1], item[2]
        source = b + uint64(step * uint32(STAGE_ROWS)) * w_pitch + uint64(column) * uint64(8)
        once = m <= uint32(TILE_M)
        policy = ptx.create_policy_evict_first()
        while remaining != uint32(0):
            target = shared + place[0] * uint32(STAGE)
            barrier = full(barriers, place)
            rows = uint32(min(uint32(k_rows - step * uint32(STAGE_ROWS)), uint32(STAGE_ROWS)))
            wait_empty(barriers, place)
            expect(barriers, place, uint32(X_BYTES) + width * (rows * uint32(8) + uint32(2 * GROUPS)))
            ptx.cp_async_bulk_tensor_2d_g2s(target, a_map, int32(step * uint32(STAGE_K)), int32(row), barrier)
            for r in range(STAGE_ROWS):
                if uint32(r) < rows:
                    copy_weights(target + uint32(W_SHARED + r * W_ROW), source, width * uint32(8), barrier, policy, once)
                source += w_pitch
            for i in range(GROUPS):
                group = uint32(min(uint32(step * uint32(STAGE_ROWS) // uint32(GROUP_BLOCKS) + uint32(i)), uint32((k_rows - uint32(1)) // uint32(GROUP_BLOCKS))))
                scale_row = scales + (uint64(group) * uint64(columns) + uint64(column)) * uint64(2)
                ptx.cp_async_bulk_g2s(target + uint32(S_SHARED + i * S_ROW), scale_row, width * uint32(2), barrier)
            place = advance(place)
            step = uint32(step + uint32(1))
            remaining = uint32(remaining - uint32(1))
        return place

    return SimpleNamespace(fill_stages=fill_stages)
