"""Contract under test: rings are drawn in the order in which data go through them. (Those of real
kernels: ``test_block_scaled``.)"""

from numba_marlin.trace import pages
from numba_marlin.trace.pages import rings


def test_rings_follow_those_who_use_the_one_before():
    def ring(name, filled, awaited):
        return rings.Ring(name, 2, filled, 1, awaited, awaited, 1, filled)

    a, b = ring("a", "load", "mma; expand"), ring("b", "expand", "mma")
    other = ring("c", "scheduler", "mma")
    assert rings.chains([a, other, b]) == [[a, b], [other]]
    (levels,) = (rings.drawn(chain, pages.Choice()) for chain in rings.chains([a, b]))
    assert [each.name for each in levels.levels] == ["load", "mma + expand", "mma"]
    assert [each.down for each in levels.levels[:2]] == [
        "a (2): full, by 1 arrivals",
        "b (2): full, by 1 arrivals by expand",
    ]
