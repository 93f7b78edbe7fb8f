"""Contract under test: on Windows and macOS the package imports, and its verbs that need no GPU
work, as far as ``tests.other_systems`` can tell on Linux."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry seven(.param .u64 to)
{
.reg .b64 %to; .reg .b32 %number;
ld.param.u64 %to, [to]; mov.u32 %number, 7; st.global.u32 [%to], %number; ret;
}
"""
SETUP = """
import sys
sys.path.insert(0, {root!r})
from tests.other_systems import NO_COMPILER, become, hide
hide(NO_COMPILER | {{"ml_dtypes"}})
become({system!r})
import json, os
from pathlib import Path
import numpy as np
import numba_marlin as nm
from numba_marlin.cli.main import main

def verb(*argv, code=0):
    found = main(list(argv))
    assert found == code, (argv, found)
"""


def on(system, text, tmp_path):
    (tmp_path / "seven.ptx").write_text(PTX)
    done = subprocess.run(
        [sys.executable, "-c", SETUP.format(root=str(ROOT), system=system) + text],
        cwd=tmp_path,
        env={"LOCALAPPDATA": str(tmp_path), "HOME": str(tmp_path), "PATH": "", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


SYSTEMS = pytest.mark.parametrize("system", ("win32", "darwin"))


@pytest.mark.thorough
@SYSTEMS
def test_the_simulation_is_one(system, tmp_path):
    """What other systems lack is gone; and the machine's own rules hold."""
    text = """
windows = sys.platform == "win32"
assert hasattr(os, "getuid") != windows and not hasattr(os, "sched_getaffinity")
try:
    import fcntl
    assert not windows
except ModuleNotFoundError:
    assert windows
with open("held", "w") as file:
    for refused in (os.unlink, lambda path: os.replace(path, "other")):
        try:
            refused("held")
        except PermissionError:
            assert windows
        else:
            assert not windows
            Path("held").touch()
"""
    on(system, text, tmp_path)


@pytest.mark.thorough
@SYSTEMS
def test_verbs_that_run_kernels(system, tmp_path):
    text = """
verb("run", "--kernel", "naive", "--save", "y.npy")
verb("trace", "--demo", "--kernel", "naive", "--html", "walk.html", "--save", "run.npz")
verb("trace", "--open", "run.npz")
verb("profile", "--demo", "--kernel", "naive", "--save", "profile.json")
verb("machine", "run", "seven.ptx", "--block", "1", "--args", "out:i32[1]:seven.npy")
assert np.load("seven.npy") == 7
verb("info")
verb("explain", "--m", "1", "--n", "256", "--k", "256")
"""
    on(system, text, tmp_path)
    assert {"y.npy", "walk.html", "profile.json"} <= {each.name for each in tmp_path.iterdir()}


@pytest.mark.thorough
@SYSTEMS
def test_verbs_of_checkpoints(system, tmp_path):
    text = """
np.save("w.npy", np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32))
verb("quantize", "w.npy", "q.safetensors", "--format", "gptq")
verb("quantize", "w.npy", "q.safetensors", "--format", "gptq", code=2)  # it exists
verb("inspect", "q.safetensors")
verb("convert", "q.safetensors", "out", "--to", "pack-quantized")
verb("convert", "out", "again.safetensors", "--to", "marlin")
verb("unpack", "out")
same = nm.load_checkpoint("again.safetensors")["weight"], nm.load_checkpoint("out")["weight"]
assert np.array_equal(*(nm.dequantize(each) for each in same))
"""
    on(system, text, tmp_path)


@pytest.mark.thorough
@SYSTEMS
def test_an_interrupted_conversion_goes_on(system, tmp_path):
    """Also past a half-written file: Windows removes none that is open."""
    text = """
from numba_marlin.checkpoints import job
w = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
nm.save_checkpoint("many", {f"layer{i}": nm.quantize(w) for i in range(3)}, "gptq",
                   shard_bytes=20_000)
options = "convert", "many", "out", "--to", "pack-quantized", "--shard-bytes", "20000"
whole = job.Job._shard
def stopped(self, path, *rest, **more):
    if "00002" in path.name:
        raise KeyboardInterrupt
    return whole(self, path, *rest, **more)
job.Job._shard = stopped
verb(*options, code=130)
job.Job._shard = whole
Path("out.partial", "model-00002-of-00003.safetensors.partial").write_bytes(b"half")
verb(*options)
assert len(nm.load_checkpoint("out")) == 3
assert sorted(each.name for each in Path("out").iterdir()) == [
    "config.json", *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
    "model.safetensors.index.json",
]
"""
    on(system, text, tmp_path)


@pytest.mark.thorough
def test_no_message_names_an_installation_that_macos_has_not(tmp_path):
    text = """
verb("run", "--kernel", "naive", "--group-size", "64", code=3)
verb("run", "--kernel", "naive", "--compiler", "numba-cuda-mlir", code=3)
verb("run", "--kernel", "naive", "--backend", "cuda", code=3)
verb("info")
"""
    shown = on("darwin", text, tmp_path)
    assert "there is no CUDA for macOS" in shown
    assert "install it with pip install" not in shown and "cuda-bindings cannot" not in shown


@pytest.mark.thorough
def test_an_open_file_is_its_writers_on_windows(tmp_path):
    """There are no locks of files there: what is open cannot be removed."""
    text = """
from numba_marlin.checkpoints import owner
writing = owner.alone(Path("model.safetensors.partial"))
try:
    owner.alone(Path("model.safetensors.partial"))
except BlockingIOError as error:
    assert "is being written by another process" in str(error)
else:
    raise AssertionError("two writers of one file")
"""
    on("win32", text, tmp_path)


@pytest.mark.thorough
def test_probes_of_a_gpu_need_no_alarms(tmp_path):
    """Windows has no SIGALRM."""
    text = """
from numba_marlin.witness import visit
from numba_marlin.witness.catalogue import GROUPS
import subprocess
def run(command, **options):
    return subprocess.CompletedProcess(command, 1, "", "the driver says no")
visit.subprocess.run = run
arrays, told = visit._group(GROUPS[0], Path("."), 1, 0, print, "sm_90")
assert not arrays and {each["error"] for each in told.values()} == {"the driver says no"}
"""
    on("win32", text, tmp_path)
