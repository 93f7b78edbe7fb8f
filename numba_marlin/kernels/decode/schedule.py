"""Which block computes what in ``decode``: stream-K, cut at stages.

The work is cut into *steps*. A step is one stage of k of one tile of C, what a turn of the main
loop multiplies. Steps are numbered: those of a tile follow each other along k, then come those of
the next tile of columns, and after the last column those of the next ``batch`` rows. All steps are
cut into equal stripes, one per block (``whole``: at whole tiles only).

``schedule_verbs(lang, config)`` -> namespace of device functions, and the records:

``Sizes``     of a launch: C is m x n, n_packed is n completed to 64, rows of a lie a_stride
              elements apart, a tile has k_steps steps, a row of tiles n_tiles
``Stripe``    steps [position, end) of a block
``Tile``      of C: which column of tiles, first row, rows that the matrix has of it
``WorkItem``  what a block does of a tile: ``steps`` steps from ``first_step`` on, counted from 0 in
              each tile
``Sharers``   the blocks that have the first and the last step of a tile, ``top`` and ``bottom``
``Step``      one step: column of tiles and first row of its tile, and which of the tile's steps
"""

from numba_marlin.kernels.decode.config import COLUMNS


def schedule_verbs(lang, config):
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    cfg = lang.constants(config)
    Sizes = lang.record("Sizes", "m n k a_stride n_packed k_steps n_tiles")
    Stripe = lang.record("Stripe", "position end")
    Tile = lang.record("Tile", "tile_column row_first rows")
    WorkItem = lang.record("WorkItem", "tile first_step steps")
    Sharers = lang.record("Sharers", "top bottom")
    Step = lang.record("Step", "tile_column row_first k_step")

    @lang.device
    def sizes_of(m, n, k, a_stride):
        """m, n, k, a_stride: uint32."""
        return Sizes(
            m,
            n,
            k,
            a_stride,
            n_packed=(n + (COLUMNS - 1)) // COLUMNS * COLUMNS,
            k_steps=(k + (cfg.stage_k - 1)) // cfg.stage_k,
            n_tiles=(n + (cfg.columns - 1)) // cfg.columns,
        )

    @lang.device
    def steps_of(sizes):
        """All steps of a launch."""
        return sizes.k_steps * sizes.n_tiles * ((sizes.m + (cfg.batch - 1)) // cfg.batch)

    @lang.device
    def first_share(block, things):
        """Where the stripe of a block begins: the first ones get one more where they do not come
        out even."""
        blocks = uint32(cuda.gridDim.x)
        return block * (things // blocks) + min(block, things % blocks)

    @lang.device
    def stripe_of(block, sizes):
        if cfg.whole:
            tiles = steps_of(sizes) // sizes.k_steps
            return Stripe(
                first_share(block, tiles) * sizes.k_steps,
                first_share(block + 1, tiles) * sizes.k_steps,
            )
        return Stripe(first_share(block, steps_of(sizes)), first_share(block + 1, steps_of(sizes)))

    @lang.device
    def block_of(step, steps):
        """The inverse, where tiles are shared: whose stripe a step of all ``steps`` belongs to."""
        blocks = uint32(cuda.gridDim.x)
        share, longer = steps // blocks, steps % blocks
        of_longer = longer * (share + 1)
        if step < of_longer:
            return step // (share + 1)
        return longer + (step - of_longer) // share

    @lang.device
    def item_at(position, end, sizes):
        """What a block with steps up to ``end`` does of the tile at ``position``."""
        tile = position // sizes.k_steps
        first_step = position - tile * sizes.k_steps
        row_first = tile // sizes.n_tiles * cfg.batch
        return WorkItem(
            Tile(tile % sizes.n_tiles, row_first, min(sizes.m - row_first, cfg.batch)),
            first_step,
            min(sizes.k_steps - first_step, end - position),
        )

    @lang.device
    def worked_out(item):
        """The item, with its column of tiles worked out here, in the shadow of the first copies.
        The assembler does a division where its result is first used, which is in the epilogue: 1 %
        of a launch of 4.5 us. It does not move a shuffle. All lanes of a warp."""
        tile = item.tile
        tile_column = ptx.shfl_sync_idx(tile.tile_column, 0)
        return WorkItem(Tile(tile_column, tile.row_first, tile.rows), item.first_step, item.steps)

    @lang.device
    def sharers_of(position, item, sizes):
        """The blocks that share the tile of the item at ``position``."""
        first = position - item.first_step
        steps = steps_of(sizes)
        return Sharers(block_of(first, steps), block_of(first + sizes.k_steps - 1, steps))

    @lang.device
    def columns_of(tile_column, sizes):
        """Columns of W that a tile has: fewer at the end of n."""
        if cfg.ragged:
            return min(sizes.n_packed - tile_column * cfg.columns, cfg.columns)
        return uint32(cfg.columns)

    @lang.device
    def k16_rows_of(k_step, sizes):
        """k16 rows of a stage: fewer at the end of k."""
        if cfg.ragged:
            return min(sizes.k // 16 - k_step * cfg.stage_rows, cfg.stage_rows)
        return uint32(cfg.stage_rows)

    @lang.device
    def first_step_of(item):
        return Step(item.tile.tile_column, item.tile.row_first, item.first_step)

    @lang.device
    def next_step(step, sizes):
        """The step after this one. The producer cannot afford the divisions of ``item_at`` for each
        step."""
        tile_column, row_first, k_step = step
        k_step += 1
        if k_step == sizes.k_steps:
            k_step = 0
            tile_column += 1
            if tile_column == sizes.n_tiles:
                tile_column = 0
                row_first += cfg.batch
        return Step(tile_column, row_first, k_step)

    return lang.namespace(
        "schedule",
        Sizes=Sizes,
        sizes_of=sizes_of,
        steps_of=steps_of,
        stripe_of=stripe_of,
        block_of=block_of,
        item_at=item_at,
        worked_out=worked_out,
        sharers_of=sharers_of,
        columns_of=columns_of,
        k16_rows_of=k16_rows_of,
        first_step_of=first_step_of,
        next_step=next_step,
    )
