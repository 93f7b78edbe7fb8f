"""What does an eager call cost the host, and what does the first call of a process cost? Compared
with torch.matmul and CuPy's product in the same run.

Calls are only enqueued, 200 at a time, between two synchronisations that are not timed. The product
is so small (m=16, 1024 x 1024) that the host never waits for the GPU. Variants take turns in every
round. The first call is that of a new process whose kernel is in the disk cache.

    python experiments/04_launch/run.py [--rounds 25] [--commit HASH] [--no-record]

Needs a GPU, torch and CuPy. Appends one object per variant to results.jsonl and rewrites the table
in README.md.
"""

import argparse
import datetime
import importlib.metadata as metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import numba_marlin as nm
from numba_marlin.execution import driver, repeat

M, N, K = 16, 1024, 1024
CALLS = 200
PROCESSES = 7
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PACKAGES = ("numpy", "numba", "numba-cuda", "cuda-bindings", "torch", "cupy-cuda13x")

# A new process, whose argument is the file of a weight. It prints the seconds of importing NumPy,
# of importing this package, of the CUDA context, and of the first product.
FIRST_CALL = """
import sys, time
marks = [time.perf_counter()]
import numpy as np
marks.append(time.perf_counter())
import numba_marlin as nm
nm.matmul
marks.append(time.perf_counter())
from numba_marlin.execution import driver
driver.primary_context(0)
marks.append(time.perf_counter())
held = np.load(sys.argv[1])
p = nm.PackedWeight("marlin", held["qweight"], held["scales"], 4, 128, *held["shape"].tolist())
x = np.ones((16, p.k), np.float16)
begin = time.perf_counter()
nm.matmul(x, p, "cuda")
end = time.perf_counter()
print(*(b - a for a, b in zip(marks, marks[1:])), end - begin, "numba" in sys.modules)
"""


def variants(weight, packed):
    """Return {name: call}, after checking that all of them give the same product."""
    import cupy
    import torch
    from numba import cuda

    x = np.random.default_rng(1).standard_normal((M, K)).astype(np.float16)
    plain = nm.dequantize(weight).astype(np.float16)
    in_torch, w_torch = torch.from_numpy(x).cuda(), torch.from_numpy(plain).cuda()
    in_cupy, w_cupy = cupy.asarray(x), cupy.asarray(plain)
    in_numba, out_numba = cuda.to_device(x), cuda.device_array((M, N), np.float16)
    out_torch, out_cupy = (
        torch.empty((M, N), dtype=torch.float16, device="cuda"),
        cupy.empty((M, N), np.float16),
    )
    found = {
        "torch.matmul": lambda: torch.matmul(in_torch, w_torch),
        "nm.matmul, torch": lambda: nm.matmul(in_torch, packed),
        "torch.matmul, out=": lambda: torch.matmul(in_torch, w_torch, out=out_torch),
        "nm.matmul, torch, out=": lambda: nm.matmul(in_torch, packed, out=out_torch),
        "CuPy's product": lambda: in_cupy @ w_cupy,
        "nm.matmul, CuPy": lambda: nm.matmul(in_cupy, packed),
        "nm.matmul, CuPy, out=": lambda: nm.matmul(in_cupy, packed, out=out_cupy),
        "Numba's device_array alone": lambda: cuda.device_array((M, N), np.float16),
        "nm.matmul, Numba": lambda: nm.matmul(in_numba, packed),
        "nm.matmul, Numba, out=": lambda: nm.matmul(in_numba, packed, out=out_numba),
        "nm.matmul, the long way": lambda: nm.matmul(in_torch, packed, return_info=True),
    }
    expected = found["nm.matmul, torch"]().cpu().numpy()
    for result in (
        found["nm.matmul, CuPy"]().get(),
        found["nm.matmul, Numba"]().copy_to_host(),
        found["nm.matmul, torch, out="]().cpu().numpy(),
    ):
        if not np.array_equal(result, expected):
            raise SystemExit("wrong result")
    call = next(iter(repeat._calls[id(packed)].values()))
    found["of which the driver's cuLaunchKernelEx"] = lambda: call.bound._call(*call.bound._handles)
    found["of which torch's allocation"] = lambda: in_torch.new_empty((M, N))
    return found


def time_variants(found, rounds):
    """Return {name: microseconds per call, for each round}. The variants take turns."""
    for call in found.values():
        for _ in range(CALLS):
            call()
    times = {name: [] for name in found}
    for _ in range(rounds):
        for name, call in found.items():
            driver.synchronize(0)
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
            driver.synchronize(0)
    return times


def time_first_calls(packed):
    """Return {part: microseconds, for each process}. The first process does not count, because it
    may fill the kernel cache."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "weight.npz")
        np.savez(
            path, qweight=packed.qweight, scales=packed.scales, shape=np.array([packed.k, packed.n])
        )
        lines = [
            subprocess.run(
                [sys.executable, "-c", FIRST_CALL, str(path)],
                cwd=HERE.parents[1],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
            for _ in range(PROCESSES + 1)
        ][1:]
    if any(line[-1] != "False" for line in lines):
        raise SystemExit("a process whose kernel is in the cache imported numba")
    parts = (
        "first call: import numpy",
        "first call: import numba_marlin",
        "first call: CUDA context",
        "first call: the product",
    )
    return {name: [1e6 * float(line[index]) for line in lines] for index, name in enumerate(parts)}


def versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def table(rows):
    first = rows[0]
    lines = [
        f"Measured {first['date']} at {first['commit']}: {first['device']}, driver CUDA"
        f" {first['driver']}, Python {first['python']}, "
        + ", ".join(f"{name} {version}" for name, version in first["versions"].items())
        + ".",
        "",
        "| what | us, median | from | to |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['variant']} | {row['us']:,.1f} | {row['us_min']:,.1f} | {row['us_max']:,.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--commit", help="default: COMMIT in the environment, else what git says")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    commit = (
        args.commit
        or os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=HERE,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    weight = nm.quantize(np.random.default_rng(0).standard_normal((K, N)).astype(np.float32))
    packed = nm.pack(weight)
    times = time_variants(variants(weight, packed), args.rounds) | time_first_calls(packed)
    probe = driver.probe()
    common = {
        "kernel": nm.last_run().candidate.kernel,
        "m": M,
        "n": N,
        "k": K,
        "group_size": 128,
        "dtype": "float16",
        "device": probe.devices[0].name,
        "driver": probe.driver_version,
        "python": platform.python_version(),
        "versions": versions(),
        "date": str(datetime.date.today()),
        "commit": commit,
    }
    rows = [
        {
            "variant": name,
            "us": round(statistics.median(each), 2),
            "us_min": round(min(each), 2),
            "us_max": round(max(each), 2),
            "rounds": len(each),
            **common,
        }
        for name, each in times.items()
    ]
    print(table(rows))
    if args.no_record:
        return
    with open(HERE / "results.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    head, tail = readme.split(BEGIN)[0], readme.split(END)[1]
    (HERE / "README.md").write_text(f"{head}{BEGIN}\n{table(rows)}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
