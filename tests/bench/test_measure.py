"""Contract under test: what is said about timings follows from them. No GPU, nothing is timed:
timers are invented."""

import contextlib
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from numba_marlin.bench import clocks, measure, roofline, tables, timing, tune
from numba_marlin.bench.ceilings import Ceilings
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver
from numba_marlin.heuristics import Problem
from tests.bench.invented import row
from tests.interpreter import loaded_by


class Timer:
    """Replays give the numbers in turn; ``log`` has the order of all replays."""

    def __init__(self, name, times, log):
        self.name, self.times, self.log = name, iter(times), log

    def replay(self, during=None):
        self.log.append(self.name)
        if during is not None:
            during()
        return next(self.times)


def test_rounds_interleave_and_every_one_begins_with_another():
    log, samples = [], []
    timers = {name: Timer(name, range(10), log) for name in "abc"}
    found = timing.interleave(timers, 4, lambda: samples.append(1))
    assert found == {name: [0, 1, 2, 3] for name in "abc"} and len(samples) == 12
    assert "".join(log) == "abc" + "bca" + "cab" + "abc"
    with pytest.raises(ValueError, match="rounds=0 must be"):
        timing.interleave(timers, 0)


def test_an_event_that_never_happens_is_reported(monkeypatch):
    registered = []
    monkeypatch.setattr(timing.atexit, "register", lambda *arguments: registered.append(arguments))
    with pytest.raises(timing.KernelStuck, match="did not end within 0.01 s"):
        timing.wait(type("Event", (), {"query": lambda self: False})(), 0.01)
    assert registered  # the process leaves without freeing memory, which would wait


def test_the_speedup_is_that_of_the_rounds_so_drift_cancels():
    """Clocks fall by half in mid-run, for both: times spread, their ratio does not."""
    found = measure.timed([10, 10, 20, 20, 20], [30, 30, 60, 60, 60])
    assert (
        found["us"] == 20
        and found["us_spread"] == [10, 20]
        and found["speedup"] == 3
        and found["speedup_spread"] == [3, 3]
    )
    assert measure.timed([10.0])["speedup"] is None


def test_shares_are_of_the_scarcer_of_the_two_limits():
    ceilings = Ceilings(read_bytes=4e12, matrix_flops=8e14)
    small, large = Problem(1, 8192, 8192), Problem(4096, 8192, 8192)
    found = measure.shares(small, [17.0], ceilings)
    assert found["bytes"] == small.least_bytes and found["limit_us"] == pytest.approx(
        small.least_bytes / 4e6, rel=1e-3
    )
    assert (
        found["limit_share"]
        == found["bandwidth_share"]
        == pytest.approx(small.least_bytes / 4e6 / 17, rel=1e-3)
    )
    found = measure.shares(large, [1000.0], ceilings)
    assert (
        found["limit_share"]
        == found["compute_share"]
        == pytest.approx(2 * 4096 * 8192 * 8192 / 8e8 / 1000, rel=1e-3)
    )


@pytest.mark.parametrize(
    "times, first", [([10.0, 9.0], 1), ([10.0, 9.99], 0), ([9.0, 10.0], 0), ([10.0, 9.99, 9.0], 2)]
)
def test_noise_does_not_overrule_the_heuristics(times, first):
    assert tune.winner(times) == first


def test_clocks_of_all_samples_are_summed_up():
    samples = [
        {"sm_mhz": 1980, "power_w": 120.4, "mask": 0x1, "sm_mhz_at_most": 1980},
        {"sm_mhz": 1700, "power_w": 640, "mask": 0x4},
        {},
    ]
    assert clocks.summary(samples) == {
        "sm_mhz": [1700, 1980],
        "power_w": [120, 640],
        "sm_mhz_at_most": 1980,
        "throttle": ["power cap"],
        "samples": 3,
    }
    assert clocks.summary([]) is None and clocks.summary([{}]) is None
    # idle, and clocks that an application asked for: nothing holds them back
    assert clocks.reasons(0x1 | 0x2) == []


def test_without_nvml_clocks_are_none_and_it_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = clocks.ClockWatch()
    watch.sample()
    assert watch.summary() is None and "nvidia-ml-py" in watch.missing


def test_settling_ends_when_nothing_holds_the_clocks_back_or_its_time_is_up(monkeypatch):
    watch = clocks.ClockWatch.__new__(clocks.ClockWatch)
    watch._nvml, asked = object(), iter([{"mask": 0x4}, {"mask": 0x4}, {"mask": 0x1}])
    monkeypatch.setattr(clocks.time, "sleep", lambda seconds: None)
    watch._ask = lambda: next(asked)
    watch.settle()
    assert next(asked, None) is None
    watch._ask = lambda: {"mask": 0x4}
    watch.settle(0.01)


def test_the_sentence_on_clocks():
    held = {"sm_mhz": [1500, 1700], "sm_mhz_at_most": 1980, "throttle": ["power cap"]}
    assert tables.clocks([row(clocks=None)]) == ""
    assert (
        tables.clocks([row(), row(clocks=held)])
        == "SM clock 1500 to 1980 MHz while timing, 1980 at most; held back by: power cap in 1 of 2"
        " measurements."
    )
    assert (
        tables.clocks([row()]) == "SM clock 1900 to 1980 MHz while timing; held back by: nothing."
    )


def test_timing_asks_for_what_is_missing(monkeypatch):
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    with pytest.raises(CapabilityMissing, match="timing needs a GPU: no NVIDIA driver"):
        timing.torch_on_gpu()
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, ""))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CapabilityMissing, match="pip install torch"):
        timing.torch_on_gpu()


def test_a_table_is_as_wide_as_its_header():
    assert tables.markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n|---|--:|\n| x | 1 |"
    with pytest.raises(ValueError, match="3 cells, the header 2"):
        tables.markdown(["a", "b"], [["x", "1", "2"]])


def test_a_roofline_is_drawn_and_cublas_stands_once_a_cell(tmp_path):
    rows = [row(m=1), row(m=1, kernel="tiled", us=30.0), row(m=64, us=20.0, n=8192)]
    found = roofline.points(rows)
    assert {name: len(each) for name, each in found.items()} == {
        "ampere": 2,
        "tiled": 1,
        "cublas": 2,
    }
    flops, nbytes = 2 * 4096 * 4096, 2 * (4096 + 4096 * 4096 + 4096)  # cuBLAS: all of 16 bits
    assert found["ampere"][0][:2] == pytest.approx((flops / rows[0]["bytes"], flops / 10e-6))
    assert found["cublas"][0][:2] == pytest.approx((flops / nbytes, flops / 30e-6))
    assert found["cublas"][1][2] == "4096 x 8192"
    pytest.importorskip("matplotlib")
    roofline.draw(rows, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one"):
        roofline.draw([], tmp_path / "none.png")


@pytest.mark.parametrize(
    "name",
    [
        "timing",
        "operands",
        "contenders",
        "ceilings",
        "clocks",
        "measure",
        "tune",
        "roofline",
        "environment",
        "compare",
        "rows",
        "tables",
        "shapes",
        "summary",
    ],
)
def test_no_module_of_the_room_loads_a_gpu_library(name):
    libraries = {"numba", "cuda", "torch", "matplotlib", "pynvml"}
    assert not loaded_by(f"import numba_marlin.bench.{name}") & libraries


@pytest.mark.parametrize("us, kept", [(30.0, True), (30.1, False)])
def test_what_is_three_times_as_slow_is_still_timed(monkeypatch, us, kept):
    one, other = (SimpleNamespace(kernel=name, config={}) for name in "ab")
    times = [(one, 10.0), (other, us)]
    monkeypatch.setattr(tune, "screen", lambda *_: (times, [(None, "does not fit")]))
    monkeypatch.setattr(tune.tuned, "remember", lambda *found: found)
    bench = SimpleNamespace(
        device=None,
        cell=lambda problem, hopeful, first: [{"us": 9.0 - len(hopeful)}] * len(hopeful),
    )
    found = tune.tune(bench, Problem(5, 64, 64), (one, other))
    assert (len(found.rows), found.choice) == (1 + kept, one)
    assert found.dropped[0] == (None, "does not fit") and found.problem.m == 8
    assert [each for each, _ in found.dropped[1:]] == ([] if kept else [other])
    if not kept:
        assert "30.1 us at first sight, more than 3 times" in found.dropped[1][1]


class FakeCuda:
    """torch.cuda, in which a launch takes ``us``; ``log`` has what was asked for."""

    def __init__(self, us):
        self.us, self.now, self.log = us, 0.0, []

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.log.append(name)
            return contextlib.nullcontext()

        return call

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.log.append(("waits for", other)))

    def current_stream(self):
        return "the stream of the data"

    def Event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(query=lambda: True, at=None)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda end: (end.at - event.at) / 1e3
        return event

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: self.launched(self.captured))

    def launched(self, times=1):
        self.now += times * self.us


@pytest.mark.parametrize("us, launches", [(10.0, 300), (1.0, timing.MOST_LAUNCHES), (2000.0, 3)])
def test_a_graph_holds_what_fits_in_its_time(monkeypatch, us, launches):
    cuda, seen = FakeCuda(us), []
    monkeypatch.setattr(timing, "torch_on_gpu", lambda: SimpleNamespace(cuda=cuda))

    def launch(index):
        seen.append(index)
        cuda.launched()

    cuda.captured = launches
    timer = timing.GraphTimer(launch)
    assert timer.launches == launches and seen[-launches:] == list(range(launches))
    # what made the data comes first
    assert cuda.log[0] == ("waits for", "the stream of the data")
    before = cuda.now
    assert timer.replay() == pytest.approx(us) and cuda.now - before == launches * us


def test_one_round_is_enough():
    assert timing.interleave({"a": Timer("a", [5.0], [])}, 1) == {"a": [5.0]}


def test_the_roof_of_a_roofline(monkeypatch):
    """It rises with the bytes that a second brings up to the ridge, and is flat from there on; the
    axis goes from half of the least point to twice the greatest, or of the ridge."""
    plt = mock.MagicMock()
    figure, axis = mock.MagicMock(), mock.MagicMock()
    plt.subplots.return_value = figure, axis
    monkeypatch.setattr(roofline, "pyplot", lambda: plt)
    rows = [row(m=1), row(m=64, kernel="tiled")]
    roofline.draw(rows, "r.png")
    (low, ridge, high), heights = axis.plot.call_args_list[0].args
    points = [x for each in roofline.points(rows).values() for x, _, _ in each]
    assert ridge == pytest.approx(7e14 / 4e12) and heights == [low * 4e12, 7e14, 7e14]
    assert (low, high) == (min(points) / 2, 2 * max(*points, ridge))
    assert axis.set.call_args.kwargs["xlim"] == (low, high)
    drawn = [call.args[:2] for call in axis.plot.call_args_list[1:]]
    assert drawn == [
        each[:2] for name in ("cublas", "ampere", "tiled") for each in roofline.points(rows)[name]
    ]
    colours = {call.kwargs["color"] for call in axis.plot.call_args_list[1:]}
    assert colours == {"0.6", "C0", "C1"}  # cuBLAS in grey
    figure.savefig.assert_called_once_with("r.png", dpi=mock.ANY)
