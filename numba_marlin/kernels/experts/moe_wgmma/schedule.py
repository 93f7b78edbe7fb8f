"""Which block computes what in ``moe_wgmma``: waves and stripes of ``hopper.schedule``, over the
tiles of all experts.

A tile is a row block of an expert (``experts.tables``) by ``tile_n`` columns of W; with an
activation, by ``tile_n / 2`` columns of gate and the same of up, which lie n / 2 behind them. Tiles
are numbered expert by expert, those of an expert in bands of ``group_m`` row blocks
(``language.tile_order``): what blocks read at about the same time are few experts' weights.

``schedule_verbs(lang, config)`` -> namespace of device functions, those of ``hopper.schedule`` but
for

``plan_of(sizes, tables)``  as there, from the row blocks that the routing has; tables: addresses in
                            shared memory, filled
``tile_of(item, plan)``     -> Tile(row_first, column_first, expert, rows): its first row, a
                            position in ``pairs``, and how many it has
``panel_column(tile, panel)``
"""

from numba_marlin.kernels.experts.tables import WORD_BYTES, table_verbs
from numba_marlin.kernels.hopper import schedule as hopper
from numba_marlin.kernels.language.tile_order import NO_TILE, tile_order_verb


def schedule_verbs(lang, config):
    ptx = lang.ptx
    cfg = lang.constants(config)
    waves, tables = hopper.schedule_verbs(lang, config), table_verbs(lang, config)
    corner_of = tile_order_verb(lang, config.group_m, config.tile_m, config.half_columns)

    # columns: of gate, or of all that there are
    Sizes = lang.record("MoeSizes", "n k columns a_stride")
    Tables = lang.record("MoeTables", "table offsets")
    Plan = lang.record("MoePlan", "steps m_tiles n_tiles waves stripe end columns tables")
    Tile = lang.record("MoeTile", "row_first column_first expert rows columns")

    @lang.device
    def plan_of(sizes, tables):
        row_blocks = ptx.ld_shared_b32(tables.table + WORD_BYTES * cfg.experts)
        n_tiles = (sizes.columns + (cfg.half_columns - 1)) // cfg.half_columns
        plan = waves.plan_of_tiles(waves.own_team(), sizes.k // cfg.stage_k, row_blocks, n_tiles)
        return Plan(
            plan.steps,
            plan.m_tiles,
            plan.n_tiles,
            plan.waves,
            plan.stripe,
            plan.end,
            sizes.columns,
            tables,
        )

    @lang.device
    def tile_of(item, plan):
        expert = tables.expert_of(item.tile // plan.n_tiles, plan.tables.table)
        entry, offset = WORD_BYTES * expert, plan.tables.offsets
        before = ptx.ld_shared_b32(plan.tables.table + entry)
        row_blocks = ptx.ld_shared_b32(plan.tables.table + entry + WORD_BYTES) - before
        row, column = corner_of(item.tile - before * plan.n_tiles, row_blocks, plan.n_tiles)
        row_first = ptx.ld_shared_b32(offset + entry) + row
        rows = min(ptx.ld_shared_b32(offset + entry + WORD_BYTES) - row_first, cfg.tile_m)
        return Tile(row_first, column, expert, rows, plan.columns)

    @lang.device
    def panel_column(tile, panel):
        """Of a panel of the second half, up's."""
        return (
            tile.column_first
            + panel % cfg.half_panels * 64
            + panel // cfg.half_panels * tile.columns
        )

    return lang.namespace(
        "schedule",
        NO_TILE=NO_TILE,
        Sizes=Sizes,
        Tables=Tables,
        count_row_blocks=tables.count_row_blocks,
        plan_of=plan_of,
        first_item=waves.first_item,
        next_item=waves.next_item,
        tile_of=tile_of,
        panel_column=panel_column if config.gated else waves.panel_column,
        shared_number=waves.shared_number,
        sharers_of=waves.sharers_of,
        rank_in_team=waves.rank_in_team,
    )
