"""Arrivals of other blocks at an mbarrier, which are over once a thread of its own block has seen
the phase that they completed: then that block may end.

The phase completes when its pending count has come to zero, so what it counted has been done, in
whichever scope the arrivals release.
https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-phase-completion
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.shadow import Shadow

BYTES = 8  # of an mbarrier


class SeenArrivals:
    """``counted``: word -> records of the arrivals of its completed phases; ``over``: those of them
    that its own block has seen completed."""

    def __init__(self, shared: Shadow) -> None:
        self.shared, self.counted, self.over = shared, {}, {}

    def completed(self, word: int) -> None:
        records = self.shared.reads[self._units(word)]
        self.counted[word] = np.unique(records[marks.way_of(records) == marks.OBJECT])

    def seen(self, word: int) -> None:
        if word in self.counted:
            self.over[word] = self.counted[word]

    def another(self, word: int) -> None:
        """An arrival of another block, whose record may be that of one that is over."""
        self.over.pop(word, None)

    def made(self, word: int) -> None:
        self.counted.pop(word, None)
        self.over.pop(word, None)

    def done(self, units: slice, records: np.ndarray) -> np.ndarray:
        """Which of ``records`` [units, each] are arrivals that are over."""
        found = np.zeros(records.shape, bool)
        for word, counted in self.over.items():
            rows = self._units(word) - units.start
            if 0 <= rows[0] < len(records):
                found[rows] = np.isin(records[rows], counted)
        return found

    def _units(self, word: int) -> np.ndarray:
        return self.shared.units(np.array([word * BYTES]), BYTES).reshape(-1)
