"""Who has which part of the work, as the schedules of decode and wgmma say it in plain Python."""

from numba_marlin.kernels.decode import schedule as decode_schedule
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.wgmma import schedule as wgmma_schedule
from numba_marlin.kernels.wgmma.config import STAGE_K
from tests.kernels.plain_language import plain_language


def decode_pieces(sizes, blocks, whole):
    """Block -> [(tile, first stage, stages, top, bottom)] as ``decode.consume`` walks through them,
    and what the producer walks through."""
    k_units, n_tiles, m_tiles = sizes
    config = DecodeConfig(batch=8, warps_n=1, warps_k=1, stage_k=64, group_blocks=4, whole=whole)
    pieces, produced = {}, {}
    for block in range(blocks):
        verbs = decode_schedule.schedule_verbs(plain_language(block, blocks), config)
        problem = verbs.problem_of(
            8 * m_tiles, config.columns * n_tiles, 64 * k_units, 64 * k_units
        )
        units = verbs.units_of(problem)
        assert (problem[4:6], units) == ((k_units, n_tiles), k_units * n_tiles * m_tiles)
        position, end = verbs.stripe_of(block, units, problem)
        column, row, _, unit, _ = (
            verbs.tile_at(position, end, problem) if position < end else (0,) * 5
        )
        walked = []
        for _ in range(position, end):
            walked.append((column, row, unit))
            column, row, unit = verbs.next_unit((column, row, unit), problem)
        produced[block], mine = walked, []
        while position < end:
            column, row, rows, first, count = verbs.tile_at(position, end, problem)
            assert rows == 8
            start = position - first
            shared = (
                (block, block)
                if whole
                else (verbs.block_of(start, units), verbs.block_of(start + k_units - 1, units))
            )
            mine.append(((column, row), first, count, *shared))
            position += count
        pieces[block] = mine
    return pieces, produced


def wgmma_items(sizes, blocks, config):
    """Block -> its items (tile, first step, steps), with the corner of the tile and, of one that
    stripes share, its (first, last block)."""
    steps, n_tiles, m_tiles = sizes
    found = {}
    for block in range(blocks):
        verbs = wgmma_schedule.schedule_verbs(plain_language(block, blocks), config)
        work = verbs.plan((config.tile_m * m_tiles, config.tile_n * n_tiles, STAGE_K * steps))
        item, found[block] = verbs.first_item(work), []
        while item[0] != wgmma_schedule.NO_TILE:
            shared = verbs.sharers(work, item[0]) if config.split and item[2] < steps else None
            found[block].append((item[:3], verbs.corner(work, item[0]), shared, work))
            item = verbs.next_item(work, item)
    return found
