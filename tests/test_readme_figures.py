"""Contract under test: every figure in the pages' prose is what the results, the sources or the
settings say, and none stands there without such a test.

``CLAIMS``: a piece of prose, its figures as groups, and the function that derives them. (Tables,
quotations, outputs: ``test_readme``, ``test_readme_statements``.)"""

import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import numba_marlin as nm
from tests import experiment_results
from tests.claims_of_speed import CASES, CLAIMS, WORDS, claim, prose
from tests.pages import WRITTEN as TEXT

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = (ROOT / "setup.cfg").read_text(encoding="utf-8")
# What has a digit and states nothing: names of things.
NAMES = (
    r"4-bit|8-bit|W4A8|W4A16|INT4|NVFP4|MXFP[48]|FP[48]|H200|fp(16|32|64)|float64|bf16|cold L2"
    r"|Apache-2.0|2024"
    r"|g \+ 8"
)


@claim(r"The first (\w+) are plain Numba: .*? each a file of less than (\d+) lines")
def plain_kernels(monkeypatch):
    kernels = (ROOT / "numba_marlin" / "kernels").glob("*/kernel.py")
    texts = [each.read_text(encoding="utf-8") for each in kernels]
    lengths = [len(text.splitlines()) for text in texts if "\n@cuda.jit" in text]
    return WORDS[len(lengths)], -(-max(lengths) // 100) * 100


@claim(r"Of every kernel, ([\d,]+) to ([\d,]+) schedules \[change no bit\]")
def schedules(monkeypatch):
    rows = experiment_results.rows("17_schedules")
    counts = {}
    for row in rows:
        counts[row["kernel"]] = counts.get(row["kernel"], 0) + row["schedules"]
    from numba_marlin.kernels import registry
    from numba_marlin.problems import KINDS

    kernels = {each.name for kind in KINDS for each in registry.kernels(kind)}
    assert kernels <= {name.partition(",")[0] for name in counts}
    return f"{min(counts.values()):,}", f"{max(counts.values()):,}"


@claim(r"reaches ([\d,]+) of the ([\d,]+) operations that a Hopper SM is made for in a cycle")
def tensor_operations(_):
    rows = {row["probe"]: row for row in experiment_results.rows("30_levels")}
    said = (ROOT / "experiments" / "30_levels" / "README.md").read_text(encoding="utf-8")
    reached = rows["mma.sync m16n8k16, fp16"]["per_cycle_and_sm"]
    return f"{reached:,.0f}", *re.findall(r"cores' ([\d,]+) operations an SM and cycle", said)


@claim(r"and a (thousand) schedules per kernel")
def nightly(monkeypatch):
    switches = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    return ({"1000": "thousand"}[re.search(r"^NIGHTLY = (\d+)", switches, re.M)[1]],)


@claim(r"every output and every fp32 partial sum of (\d+) problems, from (both) compilers")
def agreement(monkeypatch):
    rows = experiment_results.rows("01_faithful", "agree.jsonl")
    rows = [each for each in rows if each["what"] == "machine"]
    for row in rows:
        assert row["identical"] == row["outputs"] > 0, row["case"]
        assert row.get("partials_identical") == row.get("partials"), row["case"]
    cases = {
        compiler: {row["case"] for row in rows if row["compiler"] == compiler}
        for compiler in ("numba-cuda", "numba-cuda-mlir")
    }
    assert cases["numba-cuda"] == cases["numba-cuda-mlir"]
    return len(cases["numba-cuda"]), "both"


@claim(r"Semantics follow the PTX ISA to the bit, \[as an (H200) confirms\]")
def hardware(monkeypatch):
    rows = experiment_results.rows("05_hardware")
    assert len(rows) > 200
    assert {row["outcome"].partition(":")[0] for row in rows} == {"equal", "refused", "not run"}
    assert all("H200" in row["device"] for row in rows)
    return ("H200",)


@claim(r"\[round trips between all pairs\] preserve a (million) random codes each")
def round_trips(monkeypatch):
    least = min(row["codes"] for row in experiment_results.rows("15_round_trips"))
    return ("million" if 1_000_000 <= least < 2_000_000 else least,)


@claim(r"All of these \[([\d,]+) mutants\] were detected, or proved to be equivalent")
def mutants(monkeypatch):
    rows = experiment_results.rows("16_mutants")
    newest = {(row["cell"], row["mutant"]): row["outcome"] for row in rows}
    assert set(newest.values()) <= {"caught", "equivalent"}
    return (f"{len(newest):,}",)


@claim(
    r"`multiply` issues `mma.sync` for every (\d+) rows of activations; `dequantize` turns four"
    r" nibbles into four fp16 values with (\w+) `lop3`, (\w+) subtraction and (\w+) fused"
    r" multiply-add"
)
def instructions_of_a_word(monkeypatch):
    kernels = ROOT / "numba_marlin" / "kernels"
    multiply = (kernels / "ampere" / "kernel.py").read_text(encoding="utf-8")
    (rows,) = set(re.findall(r"ptx\.mma_m(\d+)n8k16", multiply))
    verbs = (kernels / "dequantize" / "verbs.py").read_text(encoding="utf-8")
    body = verbs.partition("def dequantize(word)")[2].partition("@lang.device")[0]
    counts = [body.count(name) for name in ("lop3_and_or(", "ptx.sub_", "ptx.fma_")]
    return rows, *(WORDS[each] for each in counts)


@claim(r"You need only Python ([\d.]+) to ([\d.]+) with pip")
def pythons(monkeypatch):
    oldest, end = re.search(r"python_requires = >=([\d.]+),<3\.(\d+)", SETTINGS).groups()
    return oldest, f"3.{int(end) - 1}"


@claim(r"about ([\d.]+) GB on disk", pytest.mark.thorough)
def installed_size(monkeypatch):
    """What is said is within a tenth of the files of the packages that the command installs."""
    packaging = pytest.importorskip("packaging.requirements")
    wanted = re.search(r"install_requires =\n(.*?)\n\[", SETTINGS, re.S)[1]
    wanted += re.search(r"^cu13 =\n(.*?)^#", SETTINGS, re.S | re.M)[1]
    found = {}

    def add(requirement):
        extras = {"", *requirement.extras} - found.setdefault(requirement.name, set())
        found[requirement.name] |= extras
        try:
            listed = metadata.distribution(requirement.name).requires or ()
        except metadata.PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed: the extra is another")
        for each in map(packaging.Requirement, listed) if extras else ():
            if any(each.marker is None or each.marker.evaluate({"extra": e}) for e in extras):
                add(each)

    for line in wanted.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            add(packaging.Requirement(line.strip()))
    files = (path.locate() for name in found for path in metadata.distribution(name).files)
    size = sum(path.stat().st_size for path in files if path.exists()) / 1e9
    said = re.search(r"about ([\d.]+) GB on disk", TEXT)[1]
    return (said if abs(float(said) - size) < 0.1 * size else f"{size:.1f}",)


@claim(r"\(extra `mlir`, Python ([\d.]+) or later\)")
def python_of_the_second_compiler(monkeypatch):
    return re.search(r'numba-cuda-mlir.*python_version >= "([\d.]+)"', SETTINGS).groups()


@claim(r"on an NVIDIA GPU of compute capability ([\d.]+) or more")
def least_capability(monkeypatch):
    from numba_marlin.hardware.targets import TARGETS

    return ("{}.{}".format(*min(each.capability for each in TARGETS.values())),)


@claim(r"for (sm_\w+), (sm_\w+), (sm_\w+), (sm_\w+) and (sm_\w+) in the tests and (sm_\w+) besides")
def targets(monkeypatch):
    source = (ROOT / "tests" / "kernels" / "test_gates.py").read_text(encoding="utf-8")
    tested = re.findall(r"sm_\w+", re.search(r"^TARGETS = (.*)$", source, re.M)[1])
    from numba_marlin.hardware.targets import TARGETS

    # families of the same major (sm_100a ...) are those of kernels of their own
    (besides,) = {name for name in TARGETS if not name.endswith("a")} - {*tested, "sm_90"}
    return *tested, besides


@claim(
    r"With a driver older than CUDA (\d+), use the extra `cu(\d+)` instead of `cu(\d+)`; static"
    r" checks then look at the PTX only, since there is no `nvdisasm` wheel for CUDA (\d+)"
)
def extras(monkeypatch):
    older, newer = sorted(re.findall(r"^cu(\d+) =$", SETTINGS, re.M))
    requirements = SETTINGS.partition(f"\ncu{older} =")[2].partition(f"\ncu{newer} =")[0]
    lines = [line for line in requirements.splitlines() if not line.lstrip().startswith("#")]
    assert not any("nvdisasm" in line for line in lines)
    return newer, older, newer, older


@claim(r"k must be a multiple of (\d+), n of (\d+) \(packing pads columns to a multiple of (\d+)\)")
def shapes(monkeypatch):
    def words(k, n):
        weight = nm.quantize(np.ones((k, n), np.float32), group_size=-1)
        return nm.pack(weight).qweight.shape[1]

    def taken(words_of):
        """The sizes that are not refused, and the words of a row for each."""
        found = {}
        for size in range(1, 129):
            try:
                found[size] = words_of(size)
            except ValueError:
                continue
        assert list(found) == list(range(min(found), 129, min(found)))
        return found

    k, n = taken(lambda size: words(size, 64)), taken(lambda size: words(64, size))
    padded = max(size for size in n if n[size] == n[min(n)])
    return min(k), min(n), padded


@claim(
    r"Exit codes: (\d) ok, (\d) a check failed, (\d) usage or bad input, (\d) this machine lacks"
)
def exit_codes(monkeypatch):
    from numba_marlin.cli import main

    return main.OK, main.CHECK_FAILED, main.USAGE, main.MISSING


@claim(r"those of lane (\d+) are framed")
def framed_lane(monkeypatch):
    return re.search(r"`numba-marlin trace --lane (\d+) .*?fragments\.png", TEXT).groups()


@claim(r"the four framed weights are in the two registers of lane (\d+)")
def lane_of_the_codes(monkeypatch):
    return re.search(r"`numba-marlin trace --lane (\d+) .*?codes\.png", TEXT).groups()


@claim(r"Warp (\d+) copies\. .*? all that warp (\d+) does")
def copying_warp(monkeypatch):
    """The last one of a block of the picture's kernel."""
    from numba_marlin.kernels.registry import find_kernel

    config = find_kernel("decode").config_type()
    return config.consumers, config.consumers


@claim(r"multiplies (\d+) x (\d+) by (\d+) x (\d+) fp16 values")
def example(monkeypatch):
    x, y = (
        re.search(rf"{name} \[(\d+), (\d+)\]", TEXT.partition("example:ptx")[2]).groups()
        for name in ("x", "w")
    )
    return *x, *y


@claim(r"is an unsigned integer that stays (\d+) bits wide")
def width(_):
    return re.search(r"`lang\.uint(\d+)`", TEXT).groups()


@pytest.mark.parametrize("pattern", CASES)
def test_it_is_what_was_found(pattern, monkeypatch):
    found = re.findall(pattern, prose())
    assert len(found) == 1, "the README says it otherwise, or twice: change the pattern"
    said = found if isinstance(found[0], str) else list(found[0])
    assert said == [str(each) for each in CLAIMS[pattern](monkeypatch)]


def test_no_figure_is_without_a_test():
    rest = prose()
    for pattern in CLAIMS:
        rest = re.sub(pattern, "", rest)
    rest = re.sub(NAMES, "", re.sub(r"`[^`]*`", "", rest))
    assert not re.findall(r".{0,30}\d.{0,30}", rest), "add a claim that derives it"
