"""NVIDIA's profilers beside this one: their commands for the product of a profile, ready to paste,
and their figures read back in.

``commands(data)`` gives them. ``read_ncu`` reads what ``ncu --csv`` wrote, in either of its forms
(one row per launch with a column per metric, as ``--page raw`` writes; or one row per metric), and
``read_nsys`` what ``nsys stats --report cuda_gpu_kern_sum --format csv`` wrote. Hardware counters
need a GPU whose administrator lets users read them. Sources: Nsight Compute CLI, "Output Pages" and
"Print Units"; Nsight Compute, "Metrics Decoder"; Nsight Systems' Post-Collection Analysis Guide.
"""

from __future__ import annotations

import csv
import math
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from numba_marlin.problems import EXPERTS, OPERANDS

WIDTH = 74  # columns of a command's lines
MOST_BYTES = 16 << 20  # of a report: one launch takes thousands
# a unit, as ncu writes it -> (what it is, how many of it)
UNITS = {
    "nsecond": ("s", 1e-9),
    "ns": ("s", 1e-9),
    "usecond": ("s", 1e-6),
    "us": ("s", 1e-6),
    "msecond": ("s", 1e-3),
    "ms": ("s", 1e-3),
    "second": ("s", 1.0),
    "s": ("s", 1.0),
    "byte": ("byte", 1.0),
    "Kbyte": ("byte", 1e3),
    "Mbyte": ("byte", 1e6),
    "Gbyte": ("byte", 1e9),
    "%": ("%", 1.0),
}


@dataclass(frozen=True)
class Metric:
    """``name`` of the counter; ``title`` for people; ``ours``: where a profile has the same, a path
    into it, and by how much that must be multiplied."""

    name: str
    title: str
    ours: tuple[str, ...] = ()
    times: float = 1.0


METRICS = (
    Metric("gpu__time_duration.sum", "time of a launch", ("time", "us"), 1e-6),
    Metric("dram__bytes_read.sum", "bytes read from device memory", ("rates", "least_bytes")),
    Metric("lts__t_sector_hit_rate.pct", "L2 hit rate"),
    Metric(
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "achieved occupancy",
        ("occupancy", "achieved"),
        100.0,
    ),
    Metric("smsp__inst_executed.sum", "warp instructions", ("counts", "instructions")),
    Metric(
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "issue slots used",
        ("rates", "issue_share"),
        100.0,
    ),
    Metric(
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "tensor cores busy",
        ("rates", "tensor_share"),
        100.0,
    ),
    Metric(
        "sm__pipe_tensor_cycles_active.min.pct_of_peak_sustained_active",
        "tensor cores busy, on the SM with the least",
    ),
    Metric(
        "sm__pipe_tensor_cycles_active.max.pct_of_peak_sustained_active",
        "tensor cores busy, on the SM with the most",
    ),
    Metric("l1tex__data_bank_conflicts_pipe_lsu.sum", "bank conflicts", ("counts", "conflicts")),
    Metric("launch__registers_per_thread", "registers per thread", ("launch", "registers")),
    Metric(
        "smsp__thread_inst_executed_per_inst_executed.ratio", "lanes that execute an instruction"
    ),
)


def entry_of(data: dict) -> str:
    return f"marlin_{data['kernel']}"


def run_command(data: dict) -> str:
    """The command that multiplies the profile's product once on this computer's GPU."""
    problem = data["problem"]
    words = ["numba-marlin", "run", "--backend", "cuda", "--kernel", data["kernel"]]
    for name in ("m", "n", "k"):
        words += [f"--{name}", str(problem[name])]
    if data.get("kind") == OPERANDS:
        words += ["--format", problem["format"]]
    else:
        words += ["--group-size", str(problem["group_size"])]
        for name, default in (("bits", 4), ("dtype", "float16"), ("zeros", None)):
            if problem.get(name) not in (None, default):
                words += [f"--{name}", str(problem[name])]
    if data.get("kind") == EXPERTS:
        words += ["--experts", str(problem["experts"]), "--top-k", str(problem["top_k"])]
        words += ["--combine"] if problem["combine"] else []
    return shlex.join(words)


def commands(data: dict) -> list[tuple[str, str]]:
    """(what it does, the command, on lines that a shell takes as they are)."""
    run, entry = run_command(data), entry_of(data)
    # lines that may be indented when they are pasted: a list over several lines would fall apart
    first, *more = [metric.name for metric in METRICS]
    names = "\n".join([f"M={first}", *(f"M=$M,{name}" for name in more)])
    # clocks as they are: those that ncu sets else are lower, and times could not be compared
    ncu = (
        "ncu --csv --page raw --print-units base --clock-control none --log-file ncu.csv"
        f" --kernel-name {entry} --launch-count 1 --metrics $M {run}"
    )
    nsys = f"nsys profile --trace cuda --output marlin {run}"
    stats = (
        "nsys stats --report cuda_gpu_kern_sum --format csv --output - marlin.nsys-rep > nsys.csv"
    )
    beside = "numba-marlin profile --open run.json --ncu ncu.csv --nsys nsys.csv"
    return [
        ("Nsight Compute: counters of one launch", f"{names}\n{continued(ncu)}"),
        (
            "Nsight Systems: every launch on a time line",
            f"{continued(nsys)}\n{continued(stats)}",
        ),
        ("Both beside this profile, which --save run.json keeps", beside),
    ]


def continued(command: str) -> str:
    """A command over lines that a shell joins, of at most WIDTH columns."""
    lines = textwrap.wrap(command, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return " \\\n  ".join(lines)


def read_ncu(path: str, entry: str) -> dict[str, float]:
    """{metric: value} of the first launch of a kernel, those of METRICS, times in seconds. Raises
    ValueError for a file that is no report of ncu, or has no launch of the kernel."""
    rows = _rows(path, '"ID"', "ncu --csv")
    head = rows[0]
    if "Metric Name" in head:
        found = _of_metrics(head, rows[1:], entry)
    elif "Kernel Name" in head and len(rows) > 1:
        found = _of_launches(head, rows[1], rows[2:], entry)
    else:
        raise ValueError(f"{path}: no table of ncu --csv: it has no column `Kernel Name`")
    if not found:
        raise ValueError(f"{path}: no launch of {entry} is in it")
    # the others are numbers of the report and attributes of the device, some hundred
    return {metric.name: found[metric.name] for metric in METRICS if metric.name in found}


def _of_metrics(head: list[str], rows: list[list[str]], entry: str) -> dict[str, float]:
    of = {name: position for position, name in enumerate(head)}
    mine = [row for row in rows if len(row) == len(head) and _is(row[of["Kernel Name"]], entry)]
    first = [row for row in mine if row[of["ID"]] == mine[0][of["ID"]]]
    found = {}
    for row in first:
        value = _number(row[of["Metric Value"]], row[of["Metric Unit"]])
        if value is not None:
            found[row[of["Metric Name"]]] = value
    return found


def _of_launches(
    head: list[str], units: list[str], rows: list[list[str]], entry: str
) -> dict[str, float]:
    name = head.index("Kernel Name")
    for row in rows:
        if len(row) == len(head) == len(units) and _is(row[name], entry):
            values = {metric: _number(text, unit) for metric, text, unit in zip(head, row, units)}
            return {metric: value for metric, value in values.items() if value is not None}
    return {}


def _is(name: str, entry: str) -> bool:
    """Whether a kernel's name, perhaps with its parameters behind it, is the entry's."""
    return name.partition("(")[0].strip() == entry


def _number(text: str, unit: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value * UNITS.get(unit, ("", 1.0))[1] if math.isfinite(value) else None


def read_nsys(path: str, entry: str) -> dict[str, float]:
    """{"instances", "us" (median), "least_us", "most_us"} of a kernel's launches. Raises
    ValueError for a file that is no report of nsys, or has no launch of the kernel."""
    rows = _rows(path, "Time (%)", "nsys stats --report cuda_gpu_kern_sum --format csv")
    of = {name: position for position, name in enumerate(rows[0])}
    wanted = {
        "instances": ("Instances", 1.0),
        "us": ("Med (ns)", 1e-3),
        "least_us": ("Min (ns)", 1e-3),
        "most_us": ("Max (ns)", 1e-3),
    }
    if missing := [name for name, _ in wanted.values() if name not in of] or "Name" not in of:
        raise ValueError(f"{path}: the table of nsys has no column {missing}")
    for row in rows[1:]:
        if len(row) == len(rows[0]) and _is(row[of["Name"]], entry):
            values = {key: _number(row[of[name]], "") for key, (name, _) in wanted.items()}
            if None not in values.values():
                return {key: values[key] * wanted[key][1] for key in wanted}
    raise ValueError(f"{path}: no launch of {entry} is in it")


def _rows(path: str, first: str, command: str) -> list[list[str]]:
    """The rows of the table in a file whose other lines are a profiler's or a program's; the table
    begins with the line that begins with ``first``."""
    file = Path(path)
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path}: larger than {MOST_BYTES >> 20} MiB; export fewer launches")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: {str(error.strerror).lower()}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text; export it with {command}") from error
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith(first)), None)
    if start is None:
        raise ValueError(f"{path}: no table of {command}")
    try:
        return [row for row in csv.reader(lines[start:]) if row]
    except csv.Error as error:
        raise ValueError(f"{path}: a damaged table of {command} ({error})") from error
