"""Who multiplies what in ``wgmma``: stripes along k of the tiles that fill no wave (stream-K), and
whole tiles in waves. A wave is a tile for each block, or team.

Tiles are numbered so that a wave stays in few rows and columns, and these in L2: down ``group_m``
row tiles, then down the same rows of the next column tile, ...; after the last column the next
group_m rows. That is, with i = tile % (group_m * n_tiles), first = tile // (group_m * n_tiles) *
group_m and rows = min(group_m, m_tiles - first): row tile first + i % rows, column tile i // rows
(``language.tile_order``). With B blocks, tiles 0 .. waves * B - 1 are whole: block b takes b, B +
b, ... With ``split`` the others, fewer than B, are shared: their steps of k, tile after tile, are
cut into equal stripes of ceil(steps / B), one per block (the last ones may be shorter, or empty). A
block multiplies its stripe first, its whole tiles after that: whole tiles then hide the reduction
of the shared ones.

With ``cluster`` or ``parts`` (split-K) a team of blocks, those of a cluster or so many lone ones,
takes whole tiles as a block does. Of the S steps of a tile, block r of a team of T multiplies those
from S r // T up to (not with) S (r + 1) // T: none, where these are equal, and then it adds
zeros. (Not in W4A8, whose main loop begins with a step: its ``grid`` refuses fewer steps than
parts.)
"""

from numba_marlin.kernels.language.tile_order import NO_TILE, tile_order_verb


def schedule_verbs(lang, config):
    """-> namespace of device functions that count in u32, and of the records that they exchange."""
    cuda, uint32 = lang.cuda, lang.uint32
    cfg = lang.constants(config)
    corner_of = tile_order_verb(lang, config.group_m, config.tile_m, config.tile_n)

    Sizes = lang.record("Sizes", "m n k")

    # What a block must know to find its work. steps: of k in a tile; m_tiles, n_tiles: row and
    # column tiles; waves: whole tiles of this block, one of each wave; stripe: steps in a stripe;
    # end: where this block's stripe ends, in steps from the beginning of the first stripe, all laid
    # end to end. Without ``split`` both are 0: position < end never holds.
    Plan = lang.record("Plan", "steps m_tiles n_tiles waves stripe end")

    # What to multiply: ``steps`` steps of a tile from first_step on. tile: its number, NO_TILE
    # after the last. Where the next item is: position, in the stripes, counted as Plan.end is;
    # wave: whole tiles that this block has had
    WorkItem = lang.record("WorkItem", "tile first_step steps position wave")

    Tile = lang.record("Tile", "row_first column_first")

    # the first and the last of the blocks that share a tile: the first has the lowest k
    Sharers = lang.record("Sharers", "first last")

    # this block's team, of so many; without ``cluster`` and ``parts`` a block is its own team
    Team = lang.record("Team", "number teams")

    @lang.device
    def own_team():
        return Team(uint32(cuda.blockIdx.x) // cfg.team, uint32(cuda.gridDim.x) // cfg.team)

    @lang.device
    def rank_in_team():
        return uint32(cuda.blockIdx.x) % cfg.team

    @lang.device
    def own_steps(plan):
        """Those of a tile that this block of a team multiplies: the first, and the one behind the
        last."""
        rank = rank_in_team()
        return plan.steps * rank // cfg.team, plan.steps * (rank + 1) // cfg.team

    @lang.device
    def plan_of(sizes):
        return plan_of_tiles(
            own_team(),
            (sizes.k + (cfg.stage_k - 1)) // cfg.stage_k,
            (sizes.m + (cfg.tile_m - 1)) // cfg.tile_m,
            (sizes.n + (cfg.tile_n - 1)) // cfg.tile_n,
        )

    @lang.device
    def plan_of_tiles(team, steps, m_tiles, n_tiles):
        tiles = m_tiles * n_tiles
        waves, left = tiles // team.teams, tiles % team.teams
        if not cfg.split:
            return Plan(steps, m_tiles, n_tiles, waves + (1 if team.number < left else 0), 0, 0)
        total = left * steps
        stripe = (total + team.teams - 1) // team.teams
        end = min((team.number + 1) * stripe, total)
        return Plan(steps, m_tiles, n_tiles, waves, stripe, end)

    @lang.device
    def first_item(plan):
        return next_item(plan, WorkItem(0, 0, 0, uint32(cuda.blockIdx.x) * plan.stripe, 0))

    @lang.device
    def next_item(plan, item):
        team, position, wave = own_team(), item.position, item.wave
        if position < plan.end:
            tile = plan.waves * team.teams + position // plan.steps
            first_step = position % plan.steps
            steps = min(plan.steps - first_step, plan.end - position)
            return WorkItem(tile, first_step, steps, position + steps, wave)
        if wave < plan.waves:
            first_step, end = own_steps(plan)
            tile = wave * team.teams + team.number
            return WorkItem(tile, first_step, end - first_step, position, wave + 1)
        return WorkItem(NO_TILE, 0, 0, position, wave)

    @lang.device
    def tile_of(item, plan):
        row_first, column_first = corner_of(item.tile, plan.m_tiles, plan.n_tiles)
        return Tile(row_first, column_first)

    @lang.device
    def panel_column(tile, panel):
        """The first column, of the matrix, of a panel of a tile."""
        return tile.column_first + panel * 64

    @lang.device
    def shared_number(item, plan):
        """The number of a tile among those that stripes share."""
        return item.tile - plan.waves * uint32(cuda.gridDim.x)

    @lang.device
    def sharers_of(item, plan):
        start = shared_number(item, plan) * plan.steps
        return Sharers(start // plan.stripe, (start + plan.steps - 1) // plan.stripe)

    return lang.namespace(
        "schedule",
        Sizes=Sizes,
        WorkItem=WorkItem,
        Plan=Plan,
        own_team=own_team,
        own_steps=own_steps,
        plan_of=plan_of,
        plan_of_tiles=plan_of_tiles,
        first_item=first_item,
        next_item=next_item,
        tile_of=tile_of,
        panel_column=panel_column,
        shared_number=shared_number,
        sharers_of=sharers_of,
        rank_in_team=rank_in_team,
    )
