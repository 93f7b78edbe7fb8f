"""A visit to a GPU: every group of probes in a process of its own with a time limit, so that an
error of one cannot reach the others.

``visit(groups) -> arrays`` as ``record.keep`` makes them, with ``meta``: JSON about the GPU and
about every probe (its sources' SHA-256, seconds, or the error). A probe that fails takes its
process with it (a CUDA context does not survive); the group is then taken up behind it, as long as
it has time.

    python -m numba_marlin.witness.visit GROUP DIRECTORY WHOLE ARCH [--behind PROBE]     what each
        process executes
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from numba_marlin.witness import record
from numba_marlin.witness.catalogue import GROUPS, group
from numba_marlin.witness.probe import machine_code, run_on_hardware

LIMIT_SECONDS, ASSEMBLERS = 90, 8
PROBE_SECONDS = 15  # a probe that takes longer hangs
_ALARM = getattr(signal, "SIGALRM", None)  # Windows has none: there it costs the group's time


def visit(
    groups=GROUPS, limit: float = LIMIT_SECONDS, whole: int = record.WHOLE, say=lambda line: None
) -> dict[str, np.ndarray]:
    """Run the groups on device 0, all at once, each in its processes and for ``limit`` seconds;
    results of up to ``whole`` elements are kept in full. CapabilityMissing without a usable GPU."""
    from numba_marlin.errors import CapabilityMissing
    from numba_marlin.execution import driver

    probe = driver.probe()
    if not probe.usable:
        raise CapabilityMissing(f"no usable GPU: {probe.reason}")
    device = probe.devices[0]
    with (
        tempfile.TemporaryDirectory(prefix="numba_marlin_") as directory,
        ThreadPoolExecutor(len(groups)) as pool,
    ):
        parts = list(
            pool.map(
                lambda name: _group(name, Path(directory), limit, whole, say, device.arch), groups
            )
        )
    arrays, probes, date = {}, {}, datetime.date.today().isoformat()
    for found, told in parts:
        arrays.update(found)
        probes.update({name: {**each, "date": date} for name, each in told.items()})
    about = {
        "device": device.name,
        "arch": device.arch,
        "driver": probe.driver_version,
        "date": date,
        "probes": probes,
    }
    return {**arrays, "meta": np.frombuffer(json.dumps(about).encode(), np.uint8)}


def meta(arrays) -> dict:
    return json.loads(arrays["meta"].tobytes().decode())


def _group(name, directory, limit, whole, say, arch):
    """-> (arrays, {probe: what is told of it}) of what of a group the device can run, whatever
    happens to it, within ``limit`` seconds."""
    end = time.perf_counter() + limit
    arrays, told, names = {}, {}, [probe.name for probe in group(name) if probe.runs_on(arch)]
    if not names:
        say(f"{name}: no probe for {arch}")
        return arrays, told
    for attempt in range(len(names) + 1):
        begun, file = time.perf_counter(), directory / f"{name}{attempt}"
        file.mkdir()
        behind = [each for each in names if each in told][-1:]
        command = [
            sys.executable,
            "-m",
            "numba_marlin.witness.visit",
            name,
            str(file),
            str(whole),
            arch,
            *(["--behind", *behind] if behind else []),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=max(1.0, end - begun),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
            problem = (
                (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
                if done.returncode
                else ""
            )
            if _ALARM is not None and done.returncode == -_ALARM:
                problem = f"hung for {PROBE_SECONDS} s"
        except subprocess.TimeoutExpired:
            problem = f"took longer than {limit} s"
        for part in sorted(file.glob("*.npz")):
            with np.load(part) as loaded:
                told.update(json.loads(loaded["told"].tobytes().decode()))
                arrays.update({key: loaded[key] for key in loaded.files if key != "told"})
        left = [each for each in names[max((names.index(each) for each in told), default=-1) + 1 :]]
        say(
            f"{name}: {len(told)} of {len(names)} probes, {time.perf_counter() - begun:.1f}"
            f" s{', ' + problem if problem else ''}"
        )
        if not problem or not left:
            break
        told[left[0]] = {"error": problem}
        if time.perf_counter() > end:
            break
    return arrays, told


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description="one group of probes on device 0")
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("whole", type=int)
    parser.add_argument("arch", help="of the device: probes for others are left out")
    parser.add_argument("--behind", help="begin behind this probe")
    args = parser.parse_args(argv)
    probes = [probe for probe in group(args.group) if probe.runs_on(args.arch)]
    probes = (
        probes[[probe.name for probe in probes].index(args.behind) + 1 :] if args.behind else probes
    )
    with ThreadPoolExecutor(ASSEMBLERS) as pool:
        list(
            pool.map(
                lambda both: machine_code(*both),
                dict.fromkeys((probe.text, probe.target) for probe in probes),
            )
        )
    for number, probe in enumerate(probes):
        if _ALARM is not None:
            signal.alarm(PROBE_SECONDS)  # which ends the process, also inside of the driver
        buffers, begun = probe.buffers(), time.perf_counter()
        results = run_on_hardware(probe, buffers)
        told = {
            probe.name: {
                "sha256": record.sources(probe, buffers),
                "seconds": round(time.perf_counter() - begun, 3),
            }
        }
        kept = record.keep(probe, results, args.whole)
        scratch = args.directory / f"{number:04}.part"
        with open(scratch, "wb") as file:
            np.savez(file, told=np.frombuffer(json.dumps(told).encode(), np.uint8), **kept)
        scratch.rename(args.directory / f"{number:04}.npz")
    return 0


if __name__ == "__main__":
    sys.exit(main())
