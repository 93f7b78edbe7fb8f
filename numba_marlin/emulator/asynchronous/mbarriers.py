"""mbarrier objects: eight bytes of shared memory each, with arrivals and bytes that a phase still
waits for.

A phase completes when its pending arrivals and its tx-count are both zero; the next one begins at
once with the count of init. Bulk copies count their bytes down when they land. They land as late as
the ISA allows: when somebody asks for a phase that lacks nothing but bytes (``poll`` then asks
``deliver``). So do the arrivals of tcgen05.commit (``arrivals``).

The numbers are arrays over all 8-byte words of all resident blocks' shared memory, so that warps in
step cost one NumPy operation.
https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.errors import BarrierMisuse, ProxyHazard
from numba_marlin.emulator.state.block_memory import BARRIER, UNWRITTEN
from numba_marlin.emulator.state.lanes import Lanes, Placement
from numba_marlin.emulator.state.memory import Memory
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.races import HappensBefore

BYTES = 8
MOST = (1 << 20) - 1  # arrivals of a phase, and bytes that it can lack


class MBarriers:
    """Words are numbered over all blocks: word w is bytes 8w .. 8w+7 of the shared array. ``phase``
    counts completed phases."""

    def __init__(
        self,
        memory: Memory,
        placement: Placement,
        instructions: list[Instruction],
        races: HappensBefore | None = None,
    ) -> None:
        self.memory, self.placement, self.instructions = memory, placement, instructions
        self.used = any(ins.root.startswith("mbarrier") for ins in instructions)
        self.counting = any(ins.root == "mbarrier.pending_count" for ins in instructions)
        words = memory.shared.data.size // BYTES if self.used else 0
        self.live, self.fenced = np.zeros(words, bool), np.zeros(words, bool)
        self.count, self.pending, self.tx, self.phase = (
            np.zeros(words, np.int32) for _ in range(4)
        )
        # What each warp asked for last and did not get: word (or -1), parity, pc.
        self.waits = np.full((3, placement.warps), -1, np.int64)
        self.deliver: Callable[[np.ndarray], None] = lambda words: None
        self.arrivals: Callable[[np.ndarray], None] = lambda words: None  # those of commits
        # the phase in which somebody last asked for a word, in vain
        self.late, self.asked = False, np.full(words, -1, np.int32)
        self.races = races

    def forget(self, slots: slice) -> None:
        """New blocks move in."""
        stride, per_block = self.memory.shared.stride // BYTES, self.placement.warps_per_block
        if self.used:
            self.live[slots.start * stride : slots.stop * stride] = False
            self.waits[0, slots.start * per_block : slots.stop * per_block] = -1

    def init(self, ins: Instruction, lanes: Lanes, words: np.ndarray, counts: np.ndarray) -> None:
        bad = (counts < 0) | (counts > MOST)
        if bad.any():
            raise lanes.fault(
                BarrierMisuse, f"count {counts[bad][0]} must be between 1 and {MOST}", ins, bad
            )
        some = counts > 0
        if not some.all():  # where that goes on, there is no mbarrier: whoever uses it hears of it
            error = lanes.fault(BarrierMisuse, f"count 0 must be between 1 and {MOST}", ins, ~some)
            self.memory.checks.report("mbarrier-count-zero", error)
        bad = self.live[words]
        if bad.any():
            raise self._fault(
                ins, lanes, words, bad, "initialises {}, which is live: mbarrier.inval comes first"
            )
        values, times = np.unique(words, return_counts=True)
        if len(values) < words.size:
            raise self._fault(
                ins, lanes, words, np.isin(words, values[times > 1]), "several lanes initialise {}"
            )
        own = self.memory.shared
        state = own.view(BYTES, 1)[1]
        self.memory.require_free(ins, lanes, "shared", state, words)
        words, counts = words[some], counts[some]
        state[words] = int.from_bytes([BARRIER] * BYTES, "little")
        own.guarded += BYTES * words.size
        self.live[words], self.fenced[words] = True, False
        self.count[words] = self.pending[words] = counts
        self.tx[words] = self.phase[words] = 0
        self.asked[words] = -1
        self.memory.progress += 1
        if self.races is not None:
            self.races.mbarrier_made(words)

    def invalidate(
        self, ins: Instruction, lanes: Lanes, words: np.ndarray, busy: Callable[[int], str]
    ) -> None:
        """``busy(word)``: what is in flight that will signal it; empty for nothing."""
        self.require_live(ins, lanes, words)
        users = [busy(int(word)) for word in words.flat]
        bad = np.array([bool(user) for user in users]).reshape(words.shape)
        if bad.any():
            raise self._fault(
                ins,
                lanes,
                words,
                bad,
                f"invalidates {{}}, which {next(filter(None, users))} in flight will signal",
            )
        own, words = self.memory.shared, np.unique(words)
        own.view(BYTES, 1)[1][words] = UNWRITTEN
        own.guarded -= BYTES * words.size
        self.live[words] = False
        self.memory.progress += 1

    def fence(self, lanes: Lanes) -> None:
        """``lanes`` make what their block initialised visible to the copy engine."""
        stride = self.memory.shared.stride // BYTES
        for slot in (
            np.unique(lanes.warps // self.placement.warps_per_block).tolist() if self.used else ()
        ):
            self.fenced[slot * stride : (slot + 1) * stride] = True

    def require_fenced(self, ins: Instruction, lanes: Lanes, words: np.ndarray) -> None:
        """``words`` are mbarriers that the asynchronous proxy may signal."""
        self.require_live(ins, lanes, words)
        bad = ~self.fenced[words]
        if bad.any():
            error = self._fault(
                ins,
                lanes,
                words,
                bad,
                "signals {}: no fence.mbarrier_init or fence.proxy.async since it was initialised",
                ProxyHazard,
            )
            self.memory.checks.report("mbarrier-init-fence", error)

    def require_live(self, ins: Instruction, lanes: Lanes, words: np.ndarray) -> None:
        bad = ~self.live[words] if self.used else np.ones(words.shape, bool)
        if bad.any():
            raise self._fault(
                ins,
                lanes,
                words,
                bad,
                "there is no mbarrier at {}: it was never initialised, or is invalid by now",
            )

    def arrive(
        self,
        ins: Instruction,
        lanes: Lanes,
        words: np.ndarray,
        counts: np.ndarray,
        expected: np.ndarray | None = None,
    ) -> np.ndarray:
        """``expected`` bytes are added to what the phase lacks, then ``counts`` arrive. Returns the
        phase of each arrival."""
        self.require_live(ins, lanes, words)
        bad = (counts < 1) | (counts > MOST)
        if bad.any():
            raise lanes.fault(
                BarrierMisuse,
                f"an arrival of count {counts[bad][0]} must be between 1 and {MOST}",
                ins,
                bad,
            )
        self.memory.progress += 1
        each, inverse = np.unique(words, return_inverse=True)
        inverse = inverse.reshape(-1)
        total = np.bincount(inverse, counts.reshape(-1), len(each)).astype(np.int64)
        if (total <= self.pending[each]).all():
            before = self.phase[words]
            if expected is not None:
                self._expect(ins, lanes, words, expected)
            self.pending[each] -= total.astype(np.int32)
            if self.races is not None:
                self.races.mbarrier_arrived(ins, lanes, words)
            self._complete(each)
            return before
        # some phase completes in between: one arrival after the other
        before = np.empty(words.shape, np.int32)
        for index in np.ndindex(*words.shape):
            here = np.zeros(words.shape, bool)
            here[index] = True
            one = words[index].reshape(1)
            before[index] = self.phase[one[0]]
            if expected is not None:
                part = lanes.narrow(here)
                self._expect(
                    ins, part, words[here].reshape(part.shape), expected[here].reshape(part.shape)
                )
            if counts[index] > self.pending[one[0]]:
                lacking = f"lacks {self.pending[one[0]]} arrivals and {self.tx[one[0]]} bytes"
                raise self._fault(
                    ins,
                    lanes,
                    words,
                    here,
                    f"{counts[index]} arrive at {{}}, whose phase {before[index]} {lacking}",
                )
            self.pending[one] -= counts[index]
            if self.races is not None:
                part = lanes.narrow(here)
                self.races.mbarrier_arrived(ins, part, np.full(part.shape, one[0]))
            self._complete(one)
        return before

    def lacking(self, words: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """uint64: how many arrivals each lane's phase lacks as ``counts`` arrive lane after
        lane."""
        left, found = {}, np.zeros(words.shape, np.uint64)
        for index in np.ndindex(*words.shape):
            word = int(words[index])
            found[index] = left.setdefault(word, int(self.pending[word]))
            left[word] -= int(counts[index])
            left[word] = left[word] or int(self.count[word])
        return found

    def drop(self, ins: Instruction, lanes: Lanes, words: np.ndarray, counts: np.ndarray) -> None:
        """Phases after the current one wait for ``counts`` arrivals less."""
        self.require_live(ins, lanes, words)
        np.subtract.at(self.count, words.reshape(-1), counts.reshape(-1).astype(np.int32))
        bad = self.count[words] < 0
        if bad.any():
            raise self._fault(ins, lanes, words, bad, "more arrivals are dropped of {} than it has")

    def expect(
        self, ins: Instruction, lanes: Lanes, words: np.ndarray, expected: np.ndarray
    ) -> None:
        self.require_live(ins, lanes, words)
        self.memory.progress += 1
        self._expect(ins, lanes, words, expected)

    def complete_tx(self, word: int, nbytes: int, ins: Instruction, lanes: Lanes) -> None:
        """A bulk copy, issued by ``ins`` in ``lanes``, has brought ``nbytes``."""
        self.tx[word] -= nbytes
        self.memory.progress += 1
        if self.tx[word] < (0 if not self.pending[word] else -MOST):
            words = np.full(lanes.shape, word)
            over = (
                f"{nbytes} bytes arrive at {{}}, whose phase {self.phase[word]} lacks only"
                f" {self.tx[word] + nbytes}"
            )
            raise self._fault(ins, lanes, words, np.ones(lanes.shape, bool), over)
        self._complete(np.array([word]))

    def poll(
        self, ins: Instruction, lanes: Lanes, words: np.ndarray, parity: np.ndarray
    ) -> np.ndarray:
        """Has the phase of ``parity`` completed? Bool per lane."""
        self.require_live(ins, lanes, words)
        bad = parity > 1
        if bad.any():
            said = f"a phase's parity is 0 or 1, not {parity[bad][0]}"
            error = lanes.fault(BarrierMisuse, said, ins, bad)
            self.memory.checks.report("mbarrier-parity", error)
            parity = parity & 1
        done = (self.phase[words] & 1) != parity
        return self._ask(ins, lanes, words, done, parity, lambda: (self.phase[words] & 1) != parity)

    def poll_state(
        self, ins: Instruction, lanes: Lanes, words: np.ndarray, state: np.ndarray
    ) -> np.ndarray:
        """Has the phase that an arrival returned completed? It must be the current or the previous
        one."""
        self.require_live(ins, lanes, words)
        age = self.phase[words] - state.astype(np.int32)
        bad = (age < 0) | (age > 1)
        if bad.any():
            raise self._fault(
                ins,
                lanes,
                words,
                bad,
                "asks {} for a phase that is neither its current nor its previous one",
            )
        return self._ask(
            ins,
            lanes,
            words,
            age != 0,
            state & 1,
            lambda: self.phase[words] != state.astype(np.int32),
        )

    def _ask(self, ins, lanes, words, done, parity, again) -> np.ndarray:
        if not done.all():
            stuck = np.unique(words[~done])
            if self.late:
                stuck = self._asked_before(stuck)
            self.arrivals(stuck)
            self.deliver(stuck[self.pending[stuck] == 0])
            done = again()
        if self.races is not None and done.any():
            self.races.mbarrier_seen(ins, lanes, words, done)
        warps = lanes.warps
        self.waits[0, warps] = -1
        if not done.all():
            failed = np.argwhere(~done)
            rows = failed[:, 0]
            at = tuple(failed.T)
            self.waits[:, warps[rows]] = (
                words[at],
                np.broadcast_to(parity, done.shape)[at],
                np.full(len(rows), ins.pc),
            )
        return done

    def _asked_before(self, words: np.ndarray) -> np.ndarray:
        """Those of ``words`` whose phase somebody has asked for before. Nothing comes to the others
        yet: who asks once only, and goes on, must not find what he wants."""
        found = self.asked[words] == self.phase[words]
        self.asked[words] = self.phase[words]
        self.memory.progress += int(not found.all())
        return words[found]

    def _expect(
        self, ins: Instruction, lanes: Lanes, words: np.ndarray, expected: np.ndarray
    ) -> None:
        np.add.at(self.tx, words.reshape(-1), expected.reshape(-1).astype(np.int32))
        bad = (expected > MOST) | (self.tx[words] > MOST)
        if bad.any():
            raise self._fault(ins, lanes, words, bad, f"expects more than {MOST} bytes at {{}}")

    def _complete(self, words: np.ndarray) -> None:
        done = words[(self.pending[words] == 0) & (self.tx[words] == 0)]
        self.phase[done] += 1
        self.pending[done] = self.count[done]
        if self.races is not None:
            for word in done.tolist():
                self.races.mbarrier_completed(word, int(self.phase[word]))

    def waiting(self) -> list[tuple[int, list[int], str]]:
        """(slot, warps of its block, sentence part) of live warps that wait for one phase of one
        barrier at one place."""
        groups: dict[tuple, list[int]] = {}
        for warp in np.flatnonzero(self.waits[0] >= 0).tolist():
            slot, within = divmod(warp, self.placement.warps_per_block)
            if self.placement.live[warp] and self.live[self.waits[0, warp]]:
                groups.setdefault((slot, *self.waits[:, warp].tolist()), []).append(within)
        return [(slot, warps, self._sentence(*what)) for (slot, *what), warps in groups.items()]

    def _sentence(self, word: int, parity: int, pc: int) -> str:
        ins, phase = self.instructions[pc], self.phase[word]
        return (
            f"at mbarrier {self.describe(word)}, line {ins.line}: {ins.text}\n        for the phase"
            f" of parity {parity}; its phase {phase} (parity {phase & 1}) lacks"
            f" {self.pending[word]} of {self.count[word]} arrivals and {self.tx[word]} bytes"
        )

    def describe(self, word: int) -> str:
        own = self.memory.shared
        return own.describe(word * BYTES % own.stride)

    def _fault(
        self,
        ins: Instruction,
        lanes: Lanes,
        words: np.ndarray,
        bad: np.ndarray,
        detail: str,
        kind=BarrierMisuse,
    ):
        return lanes.fault(
            kind, detail.format(self.describe(int(words[lanes.first(bad)[2]]))), ins, bad
        )
