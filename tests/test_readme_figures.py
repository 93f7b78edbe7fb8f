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
from tests.pages import WRITTEN as TEXT

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = (ROOT / "setup.cfg").read_text(encoding="utf-8")
WORDS = ("no", "one", "two", "three", "four", "five")
CLAIMS, CASES = {}, []
# What has a digit and states nothing: names of things.
NAMES = r"4-bit|INT4|NVFP4|MXFP[48]|FP[48]|H200|fp(16|32|64)|float64|bf16|cold L2|Apache-2.0|2024"


def prose():
    """The text without fences, marked blocks, tables and targets of links, on one line."""
    text = re.sub(r"<!-- (\w+)(:\S+)? -->.*?<!-- end:\S+ -->|<!-- .*? -->", "", TEXT, flags=re.S)
    text = re.sub(r"^```.*?^```|^\|.*?\|$", "", text, flags=re.S | re.M)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def claim(pattern, *marks):
    def register(derive):
        CLAIMS[pattern] = derive
        CASES.append(pytest.param(pattern, marks=marks, id=derive.__name__))
        return derive

    return register


@claim(
    r"With Hopper's kernels it is (.*?) to (.*?) times as fast as cuBLAS at m = (\d+), and level"
    r" with it or ahead from m = (\d+) to (\d+) except in (\w+) cells"
)
def speed_ups(monkeypatch):
    """Of what the heuristics choose. Level: not below at the two digits of the table."""
    report = experiment_results.module("02_hopper", "report", monkeypatch)
    goals = experiment_results.module("02_hopper", "run", monkeypatch).GOALS
    found = report.newest(experiment_results.FOLDER / "02_hopper" / "results.jsonl", goals)
    times = [(m, cell["ours"]["speedup"]) for cells in found.values() for m, cell in cells.items()]
    smallest, largest = min(times)[0], max(times)[0]
    at_smallest = [each for m, each in times if m == smallest]
    below = sum(round(each, 2) < 1 for _, each in times)
    return (
        f"{min(at_smallest):.1f}",
        f"{max(at_smallest):.1f}",
        smallest,
        smallest,
        largest,
        WORDS[below],
    )


@claim(r"on an H200 at least as fast as the CUDA original in (every) case")
def beside_the_original(monkeypatch):
    report = experiment_results.module("01_faithful", "report", monkeypatch)
    rows = report.newest(experiment_results.FOLDER / "01_faithful" / "results.jsonl")
    ratios = [row["marlin_cuda_us"] / row["us"] for row in rows.values()]
    assert len(ratios) > 40 and {row["device"] for row in rows.values()} == {"NVIDIA H200"}
    return ("every" if min(round(each, 2) for each in ratios) >= 1 else "not every",)  # as there


def shares_of_int4(monkeypatch):
    """NVFP4's and MXFP4's bytes a second over INT4's, of every cell and both types, in percent."""
    report = experiment_results.module("06_nvfp4", "report", monkeypatch)
    results = experiment_results.FOLDER / "06_nvfp4" / "results.jsonl"
    shares = [
        100 * report.share(row, kinds["int4-g128"])
        for dtype in ("float16", "bfloat16")
        for batches in report.newest(results, dtype).values()
        for kinds in batches.values()
        for kind, row in kinds.items()
        if kind in ("nvfp4", "mxfp4")
    ]
    assert len(shares) > 80
    return shares


@claim(
    r"NVFP4 and MXFP4 weights run on `decode` and `wgmma` at (\d+) to (\d+)% of INT4's bytes",
    pytest.mark.thorough,
)
def range_of_shares(monkeypatch):
    shares = shares_of_int4(monkeypatch)
    return f"{min(shares):.0f}", f"{max(shares):.0f}"


@claim(
    r"on an H200 at (\d+)% or more of INT4's bytes per second in every cell measured",
    pytest.mark.thorough,
)
def smallest_share(monkeypatch):
    return (f"{min(shares_of_int4(monkeypatch)):.0f}",)


def newest_quantisers(monkeypatch):
    return experiment_results.module("07_quantisers", "report", monkeypatch).newest()


@claim(
    r"at (\d) bits in groups of (\d+), the divergence from the float model is ([\d.]+) nats per"
    r" token with rounding to nearest, ([\d.]+) with `mse`, ([\d.]+) with `gptq` and ([\d.]+) with"
    r" `act_order=True`"
)
def divergences(monkeypatch):
    grid = {"group_size": 128, "symmetric": True, "kind": "model"}
    kl = {
        row["variant"]: f"{row['kl']:.3f}"
        for row in newest_quantisers(monkeypatch)
        if grid.items() <= row.items()
    }
    page = (experiment_results.FOLDER / "07_quantisers" / "README.md").read_text(encoding="utf-8")
    (bits,) = re.findall(r"are compared at (\d) bits", page)
    return bits, 128, kl["rtn"], kl["mse"], kl["gptq"], kl["gptq, act order"]


@claim(r"(\d+) x (\d+) weights take (\d+) CPU seconds")
def cost_of_gptq(monkeypatch):
    row = next(
        row
        for row in newest_quantisers(monkeypatch)
        if (row["kind"], row.get("what")) == ("cost", "gptq")
    )
    return row["k"], row["n"], round(row["cpu_seconds"])


def block_products(monkeypatch, kernel, wanted):
    """Speed-ups over cuBLAS by shape (m, n, k), without an epilogue."""
    report = experiment_results.module("11_block_scaled", "report", monkeypatch)
    found = report.newest(experiment_results.rows("11_block_scaled"))
    return {
        shape: row["speedup"]
        for (shape, part, epilogue), row in found.items()
        if (part, epilogue) == (kernel, report.key_of()) and wanted(*shape)
    }


@claim(r"on Hopper at ([\d.]+) to ([\d.]+) of the speed of cuBLAS fp16 for m of (\d+) and more")
def large_block_products(monkeypatch):
    found = block_products(monkeypatch, "block_scaled", lambda m, n, k: m >= 512)
    assert len(found) > 6
    return f"{min(found.values()):.2f}", f"{max(found.values()):.2f}", min(found)[0]


@claim(
    r"for few rows, reaches ([\d.]+) to ([\d.]+) times cuBLAS for m up to (\d+) \(least at (\d+)\)"
    r" from (\d+) x (\d+) on"
)
def small_block_products(monkeypatch):
    found = block_products(
        monkeypatch, "block_decode", lambda m, n, k: m <= 32 and min(n, k) >= 8192
    )
    assert len(found) > 15
    (m, _, _), least = min(found.items(), key=lambda each: each[1])
    smallest = min(shape[1:] for shape in found)
    return f"{least:.1f}", f"{max(found.values()):.1f}", max(found)[0], m, *smallest


@claim(r"H200 for (\d+) x (\d+) weights .*? which decides at m = (\d+), to do the arithmetic")
def problem_of_the_ladder(_):  # test_readme_statements compares the columns
    found = {row["m"]: row for row in experiment_results.rows("18_ladder") if row["m"] != 64}
    read = {m: row["bytes"] / row["ceilings"]["read_bytes"] for m, row in found.items()}
    (m,) = (m for m, row in found.items() if row["limit_us"] > 1.01e6 * read[m])
    return found[m]["k"], found[m]["n"], m


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


def model_steps(**wanted):
    """Milliseconds of a step, and times fp16, of the newest row of experiment 21 like that."""
    rows = [
        row
        for row in experiment_results.rows("21_model")
        if all(row.get(name) == value for name, value in wanted.items())
    ]
    return rows[-1]["us"] / 1e3, rows[-1].get("speedup")


@claim(
    r"of an 8B Llama takes ([\d.]+) ms at batch (\d+) and ([\d.]+) at (\d+), ([\d.]+) and ([\d.]+)"
    r" times less"
)
def a_step_of_8b(_):
    common = {"part": "decode", "shape": "8B", "contender": "int4", "glue": "fused"}
    (one, faster), (more, by) = (model_steps(**common, m=m) for m in (1, 16))
    return f"{one:.2f}", 1, f"{more:.2f}", 16, f"{faster:.2f}", f"{by:.2f}"


@claim(r"\[one of 70B\] ([\d.]+) ms on (one) H200, ([\d.]+) on (two)")
def a_step_of_70b(_):
    common = {"part": "seventy", "shape": "70B", "contender": "int4", "glue": "fused", "m": 1}
    places = {"one": "1 GPU", "two": "2 GPUs, join"}
    found = {name: model_steps(**common, where=where)[0] for name, where in places.items()}
    return f"{found['one']:.1f}", "one", f"{found['two']:.1f}", "two"


@claim(r"another kernel multiplies, by `wgmma`: from (\d+) on, where the two crossed")
def many_rows(_):
    from numba_marlin.kernels.experts.choice import MANY_ROWS

    return (MANY_ROWS,)


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
