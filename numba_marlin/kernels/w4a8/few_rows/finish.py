"""The epilogue's arithmetic of ``decode_int8`` and ``decode_fp8`` beside that of
``kernels.decode.output``: scales of rows of x, and the bias, in one fused multiply-add. Sums
count in units of 1 / ``config.unit``, which the scale of a row takes out."""


def finish_verbs(lang, config, output):
    """-> device function (own, row_scales, bias, tile, thread, sizes)."""
    ptx, uint64, float32 = lang.ptx, lang.uint64, lang.float32
    cfg, step, biased = lang.constants(config), 1 / config.unit, config.bias
    of_low = {"float16": ptx.cvt_f32_f16_low, "bfloat16": ptx.cvt_f32_bf16_low}[config.dtype]

    @lang.device
    def row_scale(row_scales, row, tile):
        """0 for a row that does not exist."""
        if row < tile.x_rows:
            address = row_scales + uint64(tile.row_first + row) * 4
            return ptx.ld_global_f32(address) * float32(step)
        return float32(0)

    @lang.device
    def bias_of(bias, column, sizes):
        if biased and column < sizes.n:
            return of_low(ptx.ld_global_b16(bias + uint64(column) * 2))
        return float32(0)

    @lang.device
    def finish(own, row_scales, bias, tile, thread, sizes):
        own_column = output.lane_column(tile, thread)
        for n8 in range(cfg.n8_blocks):
            row = output.row_in_n8_block(thread) + 8 * n8
            first = row_scale(row_scales, row, tile)
            second = row_scale(row_scales, row + 1, tile)
            for j in range(cfg.own_column_blocks):
                for half in range(2):
                    addend = bias_of(bias, own_column + (16 * j + 8 * half), sizes)
                    o = 4 * (cfg.n8_blocks * j + n8) + 2 * half
                    own[o] = ptx.fma_rn_f32(own[o], first, addend)
                    own[o + 1] = ptx.fma_rn_f32(own[o + 1], second, addend)

    return finish
