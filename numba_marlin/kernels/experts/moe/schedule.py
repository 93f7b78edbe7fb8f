"""Which block computes what in ``moe``: stream-K over the tiles of all experts.

A tile is a row block of an expert (``experts.tables``) by ``64 warps_n`` columns, with all of k
(``decode.schedule``: steps, positions, stripes, items, sharers). Tiles are numbered expert by
expert; those of an expert column by column, and in a column the row blocks follow each other, so
that blocks which read the same weights do so at about the same time, and most find them in L2.
With fewer steps than blocks the last blocks have nothing to do.

``schedule_verbs(lang, config)`` -> namespace of device functions, and records as in ``decode``,
with other fields:

``Sizes``   n, k, a_stride, n_packed, k_steps, n_tiles as there; row_blocks: all there are; blocks:
            that have work; table, offsets: addresses in shared memory
``Tile``    expert; n_tile; row_first: its first row, a position in ``pairs``; x_rows
``Step``    n_tile and x_rows of its tile, and k_step
"""

from numba_marlin.kernels.decode import schedule as decode
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.experts.tables import WORD_BYTES, table_verbs
from numba_marlin.kernels.language.stripes import stripe_verbs


def schedule_verbs(lang, config):
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    cfg = lang.constants(config)
    stripes = stripe_verbs(lang)
    of_matrix, tables = decode.schedule_verbs(lang, config), table_verbs(lang, config)
    Sizes = lang.record(
        "MoeSizes", "n k a_stride n_packed k_steps n_tiles row_blocks blocks table offsets"
    )
    Stripe = lang.record("Stripe", "begin end")
    Tile = lang.record("MoeTile", "expert n_tile row_first x_rows")
    WorkItem = lang.record("MoeWorkItem", "tile first_k_step steps")
    Sharers = lang.record("Sharers", "top bottom")
    Step = lang.record("MoeStep", "n_tile x_rows k_step")

    @lang.device
    def sizes_of(n, k, a_stride, table, offsets):
        """n, k, a_stride: uint32; table, offsets: filled."""
        n_tiles = (n + (cfg.columns - 1)) // cfg.columns
        k_steps = (k + (cfg.stage_k - 1)) // cfg.stage_k
        row_blocks = ptx.ld_shared_b32(table + WORD_BYTES * cfg.experts)
        tiles = row_blocks * n_tiles
        units = tiles if cfg.whole else tiles * k_steps
        return Sizes(
            n,
            k,
            a_stride,
            n_packed=(n + (COLUMNS - 1)) // COLUMNS * COLUMNS,
            k_steps=k_steps,
            n_tiles=n_tiles,
            row_blocks=row_blocks,
            blocks=min(uint32(cuda.gridDim.x), units),
            table=table,
            offsets=offsets,
        )

    @lang.device
    def steps_of(sizes):
        return sizes.row_blocks * sizes.n_tiles * sizes.k_steps

    @lang.device
    def stripe_of(block, sizes):
        """Empty for a block without work, above all where there is no work at all."""
        begin, end = 0, 0
        if block < sizes.blocks:
            each = sizes.k_steps if cfg.whole else 1
            units = steps_of(sizes) // each
            begin = stripes.start(block, units, sizes.blocks) * each
            end = stripes.start(block + 1, units, sizes.blocks) * each
        return Stripe(begin, end)

    @lang.device
    def item_at(position, end, sizes):
        """What a block does of the tile at ``position``, its stripe ending at ``end``."""
        tile = position // sizes.k_steps
        first_k_step = position - tile * sizes.k_steps
        expert = tables.expert_of(tile // sizes.n_tiles, sizes.table)
        before = ptx.ld_shared_b32(sizes.table + WORD_BYTES * expert)
        row_blocks = ptx.ld_shared_b32(sizes.table + WORD_BYTES * (expert + 1)) - before
        tile_of_expert = tile - before * sizes.n_tiles
        n_tile = tile_of_expert // row_blocks
        row_first = (
            ptx.ld_shared_b32(sizes.offsets + WORD_BYTES * expert)
            + tile_of_expert % row_blocks * cfg.batch
        )
        row_end = ptx.ld_shared_b32(sizes.offsets + WORD_BYTES * (expert + 1))
        return WorkItem(
            Tile(expert, n_tile, row_first, min(row_end - row_first, cfg.batch)),
            first_k_step,
            min(sizes.k_steps - first_k_step, end - position),
        )

    @lang.device
    def sharers_of(position, item, sizes):
        """The blocks that share the tile of the item at ``position``. (Not with ``whole``.)"""
        first, steps = position - item.first_k_step, steps_of(sizes)
        return Sharers(
            stripes.block_of(first, steps, sizes.blocks),
            stripes.block_of(first + sizes.k_steps - 1, steps, sizes.blocks),
        )

    @lang.device
    def step_of(item, k_step):
        return Step(item.tile.n_tile, item.tile.x_rows, k_step)

    @lang.device
    def x_rows_of(step, sizes):
        return step.x_rows

    return lang.namespace(
        "schedule",
        count_row_blocks=tables.count_row_blocks,
        sizes_of=sizes_of,
        stripe_of=stripe_of,
        item_at=item_at,
        sharers_of=sharers_of,
        step_of=step_of,
        columns_of=of_matrix.columns_of,
        k16_rows_of=of_matrix.k16_rows_of,
        x_rows_of=x_rows_of,
    )
