"""Contract under test: stripes cover every tile once, evenly, and number the blocks of a column for
the reduction."""

import itertools
from collections import defaultdict

import pytest

from numba_marlin.layout.stripes import Stripe, iterations_per_block, slice_order, stripes

SMALL = list(itertools.product(range(1, 7), range(1, 5), range(1, 3), range(1, 14)))


def columns(partition):
    found = defaultdict(list)
    for stripe in partition:
        for each in stripe.slices:
            found[each.parallel, each.n_tile].append(each)
    return found


def test_every_tile_is_computed_exactly_once():
    for k_tiles, n_tiles, parallel, blocks in SMALL:
        tiles = [
            (each.parallel, each.n_tile, each.first_k_tile + step)
            for stripe in stripes(k_tiles, n_tiles, parallel, blocks)
            for each in stripe.slices
            for step in range(each.iterations)
        ]
        expected = itertools.product(range(parallel), range(n_tiles), range(k_tiles))
        assert tiles == list(expected), (k_tiles, n_tiles, parallel, blocks)


def test_slices_of_a_column_are_numbered_from_the_bottom():
    for problem in SMALL:
        for column in columns(stripes(*problem)).values():
            from_the_top = sorted(column, key=lambda each: each.first_k_tile)
            count = len(column)
            assert [each.slice_index for each in from_the_top] == list(range(count))[::-1], problem
            assert all(each.slice_count == count for each in column), problem
            assert from_the_top[0].is_last and from_the_top[-1].is_first
            assert from_the_top[0].first_k_tile == 0


def test_no_block_waits_for_one_that_waits_for_it():
    """Turns are taken in an order that blocks reach: run all blocks together and see that every
    turn comes."""
    for problem in SMALL:
        queues = [list(stripe.slices) for stripe in stripes(*problem)]
        locks = defaultdict(int)
        while any(queues):
            ready = [queue for queue in queues if queue]
            moved = [
                queue
                for queue in ready
                if locks[queue[0].parallel, queue[0].n_tile] == queue[0].slice_index
            ]
            assert moved, f"deadlock in {problem}"
            for queue in moved:
                done = queue.pop(0)
                locks[done.parallel, done.n_tile] += 1


def take_turns(partition, prefer):
    """The protocol of the locks, one a block: -> (lock -> blocks in the order in which they added,
    locks at the end). prefer: whom of those that can go on."""
    queues = {stripe.block: list(stripe.slices) for stripe in partition if stripe.slices}
    locks, added = [0] * len(partition), defaultdict(list)
    while queues:
        able = []
        for block, queue in queues.items():
            top = block - (queue[0].slice_count - 1 - queue[0].slice_index)
            if queue[0].slice_count == 1 or locks[top] == queue[0].slice_index:
                able.append((block, top))
        block, top = prefer(able)
        done = queues[block].pop(0)
        if done.slice_count > 1:
            added[top].append((done.parallel, done.n_tile, block))
            locks[top] = 0 if done.is_last else locks[top] + 1
        if not queues[block]:
            del queues[block]
    return added, locks


def test_locks_serve_one_column_each_come_back_to_zero_and_fix_the_order_of_sums():
    for problem in itertools.product(range(1, 7), range(1, 5), range(1, 3), range(1, 14)):
        partition = stripes(*problem)
        runs = [
            take_turns(partition, prefer)
            for prefer in (min, max, lambda able: able[sum(block for block, _ in able) % len(able)])
        ]
        for added, locks in runs:
            assert not any(locks) and added == runs[0][0], problem
        for top, found in runs[0][0].items():
            assert len({each[:2] for each in found}) == 1, problem
            blocks = [each[2] for each in found]
            assert blocks == list(range(top + len(blocks) - 1, top - 1, -1)), problem


def test_blocks_wait_for_later_ones_only_and_begin_where_they_are_waited_for():
    """Why any number of places is enough from the last block to the first."""
    for problem in SMALL:
        for stripe in stripes(*problem):
            for number, each in enumerate(stripe.slices):
                assert number == 0 or each.is_first or each.is_last, problem
                # waited for by blocks above: in its first column
                assert each.is_last or number == 0, problem


def test_work_is_even():
    for k_tiles, n_tiles, parallel, blocks in SMALL:
        partition = stripes(k_tiles, n_tiles, parallel, blocks)
        assert len(partition) == blocks
        full = iterations_per_block(k_tiles, n_tiles, parallel, blocks)
        assert full == -(-k_tiles * n_tiles * parallel // blocks)
        work = [stripe.iterations for stripe in partition]
        done = [full] * (k_tiles * n_tiles * parallel // full)
        assert work[: len(done)] == done and sum(work) == k_tiles * n_tiles * parallel
        assert all(amount == 0 for amount in work[len(done) + 1 :])


@pytest.mark.parametrize("tile_multiple", [2, 3, 4])
def test_slices_keep_to_group_boundaries(tile_multiple):
    for groups, n_tiles, parallel, blocks in SMALL:
        for stripe in stripes(groups * tile_multiple, n_tiles, parallel, blocks, tile_multiple):
            for each in stripe.slices:
                assert each.first_k_tile % tile_multiple == 0
                assert each.iterations % tile_multiple == 0


def test_the_documented_picture():
    owner = {}
    for stripe in stripes(3, 3, 1, 5):
        for each in stripe.slices:
            for step in range(each.iterations):
                owner[each.first_k_tile + step, each.n_tile] = stripe.block
    assert [[owner[k, n] for n in range(3)] for k in range(3)] == [[0, 1, 3], [0, 2, 3], [1, 2, 4]]


def test_more_blocks_than_tiles_leaves_blocks_idle():
    assert stripes(1, 2, 1, 4)[2:] == (Stripe(2, ()), Stripe(3, ()))


def test_slice_order_in_scalars():
    assert slice_order(column=0, block=0, k_tiles=8, iterations=3) == (3, 2)
    assert slice_order(column=0, block=2, k_tiles=8, iterations=3) == (3, 0)


@pytest.mark.parametrize("name", ["k_tiles", "n_tiles", "parallel", "blocks", "tile_multiple"])
def test_sizes_below_one_are_refused(name):
    sizes = {"k_tiles": 4, "n_tiles": 4, "parallel": 1, "blocks": 2, "tile_multiple": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name}=0"):
        stripes(**sizes)


def test_groups_that_do_not_divide_k_are_refused():
    with pytest.raises(ValueError, match="k_tiles=3 must be a multiple of tile_multiple=2"):
        stripes(3, 1, 1, 1, 2)
