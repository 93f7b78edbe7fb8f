"""Contract under test: what the compiler makes of a schedule shares work out as plain Python
does."""

import numpy as np

from numba_marlin import compiler
from numba_marlin.emulator import Machine
from numba_marlin.kernels.decode import schedule as decode_schedule
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.hopper import schedule as wgmma_schedule
from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.wgmma.config import STAGE_K, WgmmaConfig
from tests.kernels.partitions import decode_pieces, wgmma_items

PIECE = 8  # numbers that a probe writes down for each piece


def probe(name, config_type, body):
    """A kernel that writes down what the schedule says: out int32 [blocks, pieces, PIECE]."""
    return KernelDefinition(
        name=name,
        config_type=config_type,
        parameters=(("out", "u64"), ("m", "i32"), ("n", "i32"), ("k", "i32"), ("most", "i32")),
        make=body,
        threads=lambda config: 32,
        shared_bytes=lambda config: 0,
        grid=lambda config, m, n, k, sms: (sms, 1, 1),
        min_arch="sm_90a",
    )


def make_decode_probe(lang, config):
    cuda, ptx, uint32, uint64 = lang.cuda, lang.ptx, lang.uint32, lang.uint64
    schedule = decode_schedule.schedule_verbs(lang, config)

    def decode_probe(out, m, n, k, most):
        block = uint32(cuda.blockIdx.x)
        sizes = schedule.sizes_of(uint32(m), uint32(n), uint32(k), uint32(k))
        position, end = schedule.stripe_of(block, sizes)
        at = out + uint64(block) * most * (4 * PIECE)
        if ptx.tid_x() == 0:
            while position < end:
                item = schedule.item_at(position, end, sizes)
                sharers = schedule.sharers_of(position, item, sizes)
                ptx.st_global_v4_b32(
                    at, (item.tile.n_tile, item.tile.row_first, item.first_k_step, item.steps)
                )
                ptx.st_global_v4_b32(at + 16, (sharers.top, sharers.bottom, 1, 0))
                at += 4 * PIECE
                position += item.steps

    return decode_probe


def make_wgmma_probe(lang, config):
    cuda, ptx, uint32, uint64 = lang.cuda, lang.ptx, lang.uint32, lang.uint64
    schedule = wgmma_schedule.schedule_verbs(lang, config)
    NO_TILE = wgmma_schedule.NO_TILE

    def wgmma_probe(out, m, n, k, most):
        plan = schedule.plan_of(schedule.Sizes(m, n, k))
        at = out + uint64(uint32(cuda.blockIdx.x)) * most * (4 * PIECE)
        if ptx.tid_x() == 0:
            item = schedule.first_item(plan)
            while item.tile != NO_TILE:
                tile = schedule.tile_of(item, plan)
                ptx.st_global_v4_b32(at, (item.tile, item.first_step, item.steps, tile.row_first))
                if item.steps < plan.steps:
                    sharers = schedule.sharers_of(item, plan)
                    ptx.st_global_v4_b32(
                        at + 16, (tile.column_first, sharers.first, sharers.last, 0)
                    )
                else:
                    ptx.st_global_v4_b32(at + 16, (tile.column_first, 0, 0, 0))
                at += 4 * PIECE
                item = schedule.next_item(plan, item)

    return wgmma_probe


def run_probe(kernel, config, blocks, m, n, k):
    """-> block -> [tuple of PIECE numbers]"""
    most = 64
    out = np.full((blocks, most, PIECE), -1, np.int32)
    compiled = compiler.build(kernel, config, target="sm_90a")
    machine = Machine(compiled.ptx)
    machine.run(
        compiled.entry,
        grid=blocks,
        block=32,
        args=[machine.memory.buffer(out).address, m, n, k, most],
    )
    return {
        block: [tuple(row) for row in out[block].tolist() if row[0] != -1]
        for block in range(blocks)
    }


SAMPLE = ((3, 2, 2, 5), (5, 3, 1, 4), (1, 4, 2, 3), (7, 1, 1, 6), (4, 4, 2, 13))


def test_what_the_compiler_makes_of_decodes_schedule_counts_the_same():
    kernel, config = (
        probe("decode_probe", DecodeConfig, make_decode_probe),
        DecodeConfig(batch=8, warps_n=1, warps_k=1, stage_k=64, group_blocks=4),
    )
    for *sizes, blocks in SAMPLE:
        expected = {
            block: [
                (*tile, first, count, top, bottom, 1, 0) for tile, first, count, top, bottom in mine
            ]
            for block, mine in decode_pieces(sizes, blocks, False)[0].items()
        }
        k_units, n_tiles, m_tiles = sizes
        assert (
            run_probe(kernel, config, blocks, 8 * m_tiles, config.columns * n_tiles, 64 * k_units)
            == expected
        )


def test_what_the_compiler_makes_of_wgmmas_schedule_counts_the_same():
    kernel, config = (
        probe("wgmma_probe", WgmmaConfig, make_wgmma_probe),
        WgmmaConfig(tile_m=64, tile_n=64, warpgroups=1, stages=2, group_m=2),
    )
    for *sizes, blocks in SAMPLE:
        expected = {
            block: [(*item, *corner, *(shared or (0, 0)), 0) for item, corner, shared, _ in mine]
            for block, mine in wgmma_items(sizes, blocks, config).items()
        }
        steps, n_tiles, m_tiles = sizes
        assert (
            run_probe(kernel, config, blocks, 64 * m_tiles, 64 * n_tiles, STAGE_K * steps)
            == expected
        )
