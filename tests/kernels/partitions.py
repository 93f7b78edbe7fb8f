"""Who has which part of the work, as the schedules of decode and wgmma say it in plain Python."""

from numba_marlin.kernels.decode import schedule as decode_schedule
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.hopper import schedule as wgmma_schedule
from numba_marlin.kernels.wgmma.config import STAGE_K
from tests.kernels.plain_language import plain_language


def decode_pieces(sizes, blocks, whole):
    """Block -> [(tile, first stage, stages, top, bottom)] as ``decode.consume`` walks through them,
    and what the producer walks through."""
    k_units, n_tiles, m_tiles = sizes
    config = DecodeConfig(batch=8, warps_n=1, warps_k=1, stage_k=64, group_blocks=4, whole=whole)
    pieces, produced = {}, {}
    for block in range(blocks):
        schedule = decode_schedule.schedule_verbs(plain_language(block, blocks), config)
        k = 64 * k_units
        problem = schedule.sizes_of(8 * m_tiles, config.columns * n_tiles, k, k)
        steps = schedule.steps_of(problem)
        assert (problem.k_steps, problem.n_tiles) == (k_units, n_tiles)
        assert steps == k_units * n_tiles * m_tiles
        position, end = schedule.stripe_of(block, problem)
        walked = []
        if position < end:
            step = schedule.first_step_of(schedule.item_at(position, end, problem))
            for _ in range(position, end):
                walked.append(tuple(step))
                step = schedule.next_step(step, problem)
        produced[block], mine = walked, []
        while position < end:
            item = schedule.item_at(position, end, problem)
            assert item.tile.x_rows == 8
            shared = (block, block) if whole else schedule.sharers_of(position, item, problem)
            tile = (item.tile.n_tile, item.tile.row_first)
            mine.append((tile, item.first_k_step, item.steps, *shared))
            position += item.steps
        pieces[block] = mine
    return pieces, produced


def wgmma_items(sizes, blocks, config):
    """Block -> its items (tile, first step, steps), with the corner of the tile and, of one that
    stripes share, its (first, last block)."""
    steps, n_tiles, m_tiles = sizes
    found = {}
    for block in range(blocks):
        schedule = wgmma_schedule.schedule_verbs(plain_language(block, blocks), config)
        size_m, size_n = config.tile_m * m_tiles, config.tile_n * n_tiles
        plan = schedule.plan_of(schedule.Sizes(size_m, size_n, STAGE_K * steps))
        item, found[block] = schedule.first_item(plan), []
        while item.tile != wgmma_schedule.NO_TILE:
            cut = config.split and item.steps < plan.steps
            sharers = schedule.sharers_of(item, plan) if cut else None
            what = (item.tile, item.first_step, item.steps)
            found[block].append((what, schedule.tile_of(item, plan), sharers, plan))
            item = schedule.next_item(plan, item)
    return found
