"""Contract under test: which copies fill a stage and which reads are of it, at the ends of its
bytes and of its time. Of copies and reads that nobody recorded."""

from types import SimpleNamespace

import pytest

from numba_marlin.trace import stages
from numba_marlin.trace.traffic import Copy

RING = [[(100, 200)], [(200, 300)]]  # two stages side by side


PARTIALS = {"name": "partials", "address": 8192, "nbytes": 256}


def copy(step, target, landed, source=4096, pc=0):
    return Copy(step, pc, 0, 0, source, target, 16, landed, False)


@pytest.fixture
def fills(monkeypatch):
    def found(copies, reads=(), stores=()):
        monkeypatch.setattr(stages, "copies", lambda trace, block: copies)
        monkeypatch.setattr(stages, "shared_reads", lambda trace, block: list(reads))
        monkeypatch.setattr(stages, "addresses_of", lambda *_: list(stores))
        trace = SimpleNamespace(
            about={"stages": RING},
            header={"buffers": [PARTIALS]},
            counts={"buffers": [{"name": "partials", "writes": {"bytes": 64}}]},
            steps=100,
            memo={},
            buffer=lambda name: None,
        )
        return stages.fills(trace, 0)

    return found


@pytest.mark.parametrize(
    "target, stage", [(100, 0), (199, 0), (200, 1), (299, 1), (99, None), (300, None)]
)
def test_a_byte_belongs_to_one_stage(fills, target, stage):
    assert [each.stage for each in fills([copy(1, target, 5)])] == (
        [] if stage is None else [stage]
    )


@pytest.mark.parametrize("address, counts", [(99, False), (100, True), (199, True), (200, False)])
def test_a_read_or_a_store_belongs_to_the_stage_that_has_its_first_byte(fills, address, counts):
    (one,) = fills([copy(1, 100, 5)], reads=[(7, address)])
    assert (one.read, one.read_last) == ((7, 7) if counts else (-1, -1))
    (one,) = fills([copy(1, 100, 5)], reads=[(7, 100)], stores=[(6, address)])
    assert (one.read >= 0) != counts  # after a store, what is read is something else


def test_reads_count_from_the_landing_to_whatever_comes_there_next(fills):
    reads = [(step, 100) for step in range(100)]
    again = copy(20, 100, 30)
    first, second = fills([copy(1, 100, 5), again], reads)
    assert (first.read, first.read_last, first.number) == (5, 19, 0)
    assert (second.read, second.read_last, second.number) == (30, 99, 1)
    (only,) = fills([copy(1, 100, 5)], reads, stores=[(5, 100), (50, 100)])
    assert (only.read, only.read_last) == (5, 49)  # a store when it lands is of before
    (only,) = fills([copy(1, 100, -1)], reads)
    assert only.landed == only.read == -1
    (at_once,) = fills([copy(0, 100, 0)], reads)
    assert (at_once.landed, at_once.read) == (0, 0)


def test_a_copy_of_what_the_run_wrote_fills_no_stage_and_ends_the_one_before(fills):
    reads = [(step, 100) for step in range(60)]
    sums = [copy(30, 100, 40, source=8192, pc=7), copy(30, 116, 40, source=-1, pc=7)]
    (only,) = fills([copy(1, 100, 5), *sums], reads)
    assert (only.read, only.read_last, only.nbytes) == (5, 29, 16)
