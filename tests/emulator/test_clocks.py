"""Contract under test: what ``ordering.clocks`` keeps by block and shares is what a vector clock
for every thread would say, and ``shadow.LargeShadow`` keeps the readers that ``Shadow`` does."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numba_marlin.emulator.ordering.clocks import Clocks
from numba_marlin.emulator.ordering.messages import CTA, EVERYONE, GPU, Log, Messages, Order
from numba_marlin.emulator.ordering.news import NOBODY, News, Unions, later
from numba_marlin.emulator.ordering.shadow import LargeShadow, Shadow
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement

BLOCKS, WARPS = 3, 2
THREADS, COLUMNS = BLOCKS * WARPS * WARP, 4
ACTIONS = st.tuples(
    st.sampled_from(
        "send receive listen fence meet pass_on learn clear count".split()
        + ["warp barrier", "all receive"]
    ),
    st.integers(0, BLOCKS - 1),
    st.integers(0, WARPS - 1),
    st.sampled_from((None, 1, 0x80000001, 0xFFFF)),  # lanes; None: all of the warp
    st.integers(0, 1),
)


def steps(text):
    """Actions of all lanes, "send 0 1 0": what, of which block and warp, at which place."""
    found = []
    for each in text.split(", "):
        what, *numbers = each.rsplit(" ", 3)
        block, warp, place = map(int, numbers)
        found.append((what, block, warp, None, place))
    return found


class Dense:
    """``known`` [threads, threads + columns]; ``left`` [place]: what was left there for all."""

    def __init__(self):
        self.known = np.zeros((THREADS, THREADS + COLUMNS), np.int64)
        self.clock = np.ones(THREADS, np.int64)
        self.left = [np.zeros(THREADS + COLUMNS, np.int64) for _ in range(2)]
        self.unheard = np.zeros_like(self.known)

    def release(self, threads):
        told = self.known[threads].max(axis=0)
        told[threads] = self.clock[threads]
        self.clock[threads] += 1
        return told

    def acquire(self, threads, told):
        self.known[threads] = np.maximum(self.known[threads], told)


@settings(max_examples=20, deadline=None)
@given(st.lists(ACTIONS, min_size=1, max_size=25), st.booleans())
@example(steps("send 0 0 0, receive 1 0 0, send 1 0 1, receive 2 0 1"), False)
@example(
    steps("send 0 0 0, listen 1 0 0, clear 0 0 0, send 2 0 0, listen 1 0 0, fence 1 0 0"), False
)
@example(steps("send 1 0 0, receive 0 0 0, send 2 0 1, receive 0 1 1"), False)
@example(steps("learn 0 1 0, meet 0 0 0"), True)
@example(steps("count 0 0 0, all receive 0 1 0, count 0 1 0, meet 0 0 0, all receive 0 0 0"), False)
@example(steps("send 0 0 0, receive 1 1 0, meet 0 0 0"), True)
@example(steps("send 0 0 0, receive 1 1 0, meet 0 0 0, pass_on 1 0 0"), False)
@example(  # lane 0 knows more of block 1 than the lanes that it learns with
    [*steps("send 1 0 0"), ("receive", 0, 0, 1, 0), *steps("send 2 0 1, receive 0 0 1")], False
)
@example(
    [*steps("send 1 0 0, receive 0 0 0, send 1 0 1"), ("listen", 0, 0, 1, 1)]
    + steps("send 2 0 0, listen 0 0 0, fence 0 0 0"),
    False,
)
def test_shared_knowledge_is_that_of_vector_clocks(actions, columns):
    placement = Placement(BLOCKS, WARPS, WARPS * WARP)
    clocks, dense = Clocks(placement, BLOCKS), Dense()
    for slot in range(BLOCKS):
        clocks.place(slot, slot)
    messages = Messages(clocks, [[number] for number in range(BLOCKS)])
    places = [messages.left(), messages.left()]
    news = [clocks.column(index % BLOCKS) for index in range(COLUMNS if columns else 0)]
    for what, block, warp, mask, place in actions:
        lanes = Lanes.of(placement, [block * WARPS + warp], None if mask is None else [mask])
        threads = clocks.thread_of[lanes.sel].reshape(-1)
        if what == "send":
            messages.send(places[place], lanes, Order(True, GPU, False, True))
            dense.left[place] = np.maximum(dense.left[place], dense.release(threads))
        elif what == "receive":
            messages.receive(places[place], lanes, Order(True, GPU, True, False))
            dense.acquire(threads, dense.left[place])
        elif what == "all receive":  # a warp of each block, in one step
            warps = [number * WARPS + warp for number in range(BLOCKS)]
            every = Lanes.of(placement, warps, None if mask is None else [mask] * BLOCKS)
            messages.receive(places[place], every, Order(True, GPU, True, False))
            dense.acquire(clocks.thread_of[every.sel].reshape(-1), dense.left[place])
        elif what == "count":  # atomics, a lane of each block after the other
            warps = [number * WARPS + warp for number in range(BLOCKS)]
            every = Lanes.of(placement, warps, [1] * BLOCKS)
            messages.places[place] = places[place]
            messages.in_turn([place] * BLOCKS, every, Order(True, GPU, False, True))
            for thread in clocks.thread_of[every.sel].tolist():
                dense.unheard[thread] = np.maximum(dense.unheard[thread], dense.left[place])
                told = dense.release(np.array([thread]))
                dense.left[place] = np.maximum(dense.left[place], told)
        elif what == "clear":
            places[place].clear()
            dense.left[place][:] = 0
        elif what == "listen":
            messages.receive(places[place], lanes, Order(True, GPU, False, False))
            dense.unheard[threads] = np.maximum(dense.unheard[threads], dense.left[place])
        elif what == "fence":
            messages.fence(lanes, GPU)
            dense.acquire(threads, dense.unheard[threads])
            dense.clock[threads] += 1
        elif what == "pass_on":  # to a warp of another block
            warps = [(block + 1) % BLOCKS * WARPS + warp]
            other = Lanes.of(placement, warps, None)
            clocks.acquire(other, clocks.release(lanes))
            dense.acquire(clocks.thread_of[warps].reshape(-1), dense.release(threads))
        elif what == "learn" and news:
            clocks.learn(lanes, news[block], 3 + place)
            dense.acquire(threads, np.eye(1, THREADS + COLUMNS, THREADS + block)[0] * (3 + place))
        elif what in ("meet", "warp barrier"):
            count = WARPS if what == "meet" else 1
            groups = np.arange(BLOCKS * WARPS).reshape(-1, count)[block:]
            done = clocks.meet(groups)
            for group in groups[done].tolist():
                together = clocks.thread_of[group].reshape(-1)
                dense.acquire(together, dense.release(together))
            for group in groups[~done].tolist():
                all_ = Lanes.of(placement, group, None)
                clocks.acquire(all_, clocks.release(all_))
                together = clocks.thread_of[group].reshape(-1)
                dense.acquire(together, dense.release(together))
    assert (clocks.clock == dense.clock).all()
    everyone = np.concatenate([np.arange(THREADS), np.array(news, np.int64)])
    known = clocks.knows(
        clocks.row_of.reshape(-1, 1), clocks.thread_of.reshape(-1, 1), everyone[None]
    )
    # of its own past a thread needs to know nothing, and may know more
    others = np.arange(THREADS)[:, None] != everyone[None]
    wanted = dense.known[:, : len(everyone)]
    assert (known == wanted)[others].all()
    compared = everyone[None], np.arange(known.size).reshape(known.shape) % 5  # any counts
    behind = clocks.behind(clocks.row_of.reshape(-1, 1), clocks.thread_of.reshape(-1, 1), *compared)
    assert (behind == (wanted < compared[1]))[others].all()
    for slot in range(BLOCKS):
        mine = np.arange(THREADS) // (WARPS * WARP) == slot
        strangers = np.tile(np.flatnonzero(~mine), 5)
        counts = np.repeat(np.arange(5), len(strangers) // 5)
        told = dense.known[mine].max(axis=0)[strangers]
        assert (clocks.unknown(slot, strangers, counts) == (told < counts)).all()


def test_a_release_for_the_gpu_is_heard_in_the_block_by_a_narrow_acquire_and_not_elsewhere():
    placement = Placement(2, 1, WARP)
    clocks = Clocks(placement, 2)
    for slot in range(2):
        clocks.place(slot, slot)
    messages = Messages(clocks, [[0], [1]])
    left, narrow = messages.left(), Order(True, CTA, True, False)
    messages.send(left, Lanes.of(placement, [0], [1]), Order(True, GPU, False, True))
    for warp, heard in ((0, 1), (1, 0)):
        lane = Lanes.of(placement, [warp], [2])
        messages.receive(left, lane, narrow)
        row, thread = clocks.row_of[lane.sel], clocks.thread_of[lane.sel]
        assert clocks.knows(row, thread, np.zeros(1, np.int64)).tolist() == [heard]
    assert (GPU, EVERYONE) in messages.unheard[WARP + 1]


def test_lanes_that_have_learned_the_same_share_a_row_again():
    """Else every release and acquire of the warp takes a step a lane, from then on."""
    placement = Placement(3, 1, WARP)
    clocks = Clocks(placement, 3)
    for slot in range(3):
        clocks.place(slot, slot)
    messages = Messages(clocks, [[0], [1], [2]])
    reader, *senders = (Lanes.of(placement, [number], None) for number in range(3))
    for sender in senders:  # what lanes have heard together they learn together, by a fence
        left = messages.left()
        messages.send(left, sender, Order(True, GPU, False, True))
        messages.receive(left, reader, Order(True, GPU, False, False))
    messages.fence(reader, GPU)
    assert len(set(clocks.row_of[0].tolist())) == 1
    for sender in senders:  # and one after the other, when they meet
        news = clocks.release(sender)
        for lane in range(WARP):
            clocks.acquire(Lanes.of(placement, [0], [1 << lane]), news)
    assert len(set(clocks.row_of[0].tolist())) == WARP
    clocks.acquire(reader, clocks.release(reader))
    assert len(set(clocks.row_of[0].tolist())) == 1


PAGES = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(np.array)


@given(PAGES, PAGES)
def test_the_later_of_two_pages_is_one_of_them_where_it_can_be(one, other):
    most, size = later(one, other), max(len(one), len(other))
    one_, other_ = (np.pad(each, (0, size - len(each))) for each in (one, other))
    wanted = np.maximum(one_, other_)
    assert np.array_equal(most, wanted)
    for page in (one, other):
        if np.array_equal(page, wanted):
            assert most is one or most is other


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), PAGES, st.booleans()), min_size=1, max_size=20),
    st.lists(st.integers(1, 20), min_size=1, max_size=30),
)
def test_what_is_made_of_a_log_is_its_items_together(left, counts):
    log = Log(Unions(), 1 << 12)
    for block, page, own in left:
        log.items.append(News({}, block, page) if own else News({block: page}, NOBODY, None))
    for count in counts:
        count = min(count, len(left))
        wanted = {}
        for block, page, _ in left[:count]:
            wanted[block] = later(wanted.get(block, np.zeros(0, int)), page)
        found = dict(log.until(count).pages())
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[block], page) for block, page in wanted.items())


def test_readers_of_before_and_after_may_ask_a_log_in_turn():
    taken = []

    class Counted(Unions):
        def all(self, news, others):
            taken.append(len(others))
            return super().all(news, others)

    log = Log(Counted(), 1 << 12)
    for step in range(1, 50):
        log.items.append(News({}, 0, np.array([step])))
        for count in (step, step - 1, step, step - 1):
            assert log.until(max(count, 1)).clock(0, 0) == max(count, 1)
    assert max(taken) == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_one_reader_or_a_crowd_are_the_readers_of_a_dense_shadow(seed):
    rng, data = np.random.default_rng(seed), np.zeros(64, np.uint8)
    one, other = LargeShadow(data, 4, 4), Shadow(data, 4, 4)
    for step in range(1, 12):
        warps = rng.integers(0, 6, 3)
        units = rng.integers(0, 16, (3, 8, 1)) if rng.random() < 0.7 else np.full((3, 8, 1), 5)
        records = ((warps << 20)[:, None, None] | step << 4) + np.zeros(units.shape, np.int64)
        if step % 4 == 0:
            for shadow in (one, other):
                shadow.wrote(units, records)
        else:
            for shadow in (one, other):
                shadow.read(units, warps[:, None, None], records)
        every = np.arange(16)[:, None]
        for writing in (True, False):
            found = [shadow.before(every, writing) for shadow in (one, other)]
            sets = [[sorted(filter(None, row)) for row in each[:, 0].tolist()] for each in found]
            assert sets[0] == sets[1] or not any(sum(sets[0] + sets[1], []))
