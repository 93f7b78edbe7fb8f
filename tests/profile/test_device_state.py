"""Contract under test: what NVML says is shown as it says it, what it does not say is a labelled
row, and without a device watching ends with exit code 3."""

import json
import sys

import numpy as np
import pytest

from numba_marlin.cli import watch as watching
from numba_marlin.cli.main import main
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution.launch import KERNEL_LOG
from numba_marlin.profile.pages import device_page
from numba_marlin.profile.sources import device_state
from numba_marlin.views import text
from tests.profile.fake_nvml import FakeNvml


def watch(monkeypatch, capsys, nvml, *arguments):
    monkeypatch.setattr(device_state, "_pynvml", lambda: nvml)
    code = main(["watch", "--json", "--hz", "10", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_sample_has_what_the_driver_says_and_names_what_it_does_not():
    monitor = device_state.Monitor(nvml=FakeNvml(lacks={"nvmlDeviceGetTemperature"}))
    state = monitor.sample()
    assert (
        monitor.name == "Invented 100"
        and state.throttle == ("power cap",)
        and state.processes == {4711: 512 << 20}
    )
    assert (
        state.values["gpu"] == 10
        and state.values["power_w"] == 350
        and state.values["tensor"] == 40
        and state.values["dram"] == 80
    )
    # NVML could not work that one out
    assert "temperature_c" not in state.values and "occupancy" not in state.values
    assert monitor.missing == {"temperature_c": "this GPU does not answer"}
    shown = text.render(
        device_page.page(
            monitor.name, [state, monitor.sample(), monitor.sample()], monitor.missing
        ),
        80,
    )
    assert (
        "tensor cores" in shown
        and "40%" in shown
        and "power cap" in shown
        and "temperature c: this GPU does not answer" in shown
        and "not known" in shown
    )


MARGIN, THRESHOLD = "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetTemperatureThreshold"


@pytest.mark.parametrize(
    "lacks, said",
    [
        ((), "55 C, 30 below where clocks are lowered: safe"),
        ((MARGIN,), "55 C, 32 below where clocks are lowered: safe"),
        ((MARGIN, THRESHOLD), "55 C"),
    ],
)
def test_a_temperature_is_safe_by_what_the_gpu_says(lacks, said):
    monitor = device_state.Monitor(nvml=FakeNvml(lacks=lacks))
    facts = {row[0]: row[1] for row in device_page.facts(monitor.sample(), monitor.missing)}
    assert facts["temperature"] == said
    assert ("degrees left" in facts.get("not known", "")) == (THRESHOLD in lacks)


def test_a_gpu_that_is_too_hot_is_not_called_safe():
    state = device_state.State(0.0, {"temperature_c": 90, "degrees_left": 0}, ("heat",))
    assert next(device_page.facts(state, {}))[1] == "90 C: clocks are lowered"


def test_a_rate_of_memory_needs_the_peak_of_a_known_device():
    state = device_state.Monitor(nvml=FakeNvml()).sample()
    shown = [
        text.render(device_page.page(name, [state], {}), 100)
        for name in ("NVIDIA H200", "Invented 100")
    ]
    assert "80%: 3,840 of 4,800 GB/s (spec)" in shown[0]
    assert "80%" in shown[1] and "GB/s" not in shown[1]


def test_a_device_without_gpm_says_so():
    monitor = device_state.Monitor(nvml=FakeNvml(gpm=False))
    assert "tensor" not in monitor.sample().values and "Hopper" in monitor.missing["tensor"]


def test_another_state_is_another_page():
    pages = [
        text.render(
            device_page.page("x", [device_state.Monitor(nvml=FakeNvml(mask=mask)).sample()], {}), 80
        )
        for mask in (0, 0x4)
    ]
    assert "nothing" in pages[0] and "power cap" in pages[1] and pages[0] != pages[1]


def test_without_a_device_watching_is_a_missing_capability(monkeypatch, capsys):
    def broken(self):
        raise FakeNvml.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(FakeNvml, "nvmlInit", broken)
    code, found = watch(monkeypatch, capsys, FakeNvml())
    assert code == 3 and not found["ok"] and "Driver Not Loaded" in found["error"]
    with pytest.raises(CapabilityMissing, match="Driver Not Loaded"):
        device_state.Monitor(nvml=FakeNvml())


def test_watching_samples_at_the_rate_asked_for_and_stops(monkeypatch, capsys):
    nvml = FakeNvml()
    code, found = watch(monkeypatch, capsys, nvml, "--seconds", "0.35")
    assert (
        code == 0
        and found["schema"] == "numba-marlin/watch/1"
        and found["device"] == "Invented 100"
    )
    assert 2 <= len(found["samples"]) <= 5 and nvml.open == 0  # the library is given back
    busy = [sample["gpu"] for sample in found["samples"]]
    assert busy == sorted(busy) and busy[0] < busy[-1]


def test_watching_a_command_lists_the_kernels_that_it_loads(monkeypatch, capsys):
    program = (
        f"import os, time; open(os.environ[{KERNEL_LOG!r}], 'a').write('1 decode sm_90a 112 288"
        " 196432 132\\n'); time.sleep(0.2)"
    )
    code, found = watch(monkeypatch, capsys, FakeNvml(), "--", sys.executable, "-c", program)
    assert code == 0 and found["returncode"] == 0
    assert found["kernels"] == [
        ["decode", "sm_90a, 288 threads, 112 registers, 191.828 KiB shared, 132 blocks fit", ""]
    ]
    code, found = watch(
        monkeypatch, capsys, FakeNvml(), "--", sys.executable, "-c", "raise SystemExit(5)"
    )
    assert code == 1 and found["returncode"] == 5


def test_all_samples_are_kept_for_a_file_and_counted_on_a_screen(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(watching, "KEPT", 2)
    monkeypatch.setattr(device_state, "_pynvml", lambda: FakeNvml())
    assert (
        main(["watch", "--hz", "10", "--seconds", "0.45", "--out", str(tmp_path / "run.json")]) == 0
    )
    assert len(json.loads((tmp_path / "run.json").read_text())["samples"]) == 5
    assert main(["watch", "--hz", "10", "--seconds", "0.45"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if ": 5 samples in" in line]


def test_products_of_any_sizes():
    random = np.random.default_rng(0)
    for n, k, groups in ((64, 128, 1), (72, 272, 1), (8, 512, 4)):
        weight = watching.random_weight(random, n, k)
        assert (weight.n, weight.k, weight.groups) == (n, k, groups)
    with pytest.raises(ValueError, match="n=100 must be a positive multiple of 8"):
        watching.random_weight(random, 100, 128)
    with pytest.raises(ValueError, match="k=-16"):
        watching.random_weight(random, 64, -16)


def test_interrupted_before_the_first_sample(monkeypatch, capsys):
    def interrupted(monitor):
        raise KeyboardInterrupt

    monkeypatch.setattr(device_state, "_pynvml", lambda: FakeNvml())
    monkeypatch.setattr(device_state.Monitor, "sample", interrupted)
    assert main(["watch"]) == 130


def test_without_a_terminal_there_is_a_line_a_sample(monkeypatch, capsys):
    monkeypatch.setattr(device_state, "_pynvml", lambda: FakeNvml())
    assert main(["watch", "--hz", "10", "--seconds", "0.15"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "tensor  40%" in lines[0] and "held back: power cap" in lines[0] and "watched" in lines[-1]
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--hz", "0.5"], "must be from 1 to 10"),
        (["--m", "3"], "go together"),
        (["--m", "1", "--n", "64", "--k", "64", "--", "ls"], "exclude"),
        (["--", "/no/such/program"], "cannot run"),
        (["--device", "7"], "NVML"),
        (["--seconds", "nan"], "must not be negative"),
        (["--seconds", "-1"], "must not be negative"),
    ],
)
def test_bad_input_says_what_to_do(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(device_state, "_pynvml", lambda: FakeNvml())
    assert main(["watch", *arguments]) in (2, 3)
    assert message in capsys.readouterr().err


# what is in the log of a process that wrote something else there, or is writing
ODD_LINES = (
    b"1 decode sm_90a 112 288 many 132\n",
    b"1 decode sm_90a 112 288 -1 132\n",
    b"1 decode sm_90a 112 288 " + b"9" * 5000 + b" 132\n",
    b"1 \xff\xfe\x00 sm_90a 112 288 1 132\n",
    b"1 \x1b[31m sm_90a 112 288 1 132\n",
    b"1 <b>x</b> sm_90a 1 2 3\n",
    b"\x00" * 4000 + b"\n",
    b"1 decode sm_90a 112 288 196",
)


def test_a_log_of_kernels_that_holds_something_else_is_read_around():
    good = b"1 decode sm_90a None 288 1024 132\n"
    with watching.Command([sys.executable, "-c", ""]) as command:
        for line in ODD_LINES:
            with open(command.log, "wb") as log:
                log.write(good + line)
            assert command.kernels() == [
                ("decode", "sm_90a, 288 threads, None registers, 1 KiB shared, 132 blocks fit", "")
            ]
