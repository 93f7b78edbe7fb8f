"""How sums leave the Blackwell kernel (``tcgen05``): from tensor memory to registers, times alpha,
and through shared memory to D."""

from types import SimpleNamespace

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each
from numba_marlin.kernels.nvfp4.tcgen05.config import STAGE_ROW


def output_verbs(lang, config):
    """-> namespace of device functions. ``store_tile(results, d_map, accumulator, row, column,
    alpha, lane)``: a warp's 32 rows of a tile from row, column of D on; results: 4 KiB of shared
    memory for it alone; accumulator: the tensor memory address of its first sum.
    ``wait_for_store()``: until D's copies have read shared memory.
    """
    ptx, uint32, int32 = lang.ptx, lang.uint32, lang.int32
    TILE_N, BOX_COLUMNS, HALVES = config.tile_n, config.box_columns, config.result != "float32"
    read_columns, wait_for_store = (
        ptx.tcgen05_ld_32x32b_f32(n=32),
        ptx.cp_async_bulk_wait_group_read(n=0),
    )
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32

    @lang.device
    def store_chunk(values, address):
        """8 halves, or 4 floats, to 16 bytes of a row, where the 128-byte swizzle has them."""
        target = address ^ (address >> 7 & 7) << 4
        if HALVES:
            ptx.st_shared_v4_b32(
                target,
                (
                    pair_of(values[0], values[1]),
                    pair_of(values[2], values[3]),
                    pair_of(values[4], values[5]),
                    pair_of(values[6], values[7]),
                ),
            )
        else:
            ptx.st_shared_v4_f32(target, values)

    store_columns = for_each(lang, 32, 8 if HALVES else 4, store_chunk, 16, uint32)
    times = map_each(lang, 32, 1, lang.device(lambda value, factor: (value[0] * factor,)))

    @lang.device
    def store_tile(results, d_map, accumulator, row, column, alpha, lane):
        """The warp's 32 rows of a tile, a box of 128 bytes a row at a time; when it returns, all of
        them are out of tensor memory."""
        for box in range(TILE_N // BOX_COLUMNS):
            if lane == 0:
                wait_for_store()
            ptx.bar_warp_sync(ALL_LANES)
            for part in range(BOX_COLUMNS // 32):
                values = read_columns(accumulator + (box * BOX_COLUMNS + part * 32))
                ptx.tcgen05_wait_ld()
                store_columns(times(values, alpha), results + lane * STAGE_ROW + (part * 64))
            ptx.fence_proxy_async_shared()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                ptx.cp_async_bulk_tensor_2d_s2g(
                    d_map, column + int32(box * BOX_COLUMNS), row, results
                )
                ptx.cp_async_bulk_commit_group()

    return SimpleNamespace(store_tile=store_tile, wait_for_store=wait_for_store)
