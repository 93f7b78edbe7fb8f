"""How fast is a checkpoint converted, and in how much memory? Targets: disk speed or 500 MB/s on 2
cores; a model of 70B in less than 4 GB.

Creates a GPTQ checkpoint of random bytes (layers of Llama-2-70B's shapes in turn, and an fp16
embedding), converts it with ``numba_marlin.checkpoints.convert`` in a separate process, and divides
the source's bytes by the time; an MB is 10**6 bytes. For comparison, the same files are copied with
16 MB per write and synchronised to disk in the same way; and bytes are divided by CPU seconds,
which do not depend on other load. The peak is the process's resident memory, including mapped
pages, minus its value before. Appends one object per conversion to results.jsonl and rewrites the
table in README.md from this run.

    python experiments/13_convert/run.py [--gigabytes 3] [--where /tmp] [--repeats 3] [--no-record]
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import numpy as np

from numba_marlin.bench.environment import commit, cpu_model
from numba_marlin.checkpoints.safetensors_writer import ShardWriter

SHAPES = [(8192, 8192), (8192, 1024), (8192, 28672), (28672, 8192)]  # k x n
GROUP = 128
# a file system in memory, where there is one: what is left of the time without the disk
MEMORY = "/dev/shm"
CONVERSIONS = [
    ("gptq", "marlin"),
    ("gptq", "vllm-marlin"),
    ("gptq", "awq"),
    ("gptq", "pack-quantized"),
    ("pack-quantized", "marlin"),
    ("awq", "vllm-marlin"),
    ("marlin", "gptq"),
]
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

CONVERT = """
import json, sys, time
import numpy
from numba_marlin.hostloops import Compiled
from numba_marlin.formats.streams import MarlinCodes, Stream
codec = Compiled()
# compiled, or read from Numba's cache, before the clock runs
for packing in (Stream("k", "k"), Stream("n", "k"), Stream("k", "n"), MarlinCodes()):
    codec.unpack(packing, codec.pack(packing, numpy.zeros((64, 64), numpy.uint8), 4), 4)
from numba_marlin.checkpoints import convert
def most():
    # the largest resident memory so far; ru_maxrss would count what the parent held when it forked
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

before, before_cpu = most(), time.process_time()
start = time.perf_counter()
convert(sys.argv[1], sys.argv[2], sys.argv[3])
seconds = time.perf_counter() - start
cpu_seconds, peak_bytes = time.process_time() - before_cpu, most() - before
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak_bytes}))
"""


def make(directory, gigabytes):
    """A GPTQ checkpoint, symmetric, of about so many GB. -> bytes"""
    directory.mkdir()
    rng = np.random.default_rng(0)
    done, number = 0, 0
    while done < gigabytes * 1e9:
        path = directory / f"model-{number:05d}.safetensors"
        writer = ShardWriter(
            path,
            [
                f"layers.{number}.{index}.{last}"
                for index in range(4)
                for last in ("qweight", "qzeros", "scales", "g_idx")
            ]
            + ["embedding.weight"],
        )
        for index, (k, n) in enumerate(SHAPES):
            name = f"layers.{number}.{index}"
            writer.add(
                f"{name}.qweight",
                rng.integers(0, 256, (k // 8, n * 4), dtype=np.uint8).view(np.int32),
            )
            writer.add(f"{name}.qzeros", np.full((k // GROUP, n // 8), 0x77777777, np.int32))
            writer.add(
                f"{name}.scales", rng.uniform(0.001, 0.01, (k // GROUP, n)).astype(np.float16)
            )
            writer.add(f"{name}.g_idx", (np.arange(k) // GROUP).astype(np.int32))
        if number == 0:
            writer.add(
                "embedding.weight",
                rng.integers(0, 256, (32000, 8192 * 2), dtype=np.uint8).view(np.float16),
            )
        writer.finish({})
        done += path.stat().st_size
        number += 1
    (directory / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq"}}),
        encoding="utf-8",
    )
    return done


def copied(source, target):
    """Return the seconds to copy the files, 16 MB per write, and to synchronise them to disk."""
    start = time.perf_counter()
    target.mkdir()
    for path in sorted(source.glob("*.safetensors")):
        with path.open("rb") as reading, (target / path.name).open("wb") as writing:
            while chunk := reading.read(16 << 20):
                writing.write(chunk)
            writing.flush()
            os.fsync(writing.fileno())
    return time.perf_counter() - start


def measure(source, target, form, repeats):
    """Return medians over ``repeats`` conversions, each to a new directory; the last one is
    kept."""
    seconds, cpu, peaks = [], [], []
    for _ in range(repeats):
        shutil.rmtree(target, ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-c", CONVERT, source, target, form],
            cwd=HERE.parents[1],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        said = json.loads(done.stdout)
        seconds.append(said["seconds"])
        cpu.append(said["cpu_seconds"])
        peaks.append(said["peak_bytes"])
    return statistics.median(seconds), min(seconds), statistics.median(cpu), max(peaks)


def table(rows, facts):
    lines = [
        (
            "| files in | from | to | MB/s (best) | MB per CPU second | a copy of the files, MB/s |"
            " peak memory |"
        ),
        "|---|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['place']} | {row['source']} | {row['target']} | {row['mb_per_s']:.0f}"
        f" ({row['best_mb_per_s']:.0f}) | {row['mb_per_cpu_s']:.0f} | {row['copy_mb_per_s']:.0f} |"
        f" {row['peak_mb']:.0f} MB |"
        for row in rows
    ]
    head = (
        f"Measured {facts['date']} at {facts['commit']}: {facts['cpu']}, {facts['threads']}"
        f" threads, load {facts['load']:.1f} before, python {facts['python']}, numba"
        f" {facts['numba']}, numpy {facts['numpy']}; {rows[0]['gigabytes']:.1f} GB of layers up to"
        f" 28672 x 8192, median of {facts['repeats']}."
    )
    return "\n".join([BEGIN, head, "", *lines, END])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument(
        "--where",
        default=None,
        help="a directory on the disk to be used (default: the system's for temporary files)",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-record", action="store_true")
    args = parser.parse_args()
    import numba

    facts = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "cpu": cpu_model(),
        "threads": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "load": os.getloadavg()[0],
        "repeats": args.repeats,
    }
    rows = []
    for place, where, conversions in (
        ("memory", MEMORY, CONVERSIONS),
        ("disk", args.where, CONVERSIONS[:1]),
    ):
        if where is None or Path(where).is_dir():
            rows += compared(place, where, conversions, args, facts)
    if args.no_record:
        return
    with (HERE / "results.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    readme.write_text(before + table(rows, facts) + rest.split(END)[1], encoding="utf-8")


def compared(place, where, conversions, args, facts):
    """Return one result per conversion, all in one file system, "memory" or "disk"."""
    rows = []
    with tempfile.TemporaryDirectory(dir=where) as name:
        directory = Path(name)
        make(directory / "gptq", args.gigabytes)
        for source, target in conversions:
            for missing in {source} - {each.name for each in directory.iterdir()}:
                measure(directory / "gptq", directory / missing, missing, 1)
            nbytes = sum(path.stat().st_size for path in (directory / source).glob("*.safetensors"))
            seconds, best, cpu, peak = measure(
                directory / source, directory / "out", target, args.repeats
            )
            copy = statistics.median(
                copied(directory / source, directory / f"copy{number}") for number in range(2)
            )
            for number in range(2):
                shutil.rmtree(directory / f"copy{number}")
            rows.append(
                {
                    "place": place,
                    "source": source,
                    "target": target,
                    "gigabytes": nbytes / 1e9,
                    "seconds": round(seconds, 3),
                    "mb_per_s": round(nbytes / seconds / 1e6, 1),
                    "best_mb_per_s": round(nbytes / best / 1e6, 1),
                    "mb_per_cpu_s": round(nbytes / cpu / 1e6, 1),
                    "copy_mb_per_s": round(nbytes / copy / 1e6, 1),
                    "peak_mb": round(peak / 1e6, 1),
                    **facts,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    main()
