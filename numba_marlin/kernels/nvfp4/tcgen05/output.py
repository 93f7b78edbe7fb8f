"""How sums leave the Blackwell kernel (``tcgen05``): from tensor memory to registers, where they
are finished, and through shared memory to D.

A warp has 32 rows of a tile, a row per lane, and takes a *box* of them at a time: 128 bytes of each
row of D, 64 columns of 16 bits or 32 of float32. It loads them from tensor memory, 32 columns a
time, rounds them, writes them to its 4 KiB of shared memory, and lane 0 starts a tensor copy from
there to D.

Finished, in fp32: activation(alpha * sum + beta * C + bias), each product and sum rounded once, as
``block_scaled.finish`` has it. A lane reads its row of C and all of the bias four columns at a time
from global memory; a row or column that D does not have reads nothing. (A warp that loads C ahead,
by TMA, would hide its latency; there was no GPU on which to see what it gains.)

Banks: lane r writes row r, 16-byte chunk c of it where the 128-byte swizzle has it, at chunk
c ^ (r % 8); so eight lanes, which write at once, touch all 32 banks. The copy's map names the same
swizzle.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, numbered
from numba_marlin.kernels.nvfp4.block_scaled.finish import activation_verb
from numba_marlin.kernels.nvfp4.tcgen05.config import STAGE_ROW

# Where in a row of 128 bytes the second part begins: behind 32 numbers of 16 bits. (A part is a
# load of 32 columns; a row of float32 has one.)
PART_BYTES = 64


def output_verbs(lang, config):
    """-> namespace of device functions. ``store_tile(results, outputs, accumulator, tile, sizes,
    lane)``: a warp's 32 rows of a tile from tile.row, tile.column of D on; results: 4 KiB of shared
    memory for it alone, from a multiple of 1024 on; outputs: ``kernel``'s; accumulator: the tensor
    memory address of its first sum (lane << 16 | column: adding counts columns).
    ``wait_for_store()``: until this thread's copies to D have read shared memory."""
    ptx, int32, uint64, float32 = lang.ptx, lang.int32, lang.uint64, lang.float32
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

    # of 32 columns of a lane's row: the numbers at ``factors``; addresses of its first number of C,
    # 0 for a row that there is not, and of the first of the bias; how many columns D has from the
    # first on
    FinishAt = lang.record("FinishAt", "alpha beta c bias left")

    sourced, biased, source_bytes = config.source, config.bias, config.source_bytes
    widen_low, widen_high = {"bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high)}.get(
        config.source_dtype, (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high)
    )
    activate = activation_verb(lang, config.activation)

    @lang.device
    def source_at(address):
        """Four neighbours of C as float32."""
        if source_bytes == 4:
            return ptx.ld_global_v4_f32(address)
        first, second = ptx.ld_global_v2_b32(address)
        return widen_low(first), widen_high(first), widen_low(second), widen_high(second)

    @lang.device
    def multiply_add(factor, values, others):
        """factor * values + others; with factor 1 a sum that no assembler can fuse with a product
        before it."""
        return (
            ptx.fma_rn_f32(factor, values[0], others[0]),
            ptx.fma_rn_f32(factor, values[1], others[1]),
            ptx.fma_rn_f32(factor, values[2], others[2]),
            ptx.fma_rn_f32(factor, values[3], others[3]),
        )

    def finish_four(piece):
        """Four columns, which are all inside of D or all outside: n is a multiple of 8."""
        column = 4 * piece

        @lang.device
        def scale_sum(sums, at):
            alpha = at.alpha
            v = alpha * sums[0], alpha * sums[1], alpha * sums[2], alpha * sums[3]
            if sourced and at.c != 0 and at.left > column:
                v = multiply_add(at.beta, source_at(at.c + source_bytes * column), v)
            if biased and at.left > column:
                v = multiply_add(float32(1), ptx.ld_global_v4_f32(at.bias + 4 * column), v)
            return activate(v[0]), activate(v[1]), activate(v[2]), activate(v[3])

        return scale_sum

    finish = numbered(lang, 32, 4, finish_four)  # (32 values, at) -> 32 values

    @lang.device
    def finish_at(outputs, sizes, row, column):
        """Of 32 columns from ``column`` on."""
        c = uint64(0)
        if sourced and row < sizes.m:
            c = outputs.c + (uint64(row) * sizes.n + column) * source_bytes
        left = sizes.n - column if column < sizes.n else 0
        return FinishAt(outputs.alpha, outputs.beta, c, outputs.bias + uint64(column) * 4, left)

    @lang.device
    def store_tile(results, outputs, accumulator, tile, sizes, lane):
        """The warp's 32 rows of a tile. When it returns, all of them have been loaded from tensor
        memory, which may be written again; the last copy to D may still be running."""
        for box in range(boxes):
            # Before the box is written again; the copies are lane 0's.
            if lane == 0:
                wait_for_store()
            ptx.bar_warp_sync(ALL_LANES)
            for part in range(parts):
                first = box * cfg.box_columns + part * 32
                values = read_columns(accumulator + first)
                ptx.tcgen05_wait_ld()
                at = finish_at(outputs, sizes, tile.row + lane, tile.column + first)
                store_columns(finish(values, at), results + lane * STAGE_ROW + part * PART_BYTES)
            ptx.fence_proxy_async_shared()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                x, y = int32(tile.column + box * cfg.box_columns), int32(tile.row)
                ptx.cp_async_bulk_tensor_2d_s2g(outputs.d_map, x, y, results)
                ptx.cp_async_bulk_commit_group()

    return lang.namespace("output", store_tile=store_tile, wait_for_store=wait_for_store)
