"""Is Marlin, written in Python, as fast as Marlin written in CUDA?

    python experiments/01_faithful/run.py measure [--shapes ideal,8192x8192] [--m 1,16,64] [--peer libpeer.so]      # needs a GPU and torch
    python experiments/01_faithful/run.py report                                                                   # table and plot into README.md

measure: for every shape and batch size, this project's ``ampere`` kernel beside cuBLAS fp16 (``torch.matmul``), in one process, interleaved.
Cold L2: every launch of a replayed CUDA graph reads another copy of the weights, together several times the L2. Time is that of the
graph's replay over its launches; the median of the rounds is kept, with the spread. Before a shape is timed, the kernel's output is compared with a
float32 product of the dequantised weights on a sample of columns.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

SHAPES = {  # k, n
    "ideal": (135168, 33792),
    "8192x8192": (8192, 8192),
    "28672x8192": (28672, 8192),
    "8192x57344": (8192, 57344),
    "4096x4096": (4096, 4096),
    "10752x4096": (10752, 4096),
}
BATCHES = (1, 16, 32, 64, 128, 256, 1024, 4096)
# Marlin CUDA (IST-DASLab/marlin built for sm_90, g=128) over cuBLAS fp16 on one H200, same protocol, 2026-11-21: what "not slower" means.
MARLIN_CUDA = {
    "ideal": {1: 2.59, 16: 2.35, 32: 2.04, 64: 1.45, 128: 0.81, 256: 0.58},
    "8192x8192": {1: 2.10, 16: 2.25, 64: 1.07, 256: 0.56, 1024: 0.46, 4096: 0.50},
    "28672x8192": {1: 1.72, 16: 1.91, 64: 1.22, 256: 0.57, 1024: 0.45, 4096: 0.57},
    "8192x57344": {1: 1.74, 16: 1.77, 64: 1.74, 256: 0.58},
    "4096x4096": {1: 1.22, 16: 1.30, 64: 0.50, 256: 0.55},
    "10752x4096": {1: 1.55, 16: 1.77, 64: 0.86, 256: 0.61},
}
COLD_BYTES = 320 << 20  # bytes of weights to rotate through: five times the 60 MB L2 of an H200
GROUP_SIZE = 128


def commit_name():
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    try:
        return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions():
    import importlib.metadata as metadata
    found = {"python": platform.python_version()}
    for name in ("numba", "numba-cuda", "numba-cuda-mlir", "numpy", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def random_weights(torch, k, n, group_size, copies):
    """Random codes and scales, made on the GPU: Marlin's bytes (several copies), permuted scales, and the fp16 weights they mean."""
    from numba_marlin.formats import marlin
    perm = torch.from_numpy(marlin.WEIGHT_PERM.copy()).cuda()
    qweight = torch.empty((k // 16, 2 * n), dtype=torch.int32, device="cuda")
    dense = torch.empty((k, n), dtype=torch.float16, device="cuda")
    groups = 1 if group_size == -1 else k // group_size
    scales = (torch.rand((groups, n), device="cuda") * 0.02 + 0.005).half()
    rows = max(16, (1 << 28) // n // 1024 * 1024)  # convert in slabs: the index arithmetic needs 8 bytes a weight
    for first in range(0, k, rows):
        last = min(k, first + rows)
        codes = torch.randint(0, 16, (last - first, n), device="cuda", dtype=torch.uint8)
        blocks = codes.view((last - first) // 16, 16, n // 64, 64).permute(0, 2, 1, 3).reshape(-1, 1024)[:, perm].reshape(-1, 8)
        words = torch.zeros(blocks.shape[0], dtype=torch.int32, device="cuda")
        for nibble in range(8):
            words |= blocks[:, nibble].int() << (4 * nibble)
        qweight[first // 16:last // 16] = words.view(-1, 2 * n)
        group = torch.arange(first, last, device="cuda") // (k if group_size == -1 else group_size)
        dense[first:last] = (codes.half() - 8) * scales[group]
        del codes, blocks, words
    order = torch.from_numpy((marlin.COLUMN_SCALE_PERM if groups == 1 else marlin.GROUP_SCALE_PERM).copy()).cuda()
    packed_scales = scales.view(-1, order.numel())[:, order].reshape(scales.shape).contiguous()
    return [qweight] + [qweight.clone() for _ in range(copies - 1)], packed_scales, dense


class Timer:
    """One CUDA graph of many launches, replayed: microseconds a launch."""

    def __init__(self, torch, launch, target_us):
        self.torch, self.launch = torch, launch  # the launch keeps its buffers alive: the graph holds only addresses
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for index in range(3):
                launch(index)
            stream.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            for index in range(3):
                launch(index)
            end.record(stream)
            stream.synchronize()
        self.launches = max(3, min(200, int(target_us / (start.elapsed_time(end) * 1e3 / 3))))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for index in range(self.launches):
                launch(index)
        self.replay()

    def replay(self):
        start, end = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / self.launches


def ampere_launchers(torch, m, n, k, args):
    """Yield (config, compiled, grid, partials, locks) to time: the heuristic's choice first, and with --all its other tile shape too."""
    from numba_marlin import compiler
    from numba_marlin.kernels.ampere import KERNEL
    from numba_marlin import devices, heuristics
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    problem = heuristics.Problem(m, n, k, GROUP_SIZE)
    ranked = [each.config for each in heuristics.rank(problem, devices.device("H200")) if each.kernel == "ampere"]
    for config in ranked if args.all else ranked[:1]:
        compiled = compiler.build(KERNEL, config, target=args.target, compiler=args.compiler)
        grid = KERNEL.grid(config, m, n, k, sms)
        partial_bytes, lock_bytes = KERNEL.workspace_bytes(config, m, n, k, sms)
        partials = torch.empty(max(1, partial_bytes // 4), dtype=torch.float32, device="cuda")
        yield config, compiled, grid, partials, torch.zeros(lock_bytes // 4, dtype=torch.int32, device="cuda")


def peer_launcher(torch, path, x, weights, y, scales, m, n, k):
    """The CUDA original from a shared library with ``int marlin_peer(A, B, C, s, m, n, k, workspace, groupsize, stream, sms)`` (README)."""
    import ctypes
    function = ctypes.CDLL(path).marlin_peer
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 3 + [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    workspace = torch.zeros(max(1024, n // 128 * 16), dtype=torch.int32, device="cuda")

    def launch(index, keep=(workspace,)):
        status = function(x.data_ptr(), weights[index % len(weights)].data_ptr(), y.data_ptr(), scales.data_ptr(), m, n, k, workspace.data_ptr(),
                          GROUP_SIZE, torch.cuda.current_stream().cuda_stream, -1)
        if status:
            raise SystemExit(f"the CUDA original refuses m={m} n={n} k={k}: {status}")
    return launch


def measure_shape(torch, label, batches, args, write):
    from numba_marlin.launch import Launcher
    k, n = SHAPES[label]
    packed_bytes, dense_bytes = k * n // 2, 2 * k * n
    copies = max(1, -(-COLD_BYTES // packed_bytes))
    weights, scales, dense = random_weights(torch, k, n, GROUP_SIZE, copies)
    dense_copies = [dense] + [dense.clone() for _ in range(max(1, -(-COLD_BYTES // dense_bytes)) - 1)]
    columns = torch.randint(0, n, (256,), device="cuda")
    for m in batches:
        x = torch.randn((m, k), device="cuda").half() * 0.1
        y = torch.empty((m, n), dtype=torch.float16, device="cuda")
        y_cublas = torch.empty_like(y)
        expected = x.float() @ dense[:, columns].float()

        def cublas(index):
            torch.matmul(x, dense_copies[index % len(dense_copies)], out=y_cublas)
        cublas_timer = Timer(torch, cublas, args.target_us)
        peer_timer = None
        if args.peer:
            peer_timer = Timer(torch, peer_launcher(torch, args.peer, x, weights, y, scales, m, n, k), args.target_us)
            peer_error = float((y[:, columns].float() - expected).norm() / expected.norm())  # recorded, not judged: see the README on its race
        for position, (config, compiled, grid, partials, locks) in enumerate(ampere_launchers(torch, m, n, k, args)):
            launcher = Launcher(compiled)

            def ours(index):
                launcher(grid, (x.data_ptr(), weights[index % copies].data_ptr(), y.data_ptr(), scales.data_ptr(),
                                partials.data_ptr(), locks.data_ptr(), m, n, k), stream=torch.cuda.current_stream().cuda_stream)
            y.fill_(float("nan"))
            ours(0)
            torch.cuda.synchronize()
            error = float(((y[:, columns].float() - expected).norm() / expected.norm()))
            if not error < 2e-3 or bool(locks.any()) or bool(y.isnan().any()):
                raise SystemExit(f"wrong result: {label} m={m} {config}: relative error {error}, locks {locks.unique().tolist()}")
            timer = Timer(torch, ours, args.target_us)
            rounds = [(timer.replay(), cublas_timer.replay(), peer_timer.replay() if peer_timer else 0.0) for _ in range(args.rounds)]
            us = statistics.median(r[0] for r in rounds)
            cublas_us = statistics.median(r[1] for r in rounds)
            bytes_moved = packed_bytes + scales.numel() * 2 + 2 * m * (k + n)
            write({
                "kernel": "ampere", "compiler": args.compiler, "config": vars(config), "chosen": position == 0, "shape": label, "m": m, "n": n, "k": k, "group_size": GROUP_SIZE,
                "dtype": "float16", "us": round(us, 2), "us_min": round(min(r[0] for r in rounds), 2), "us_max": round(max(r[0] for r in rounds), 2),
                "cublas_us": round(cublas_us, 2), "speedup": round(statistics.median(c / o for o, c, _ in rounds), 3),
                **({"marlin_cuda_us": round(statistics.median(r[2] for r in rounds), 2), "marlin_cuda_relative_error": peer_error} if peer_timer else {}),
                "tb_per_s": round(bytes_moved / us / 1e6, 3), "tflops": round(2 * m * n * k / us / 1e6, 1), "relative_error": error,
                "registers": compiled.resources.registers, "grid": grid[0], "rounds": args.rounds, "launches_per_graph": timer.launches,
                "device": torch.cuda.get_device_name(), "driver": args.driver, "versions": versions(),
                "date": datetime.date.today().isoformat(), "commit": commit_name(),
            })
            del timer


def measure(args):
    import torch
    torch.manual_seed(args.seed)
    args.driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    out = open(args.out, "a", encoding="utf-8")
    print(f"{'shape':>12} {'m':>5} {'tile':>6} {'us':>9} {'cuBLAS us':>9} {'speed-up':>8} {'CUDA':>6} {'CUDA us':>9} {'TB/s':>6} {'TF':>6} {'regs':>4}")

    def write(row):
        out.write(json.dumps(row) + "\n")
        out.flush()
        published = MARLIN_CUDA[row["shape"]].get(row["m"])
        tile = f"{row['config']['thread_n_blocks'] * 16}x{row['config']['thread_k_blocks'] * 16}"
        print(f"{row['shape']:>12} {row['m']:>5} {tile:>6} {row['us']:9.1f} {row['cublas_us']:9.1f} {row['speedup']:8.2f} {published or float('nan'):6.2f} {row.get('marlin_cuda_us', float('nan')):9.1f} "
              f"{row['tb_per_s']:6.2f} {row['tflops']:6.0f} {row['registers']:>4}", flush=True)

    for label in args.shapes.split(","):
        batches = [m for m in map(int, args.m.split(","))] if args.m else [m for m in BATCHES if not (label == "ideal" and m > 256)]
        measure_shape(torch, label, batches, args, write)
        torch.cuda.empty_cache()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="time on this machine's GPU (needs torch)")
    run.add_argument("--shapes", default=",".join(SHAPES), help="names, comma separated (default: all)")
    run.add_argument("--m", default="", help="batch sizes, comma separated (default: all)")
    run.add_argument("--rounds", type=int, default=9, help="interleaved rounds; the median counts (default 9)")
    run.add_argument("--target-us", type=float, default=3000, help="length of one graph in microseconds (default 3000)")
    run.add_argument("--peer", default="", help="shared library of the CUDA original to time in the same rounds (README)")
    run.add_argument("--compiler", default="numba-cuda")
    run.add_argument("--target", default="sm_90a")
    run.add_argument("--all", action="store_true", help="time every tile shape, not only the heuristic's")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--out", default=str(HERE / "results.jsonl"))
    commands.add_parser("report", help="write the table and the plot from results.jsonl into README.md")
    args = parser.parse_args(argv)
    if args.command == "measure":
        measure(args)
    else:
        from report import report
        report(HERE / "results.jsonl", HERE / "README.md", HERE.parent.parent / "README.md", HERE / "speedup.png", SHAPES, MARLIN_CUDA)


if __name__ == "__main__":
    main()
