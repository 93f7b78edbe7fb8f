"""How much of a kernel's speed is left in a model? A Llama-shaped decoder with random 4-bit weights
beside the same in fp16, on one GPU (8B) and layer by layer on one and two (70B); blocks with a
mixture of experts; what an eager call costs the host; and how fast a checkpoint gets onto the
device.

    python experiments/21_model/run.py --parts warmup,ceilings,check,decode,prefill --out DIRECTORY
    python experiments/21_model/run.py --parts between,host,load --out DIRECTORY
    python experiments/21_model/run.py --parts seventy,between [--gpus 2] --out DIRECTORY
    python experiments/21_model/run.py --parts warmup,mixture --out DIRECTORY
    python experiments/21_model/run.py --tiny               # all of it on the CPU, small, no times
    python experiments/21_model/run.py --tiny --parts glue --out DIRECTORY  # Triton's, no GPU
    python experiments/21_model/report.py [DIRECTORY]       # the tables of README.md

Needs torch, and but for --tiny a GPU. Rows are appended to results.jsonl in DIRECTORY as soon as
they are measured (default: OUT of the environment, else this folder).
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import between
import clock
import host
import mixture
import seventy
import torch
import whole
from sizes import (
    GROUP,
    LLAMA_8B,
    LLAMA_70B,
    MIXTURES,
    TINY,
    TINY_MIXTURES,
    MixtureShape,
)
from sums import SUMS

from numba_marlin.api.warmup import choose, warmup
from numba_marlin.bench.clocks import ClockWatch
from numba_marlin.bench.environment import cpu_model, describe
from numba_marlin.bench.timing import torch_on_gpu
from numba_marlin.execution.warmup import cores
from numba_marlin.problems import WeightProblem

PARTS = (
    "warmup",
    "ceilings",
    "check",
    "decode",
    "prefill",
    "between",
    "host",
    "load",
    "seventy",
    "mixture",
    "glue",
)
ALONE = {
    "between": between.between,
    "ceilings": whole.ceilings,
    "check": whole.check,
    "host": host.host,
    "load": host.load,
    "mixture": mixture.mixtures,
    "seventy": seventy.seventy,
    "glue": whole.glue_on_machine,
}
BATCHES = (1, 4, 16, 64)
GLUES = ("plain", "compiled", "pdl", "fused")


def parsed(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = parser.add_argument

    def names(allowed):
        def read(text):
            found = text.split(",")
            for each in found:
                if each not in allowed:
                    raise argparse.ArgumentTypeError(f"{each!r} must be of {','.join(allowed)}")
            return found

        return read

    listed("--parts", type=names(PARTS), default=list(PARTS))
    listed("--out", type=Path, default=Path(os.environ.get("OUT", HERE)))
    listed("--tiny", action="store_true", help="small shapes on the CPU: runs every part")
    listed("--batches", type=lambda text: [int(each) for each in text.split(",")])
    listed("--context", type=int, default=256, help="tokens in a sequence's cache")
    listed("--tokens", type=int, default=2048, help="of a prefill")
    listed("--glue", type=names(GLUES), default=list(GLUES))
    listed("--reduce", type=names(SUMS), default=list(SUMS))
    listed("--resume", action="store_true", help="leave out what the file has of this commit")
    listed("--rounds", type=int, default=15)
    listed("--repeats", type=int, default=3, help="steps in a graph")
    listed("--gpus", type=int, default=1, help="ranks of the parts seventy and between")
    listed("--no-peers", dest="peers", action="store_false", help="without torch's own INT4")
    listed("--layers", type=int, help="of the 8B shape, for a try; default: all")
    listed("--calls", type=int, default=3000, help="eager calls in a round")
    listed(
        "--where", help="directory of the checkpoints; default: the system's for temporary files"
    )
    listed("--load-layers", type=int, default=4)
    listed("--load-rounds", type=int, default=3)
    listed("--threads", type=int, default=8, help="layers that are loaded at once")
    options = parser.parse_args(arguments)
    options.device, options.host_size = "cuda", (4096, 4096)
    options.shape = replace(LLAMA_8B, layers=options.layers or LLAMA_8B.layers)
    options.seventy, options.mixtures = LLAMA_70B, MIXTURES
    options.batches = options.batches or list(BATCHES)
    if options.tiny:
        options.device, options.shape, options.seventy = "cpu", TINY, TINY
        options.mixtures = TINY_MIXTURES
        options.host_size, options.calls, options.context, options.tokens = (128, 128), 3, 16, 24
        options.batches, options.rounds, options.repeats = options.batches[:2], 2, 1
        options.load_layers, options.load_rounds, options.threads = 1, 1, 2
        options.glue = [each for each in options.glue if each == "plain"] or ["compiled"]
    return options


def shapes(options) -> list:
    """Those of all parts that were asked for."""
    found = []
    if {"check", "decode", "prefill", "host"} & set(options.parts):
        found.append(options.shape)
    if "seventy" in options.parts:
        found += [options.seventy.on(world) for world in sorted({1, options.gpus})]
    if "mixture" in options.parts:
        found += options.mixtures
    return found


def rows_of(options, shape) -> list[int]:
    """The rows of x that its products have; ``dequantize`` multiplies 1024 at a time."""
    more = set()
    if shape is options.shape:
        more = {min(options.tokens, 256), options.tokens, 1024}
    elif isinstance(shape, MixtureShape):
        more = {options.tokens}
    return sorted({*options.batches, 1, *more})


def problems(shape) -> dict[str, WeightProblem]:
    """{layer: its product, of one row}"""
    if isinstance(shape, MixtureShape):
        return mixture.problems(shape)
    linears = {**shape.linears(), "head": shape.output()}
    return {
        name: WeightProblem(m=1, n=n, k=k, group_size=GROUP) for name, (k, n) in linears.items()
    }


def kernel_names(options) -> dict[str, dict[str, str]]:
    """{"shape/ranks/m": {layer: kernel}}; on the CPU, what an H200 would run."""
    return {
        f"{shape.name}/{shape.world}/{m}": {
            name: chosen(options, replace(problem, m=m))
            for name, problem in problems(shape).items()
        }
        for shape in shapes(options)
        for m in rows_of(options, shape)
    }


def chosen(options, problem: WeightProblem) -> str:
    device = None if options.device == "cuda" else "H200"
    return choose([problem], None, device).kernels[0].job.kernel


def warm(options) -> None:
    """Compile every kernel of the shapes asked for, on all cores."""
    for shape in shapes(options):
        wanted = [(problems(shape), rows_of(options, shape))]
        if isinstance(shape, MixtureShape):
            wanted.append((mixture.dequantised(shape), None))
        for given, m in wanted:
            if options.device == "cuda":
                print(f"  {shape.name}: {warmup(given, m=m, processes=cores())!r}", flush=True)
            else:
                found = choose(given, m, "H200")
                print(
                    f"  {shape.name}: {len(found.kernels)} kernels for {found.device}", flush=True
                )


def main(arguments=None) -> None:
    options = parsed(arguments)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    whole.same_attention()
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch_on_gpu()  # or says what is missing
    name = torch.cuda.get_device_name() if on_gpu else cpu_model()
    if options.tiny and options.out == HERE:
        options.out = Path(tempfile.mkdtemp())  # a try is no result
    common = describe(name) | {"gpus_there": torch.cuda.device_count()}
    rows = clock.Rows(options.out / "results.jsonl", common)
    options.done = rows.done() if options.resume else set()
    options.watch = ClockWatch() if on_gpu else NoWatch()
    options.kernel_names = kernel_names(options)
    options.kernels = lambda shape, m: options.kernel_names.get(f"{shape.name}/{shape.world}/{m}")
    options.chosen = lambda k, n, m: chosen(options, WeightProblem(m, n, k, GROUP))
    options.failures = []
    print(f"{name}; rows go to {rows.path}", flush=True)
    made = None
    for part in options.parts:
        start = time.perf_counter()
        print(f"{part}:", flush=True)
        if part == "warmup":
            warm(options)
        elif part in ("decode", "prefill"):
            if made is None:
                made = whole.models(options, rows, peers="decode" in options.parts)
            {"decode": whole.decode, "prefill": whole.prefill}[part](options, rows, made)
        else:
            made = None  # their memory
            ALONE[part](options, rows)
        print(f"{part} took {time.perf_counter() - start:.1f} s", flush=True)
    if options.failures:
        raise SystemExit("wrong: " + "; ".join(options.failures))


class NoWatch:
    """No clocks."""

    sample = None

    def summary(self):
        return None

    def clear(self):
        pass

    settle = clear


if __name__ == "__main__":
    main()
