"""Tests of a multistage shared-memory ring: a state machine that lets copies land and warps run in
any order, and checks what the consumers read.

    from numba_marlin.kernels.pipeline import pipeline_verbs
    # pytest collects it
    TestMyRing = testing.ring_machine(pipeline_verbs, stages=3, consumers=2).TestCase

The pipeline's own device functions run, as Python: ``make_verbs(lang, stages, producers,
consumers)`` gets a ``lang`` whose mbarriers are modelled here, so that the code itself is tested
and not a second description of it. Any function that returns the verbs of ``kernels.pipeline``
(full, initialise, producer_start, consumer_start, advance, wait_full, wait_empty, expect, release)
can be tested.

A producer fills stages with items 0, 1, 2 ... by two asynchronous copies each, which land later, in
any order. Every consumer reads every item: it waits, reads, reads again, and releases the stage.
Hypothesis chooses which warp runs next. Errors: an item is overwritten before all consumers have
read it; a consumer reads anything but its whole item; a barrier gets too many arrivals; the ring
deadlocks with work left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from numba_marlin.compiler.language import namespace, record_class

BARRIERS = 1024  # where in shared memory they are
PART_BYTES = 64  # of a copy; two make a stage
EMPTY = -1


class Blocked(Exception):
    """Raised by a wait whose phase is not complete: the warp would keep waiting."""


class Barrier:
    """An mbarrier: a phase completes when no arrivals and no bytes are pending; the next phase
    begins at once (PTX ISA, "mbarrier")."""

    def __init__(self, count: int):
        self.count = self.pending = count
        self.bytes, self.phase = 0, 0

    def arrive(self, expected: int = 0) -> None:
        assert self.pending > 0, (
            f"an arrival too many: all {self.count} of phase {self.phase} have arrived already, and"
            f" {self.bytes} bytes are lacking"
        )
        self.bytes += expected
        self.pending -= 1
        self._complete()

    def land(self, nbytes: int) -> None:
        self.bytes -= nbytes
        assert self.bytes >= 0 or self.pending, (
            f"{nbytes} bytes land that phase {self.phase} does not expect"
        )
        self._complete()

    def _complete(self) -> None:
        if not self.pending and not self.bytes:
            self.phase += 1
            self.pending = self.count

    def __repr__(self) -> str:
        return (
            f"phase {self.phase} lacks {self.pending} of {self.count} arrivals and {self.bytes}"
            " bytes"
        )


class PythonLanguage:
    """The part of the kernel language (``compiler.language``) that a ring uses, in plain Python.
    barriers: address -> Barrier."""

    def __init__(self):
        self.barriers: dict[int, Barrier] = {}
        self.ptx = SimpleNamespace(
            mbarrier_init=self._init,
            fence_mbarrier_init=lambda: None,
            mbarrier_try_wait_parity=self._try_wait,
            mbarrier_arrive=lambda address: self._at(address).arrive(),
            mbarrier_arrive_expect_tx=lambda address, nbytes: self._at(address).arrive(int(nbytes)),
        )

    uint32, int32 = np.uint32, np.int32
    record, namespace = staticmethod(record_class), staticmethod(namespace)

    @staticmethod
    def device(function):
        return function

    def _at(self, address) -> Barrier:
        assert int(address) in self.barriers, (
            f"there is no barrier at byte {int(address) - BARRIERS} of the ring's"
        )
        return self.barriers[int(address)]

    def _init(self, address, count) -> None:
        assert int(address) % 8 == 0, (
            f"a barrier at address {int(address)}, must be a multiple of 8"
        )
        assert int(address) not in self.barriers, (
            f"the barrier at byte {int(address) - BARRIERS} of the ring's is initialised twice"
        )
        self.barriers[int(address)] = Barrier(int(count))

    def _try_wait(self, address, parity) -> np.uint32:
        if self._at(address).phase & 1 == int(parity):
            raise Blocked
        return np.uint32(1)


class RingMachine(RuleBasedStateMachine):
    """The state machine of the module's docstring. ``ring_machine`` makes concrete classes."""

    make_verbs: Callable
    stages, consumers = 0, 0

    def __init__(self):
        super().__init__()
        self.language = PythonLanguage()
        self.verbs = type(self).make_verbs(self.language, self.stages, 1, self.consumers)
        self.base = np.uint32(BARRIERS)
        with np.errstate(over="ignore"):
            self.verbs.initialise(self.base)
        self.memory = [[EMPTY, EMPTY] for _ in range(self.stages)]
        self.holds = [EMPTY] * self.stages  # the item that was last copied to each
        # (address of the barrier, stage, part, item)
        self.in_flight: list[tuple[int, int, int, int]] = []
        self.produced, self.producer = 0, self.verbs.producer_start()
        self.done = [0] * self.consumers  # items that each consumer has read and released
        self.places = [self.verbs.consumer_start() for _ in range(self.consumers)]
        self.reading = [False] * self.consumers
        self.items = 0
        self.sound = True  # no turn has failed

    @contextlib.contextmanager
    def _turn(self):
        self.sound = False
        with contextlib.suppress(Blocked):
            yield
        self.sound = True

    @initialize(rounds=st.integers(1, 3), more=st.integers(0, 2))
    def begin(self, rounds, more):
        self.items = rounds * self.stages + more

    @rule()
    def produce(self):
        """The producer's turn: wait, announce, issue."""
        if self.produced == self.items:
            return
        with self._turn():
            self.verbs.wait_empty(self.base, self.producer)
            stage, item = int(self.producer[0]), self.produced
            assert 0 <= stage < self.stages, f"the producer is at stage {stage} of {self.stages}"
            for consumer, done in enumerate(self.done):
                last = self.holds[stage]
                assert done > last, (
                    f"item {item} is copied to stage {stage} while consumer {consumer} still has to"
                    f" read item {last} there"
                )
            self.holds[stage] = item
            address = int(self.verbs.full(self.base, self.producer))
            self.verbs.expect(self.base, self.producer, np.uint32(2 * PART_BYTES))
            self.in_flight += [(address, stage, part, item) for part in (0, 1)]
            self.producer = self.verbs.advance(self.producer)
            self.produced += 1

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 100))
    def land(self, which):
        """One of the pending copies lands."""
        with self._turn():
            address, stage, part, item = self.in_flight.pop(which % len(self.in_flight))
            self.memory[stage][part] = item
            self.language.barriers[address].land(PART_BYTES)

    @rule(which=st.integers(0, 100))
    def consume(self, which):
        """A consumer's turn: wait and read, or read again and release."""
        consumer = which % self.consumers
        place, item = self.places[consumer], self.done[consumer]
        with self._turn():
            if self.reading[consumer]:
                self._look(consumer, int(place[0]), item, " before it is done")
                self.reading[consumer] = False
                self.done[consumer] += 1
                self.verbs.release(self.base, place)
                self.places[consumer] = self.verbs.advance(place)
            elif item < self.items:
                self.verbs.wait_full(self.base, place)
                self._look(consumer, int(place[0]), item, "")
                self.reading[consumer] = True

    def _look(self, consumer: int, stage: int, item: int, when: str) -> None:
        assert 0 <= stage < self.stages, f"consumer {consumer} is at stage {stage} of {self.stages}"
        found = self.memory[stage]
        assert found == [item, item], (
            f"consumer {consumer} came for item {item} in stage {stage} and finds {found}{when}"
            f" ({EMPTY}: nothing was ever copied there)"
        )

    def teardown(self):
        """Run all warps until the work is done; a ring that cannot finish is deadlocked."""
        while self.sound and min(self.done) < self.items:
            before = self._state()
            self.produce()
            if self.in_flight:
                self.land(0)
            for consumer in range(self.consumers):
                self.consume(consumer)
            if self._state() == before:
                barriers = "; ".join(
                    f"byte {address - BARRIERS}: {each}"
                    for address, each in sorted(self.language.barriers.items())
                )
                raise AssertionError(
                    f"the ring stands still: {self.produced} of {self.items} items produced,"
                    f" {self.done} read; barriers: {barriers}"
                )

    def _state(self) -> tuple:
        return self.produced, len(self.in_flight), tuple(self.done), tuple(self.reading)


def ring_machine(make_verbs, stages: int, consumers: int) -> type[RingMachine]:
    """A state machine class for the ring that ``make_verbs`` returns. Its ``TestCase`` is a
    unittest, which pytest collects if its name begins with ``Test``."""
    numbers = {"stages": stages, "consumers": consumers}
    machine: Any = type(
        "RingMachine", (RingMachine,), {"make_verbs": staticmethod(make_verbs), **numbers}
    )
    machine.TestCase.settings = settings(deadline=None, report_multiple_bugs=False)
    return machine
