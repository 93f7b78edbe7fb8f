"""``numba-marlin verify --hardware``: does this GPU do with the instructions of ptx/ what the PTX
machine does? Results are compared bit for bit; the GPU runs in separate processes.

Exit code 1 if something differs, 3 without a usable GPU. Needs sm_90a, because the
probes use all instructions of Hopper.
"""

from __future__ import annotations

HELP = "compare every instruction of ptx/ on this GPU with the PTX machine, bit for bit"
EXAMPLES = """  numba-marlin verify --hardware
  numba-marlin verify --hardware --groups registers,multiplication --json

Half a minute on the GPU, then some minutes on the CPU. Some probes must fail, and end a process of
their own with a CUDA error: no harm is done."""


def add_arguments(parser) -> None:
    parser.add_argument(
        "--hardware",
        action="store_true",
        help="compare with device 0 (required: there is nothing else to compare with)",
    )
    parser.add_argument(
        "--groups", metavar="NAMES", help="some groups of probes, separated by commas (default all)"
    )


def execute(args, report) -> bool:
    from numba_marlin.cli.progress import bar
    from numba_marlin.cli.report import GREEN, RED
    from numba_marlin.witness.catalogue import GROUPS, group
    from numba_marlin.witness.verdict import good, judge
    from numba_marlin.witness.visit import meta, visit

    if not args.hardware:
        raise ValueError("verify needs --hardware: it compares with device 0")
    groups = tuple(args.groups.split(",")) if args.groups else GROUPS
    probes = [probe for name in groups for probe in group(name)]
    arrays = visit(groups)
    rows = []
    with bar("comparing", "probes") as advance:
        for probe in probes:
            advance(len(rows), len(probes), probe.name)
            rows.append(judge(probe, arrays, meta(arrays)))
    counts = {
        name: sum(row["outcome"] == name for row in rows)
        for name in dict.fromkeys(row["outcome"] for row in rows)
    }
    ok = all(good(row) for row in rows)
    report.data = {"counts": counts, "probes": rows}
    report.row("device", f"{rows[0]['device']}, CUDA {rows[0]['driver']}")
    for row in rows:
        if not good(row):
            report.row(
                row["outcome"],
                f"{row['probe']}: {row.get('first') or row.get('there') or 'no result'}"
                f" {row.get('here', '')}",
                RED,
            )
    report.row(
        "probes",
        ", ".join(f"{count} {name}" for name, count in counts.items()),
        GREEN if ok else RED,
    )
    return ok
