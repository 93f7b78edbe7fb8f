"""Contract under test: winners are found again where nothing they depend on changed, and a store
that is damaged is an empty one."""

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from numba_marlin import heuristics
from numba_marlin.hardware import devices
from numba_marlin.heuristics import tuned

DEVICE = replace(devices.device("H200"), name="NVIDIA H200", source="measured", driver="580.1")
PROBLEM = heuristics.Problem(16, 8192, 8192)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(tmp_path))
    return tmp_path / tuned.FILE_NAME


def winner(problem=PROBLEM):
    # not the first: what the heuristics would have said anyway proves nothing
    return heuristics.rank(problem, DEVICE)[-2]


def remember(problem=PROBLEM, us=12.5):
    chosen = winner(problem)
    assert tuned.remember(problem, DEVICE, chosen.kernel, chosen.config, us)
    return chosen


def test_a_winner_is_found_again_with_its_configuration():
    chosen = remember()
    found = tuned.stored_choice(PROBLEM, DEVICE)
    assert (found.kernel, found.config, found.us) == (chosen.kernel, chosen.config, 12.5) and len(
        found.date
    ) == 10


@pytest.mark.parametrize(
    "other",
    [
        {"m": 17},
        {"m": 8},
        {"n": 4096},
        {"k": 4096},
        {"group_size": 64},
        {"group_size": -1},
    ],
)
def test_another_problem_has_no_winner(other):
    remember()
    assert tuned.stored_choice(replace(PROBLEM, **other), DEVICE) is None


@pytest.mark.parametrize("m", [9, 15])
def test_a_bucket_shares_its_winner(m):
    chosen = remember()
    assert tuned.stored_choice(replace(PROBLEM, m=m), DEVICE).config == chosen.config


def test_another_device_has_no_winner():
    remember()
    for other in (
        replace(DEVICE, name="NVIDIA H100"),
        replace(DEVICE, sms=114),
        devices.device("H200"),
        devices.device("model"),
    ):
        assert tuned.stored_choice(PROBLEM, other) is None


def test_a_winner_of_other_kernels_does_not_count(monkeypatch):
    remember()
    monkeypatch.setattr(tuned, "sources_digest", lambda: "changed")
    assert tuned.stored_choice(PROBLEM, DEVICE) is None
    chosen = remember(us=3.0)  # and is replaced
    assert tuned.stored_choice(PROBLEM, DEVICE).config == chosen.config


def test_a_winner_of_another_driver_does_not_count():
    remember()
    other = replace(DEVICE, driver="changed")
    assert tuned.stored_choice(PROBLEM, other) is None
    chosen = winner()
    assert tuned.remember(PROBLEM, other, chosen.kernel, chosen.config, 3.0)  # and is replaced
    assert tuned.stored_choice(PROBLEM, other).config == chosen.config
    assert tuned.stored_choice(PROBLEM, DEVICE) is None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": "numba-marlin/tuned/0", "entries": {}}',
        b'{"schema": "numba-marlin/tuned/1", "entries": []}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_empty_and_is_rebuilt(store, damage):
    remember()
    store.write_bytes(damage)
    assert tuned.stored_choice(PROBLEM, DEVICE) is None
    remember()
    assert (
        tuned.stored_choice(PROBLEM, DEVICE) is not None
        and json.loads(store.read_text())["schema"] == tuned.SCHEMA
    )


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "no_such_kernel"},
        {"kernel": "../evil"},
        {"kernel": "definition"},
        {"kernel": 3},
        {"config": {"frobnicate": 1}},
        {"config": None},
        {"us": "fast"},
        {"config": {"stages": -3}},
    ],
)
def test_an_entry_that_names_no_configuration_of_today_is_absent(store, change):
    chosen = heuristics.rank(PROBLEM, DEVICE)[0]
    tuned.remember(PROBLEM, DEVICE, chosen.kernel, chosen.config, 1.0)
    data = json.loads(store.read_text())
    for entry in data["entries"].values():
        entry.update(change)
    store.write_text(json.dumps(data))
    assert tuned.stored_choice(PROBLEM, DEVICE) is None


def test_winners_of_other_problems_are_kept():
    problems = [replace(PROBLEM, m=m) for m in (8, 16, 24)]
    for problem in problems:
        remember(problem)
    assert all(tuned.stored_choice(problem, DEVICE) for problem in problems)
    tuned.forget()
    assert not any(tuned.stored_choice(problem, DEVICE) for problem in problems)
    tuned.forget()  # nothing there is no error


def test_the_file_is_replaced_whole(store):
    """Whoever reads while another writes reads all of the old winners."""
    remember()
    with store.open("rb", buffering=0) as reader:
        old = store.read_bytes()
        beginning = reader.read(8)
        remember(replace(PROBLEM, m=64))
        assert beginning + reader.read() == old
    assert store.read_bytes() != old and [
        each.name for each in store.parent.iterdir() if each.suffix == ".json"
    ] == [store.name]
    assert not list(store.parent.glob(f".{store.name}.[!l]*")), "nothing is left beside it"


def test_processes_that_tune_at_the_same_time_keep_each_others_winners(store):
    """One that finds another writing waits, and reads only then what is to be kept."""
    pytest.importorskip("fcntl")
    program = (
        "from tests.test_tuned import DEVICE, PROBLEM, tuned, winner\n"
        "print('ready', flush=True)\nchosen = winner()\ntuned.remember(PROBLEM,"
        " DEVICE, chosen.kernel, chosen.config, 1.0)\n"
    )
    with tuned._lock(store.parent):
        other = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=Path(__file__).resolve().parents[1],
            stdout=subprocess.PIPE,
        )
        other.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=0.5)
        tuned._replace(store, {"schema": tuned.SCHEMA, "entries": {"written meanwhile": {}}})
    assert other.wait(timeout=60) == 0
    assert (
        len(json.loads(store.read_text())["entries"]) == 2
        and tuned.stored_choice(PROBLEM, DEVICE).us == 1.0
    )


def test_nowhere_to_write_is_no_error(monkeypatch):
    monkeypatch.setattr(tuned, "cache_directory", lambda: None)
    assert (
        tuned.remember(PROBLEM, DEVICE, "ampere", winner().config, 1.0) is None
        and tuned.stored_choice(PROBLEM, DEVICE) is None
    )


def test_buckets_are_the_batch_steps_and_then_quarters_of_an_octave():
    assert sorted({tuned.bucket(m) for m in range(1, 600)}) == [
        8,
        16,
        24,
        32,
        40,
        48,
        56,
        64,
        80,
        96,
        112,
        128,
        160,
        192,
        224,
        256,
        320,
        384,
        448,
        512,
        640,
    ]
    for m in range(1, 5000):
        size = tuned.bucket(m)
        assert m <= size and tuned.bucket(size) == size and (m <= 64 or size <= 1.25 * m)
    with pytest.raises(ValueError, match="m=0 must be at least 1"):
        tuned.bucket(0)


def test_on_a_full_disk_nothing_is_stored_and_nothing_left(store, monkeypatch):
    remember(us=12.5)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    chosen = winner()
    with monkeypatch.context() as patched:
        patched.setattr(tuned.os, "replace", full)
        assert tuned.remember(PROBLEM, DEVICE, chosen.kernel, chosen.config, 1.0) is None
    assert tuned.stored_choice(PROBLEM, DEVICE).us == 12.5
    assert {each.name for each in store.parent.iterdir()} <= {store.name, f".{store.name}.lock"}
