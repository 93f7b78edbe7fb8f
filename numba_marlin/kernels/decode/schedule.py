"""Which block computes what in ``decode``: stream-K, cut at steps.

C is cut into tiles of ``batch`` rows by ``64 warps_n`` columns. A *step* is stage_k of k of one
tile: what fills a stage and what a round of the main loop multiplies. Steps are numbered through a
launch, and that number is a step's *position*: those of a tile follow each other along k, then come
those of the next tile to the right (``n_tile``), and after the last one those of the next ``batch``
rows. All steps are cut into contiguous *stripes*, one per block, equal to within a step. With
``whole`` tiles are what is cut into stripes, equal to within a tile.

So the steps of a tile may lie in several stripes. Its *top* block is the one that has its first
step, the smallest k, its *bottom* block the one that has its last; a tile is shared by all blocks
from top to bottom, and by nobody if they are the same. An example: 2 tiles of 4 steps and 3 blocks
are stripes of 3, 3 and 2 steps::

    k_step       0   1   2   3
    tile 0     | 0   0   0 | 1 |    top 0, bottom 1
    tile 1     | 1   1 | 2   2 |    top 1, bottom 2       (numbers in the picture: the block)

``schedule_verbs(lang, config)`` -> namespace of device functions, and the records:

``Sizes``     of a launch: C is m x n, n_packed is n completed to 64, rows of a lie a_stride
              elements apart, a tile has k_steps steps, a row of tiles n_tiles tiles
``Stripe``    of a block: the steps at positions [begin, end)
``Tile``      n_tile: its number from the left; row_first: its first row, of C and of x; x_rows:
              rows that the matrix has of it, 1 to batch
``WorkItem``  what a block does of a tile: ``steps`` steps from ``first_k_step`` on, which is
              counted from 0 in each tile
``Sharers``   the numbers of a tile's ``top`` and ``bottom`` block: all from top to bottom share it
``Step``      one step: n_tile and row_first of its tile, and k_step, counted from 0 in each tile
"""

from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.language.stripes import stripe_verbs


def schedule_verbs(lang, config):
    cuda, uint32 = lang.cuda, lang.uint32
    cfg = lang.constants(config)
    stripes = stripe_verbs(lang)
    Sizes = lang.record("Sizes", "m n k a_stride n_packed k_steps n_tiles")
    Stripe = lang.record("Stripe", "begin end")
    Tile = lang.record("Tile", "n_tile row_first x_rows")
    WorkItem = lang.record("WorkItem", "tile first_k_step steps")
    Sharers = lang.record("Sharers", "top bottom")
    Step = lang.record("Step", "n_tile row_first k_step")

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
    def stripe_start(block, units):
        """The unit (a step, or a tile with ``whole``) that the stripe of a block begins with."""
        return stripes.start(block, units, uint32(cuda.gridDim.x))

    @lang.device
    def stripe_of(block, sizes):
        if cfg.whole:
            tiles = steps_of(sizes) // sizes.k_steps
            return Stripe(
                stripe_start(block, tiles) * sizes.k_steps,
                stripe_start(block + 1, tiles) * sizes.k_steps,
            )
        return Stripe(
            stripe_start(block, steps_of(sizes)), stripe_start(block + 1, steps_of(sizes))
        )

    @lang.device
    def block_of(position, steps):
        """Whose stripe has the step at ``position``, of all ``steps``. (Means nothing with
        ``whole``.) There are at most as many blocks as steps (``config.grid``)."""
        return stripes.block_of(position, steps, uint32(cuda.gridDim.x))

    @lang.device
    def item_at(position, end, sizes):
        """What a block does of the tile at ``position``, its stripe ending at ``end``."""
        tile = position // sizes.k_steps
        first_k_step = position - tile * sizes.k_steps
        row_first = tile // sizes.n_tiles * cfg.batch
        return WorkItem(
            Tile(tile % sizes.n_tiles, row_first, min(sizes.m - row_first, cfg.batch)),
            first_k_step,
            min(sizes.k_steps - first_k_step, end - position),
        )

    @lang.device
    def sharers_of(position, item, sizes):
        """The blocks that share the tile of the item at ``position``. (Not with ``whole``, where
        nobody looks at it.)"""
        first = position - item.first_k_step
        steps = steps_of(sizes)
        return Sharers(block_of(first, steps), block_of(first + sizes.k_steps - 1, steps))

    @lang.device
    def columns_of(n_tile, sizes):
        """Columns of W that a tile has, padded to 64: fewer at the end of n."""
        if cfg.ragged:
            return min(sizes.n_packed - n_tile * cfg.columns, cfg.columns)
        return uint32(cfg.columns)

    @lang.device
    def k16_rows_of(k_step, sizes):
        """k16 rows of a step: fewer at the end of k."""
        if cfg.ragged:
            return min(sizes.k // 16 - k_step * cfg.stage_rows, cfg.stage_rows)
        return uint32(cfg.stage_rows)

    @lang.device
    def x_rows_of(step, sizes):
        """Rows of x that the matrix has of a step's tile."""
        return min(sizes.m - step.row_first, cfg.batch)

    @lang.device
    def first_step_of(item):
        """Step, of a WorkItem."""
        return Step(item.tile.n_tile, item.tile.row_first, item.first_k_step)

    @lang.device
    def next_step(step, sizes):
        """The step after this one. The producer cannot afford the divisions of ``item_at`` for each
        step."""
        n_tile, row_first, k_step = step
        k_step += 1
        if k_step == sizes.k_steps:
            k_step = 0
            n_tile += 1
            if n_tile == sizes.n_tiles:
                n_tile = 0
                row_first += cfg.batch
        return Step(n_tile, row_first, k_step)

    return lang.namespace(
        "schedule",
        Sizes=Sizes,
        Tile=Tile,
        WorkItem=WorkItem,
        sizes_of=sizes_of,
        steps_of=steps_of,
        stripe_of=stripe_of,
        block_of=block_of,
        item_at=item_at,
        sharers_of=sharers_of,
        columns_of=columns_of,
        k16_rows_of=k16_rows_of,
        x_rows_of=x_rows_of,
        first_step_of=first_step_of,
        next_step=next_step,
    )
