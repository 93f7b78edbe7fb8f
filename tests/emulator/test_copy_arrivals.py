"""Contract under test: an arrival behind copies (cp.async.mbarrier.arrive) comes when somebody asks
for its mbarrier, once, with the copies before it; those at other mbarriers stay."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin.emulator.asynchronous.copy_arrivals import CopyArrivals
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement

WARPS, WORDS = 2, 3
ACTIONS = st.one_of(
    st.tuples(
        st.just("add"),
        st.lists(st.integers(0, WARPS - 1), min_size=1, unique=True),
        st.sampled_from((None, 1, 0x80000001)),  # lanes; None: all of the warps
        st.sampled_from(((0,), (1,), (0, 1), (2, 1))),  # mbarriers of lanes, in turn
    ),
    st.tuples(st.just("ask"), st.lists(st.integers(0, WORDS - 1), min_size=1, unique=True)),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(ACTIONS, min_size=1, max_size=12))
def test_arrivals_come_to_the_mbarriers_that_are_asked_for(actions):
    placement, landed, arrived = Placement(WARPS, 1, WARP), [], []
    copies = SimpleNamespace(
        tail=np.zeros((WARPS, WARP), np.int64),
        land=lambda lanes, counts: landed.extend(
            zip(threads_of(lanes), counts.reshape(-1).tolist())
        ),
    )
    barriers = SimpleNamespace(
        placement=placement,
        pending=np.zeros(WORDS, np.int64),
        memory=SimpleNamespace(progress=0, proxy=SimpleNamespace(announce=lambda warps: None)),
        require_live=lambda *_: None,
        arrivals=lambda words: None,
        arrive=lambda ins, lanes, words, counts: arrived.extend(
            zip(threads_of(lanes), words.reshape(-1).tolist(), counts.reshape(-1).tolist())
        ),
    )
    thread = np.arange(WARPS * WARP).reshape(WARPS, WARP)

    def threads_of(lanes):
        return thread[lanes.sel].reshape(-1).tolist()

    arrivals, due = CopyArrivals(copies, barriers), []
    for what, *given_ in actions:
        landed.clear()
        arrived.clear()
        if what == "add":
            warps, mask, at = given_
            lanes = Lanes.of(placement, sorted(warps), mask and [mask] * len(warps))
            copies.tail += 1
            words = thread[lanes.sel] % len(at)
            words = np.array(at)[words]
            arrivals.add(None, lanes, words, True)
            due += zip(threads_of(lanes), words.reshape(-1).tolist(), copies.tail[lanes.sel].flat)
        else:
            arrivals.deliver(np.array(sorted(given_[0])))
        now = [each for each in due if what == "ask" and each[1] in given_[0]]
        due = [each for each in due if each not in now]
        assert sorted(landed) == sorted((thread, count) for thread, _, count in now)
        assert sorted(arrived) == sorted((thread, word, 1) for thread, word, _ in now)
