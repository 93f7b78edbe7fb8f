"""Profiles of every kernel, measured on a GPU and kept here, a small file each.

``keep(args)`` runs ``numba-marlin profile`` for one product a kernel, each in a process of its own,
so that one that fails leaves the others; ``lighter`` thins what only pictures need; a file above
``MOST_BYTES`` is an error. ``counters(args)`` runs the ``ncu`` command that each kept profile
prints, and keeps its figures in the file. ``table(folder)``: the kept profiles as a table, with the
command that shows each.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST_BYTES = 100_000
WARPS = 4  # of a block, whose lanes are kept
PRODUCTS = {  # kernel: m, n, k
    "naive": (4, 4096, 4096),
    "general": (4, 4096, 4096),
    "tiled": (16, 8192, 8192),
    "buffered": (16, 8192, 8192),
    "ampere": (16, 8192, 8192),
    "decode": (16, 8192, 8192),
    "wgmma": (1024, 8192, 8192),
    "block_scaled": (4096, 4096, 4096),
    "block_decode": (16, 8192, 8192),
}


def lighter(data: dict) -> dict:
    """A profile with the lanes of its first warps and of the busiest one, the others left out."""
    warps = data["lanes"]["warps"]
    busiest = max(warps, key=lambda lane: lane["totals"].get("multiply", 0.0), default=None)
    kept = [lane for position, lane in enumerate(warps) if position < WARPS or lane is busiest]
    return data | {"lanes": data["lanes"] | {"warps": kept}}


def command(kernel: str, args, path: Path) -> list[str]:
    sizes = (str(size) for size in PRODUCTS[kernel])
    named = [word for pair in zip(("--m", "--n", "--k"), sizes) for word in pair]
    device = ["--device", args.device] if args.device else []
    tried = ["--try", "counted" if args.device else "timed"] if args.tried else []
    given = [*named, *device, *tried, "--save", str(path), "--html", f"{path}.html"]
    return [sys.executable, "-m", "numba_marlin", "profile", "--kernel", kernel, *given]


def file_of(data: dict) -> str:
    """h200_decode.json; of a profile that no GPU measured: counted_h200_decode.json."""
    gpu = data["device"]["name"].removeprefix("NVIDIA ").lower().replace(" ", "_")
    return f"{'' if data['measured'] else 'counted_'}{gpu}_{data['kernel']}.json"


def keep(args) -> int:
    """Exit code 1 if a kernel could not be profiled, or its file is too large. What no GPU measured
    is kept only in a folder that was named."""
    names = args.kernels.split(",") if args.kernels else list(PRODUCTS)
    for name in names:
        if name not in PRODUCTS:
            raise SystemExit(f"--kernels {name} must be among {', '.join(PRODUCTS)}")
    if args.device and Path(args.out).resolve() == HERE:
        raise SystemExit("--device models: only what was measured is kept here, name --out")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    failed = []
    for kernel in names:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.json")
            run = subprocess.run(
                command(kernel, args, path), capture_output=True, text=True, check=False
            )
            if run.returncode:
                last = (run.stderr.strip().splitlines() or ["no message"])[-1]
                print(f"{kernel}: exit code {run.returncode}: {last}", flush=True)
                failed.append(kernel)
                continue
            data = lighter(json.loads(path.read_text(encoding="utf-8")))
        target = Path(args.out, file_of(data))
        if not write(data, target):
            failed.append(kernel)
            continue
        us = data["time"]["us"]
        print(f"{kernel}: {us:.2f} us, {target.name}", flush=True)
    return 1 if failed else 0


def write(data: dict, target: Path) -> bool:
    """False, and said, if it would be too large."""
    text = json.dumps(data, separators=(",", ":")) + "\n"
    if len(text) > MOST_BYTES:
        print(f"{target.name}: {len(text):,} bytes, {MOST_BYTES:,} at most", flush=True)
        return False
    target.write_text(text, encoding="utf-8")
    return True


def counters(args) -> int:
    """Exit code 1 if one of the commands failed. ``numba-marlin`` is this checkout's here."""
    from numba_marlin.profile import build
    from numba_marlin.profile.sources import nsight

    failed = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "numba-marlin")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m numba_marlin "$@"\n')
        program.chmod(0o755)
        here = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(HERE.parents[1])}
        for path in sorted(Path(args.out).glob("h200_*.json")):
            data = build.load(path)
            _, ncu = nsight.commands(data)[0]
            run = subprocess.run(
                ["bash", "-e"],
                input=ncu,
                text=True,
                capture_output=True,
                cwd=folder,
                env=os.environ | here,
                check=False,
            )
            try:
                data["ncu"] = nsight.read_ncu(f"{folder}/ncu.csv", nsight.entry_of(data))
            except ValueError as error:
                print(f"{path.name}: {error}: {run.stderr[-300:]}", flush=True)
                failed.append(path)
                continue
            if write(data, path):
                hits = data["ncu"].get("lts__t_sector_hit_rate.pct")
                print(f"{path.name}: L2 hit rate {hits}%", flush=True)
            Path(folder, "ncu.csv").unlink()
    return 1 if failed else 0


def table(folder: Path) -> str:
    """Of all measured profiles in a folder, as Markdown."""
    from numba_marlin.profile import build
    from numba_marlin.profile.sources import verdict

    lines = [
        "| kernel | m | k x n | us | bottleneck | memory | tensor cores | file |",
        "|---|--:|---|--:|---|--:|--:|---|",
    ]
    for path in sorted(folder.glob("*_*.json")):
        data = build.load(path)
        if not data["measured"]:
            continue
        problem, rates = data["problem"], data["rates"]
        what, _ = verdict.bottleneck(data)
        shares = (
            "" if share is None else f"{share:.0%}"
            for share in (rates["memory_share"], rates["tensor_share"])
        )
        lines.append(
            "| "
            + " | ".join(
                (
                    data["kernel"],
                    str(problem["m"]),
                    f"{problem['k']} x {problem['n']}",
                    f"{data['time']['us']:.1f}",
                    what,
                    *shares,
                    f"[`{path.name}`]({path.name})",
                )
            )
            + " |"
        )
    return "\n".join(lines)
