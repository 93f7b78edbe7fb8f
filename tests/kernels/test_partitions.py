"""Contract under test, by exhaustion: whatever the sizes and the number of blocks, the blocks of a
kernel compute every tile once, meet in the workspace without mistaking each other, leave their
counters at zero, and add up in a fixed order.

The schedules of decode and wgmma are the kernels' own device functions, run as plain Python;
compiled, they give the same numbers on the machine. Of the faithful kernel the model is
``layout.stripes`` (whose docstring has the proof), and the machine says that the compiled kernel
follows it.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from numba_marlin import compiler, testing
from numba_marlin.emulator import Machine
from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.decode import schedule as decode_schedule
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.wgmma import schedule as wgmma_schedule
from numba_marlin.kernels.wgmma.config import STAGE_K, WgmmaConfig
from numba_marlin.layout.stripes import stripes
from tests.kernels.harness import config_for, launch_on, machine_of, prepare
from tests.kernels.plain_language import plain_language

# units of k of a tile, column tiles, row tiles
SIZES = tuple(product(range(1, 11), range(1, 6), range(1, 4)))
BLOCKS = range(1, 18)


# ---- decode ----


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


@pytest.mark.parametrize("whole", (False, True))
def test_decode_shares_its_tiles_out_without_gap_or_overlap(whole):
    for sizes, blocks in product(SIZES, BLOCKS):
        k_units, n_tiles, m_tiles = sizes
        # DecodeConfig.grid
        if blocks > (n_tiles * m_tiles if whole else k_units * n_tiles * m_tiles):
            continue
        pieces, produced = decode_pieces(sizes, blocks, whole)
        done = Counter(
            (tile, first + step)
            for mine in pieces.values()
            for tile, first, count, _, _ in mine
            for step in range(count)
        )
        tiles = list(product(range(n_tiles), range(0, 8 * m_tiles, 8)))
        assert done == Counter(product(tiles, range(k_units))), (sizes, blocks)
        assert produced == {
            block: [
                (*tile, first + step) for tile, first, count, _, _ in mine for step in range(count)
            ]
            for block, mine in pieces.items()
        }
        work = [len(each) for each in produced.values()]
        assert max(work) - min(work) <= (k_units if whole else 1)
        check_meetings(
            sizes,
            blocks,
            {
                block: [
                    (tile, top, bottom, 2 * block + (block == top), top)
                    for tile, _, _, top, bottom in mine
                ]
                for block, mine in pieces.items()
            },
        )


def check_meetings(case, blocks, pieces):
    """pieces: block -> [(tile, first and last block that have a part of it, slot in the workspace,
    counter)]. The parts of a tile are those of a row of blocks; no two (block, tile) share a slot,
    nor two tiles a counter; each counter is counted up to zero by as many as wait to be the last.
    """
    slots, counters, parts = set(), {}, defaultdict(list)
    for block, mine in pieces.items():
        for tile, top, bottom, slot, counter in mine:
            parts[tile].append((block, top, bottom))
            if top != bottom:
                assert slot not in slots and counters.setdefault(counter, tile) == tile, (
                    case,
                    blocks,
                )
                slots.add(slot)
    for tile, found in parts.items():
        _, top, bottom = found[0]
        # so parts = bottom - top + 1, in the order of blocks
        assert [each[0] for each in found] == list(range(top, bottom + 1)), (case, blocks)
        assert {each[1:] for each in found} == {(top, bottom)}
    assert all(0 <= slot < 2 * blocks for slot in slots)


# ---- wgmma ----


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


@pytest.mark.parametrize(
    "what",
    (
        {"split": True},
        {"split": True, "group_m": 2},
        {"group_m": 2},
        {"cluster": 2},
        {"cluster": 4},
        {"parts": 2},
        {"parts": 3, "group_m": 2},
    ),
)
def test_wgmma_shares_its_tiles_out_without_gap_or_overlap(what):
    config = WgmmaConfig(tile_m=64, tile_n=64, warpgroups=1, stages=2, **{"split": False, **what})
    for sizes, teams in product(SIZES, BLOCKS):
        steps, n_tiles, m_tiles = sizes
        # WgmmaConfig.grid
        if (
            teams > n_tiles * m_tiles * (steps if config.split else 1)
            or config.team > 1
            and teams * config.team > 16
        ):
            continue
        blocks = teams * config.team
        items = wgmma_items(sizes, blocks, config)
        corners = Counter(
            (corner, first + step)
            for mine in items.values()
            for (_, first, count), corner, _, _ in mine
            for step in range(count)
        )
        every = product(
            product(range(0, 64 * m_tiles, 64), range(0, 64 * n_tiles, 64)), range(steps)
        )
        assert corners == Counter(every), (sizes, blocks)
        pieces = {}
        for block, mine in items.items():
            pieces[block] = []
            for (tile, first, count), _, shared, work in mine:
                if shared is not None:
                    top, bottom = shared
                    pieces[block].append(
                        (tile, top, bottom, 2 * block + (block == top), tile - work[3] * blocks)
                    )
                    # a counter that there is
                    assert 0 <= tile - work[3] * blocks < (n_tiles * m_tiles) % blocks
        check_meetings(sizes, blocks, pieces)


@pytest.mark.parametrize("team", ({"cluster": 4}, {"parts": 3}))
def test_a_team_takes_the_steps_of_a_tile_in_the_order_of_its_ranks_and_each_block_comes(team):
    """All of them are counted, those without a step too."""
    config = WgmmaConfig(tile_m=64, tile_n=64, warpgroups=1, stages=2, split=False, **team)
    for steps, tiles in product(range(1, 12), range(1, 4)):
        items = wgmma_items((steps, tiles, 1), config.team, config)
        for tile in range(tiles):
            ranked = [
                [item for item, *_ in items[block] if item[0] == tile]
                for block in range(config.team)
            ]
            assert all(len(each) == 1 for each in ranked)
            assert [
                step for ((_, first, count),) in ranked for step in range(first, first + count)
            ] == list(range(steps))


# ---- compiled ----

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
    verbs = decode_schedule.schedule_verbs(lang, config)
    problem_of, units_of, stripe_of, block_of, tile_at = (
        verbs.problem_of,
        verbs.units_of,
        verbs.stripe_of,
        verbs.block_of,
        verbs.tile_at,
    )

    def decode_probe(out, m, n, k, most):
        block = uint32(cuda.blockIdx.x)
        problem = problem_of(uint32(m), uint32(n), uint32(k), uint32(k))
        units = units_of(problem)
        position, end = stripe_of(block, units, problem)
        at = out + uint64(block) * uint64(most) * uint64(4 * PIECE)
        if ptx.tid_x() == uint32(0):
            while position < end:
                tile = tile_at(position, end, problem)
                first = uint32(position - tile[3])
                ptx.st_global_v4_b32(at, (tile[0], tile[1], tile[3], tile[4]))
                ptx.st_global_v4_b32(
                    at + uint64(16),
                    (
                        block_of(first, units),
                        block_of(uint32(first + problem[4] - uint32(1)), units),
                        uint32(1),
                        uint32(0),
                    ),
                )
                at += uint64(4 * PIECE)
                position = uint32(position + tile[4])

    return decode_probe


def make_wgmma_probe(lang, config):
    cuda, ptx, uint32, uint64 = lang.cuda, lang.ptx, lang.uint32, lang.uint64
    verbs = wgmma_schedule.schedule_verbs(lang, config)
    plan, first_item, next_item, corner, sharers = (
        verbs.plan,
        verbs.first_item,
        verbs.next_item,
        verbs.corner,
        verbs.sharers,
    )
    NO_TILE = wgmma_schedule.NO_TILE

    def wgmma_probe(out, m, n, k, most):
        work = plan((uint32(m), uint32(n), uint32(k)))
        at = out + uint64(uint32(cuda.blockIdx.x)) * uint64(most) * uint64(4 * PIECE)
        if ptx.tid_x() == uint32(0):
            item = first_item(work)
            while item[0] != uint32(NO_TILE):
                place = corner(work, item[0])
                ptx.st_global_v4_b32(at, (item[0], item[1], item[2], place[0]))
                if item[2] < work[0]:
                    shared = sharers(work, item[0])
                    ptx.st_global_v4_b32(
                        at + uint64(16), (place[1], shared[0], shared[1], uint32(0))
                    )
                else:
                    ptx.st_global_v4_b32(
                        at + uint64(16), (place[1], uint32(0), uint32(0), uint32(0))
                    )
                at += uint64(4 * PIECE)
                item = next_item(work, item)

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


# ---- the faithful kernel ----


@pytest.mark.parametrize("m, n, k, sms", ((20, 256, 384, 5), (4, 384, 512, 7), (4, 128, 640, 3)))
def test_the_faithful_kernel_follows_the_stripes(m, n, k, sms):
    """Which weight tiles each block copies, and the order in which blocks hand on what they
    share."""
    config = replace(config_for("ampere", 4, 256, 768, 128))
    problem = testing.exact_problem(m, n, k, 128, seed=1)
    prepared = prepare(AMPERE, problem.x, problem.weight, config=config, sms=sms)
    blocks = prepared.grid[0]
    machine = machine_of(prepared.compiled.ptx, False)
    for buffer in machine.memory.buffers:
        machine.memory.release(buffer)
    launch = launch_on(machine, prepared)
    places = {buffer.name: buffer for buffer in machine.memory.buffers}
    tiles, turns, b, locks, warps = (
        Counter(),
        defaultdict(list),
        places["b"],
        places["locks"],
        config.warps_n * config.warps_k,
    )

    def watch(access):
        if access.space != "global":
            return
        for warp, address in zip(
            np.broadcast_to(
                access.lanes.warps[:, None] if access.lanes.full else access.lanes.warps,
                access.lanes.shape,
            ).flat,
            access.address.flat,
        ):
            if access.kind == "copy-source" and b.address <= address < b.end:
                row, byte = divmod(int(address) - b.address, 8 * n)
                tiles[
                    int(warp) // warps,
                    row // config.thread_k_blocks,
                    byte // (128 * config.thread_n_blocks),
                ] += 1
            elif access.kind in ("atomic", "store") and locks.address <= address < locks.end:
                lock = (int(address) - locks.address) // 4
                if not turns[lock] or turns[lock][-1] != int(warp) // warps:
                    turns[lock].append(int(warp) // warps)

    machine.run(**launch, watch=watch)
    partition = stripes(k // 128, n // 128, -(-m // 16), blocks)
    copies = config.thread_k_blocks * 8 * config.thread_n_blocks  # of 16 bytes, to a tile
    expected, order = Counter(), defaultdict(list)
    for stripe in partition:
        for each in stripe.slices:
            for step in range(each.iterations):
                expected[stripe.block, each.first_k_tile + step, each.n_tile] += copies
            if each.slice_count > 1:
                order[stripe.block - (each.slice_count - 1 - each.slice_index)].append(
                    (each.slice_index, stripe.block)
                )
    assert tiles == expected
    assert dict(turns) == {top: [block for _, block in sorted(each)] for top, each in order.items()}
    assert not prepared.buffers["locks"].any() and (prepared.buffers["c"] == problem.expected).all()
