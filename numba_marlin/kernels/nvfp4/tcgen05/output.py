"""How sums leave the Blackwell kernel (``tcgen05``): from tensor memory to registers, times alpha,
and through shared memory to D.

A warp has 32 rows of a tile, a row per lane, and takes a *box* of them at a time: 128 bytes of each
row of D, 64 columns of 16 bits or 32 of float32. It loads them from tensor memory, 32 columns a
time, rounds them, writes them to its 4 KiB of shared memory, and lane 0 starts a tensor copy from
there to D.

Banks: lane r writes row r, 16-byte chunk c of it where the 128-byte swizzle has it, at chunk
c ^ (r % 8); so eight lanes, which write at once, touch all 32 banks. The copy's map names the same
swizzle.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each
from numba_marlin.kernels.nvfp4.tcgen05.config import STAGE_ROW

# Where in a row of 128 bytes the second part begins: behind 32 numbers of 16 bits. (A part is a
# load of 32 columns; a row of float32 has one.)
PART_BYTES = 64


def output_verbs(lang, config):
    """-> namespace of device functions. ``store_tile(results, d_map, accumulator, tile, alpha,
    lane)``: a warp's 32 rows of a tile from tile.row, tile.column of D on; results: 4 KiB of shared
    memory for it alone, from a multiple of 1024 on; accumulator: the tensor memory address of its
    first sum (lane << 16 | column: adding counts columns). ``wait_for_store()``: until this
    thread's copies to D have read shared memory."""
    ptx, int32 = lang.ptx, lang.int32
    cfg = lang.constants(config)
    halves = config.result != "float32"
    boxes = config.tile_n // config.box_columns
    parts = config.box_columns // 32  # loads of 32 columns that make a box: 2, of float32 1
    read_columns = ptx.tcgen05_ld_32x32b_f32(n=32)
    wait_for_store = ptx.cp_async_bulk_wait_group_read(n=0)
    # (left, right) -> a register of two 16-bit numbers, left in the low half (PTX names it last)
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32

    @lang.device
    def store_chunk(values, address):
        """8 numbers as halves, or 4 floats, to 16 bytes of a row, where the 128-byte swizzle has
        them: address bits 4 to 6 xor bits 7 to 9, the row % 8."""
        target = address ^ ((address >> 7 & 7) << 4)
        if halves:
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

    # (32 values, address): store_chunk of 8 or 4 at a time, each 16 bytes behind the last
    store_columns = for_each(lang, 32, 8 if halves else 4, store_chunk, 16)

    @lang.device
    def scale_sum(value, factor):
        """A tuple of one value, as ``map_each`` hands it on."""
        return (value[0] * factor,)

    times = map_each(lang, 32, 1, scale_sum)  # (32 values, factor) -> 32 values

    @lang.device
    def store_tile(results, d_map, accumulator, tile, alpha, lane):
        """The warp's 32 rows of a tile. When it returns, all of them have been loaded from tensor
        memory, which may be written again; the last copy to D may still be running."""
        for box in range(boxes):
            # Before the box is written again; the copies are lane 0's.
            if lane == 0:
                wait_for_store()
            ptx.bar_warp_sync(ALL_LANES)
            for part in range(parts):
                values = read_columns(accumulator + (box * cfg.box_columns + part * 32))
                ptx.tcgen05_wait_ld()
                store_columns(times(values, alpha), results + lane * STAGE_ROW + part * PART_BYTES)
            ptx.fence_proxy_async_shared()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                x, y = int32(tile.column + box * cfg.box_columns), int32(tile.row)
                ptx.cp_async_bulk_tensor_2d_s2g(d_map, x, y, results)
                ptx.cp_async_bulk_commit_group()

    return lang.namespace("output", store_tile=store_tile, wait_for_store=wait_for_store)
