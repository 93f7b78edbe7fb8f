"""Schedules: interleavings of a run on the PTX machine (``emulator.scheduling.schedules``)."""

from hypothesis import strategies as st

from numba_marlin.emulator.scheduling.schedules import COPIES, ORDERS, Schedule
from numba_marlin.testing.weights import seeds


@st.composite
def schedules(draw, places: tuple[int, ...] = ()) -> Schedule:
    """A strategy of schedules. places: numbers of resident blocks to choose from, besides all."""
    return Schedule(
        draw(seeds()),
        draw(st.sampled_from(ORDERS)),
        draw(st.sampled_from(COPIES)),
        draw(st.sampled_from((None, *places))),
    )
