"""Does a GPU execute the instructions of ptx/ as the PTX machine does? Only the first command needs
a GPU.

python experiments/05_hardware/run.py hardware --save hardware.npz    # on a GPU: all probes,
    results or digests of them to hardware.npz, 20 s
python experiments/05_hardware/run.py machine --save hardware.npz     # anywhere: the same probes on
    the PTX machine; rows to results.jsonl, 3 minutes
python experiments/05_hardware/run.py report                          # tables into README.md
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.witness.catalogue import GROUPS, every_probe, group
from numba_marlin.witness.record import WHOLE
from numba_marlin.witness.verdict import good


def hardware(args):
    from numba_marlin.witness.visit import LIMIT_SECONDS, meta, visit

    begun = time.perf_counter()
    arrays = visit(
        args.groups,
        args.limit or LIMIT_SECONDS,
        args.whole,
        say=lambda line: print(line, flush=True),
    )
    with open(args.save[0], "wb") as file:
        np.savez_compressed(file, **arrays)
    about = meta(arrays)
    refused = {probe.name for probe in every_probe() if probe.refused}
    failed = {
        name: told["error"]
        for name, told in about["probes"].items()
        if "error" in told and name not in refused
    }
    for name, told in about["probes"].items():
        if name in refused or name in failed:
            print(
                f"{'FAILED' if name in failed else 'refused' if 'error' in told else 'NOT REFUSED'}"
                f" {name}: {told.get('error', '')}"
            )
    print(
        f"{about['device']}, CUDA {about['driver']}: {len(about['probes'])} probes, {len(failed)}"
        f" failed; {args.save[0]}: {args.save[0].stat().st_size / 1e6:.1f} MB;"
        f" {time.perf_counter() - begun:.0f} s"
    )
    return 1 if failed else 0


@cache
def _kept(files):
    """Return (arrays, their descriptions) of all files. Later files take precedence."""
    from numba_marlin.witness.visit import meta

    arrays, about = {}, {}
    for file in files:
        with np.load(file) as loaded:
            arrays.update({name: loaded[name] for name in loaded.files})
        told = meta(arrays)
        about = {**told, "probes": {**about.get("probes", {}), **told["probes"]}}
    return arrays, about


def _judge(task):
    from numba_marlin.witness.verdict import judge

    files, number, groups = task
    return judge([probe for name in groups for probe in group(name)][number], *_kept(files))


def machine(args):
    files, count = tuple(args.save), sum(len(group(name)) for name in args.groups)
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(_judge, [(files, number, args.groups) for number in range(count)]))
    commit = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    about = {"date": datetime.date.today().isoformat(), "numpy": np.__version__, "commit": commit}
    with open(RESULTS, "w", encoding="utf-8") as out:
        out.writelines(json.dumps({**row, **about}) + "\n" for row in rows)
    bad = [row for row in rows if not good(row)]
    for row in bad:
        print(
            f"{row['outcome']} {row['probe']} {row.get('there', '')} {row.get('here', '')}"
            f" {row.get('first', '')}"
        )
    print(f"{len(rows)} probes, {len(bad)} of them not as on {rows[0]['device']}")
    return 1 if bad else 0


def report(args):
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    text = (HERE / "README.md").read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    (HERE / "README.md").write_text(
        before + BEGIN + "\n" + table(rows) + "\n" + END + rest.split(END)[1], encoding="utf-8"
    )
    return 0


def table(rows):
    """Return Markdown with a line per instruction, and a line per probe that must fail."""
    elsewhere = [row for row in rows if row["outcome"].startswith("not run")]
    rows = [row for row in rows if row not in elsewhere]
    totals, refusals = {}, [row for row in rows if not row["covers"]]
    for row in rows:
        for name in row["covers"]:
            totals.setdefault(name, []).append(row)
    device, driver, measured = (
        ", ".join(sorted({row[key] for row in rows})) for key in ("device", "driver", "measured")
    )
    lines = [
        (
            f"{device}, CUDA {driver}, {measured}: {len(totals)} instructions in"
            f" {len(rows) - len(refusals)} probes."
        ),
        "",
        "| instruction | probes | lanes | values compared | differing | first difference |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name in sorted(totals):
        mine = totals[name]
        compared = sum(row["elements"] for row in mine)
        wrong = [row for row in mine if row["outcome"] not in ("equal", "NaN differ")]
        lanes = sum(row["lanes"] for row in mine if row["elements"])
        first = (
            f"{wrong[0]['probe']}: {wrong[0]['outcome']}"
            f" {wrong[0].get('first') or wrong[0].get('there', '')}"
            if wrong
            else ""
        )
        lines.append(
            f"| `{name}` | {len(mine)} | {lanes:,} | {compared:,} |"
            f" {compared - sum(row['equal'] for row in mine):,} | {first} |"
        )
    for outcome in sorted({row["outcome"] for row in elsewhere}):
        names = dict.fromkeys(
            name for row in elsewhere if row["outcome"] == outcome for name in row["covers"]
        )
        lines += [
            "",
            f"{outcome[0].upper()}{outcome[1:]}: {', '.join(f'`{name}`' for name in names)}.",
        ]
    lines += ["", "| what must fail | on the GPU | on the machine |", "|---|---|---|"]
    lines += [
        f"| {row['probe']} | {re.search('CUDA_[A-Z_]+', row.get('there', '') + ' CUDA_SUCCESS')[0]}"
        f" | {row.get('here', '').split(':')[0]} |"
        for row in refusals
    ]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("hardware", "machine", "report"))
    parser.add_argument(
        "--save",
        type=Path,
        nargs="+",
        default=[HERE / "hardware.npz"],
        help=(
            "what came back from the GPU (default: hardware.npz beside this file); machine takes"
            " several, of which later ones win"
        ),
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes for machine")
    parser.add_argument(
        "--groups",
        type=lambda text: tuple(text.split(",")),
        default=GROUPS,
        help=f"some of {','.join(GROUPS)}",
    )
    parser.add_argument(
        "--whole",
        type=int,
        default=WHOLE,
        help=f"results of up to so many elements are saved in full (default {WHOLE})",
    )
    parser.add_argument("--limit", type=float, help="seconds for each process on the GPU")
    args = parser.parse_args(argv)
    return {"hardware": hardware, "machine": machine, "report": report}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
