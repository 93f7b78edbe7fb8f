"""Who does what in the decode kernel (``decode``): the units of a launch, and the stripe of them
that is a block's.

A unit is a stage of k of one tile of C; a tile's units follow each other, then come those of the
next column tile. ``problem``: the sizes of a launch as a tuple of uint32 (m, n_packed, k, a_stride,
stages of k, column tiles, n). ``schedule_verbs(lang, config)`` -> namespace of device functions.
"""

from types import SimpleNamespace

from numba_marlin.kernels.decode.config import COLUMNS


def schedule_verbs(lang, config):
    cuda, uint32 = lang.cuda, lang.uint32
    BATCH, STAGE_K, STAGE_ROWS, TILE_COLUMNS, ragged, WHOLE = (
        config.batch,
        config.stage_k,
        config.stage_rows,
        config.columns,
        config.ragged,
        config.whole,
    )

    @lang.device
    def problem_of(m, n, k, a_stride):
        k_units = uint32((k + uint32(STAGE_K - 1)) // uint32(STAGE_K))
        n_packed = uint32((n + uint32(COLUMNS - 1)) // uint32(COLUMNS) * uint32(COLUMNS))
        return (
            m,
            n_packed,
            k,
            a_stride,
            k_units,
            uint32((n + uint32(TILE_COLUMNS - 1)) // uint32(TILE_COLUMNS)),
            n,
        )

    @lang.device
    def units_of(problem):
        """All units of a launch."""
        return uint32(
            problem[4] * problem[5] * uint32((problem[0] + uint32(BATCH - 1)) // uint32(BATCH))
        )

    @lang.device
    def first_share(block, things):
        """Where the stripe of a block begins: the first ones get one more where they do not come
        out even."""
        blocks = uint32(cuda.gridDim.x)
        return uint32(block * (things // blocks) + min(block, uint32(things % blocks)))

    @lang.device
    def stripe_of(block, units, problem):
        """(first unit, the one after the last) of a block."""
        following = uint32(block + uint32(1))
        if WHOLE:
            tiles = uint32(units // problem[4])
            return uint32(first_share(block, tiles) * problem[4]), uint32(
                first_share(following, tiles) * problem[4]
            )
        return first_share(block, units), first_share(following, units)

    @lang.device
    def block_of(unit, units):
        """The inverse, where tiles are shared: whose stripe a unit belongs to."""
        blocks = uint32(cuda.gridDim.x)
        share, longer = uint32(units // blocks), uint32(units % blocks)
        of_longer = uint32(longer * (share + uint32(1)))
        if unit < of_longer:
            return uint32(unit // (share + uint32(1)))
        return uint32(longer + (unit - of_longer) // share)

    @lang.device
    def tile_at(position, end, problem):
        """(column tile, first row of C, rows, first stage, stages): what a block with units up to
        `end` does of the tile at `position`."""
        m, k_units, n_tiles = problem[0], problem[4], problem[5]
        tile = uint32(position // k_units)
        stage_first = uint32(position - tile * k_units)
        row_first = uint32(tile // n_tiles * uint32(BATCH))
        return (
            uint32(tile % n_tiles),
            row_first,
            uint32(min(uint32(m - row_first), uint32(BATCH))),
            stage_first,
            uint32(min(uint32(k_units - stage_first), uint32(end - position))),
        )

    @lang.device
    def columns_of(column, n_packed):
        """Columns of a tile: fewer at the end of n."""
        return (
            uint32(min(uint32(n_packed - column * uint32(TILE_COLUMNS)), uint32(TILE_COLUMNS)))
            if ragged
            else uint32(TILE_COLUMNS)
        )

    @lang.device
    def rows_of(k_unit, k):
        """k16 rows of a stage: fewer at the end of k."""
        return (
            uint32(min(uint32(k // uint32(16) - k_unit * uint32(STAGE_ROWS)), uint32(STAGE_ROWS)))
            if ragged
            else uint32(STAGE_ROWS)
        )

    @lang.device
    def next_unit(unit, problem):
        """(column tile, first row of C, stage) of the stage after this one. The producer cannot
        afford the divisions of ``tile_at`` a stage."""
        column, row_first, k_unit = unit
        k_unit = uint32(k_unit + uint32(1))
        if k_unit == problem[4]:
            k_unit = uint32(0)
            column = uint32(column + uint32(1))
            if column == problem[5]:
                column = uint32(0)
                row_first = uint32(row_first + uint32(BATCH))
        return column, row_first, k_unit

    return SimpleNamespace(
        problem_of=problem_of,
        units_of=units_of,
        stripe_of=stripe_of,
        block_of=block_of,
        tile_at=tile_at,
        columns_of=columns_of,
        rows_of=rows_of,
        next_unit=next_unit,
    )
