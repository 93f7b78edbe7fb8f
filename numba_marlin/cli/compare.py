"""``numba-marlin compare A B``: is B faster than A? Compares two files of ``numba-marlin bench``,
cell by cell. Needs no GPU.

The rule is that of ``numba_marlin.bench.compare``. Exit code 1 if a cell got slower, so that a
script can stop there.
"""

from __future__ import annotations

from pathlib import Path

HELP = "say which measurements of two files are faster, slower, the same or ambiguous"
EXAMPLES = """  numba-marlin compare before.jsonl after.jsonl
  numba-marlin compare before.json after.json --by speedup --tolerance 3

A change counts from B's median over A's: faster or slower if it is beyond the tolerance and the
quartiles of the two do not overlap; same if it is within the tolerance and the quartiles allow no
more than twice that; ambiguous otherwise. --by speedup compares speed-ups over cuBLAS of the same
rounds, in which clocks that drift between the runs cancel. Exit code 1: something is slower."""
SIGNS = {"faster": "bold green", "slower": "bold red", "same": "", "ambiguous": "yellow"}


def add_arguments(parser) -> None:
    parser.add_argument(
        "a", metavar="A", help="before: a .jsonl of bench --save, or what bench --json printed"
    )
    parser.add_argument("b", metavar="B", help="after")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=2.0,
        metavar="PERCENT",
        help="per cent; smaller changes count as none (default 2)",
    )
    parser.add_argument(
        "--by",
        choices=("us", "speedup"),
        default="us",
        help="compare times (default) or speed-ups over cuBLAS",
    )
    parser.add_argument(
        "--each",
        action="store_true",
        help=(
            "match every kernel and configuration, not one row per cell (the choice, else the"
            " fastest)"
        ),
    )


def execute(args, report) -> bool:
    from numba_marlin.bench.compare import compare

    if args.out is not None and Path(args.out).resolve() in {
        Path(path).resolve() for path in (args.a, args.b)
    }:
        raise ValueError(
            f"--out {args.out} is one of the files that are compared: the result would take its"
            " place"
        )
    if not 0 <= args.tolerance < 100:
        raise ValueError(f"--tolerance {args.tolerance} must be from 0 to below 100")
    found = compare(
        *(_rows(path) for path in (args.a, args.b)), args.tolerance / 100, args.by, args.each
    )
    counts = found.counts
    report.data = {
        "a": args.a,
        "b": args.b,
        "by": args.by,
        "tolerance": args.tolerance / 100,
        "counts": counts,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "notes": list(found.notes),
        "cells": [each.to_dict() for each in found.verdicts],
    }
    ok = counts["slower"] == 0
    if not args.json:
        _show(args, report, found)
    return ok


def _rows(path: str) -> list[dict]:
    from numba_marlin.bench import rows

    found = rows.read(path)
    if not found:
        raise ValueError(
            f"{path} holds no measurement: it must be what numba-marlin bench wrote to --save or"
            " --out, or printed with --json"
        )
    return found


def _show(args, report, found) -> None:
    from numba_marlin.cli.bench_view import kinds, microseconds, print_table, sizes
    from numba_marlin.cli.report import GREEN, RED

    show = microseconds if args.by == "us" else "{:.2f}".format
    with_kinds = any(kinds(each.a) for each in found.verdicts)
    lines = [
        [
            sizes(each.a),
            str(each.a["m"]),
            *([kinds(each.a)] if with_kinds else []),
            _kernels(each),
            show(each.a[args.by]),
            show(each.b[args.by]),
            f"{each.change:+.1%}",
            f"{each.interval[0]:+.1%} .. {each.interval[1]:+.1%}",
            each.verdict,
        ]
        for each in found.verdicts
    ]
    unit = "us" if args.by == "us" else "speed-up"
    print_table(
        [
            "k x n",
            "m",
            *(["types"] if with_kinds else []),
            "kernel",
            f"A {unit}",
            f"B {unit}",
            "time",
            "may be",
            "verdict",
        ],
        lines,
        left=1,
        styles=[SIGNS[each.verdict] for each in found.verdicts],
        dispensable=("may be",),
    )
    counts = found.counts
    report.row(
        "cells",
        ", ".join(f"{count} {name}" for name, count in counts.items()),
        RED if counts["slower"] else GREEN,
    )
    if found.only_a or found.only_b:
        report.row(
            "not shared", f"{found.only_a} only in {args.a}, {found.only_b} only in {args.b}"
        )
    for note in found.notes:
        report.row("note", note)


def _kernels(verdict) -> str:
    before, after = verdict.a["kernel"], verdict.b["kernel"]
    return before if before == after else f"{before} > {after}"
