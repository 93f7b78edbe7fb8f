"""What the hardware's counters say of the cells in which cuBLAS is ahead.

    # a GPU whose counters may be read, torch, and Nsight Compute's ncu
    python experiments/25_every_cell/counters.py measure [--cells '5120x*@256'] [--seconds 300]
    python experiments/25_every_cell/counters.py report     # the table of README.md; no GPU

Each kernel is launched once with a cold L2 (``ncu`` flushes it, and repeats the launch until it has
read all counters), at the clocks that it finds. Rows are appended to counters.jsonl (in OUT, or
here); the newest of a cell counts. A percentage of cuBLAS is that of its longest kernel, its time
that of all. Sources: Nsight Compute, "Metrics Decoder" and "Warp Scheduler States".
"""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import report
import run
import shapes

from numba_marlin.bench import rows
from numba_marlin.bench.tables import markdown, origin, replace_between
from numba_marlin.problems import WeightProblem

ROWS = HERE / "counters.jsonl"
MARKERS = ("<!-- counters: begin -->", "<!-- counters: end -->")
LEAST_M = 64  # of the cells that are measured: below, no cell is lost
OURS = "marlin_"  # how our kernels' names begin
TIME, ACTIVE = "gpu__time_duration.sum", "pct_of_peak_sustained_active"
TENSOR = f"sm__pipe_tensor_cycles_active.avg.{ACTIVE}"
ISSUE = f"smsp__issue_active.avg.{ACTIVE}"
SM_CYCLES, SM_BUSY, SM_BUSIEST = (
    "sm__cycles_elapsed.max",
    "sm__cycles_active.avg",
    "sm__cycles_active.max",
)
HITS, READ = "lts__t_sector_hit_rate.pct", "dram__bytes_read.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
PIPES = {
    each: f"sm__inst_executed_pipe_{each}.avg.{ACTIVE}" for each in ("alu", "fma", "lsu", "uniform")
}
STALLS = {
    each: f"smsp__average_warps_issue_stalled_{each}_per_issue_active.ratio"
    for each in (
        "barrier",
        "gmma",
        "long_scoreboard",
        "math_pipe_throttle",
        "membar",
        "mio_throttle",
        "no_instruction",
        "not_selected",
        "selected",
        "short_scoreboard",
        "sleeping",
        "wait",
    )
}
METRICS = (
    TIME,
    TENSOR,
    ISSUE,
    SM_CYCLES,
    SM_BUSY,
    SM_BUSIEST,
    HITS,
    READ,
    INSTRUCTIONS,
    *PIPES.values(),
    *STALLS.values(),
)


def lost_cells(names):
    """[(layer, m)] of the table with LEAST_M rows at least in which cuBLAS was ahead, the worst
    first; or those that ``names`` name."""
    if names:
        return shapes.cells(names)
    cells = run.cells_of_today(run.RESULTS)
    ratios = {key: report.ratio(row, report.CUBLAS) for key, row in cells.items()}
    lost = [key for key, each in ratios.items() if each < 1 and key[1] >= LEAST_M]
    return sorted(lost, key=ratios.get)


def named(layer, m):
    return f"{layer.k}x{layer.n}@{m}"


def chosen(problem, device):
    return run.rank(problem, device)[0]


def launch(args):
    """What ncu runs: for each cell our kernel, then cuBLAS, between the marks that start and stop
    it."""
    import torch

    from numba_marlin.bench import contenders, operands
    from numba_marlin.bench.measure import Bench, Settings, checked

    bench, cudart = Bench(Settings(kept=1)), torch.cuda.cudart()
    for layer, m in shapes.cells(args.cells):
        problem = WeightProblem(m, layer.n, layer.k, run.GROUP_SIZE)
        weights = bench.weights(problem)
        batch = operands.random_batch(weights, m)
        ours = bench.contender(problem, chosen(problem, bench.device), weights, batch)
        checked(ours, batch)
        theirs = contenders.cublas(weights, batch)
        theirs.launch(0)  # it chooses and loads its kernel
        torch.cuda.synchronize()
        cudart.cudaProfilerStart()
        ours.launch(0)
        theirs.launch(0)
        torch.cuda.synchronize()
        cudart.cudaProfilerStop()
        print(named(layer, m), flush=True)


def kernels_of(path):
    """[(kernel, {metric: value})] of the launches of a file that ``ncu --csv --page raw`` wrote."""
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(f"{path}: ncu wrote no table: {' '.join(lines)[-300:]}")
    head, _, *launches = csv.reader(lines[start:])
    name, found = head.index("Kernel Name"), []
    for row in launches:
        values = dict(zip(head, row))
        figures = {each: number(values.get(each, "")) for each in METRICS}
        found.append((row[name], {key: each for key, each in figures.items() if each is not None}))
    return found


def number(text):
    try:
        return float(f"{float(text.replace(',', '')):.5g}")
    except ValueError:
        return None


def by_cell(launches):
    """[(our launch, [cuBLAS's])]: one of ours begins a cell."""
    cells = []
    for each in launches:
        if each[0].startswith(OURS):
            cells.append((each, []))
        else:
            cells[-1][1].append(each)
    return cells


def together(launches):
    """The figures of a contender's launches: those of the longest, and the time of all."""
    longest = max(launches, key=lambda each: each[1][TIME])
    return {
        "entry": longest[0].partition("(")[0],
        "launches": len(launches),
        **longest[1],
        TIME: sum(figures[TIME] for _, figures in launches),
    }


def measure(args):
    from numba_marlin.bench import environment
    from numba_marlin.execution import driver

    device = driver.describe(0)
    cells = lost_cells(args.cells)
    problems = [WeightProblem(m, layer.n, layer.k, run.GROUP_SIZE) for layer, m in cells]
    run.compile_all([(each, (chosen(each, device),)) for each in problems], device, os.cpu_count())
    table = Path(os.environ.get("OUT", HERE)) / "ncu.csv"
    table.unlink(missing_ok=True)
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    command += ["--profile-from-start", "off", "--metrics", ",".join(METRICS), "--log-file", table]
    command += [sys.executable, __file__, "launch", "--cells"]
    command.append(",".join(named(*each) for each in in_order(cells)))
    try:
        subprocess.run(command, timeout=args.seconds)
    except subprocess.TimeoutExpired:
        print(f"stopped after --seconds {args.seconds:g}", flush=True)
    found = by_cell(kernels_of(table))
    with rows.Recorder(Path(os.environ.get("OUT", HERE)) / "counters.jsonl") as out:
        for (layer, m), (ours, theirs) in zip(in_order(cells), found):
            if not theirs:
                continue
            problem = WeightProblem(m, layer.n, layer.k, run.GROUP_SIZE)
            choice = chosen(problem, device)
            assert ours[0].partition("(")[0] == f"{OURS}{choice.kernel}", ours[0]
            row = {"kernel": choice.kernel, "config": run.asdict(choice.config)}
            row |= problem.to_dict() | environment.describe(device.name)
            row |= {"ours": together([ours]), "cublas": together(theirs)}
            row["us"] = row["ours"][TIME] / 1e3
            out.write(row)
            print(named(layer, m), *line_of(row)[2:], flush=True)
    table.unlink()


def in_order(cells):
    """The cells as ``shapes.cells`` orders those that are named."""
    return shapes.cells([named(*each) for each in cells])


def share(figures, metric):
    return f"{figures[metric]:.0f}%" if metric in figures else ""


def idle(figures):
    """Of the launch, how long the average multiprocessor has no block."""
    if SM_BUSY not in figures or SM_CYCLES not in figures:
        return ""
    return f"{1 - figures[SM_BUSY] / figures[SM_CYCLES]:.0%}"


def most_waited(figures):
    """Why a warp did not issue, most often, and its share of the warps' time."""
    waits = {name: figures[each] for name, each in STALLS.items() if each in figures}
    if not waits:
        return ""
    name = max(waits, key=waits.get)
    return f"{name} {waits[name] / sum(waits.values()):.0%}"


def line_of(row):
    ours, cublas = row["ours"], row["cublas"]
    return [
        f"{row['k']} x {row['n']}",
        str(row["m"]),
        f"{ours[TIME] / 1e3:.1f}",
        f"{cublas[TIME] / ours[TIME]:.2f}",
        *(share(each, TENSOR) for each in (ours, cublas)),
        *(idle(each) for each in (ours, cublas)),
        *(share(each, ISSUE) for each in (ours, cublas)),
        f"{ours[INSTRUCTIONS] / cublas[INSTRUCTIONS]:.1f}",
        share(ours, PIPES["alu"]),
        *(share(each, HITS) for each in (ours, cublas)),
        *(most_waited(each) for each in (ours, cublas)),
        report.described(row["kernel"], row["config"]),
    ]


HEADER = (
    "k x n",
    "m",
    "us",
    "cuBLAS",
    "tensor pipe",
    "cuBLAS's",
    "idle SMs",
    "cuBLAS's",
    "issue slots",
    "cuBLAS's",
    "instructions, of cuBLAS's",
    "ALU",
    "L2 hits",
    "cuBLAS's",
    "warps wait for",
    "cuBLAS's",
    "choice",
)


def medians(found):
    """What the table says on the whole, in words."""

    def middle(side, metric):
        return f"{median(row[side][metric] for row in found if metric in row[side]):.0f}%"

    return (
        f"{len(found)} cells; medians: tensor pipe {middle('ours', TENSOR)} of active cycles"
        f" (cuBLAS {middle('cublas', TENSOR)}), issue slots {middle('ours', ISSUE)}"
        f" ({middle('cublas', ISSUE)}), L2 hits {middle('ours', HITS)}"
        f" ({middle('cublas', HITS)})."
    )


def write_report(args):
    found = {(row["k"], row["n"], row["m"]): row for row in rows.read(ROWS)}.values()
    if not found:
        raise ValueError("counters.jsonl has no rows: measure first")
    ordered = sorted(found, key=lambda row: row["cublas"][TIME] / row["ours"][TIME])
    body = [medians(ordered), markdown(HEADER, [line_of(row) for row in ordered]), origin(ordered)]
    replace_between(HERE / "README.md", MARKERS, "\n\n".join(body))
    print(body[0])


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for command in (measure, launch, write_report):
        added = commands.add_parser(command.__name__.removeprefix("write_"), help=command.__doc__)
        added.add_argument("--cells", type=lambda text: text.split(","), default=[])
        added.add_argument("--seconds", type=float, default=600.0)
        added.set_defaults(run=command)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
