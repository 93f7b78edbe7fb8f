"""The parts ``host`` and ``load``: what the host takes for an eager call, and for a checkpoint."""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clock
import numpy as np
import torch
from decoder import Place, half, random_packed
from sizes import GROUP

import numba_marlin as nm
import numba_marlin.torch as nmt
from numba_marlin.checkpoints.safetensors_writer import ShardWriter
from numba_marlin.torch import operators

CHUNK = 200  # calls between two synchronisations: fewer than the device's queue holds
READ_SIZE = 16 << 20
DENSE = ("torch.matmul", "nn.Linear")


def calls_of(k: int, n: int, device: str) -> dict:
    """{name: an eager call at m=1}"""
    place = Place(device, torch.float16)
    linear = half(k, n, place)
    dense = linear.weight.t().contiguous()
    p = random_packed(k, n, device)
    layer, tensors, signature = (
        nmt.Linear.from_packed(p),
        operators.tensors_of(p),
        operators.signature_of(p),
    )
    x = torch.randn((1, k), device=device).half()
    operator = torch.ops.numba_marlin.matmul
    return {
        "torch.matmul": lambda: torch.matmul(x, dense),
        "nn.Linear": lambda: linear(x),
        "nm.matmul": lambda: nm.matmul(x, p),
        "torch.ops.numba_marlin.matmul": lambda: operator(x, *tensors, None, signature, False),
        "nmt.matmul": lambda: nmt.matmul(x, p),
        "nmt.Linear": lambda: layer(x),
    }


def host(options, rows) -> None:
    """Calls are only enqueued, ``CHUNK`` at a time, between synchronisations that are not timed."""
    k, n = options.host_size
    found = calls_of(k, n, options.device)
    if options.device != "cuda":
        found.pop("nm.matmul")  # on the PTX machine, which is no question of the host
    modes = {"gradients on": torch.enable_grad, "inference mode": torch.inference_mode}
    for mode, context in modes.items():
        with context():
            times = enqueued(found, options)
        for name, each in times.items():
            row = {
                "part": "host",
                "contender": name,
                "mode": mode,
                "m": 1,
                "n": n,
                "k": k,
                "group_size": GROUP,
                "kernel": "cublas" if name in DENSE else options.chosen(k, n, 1),
                "calls": options.calls,
                **clock.spread(each),
            }
            said = f"{mode:15} {name:32} {row['us']:7.2f} us, best round {row['us_min']:.2f}"
            rows.add(row, said)


def enqueued(calls: dict, options) -> dict:
    """{name: microseconds a call in each round}; the calls take turns."""
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    for call in calls.values():
        for _ in range(min(CHUNK, options.calls)):
            call()
    names, times = list(calls), {name: [] for name in calls}
    for number in range(options.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            call, taken, left = calls[name], 0.0, options.calls
            while left:
                now = min(CHUNK, left)
                synchronize()
                begin = time.perf_counter()
                for _ in range(now):
                    call()
                taken += time.perf_counter() - begin
                left -= now
            synchronize()
            times[name].append(taken / options.calls * 1e6)
    return times


# ---- load


def write_gptq(directory: Path, shape, layers: int) -> int:
    """A GPTQ checkpoint of random codes, a file a layer, q, k, v, gate and up apart as in public
    ones -> bytes of the quantised layers."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    q, kv = shape.heads * shape.head, shape.kv_heads * shape.head
    sizes = {
        "self_attn.q_proj": (shape.hidden, q),
        "self_attn.k_proj": (shape.hidden, kv),
        "self_attn.v_proj": (shape.hidden, kv),
        "self_attn.o_proj": (q, shape.hidden),
        "mlp.gate_proj": (shape.hidden, shape.mlp),
        "mlp.up_proj": (shape.hidden, shape.mlp),
        "mlp.down_proj": (shape.mlp, shape.hidden),
    }
    done = 0
    for number in range(layers):
        path = directory / f"model-{number + 1:05d}-of-{layers:05d}.safetensors"
        names = {name: f"model.layers.{number}.{name}" for name in sizes}
        lasts = ("qweight", "qzeros", "scales", "g_idx")
        writer = ShardWriter(path, [f"{name}.{last}" for name in names.values() for last in lasts])
        for name, (k, n) in sizes.items():
            arrays = (
                np.frombuffer(rng.bytes(k * n // 2), np.int32).reshape(k // 8, n),
                np.full((k // GROUP, n // 8), 0x77777777, np.int32),  # version 1: 8 less 1
                rng.uniform(0.001, 0.01, (k // GROUP, n)).astype(np.float16),
                (np.arange(k) // GROUP).astype(np.int32),
            )
            for last, array in zip(lasts, arrays):
                writer.add(f"{names[name]}.{last}", array)
                done += array.nbytes
        writer.finish({})
    said = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq"}}
    (directory / "config.json").write_text(json.dumps(said), encoding="utf-8")
    return done


def forget(directory: Path) -> None:
    """Drop the files from the page cache, so that the next read is the disk's."""
    gc.collect()  # pages that a checkpoint still maps would stay
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_all(directory: Path) -> float:
    """Seconds to read every byte of the files, 16 MB at a time, into one buffer."""
    buffer = bytearray(READ_SIZE)
    start = time.perf_counter()
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def load_all(
    directory: Path, device: str, threads: int, packed_on: str = "host"
) -> tuple[float, list]:
    """Seconds from opening the checkpoint until every layer is packed and on the device, and the
    layers. threads: how many layers are worked on at once; packed_on: "host", or "device", which
    gets the words of the file (``checkpoint.stored``)."""
    start = time.perf_counter()
    checkpoint = nm.load_checkpoint(directory)

    def one(name: str):
        if packed_on == "device":
            return nm.pack(checkpoint.stored(name), place=device)
        found = checkpoint[name]
        packed = found if isinstance(found, nm.PackedWeight) else nm.pack(found)
        return packed.to(device, "torch")

    if threads == 1:
        made = [one(name) for name in checkpoint]
    else:
        with ThreadPoolExecutor(threads) as pool:
            made = list(pool.map(one, checkpoint))
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, made


def load(options, rows) -> None:
    with tempfile.TemporaryDirectory(dir=options.where) as name:
        gptq, marlin = Path(name, "gptq"), Path(name, "marlin")
        start = time.perf_counter()
        nbytes = write_gptq(gptq, options.shape, options.load_layers)
        nm.save_checkpoint(marlin, nm.load_checkpoint(gptq), "marlin")
        said = f"{nbytes / 1e9:.2f} GB written twice in {time.perf_counter() - start:.1f} s"
        print(f"  {said}", flush=True)
        load_all(marlin, options.device, 1)  # the device's context, and pages of memory
        for directory, threads, packed_on in (
            (gptq, 1, "host"),
            (gptq, options.threads, "host"),
            *(((gptq, options.threads, "device"),) if options.device == "cuda" else ()),
            (marlin, 1, "host"),
        ):
            loaded(options, rows, directory, threads, packed_on)
        shutil.rmtree(name, ignore_errors=True)
        Path(name).mkdir(exist_ok=True)


def loaded(options, rows, directory: Path, threads: int, packed_on: str) -> None:
    nbytes = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    for state in ("first", "cached"):
        times, disk = [], []
        for _ in range(options.load_rounds):
            for taken, act in (
                (disk, lambda: read_all(directory)),
                (times, lambda: load_all(directory, options.device, threads, packed_on)[0]),
            ):
                if state == "first":
                    forget(directory)
                taken.append(act())
        seconds, read = statistics.median(times), statistics.median(disk)
        row = {
            "part": "load",
            "shape": options.shape.name,
            "format": directory.name,
            "state": state,
            "threads": threads,
            "packed_on": packed_on,
            "layers": options.load_layers,
            "m": None,
            "n": options.shape.hidden,
            "k": options.shape.hidden,
            "kernel": None,
            "bytes": nbytes,
            "gb_per_s": round(nbytes / seconds / 1e9, 3),
            "gb_per_s_rounds": [round(nbytes / each / 1e9, 3) for each in times],
            "disk_gb_per_s": round(nbytes / read / 1e9, 3),
        }
        said = f"load {directory.name:7} {state:7} {threads:2} threads, packed on the {packed_on}"
        rows.add(row, f"{said} {row['gb_per_s']:.2f} GB/s, files {row['disk_gb_per_s']:.2f} GB/s")
