"""What is said of speed in the pages' prose, and how it is derived (``test_readme_figures``); and
``claim``, which registers that for any piece of prose.

``CLAIMS``: {a piece of prose, its figures as groups: the function that derives them}.
"""

import re
from statistics import geometric_mean

import pytest

from tests import experiment_results
from tests.pages import WRITTEN as TEXT

WORDS = ("no", "one", "two", "three", "four", "five")
CLAIMS, CASES = {}, []


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


@claim(
    r"On (\d+) layers of real models by (\d+) batch sizes, (\d+) to (\d+) \(\[every cell\]\), it is"
    r" ahead of cuBLAS fp16 in (\d+) of (\d+) cells and of Humming, .*?, in (\d+) of the (\d+) that"
    r" Humming runs; geometric means ([\d.]+) and (\d\.\d+)",
    pytest.mark.thorough,
)
def every_cell(monkeypatch):
    run = experiment_results.module("25_every_cell", "run", monkeypatch)
    cells = run.cells_of_today(run.RESULTS)
    layers, batches = {layer for layer, _ in cells}, sorted({m for _, m in cells})
    found = [len(layers), len(batches), batches[0], batches[-1]]
    assert run.report.names_of_peers(cells) == [run.report.CUBLAS, "humming"]
    means = []
    for name in (run.report.CUBLAS, "humming"):
        ratios = [each for row in cells.values() if (each := run.report.ratio(row, name))]
        found += [sum(each >= 1 for each in ratios), len(ratios)]
        means.append(f"{geometric_mean(ratios):.2f}")
    return (*found, *means)


@claim(
    r"from m = (\d+) on, x quantised on the way, int8 with a scale per column is \[([\d.]+) to"
    r" ([\d.]+) times\] as fast as cuBLAS fp16"
)
def int8_of_many_rows(monkeypatch):
    run = experiment_results.module("23_w4a8", "run", monkeypatch)
    newest = run.rows.newest(run.rows.read(run.RESULTS)).values()
    times = {}
    for row in newest:
        if row["group_size"] == -1 and row["m"] >= 1024:
            times.setdefault((row["k"], row["n"], row["m"]), {})[row["kernel"]] = row["us"]
    whole = [each for each in times.values() if set(run.ENTRANTS) <= set(each)]
    ratios = [each["cublas"] / each["int8"] for each in whole]
    assert len(ratios) >= 6
    return 1024, f"{min(ratios):.2f}", f"{max(ratios):.2f}"


@claim(
    r"Beside Humming's 8-bit activations ours are ahead in (\d+) of (\d+) cells in int8 and in"
    r" (\d+) in fp8"
)
def beside_humming_in_8_bits(monkeypatch):
    run = experiment_results.module("23_w4a8", "run", monkeypatch)
    times = run.tables.times_of(run.rows.newest(run.rows.read(run.RESULTS)).values())
    ahead = {
        kind: [cell[f"humming_{kind}"] >= cell[kind] for cell in times.values()]
        for kind in run.KINDS
    }
    return sum(ahead["int8"]), len(ahead["int8"]), sum(ahead["fp8"])


@claim(
    r"with `gptq` weights in groups of (\d+) is at a cosine of ([\d.]+) to its float self with"
    r" 16-bit activations, ([\d.]+) with int8 and (\d\.\d+) with fp8"
)
def what_8_bits_cost(monkeypatch):
    report = experiment_results.module("32_activations", "report", monkeypatch)
    rows = report.newest(experiment_results.FOLDER / "32_activations", "sentences")
    kinds = report.ACTIVATIONS
    found = (rows["gptq", 128, False, kind]["cosine"] for kind in kinds)
    return (128, *(f"{each:.4f}" for each in found))
