"""Contract under test: the commands of NVIDIA's profilers can be pasted into a shell, and what the
profilers wrote is read back, in every form, or refused in one line."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from numba_marlin.cli.main import main
from numba_marlin.profile import build as profile
from numba_marlin.profile.sources import nsight
from tests.cli.verbs import run
from tests.profile.built import data, section

KEPT = Path(__file__).resolve().parents[2] / "experiments" / "10_profile" / "h200_ampere.json"
HEAD = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size"]
OTHER = ["0", "41", "vectorized_elementwise_kernel", "(128, 1, 1)", "(9, 1, 1)"]
MINE = ["1", "41", "marlin_ampere(unsigned long, int)", "(256, 1, 1)", "(132, 1, 1)"]
VALUES = {
    "gpu__time_duration.sum": ("nsecond", "16,320"),
    "smsp__inst_executed.sum": ("inst", "6,193,416"),
    "lts__t_sector_hit_rate.pct": ("%", "21.5"),
    "dram__bytes_read.sum": ("Mbyte", "34.5"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "11.4"),
    "launch__registers_per_thread": ("register/thread", "n/a"),
}
NSYS = """Processing [marlin.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,48000,3,16000.0,16010.0,15900,16100,99.0,"marlin_ampere(unsigned long, int)"
40.0,32000,3,10666.0,10600.0,10500,10900,99.0,other
"""


def table(rows):
    lines = [",".join(f'"{each}"' for each in row) for row in rows]
    return "\n".join(["==PROF== Connected to process 41", "y = x w: right", *lines]) + "\n"


def wide():
    names = list(VALUES)
    units = [""] * len(HEAD) + [VALUES[name][0] for name in names]
    other = OTHER + ["1" for _ in names]
    mine = MINE + [VALUES[name][1] for name in names]
    return table([HEAD + names, units, other, mine])


def long():
    head = [*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    rows = [[*OTHER, "", "gpu__time_duration.sum", "nsecond", "5"]]
    rows += [[*MINE, "", name, unit, value] for name, (unit, value) in VALUES.items()]
    rows += [["2", *MINE[1:], "", "gpu__time_duration.sum", "nsecond", "7"]]  # a second launch
    return table([head, *rows])


@pytest.mark.parametrize("text", [wide(), long()], ids=["a column a metric", "a row a metric"])
def test_counters_of_the_first_launch_are_read_in_their_units(text, tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(text, encoding="utf-8")
    found = nsight.read_ncu(str(path), "marlin_ampere")
    assert {name: value for name, value in found.items() if name in VALUES} == pytest.approx(
        {
            "gpu__time_duration.sum": 16.32e-6,
            "smsp__inst_executed.sum": 6193416,
            "lts__t_sector_hit_rate.pct": 21.5,
            "dram__bytes_read.sum": 34.5e6,
            "sm__warps_active.avg.pct_of_peak_sustained_active": 11.4,
        }
    )  # "n/a" is no number


def test_counters_stand_beside_the_profiles_own(tmp_path, capsys):
    ncu, nsys = tmp_path / "ncu.csv", tmp_path / "nsys.csv"
    ncu.write_text(wide(), encoding="utf-8")
    nsys.write_text(NSYS, encoding="utf-8")
    given = ["--ncu", str(ncu), "--nsys", str(nsys), "--view", "counters"]
    saved = tmp_path / "run.json"
    assert main(["profile", "--open", str(KEPT), *given, "--save", str(saved)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    own = profile.load(KEPT)
    us, occupancy = own["time"]["us"], own["occupancy"]["achieved"]
    # ncu's, the profile's own, and their ratio
    for words in (
        f"time of a launch 16.32 us {us:.2f} us {16.32 / us:.3f}",
        "warp instructions 6,193,416 6,754,432 0.917",
        "L2 hit rate 21.5%",
        f"achieved occupancy 11.4% {occupancy:.1%}",
        f"median 16.01 us; here {us:.2f} us",
    ):
        assert words in said
    # and are kept with the profile
    assert main(["profile", "--open", str(saved), "--view", "counters"]) == 0
    assert "L2 hit rate" in capsys.readouterr().out
    assert json.loads(saved.read_text(encoding="utf-8"))["nsys"]["instances"] == 3


@pytest.mark.parametrize(
    "option, text, message",
    [
        ("--ncu", "nothing\n", "no table of ncu --csv"),
        ("--ncu", table([HEAD, [""] * 5, OTHER]), "no launch of marlin_ampere"),
        ("--ncu", table([["ID", "Name"], ["0", "x"]]), "no column `Kernel Name`"),
        ("--nsys", "nothing\n", "no table of nsys stats"),
        ("--nsys", NSYS.replace("marlin_ampere", "marlin_ampere_old"), "no launch of"),
        ("--nsys", NSYS.replace("Med (ns)", "Median"), "has no column"),
        ("--nsys", None, "no such file"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(option, text, message, tmp_path, capsys):
    path = tmp_path / "report.csv"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    code, out, complained = run(capsys, "profile", "--open", KEPT, option, path)
    assert code == 2 and message in complained and not out and len(complained.splitlines()) == 1


def test_a_report_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "report.csv"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(ValueError, match="not text"):
        nsight.read_ncu(str(path), "marlin_ampere")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("indent", ["", "  "])
def test_the_commands_can_be_pasted(tmp_path, indent):
    """A shell that has these programs runs each with the arguments that it should have."""
    for name in ("ncu", "nsys", "numba-marlin"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\nfor word in "${0##*/}" "$@"; do echo "$word"; done >> log\n')
        program.chmod(0o755)
    found = data() | {"kernel": "ampere"}
    text = "\n".join(command for _, command in nsight.commands(found))
    pasted = "".join(f"{indent}{line}\n" for line in text.splitlines())
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(
        ["bash", "-e"], input=pasted, text=True, cwd=tmp_path, env=environment, check=True
    )
    words = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert ",".join(metric.name for metric in nsight.METRICS) in words
    product = "numba-marlin run --backend cuda --kernel ampere --m 16 --n 256 --k 256"
    assert " ".join(words).count(f"{product} --group-size 128") == 2
    assert (tmp_path / "nsys.csv").exists()
    assert words[words.index("--kernel-name") + 1] == "marlin_ampere"


def test_the_product_of_the_command_is_the_profiles():
    other = data()
    other["problem"] |= {"bits": 8, "dtype": "bfloat16", "zeros": "integer", "group_size": -1}
    said = nsight.run_command(other)
    assert said.endswith("--group-size -1 --bits 8 --dtype bfloat16 --zeros integer")
    other |= {"kind": "operands", "kernel": "block_scaled"}
    other["problem"]["format"] = "nvfp4"
    assert nsight.run_command(other).endswith("--format nvfp4")
    assert "marlin_block_scaled" in section(other, "counters")
