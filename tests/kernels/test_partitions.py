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

from numba_marlin import testing
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.layout.stripes import stripes
from numba_marlin.testing.launches import launch_on, machine_of
from tests.kernels.harness import config_for, prepare
from tests.kernels.partitions import decode_pieces, wgmma_items

# units of k of a tile, column tiles, row tiles
SIZES = tuple(product(range(1, 11), range(1, 6), range(1, 4)))
BLOCKS = range(1, 18)


@pytest.mark.thorough
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
    for found in parts.values():
        _, top, bottom = found[0]
        # so parts = bottom - top + 1, in the order of blocks
        assert [each[0] for each in found] == list(range(top, bottom + 1)), (case, blocks)
        assert {each[1:] for each in found} == {(top, bottom)}
    assert all(0 <= slot < 2 * blocks for slot in slots)


@pytest.mark.parametrize(
    "what",
    (
        pytest.param({"split": True}, marks=pytest.mark.thorough),
        {"split": True, "group_m": 2},
        pytest.param({"group_m": 2}, marks=pytest.mark.thorough),
        pytest.param({"cluster": 2}, marks=pytest.mark.thorough),
        {"cluster": 4},
        pytest.param({"parts": 2}, marks=pytest.mark.thorough),
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
            for (tile, *_), _, shared, plan in mine:
                if shared is not None:
                    top, bottom = shared
                    pieces[block].append(
                        (tile, top, bottom, 2 * block + (block == top), tile - plan.waves * blocks)
                    )
                    # a counter that there is
                    assert 0 <= tile - plan.waves * blocks < (n_tiles * m_tiles) % blocks
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

    machine.run(**launch, listener=Listener(access=watch))
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
