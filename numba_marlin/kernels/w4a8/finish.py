"""The epilogue's arithmetic, in fp32: scales of columns, if there is one each,
scales of rows, the bias. Order: ``reference.activations``.

``finish_verbs(lang, config)`` -> device function ``finish(sums, result, tile, thread, sizes)`` ->
fp32 accumulators, as ``hopper.output.write_result`` takes them. Sums count in units of
1 / ``config.unit``, which the scale of a row takes out. ``scaling_verb`` is for who finds a row's
scale otherwise.
"""

from numba_marlin.kernels.hopper.columns import column_verbs
from numba_marlin.kernels.language.tuples import together


def finish_verbs(lang, config):
    ptx, uint64 = lang.ptx, lang.uint64

    @lang.device
    def row_scale(result, row):
        return ptx.ld_global_f32(result.row_scales + uint64(row) * 4)

    scale = scaling_verb(lang, config, row_scale)

    @lang.device
    def finish(sums, result, tile, thread, sizes):
        row = tile.row_first + thread.lane % 4 * 2
        column = tile.column_first + thread.panel * 64 + thread.first_strip * 16
        return scale(sums, result, row, column, thread.lane, sizes.m, sizes.n)

    return finish


def scaling_verb(lang, config, row_scale):
    """-> device function ``scale(sums, result, row, column, lane, rows, n)`` -> fp32 accumulators.
    row: of the lane's first; column: the warp's first; rows, n: where rows end, and columns.
    row_scale: device function (result, row) -> the scale of a row of a tile."""
    ptx, float32 = lang.ptx, lang.float32
    grouped, step = config.grouped, 1 / config.unit
    factors_of = column_verbs(lang, config).factors_of

    @lang.device
    def unit_scale(result, row, rows):
        """Of the last row instead of one that does not exist, whose results nobody stores. With a
        guard for each row the assembler had as many loads on their way as it has predicates, six,
        and waited for them eight times, of 176 rows."""
        return row_scale(result, min(row, rows - 1)) * float32(step)

    def row_scales_from(quads):
        """-> device function (result, row, rows) -> the scales of the rows of a strip's
        accumulators, ``row`` and the next of the first quad, 8 on for each further one."""
        if quads == 1:

            @lang.device
            def one(result, row, rows):
                first, second = unit_scale(result, row, rows), unit_scale(result, row + 1, rows)
                return first, second, first, second

            return one
        # halves as ``tuples.together`` cuts them: any would do
        half = (quads + 1) // 2
        before, behind = row_scales_from(half), row_scales_from(quads - half)

        @lang.device
        def both(result, row, rows):
            return before(result, row, rows) + behind(result, row + 8 * half, rows)

        return both

    row_scales_of = row_scales_from(config.accumulators // 4)

    @lang.device
    def scaled(number, factor):
        """A sum times its column's scale, if groups have not been scaled."""
        return number if grouped else float32(number) * factor

    @lang.device
    def finish_quad(sums, scales, factors):
        return (
            ptx.fma_rn_f32(scaled(sums[0], factors.lower), scales[0], factors.lower_bias),
            ptx.fma_rn_f32(scaled(sums[1], factors.lower), scales[1], factors.lower_bias),
            ptx.fma_rn_f32(scaled(sums[2], factors.upper), scales[2], factors.upper_bias),
            ptx.fma_rn_f32(scaled(sums[3], factors.upper), scales[3], factors.upper_bias),
        )

    finish_strip = together(lang, config.accumulators, 4, finish_quad)

    # n, and the lane's g: of column g of a strip
    Columns = lang.record("Columns", "g n")

    def finish_from(strips):
        """-> device function (sums, row scales, result, first column, Columns): strip after
        strip."""

        @lang.device
        def one(sums, scales, result, column, columns):
            factors = factors_of(result, column, columns.g, columns.n)
            return (finish_strip(sums[0], scales, factors),)

        if strips == 1:
            return one
        rest = finish_from(strips - 1)

        @lang.device
        def more(sums, scales, result, column, columns):
            return one(sums[:1], scales, result, column, columns) + rest(
                sums[1:], scales, result, column + 16, columns
            )

        return more

    finish_strips = finish_from(config.strips)

    @lang.device
    def scale(sums, result, row, column, lane, rows, n):
        scales = row_scales_of(result, row, rows)
        return finish_strips(sums, scales, result, column, Columns(lane // 4, n))

    return scale
