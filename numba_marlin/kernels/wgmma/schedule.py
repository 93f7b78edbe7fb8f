"""Who multiplies what in the Hopper kernel (``wgmma``): whole tiles in waves, and stripes along k
of the tiles that are left over.

Tiles are numbered so that a wave of them stays in few rows and columns (``tile_order``). With B
blocks, tiles 0 .. waves * B - 1 are whole: block b takes b, B + b, ... The others, fewer than B,
are shared: their steps of k, tile after tile, are cut into equal stripes, one a block. A block
multiplies its stripe first: whole tiles of others then hide its fix-up.

``schedule_verbs(lang, config)`` -> namespace of device functions. ``work`` = plan(sizes): (steps of
k in a tile, row tiles, column tiles, waves, steps in a stripe, this block's end in the stripes). An
``item`` is (tile, first step, steps, next step of the stripe, next wave), its tile NO_TILE after
the last. A team, the blocks of a cluster or ``parts`` lone ones, takes whole tiles as a block does,
and each of its blocks an equal part of the steps.
"""

from types import SimpleNamespace

from numba_marlin.kernels.language.tile_order import NO_TILE, tile_order_verb
from numba_marlin.kernels.wgmma.config import STAGE_K


def schedule_verbs(lang, config):
    cuda, uint32 = lang.cuda, lang.uint32
    TILE_M, TILE_N, SPLIT, TEAM = config.tile_m, config.tile_n, config.split, config.team
    corner_of = tile_order_verb(lang, config.group_m, config.tile_m, config.tile_n)

    @lang.device
    def team():
        """(this block's team, teams), a lone block being its own"""
        return uint32(uint32(cuda.blockIdx.x) // uint32(TEAM)), uint32(
            uint32(cuda.gridDim.x) // uint32(TEAM)
        )

    @lang.device
    def rank_in_team():
        return uint32(uint32(cuda.blockIdx.x) % uint32(TEAM))

    @lang.device
    def plan(sizes):
        m, n, k = sizes
        steps = uint32((k + uint32(STAGE_K - 1)) // uint32(STAGE_K))
        m_tiles = uint32((m + uint32(TILE_M - 1)) // uint32(TILE_M))
        n_tiles = uint32((n + uint32(TILE_N - 1)) // uint32(TILE_N))
        block, blocks = team()
        tiles = uint32(m_tiles * n_tiles)
        waves = uint32(tiles // blocks)
        left = uint32(tiles % blocks)
        if not SPLIT:
            waves = uint32(waves + (uint32(1) if block < left else uint32(0)))
            return steps, m_tiles, n_tiles, waves, uint32(0), uint32(0)
        total = uint32(left * steps)
        stripe = uint32((total + blocks - uint32(1)) // blocks)
        return (
            steps,
            m_tiles,
            n_tiles,
            waves,
            stripe,
            uint32(min(uint32(uint32(block + uint32(1)) * stripe), total)),
        )

    @lang.device
    def first_item(work):
        return next_item(
            work,
            (uint32(0), uint32(0), uint32(0), uint32(uint32(cuda.blockIdx.x) * work[4]), uint32(0)),
        )

    @lang.device
    def next_item(work, item):
        steps, m_tiles, n_tiles, waves, stripe, end = work
        position, wave = item[3], item[4]
        block, blocks = team()
        if position < end:
            first = uint32(position % steps)
            count = uint32(min(uint32(steps - first), uint32(end - position)))
            return (
                uint32(waves * blocks + position // steps),
                first,
                count,
                uint32(position + count),
                wave,
            )
        if wave < waves:
            rank = rank_in_team()
            first = uint32(steps * rank // uint32(TEAM))
            return (
                uint32(wave * blocks + block),
                first,
                uint32(steps * uint32(rank + uint32(1)) // uint32(TEAM) - first),
                position,
                uint32(wave + uint32(1)),
            )
        return uint32(NO_TILE), uint32(0), uint32(0), position, wave

    @lang.device
    def corner(work, tile):
        """-> (first row, first column) of a tile"""
        m_tiles, n_tiles = work[1], work[2]
        return corner_of(tile, m_tiles, n_tiles)

    @lang.device
    def sharers(work, tile):
        """-> (first, last) block of those that share a tile"""
        steps, m_tiles, n_tiles, waves, stripe, end = work
        start = uint32((tile - waves * uint32(cuda.gridDim.x)) * steps)
        return uint32(start // stripe), uint32(uint32(start + steps - uint32(1)) // stripe)

    return SimpleNamespace(
        plan=plan,
        first_item=first_item,
        next_item=next_item,
        corner=corner,
        sharers=sharers,
        rank_in_team=rank_in_team,
    )
