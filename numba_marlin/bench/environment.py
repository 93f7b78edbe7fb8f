"""The environment of a measurement: device, driver, versions, commit, kernel sources, date. Nothing
here touches the GPU."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

from numba_marlin.execution import driver
from numba_marlin.heuristics.tuned import sources_digest

DISTRIBUTIONS = ("numba", "numba-cuda", "numba-cuda-mlir", "numpy", "torch")


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def commit() -> str:
    """The checkout's commit, with "+" if there are uncommitted changes; COMMIT in the environment
    if the tree has no history; else "unknown"."""
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    package = Path(__file__).resolve().parents[1]
    if not (package.parent / ".git").exists():
        return "unknown"
    command = [
        "git",
        "-C",
        str(package.parent),
        "describe",
        "--always",
        "--exclude=*",
        "--dirty=+",
        "--abbrev=7",
    ]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def describe(device: str) -> dict:
    """The fields of a row that describe where and when it was measured. device: its name."""
    return {
        "device": device,
        "driver": driver.version() or "unknown",
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "sources": sources_digest()[:16],
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
