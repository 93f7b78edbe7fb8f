"""What do cp.async, bulk copies, tensor copies (TMA) and relaid weights buy, from Marlin's own
bytes, at batch 1 to 4096?

    python experiments/03_tma/run.py measure            # needs an H100 or H200 and torch
    python experiments/03_tma/run.py measure --quick    # fewer stages, shorter graphs, about half a
                                                        minute with 16 cores
    python experiments/03_tma/run.py faithful           # only the faithful kernel, its tiles by
                                                        cp.async and by TMA
    python experiments/03_tma/run.py count              # instructions of these two, without a GPU
    python experiments/03_tma/run.py report             # tables and plot from results.jsonl into
                                                        README.md

measure: loaders (``kernels``), then whole kernels and their variants (``variants``), in the cells
of ``cells``. All results of a cell are checked first; then its kernels are timed in the same
interleaved rounds (``numba_marlin.bench``: CUDA graphs, cold L2). Several processes compile kernels
while earlier ones are timed. A kernel that fails is named and omitted. Rows are appended to
results.jsonl as they are measured.
"""

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import cells
import kernels
from faithful import FAITHFUL
from variants import VARIANTS

COMPILE_SECONDS = 120
SETTLE_SECONDS = 0.5
BEGIN = time.monotonic()


def compile_one(name, config, target):
    """Compile into the disk cache, in a separate process. Returns (spilled bytes, the assembler's
    remarks on serialised wgmma)."""
    from numba_marlin import compiler

    resources = compiler.build(definition_of(name), config, target=target).resources
    return resources.spill_stores, resources.serialized


def definition_of(name):
    """Of a kernel, a variant of one, or a loader."""
    found = {**VARIANTS, **FAITHFUL}
    return found[name].definition if name in found else kernels.KERNELS[name]


class Compilers:
    """Processes that compile kernels. ``wait(name, config)`` raises the error of a compilation. The
    processes are forked before this one uses the GPU."""

    def __init__(self, wanted, target, processes):
        self._pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork"))
        self._futures = {
            each: self._pool.submit(compile_one, *each, target) for each in dict.fromkeys(wanted)
        }

    def wait(self, name, config):
        spilled, serialized = self._futures[name, config].result(COMPILE_SECONDS)
        if spilled or serialized:
            print(f"note: {name} {config}: {spilled} bytes spilled; {serialized or ''}")

    def close(self):
        self._pool.shutdown(wait=False, cancel_futures=True)


class Measurement:
    """One run: its device, environment, ceilings and rows."""

    def __init__(self, args, amount, compilers, recorder):
        from numba_marlin.bench import ceilings, environment
        from numba_marlin.bench.clocks import ClockWatch
        from numba_marlin.bench.timing import torch_on_gpu
        from numba_marlin.execution import driver

        self.args, self.amount, self.compilers, self.recorder = args, amount, compilers, recorder
        self.torch = torch_on_gpu()
        self.torch.manual_seed(0)
        self.ordinal = self.torch.cuda.current_device()
        self.device = driver.describe(self.ordinal)
        self.environment = environment.describe(self.device.name)
        self.watch = ClockWatch()
        self.ceilings = ceilings.measure(rounds=3).to_dict()
        self.failures = []

    def out_of_time(self, what):
        late = bool(self.args.budget) and time.monotonic() - BEGIN > self.args.budget
        if late:
            self.failures.append(f"{what}: left out, {self.args.budget} s are over")
        return late

    def entrant(self, what, make):
        """Return ``make()``; None, after recording the error, if it fails. After a kernel that does
        not terminate nothing more can be measured."""
        from numba_marlin.bench.timing import KernelStuck

        try:
            return make()
        except KernelStuck:
            raise
        except Exception as error:  # the failure of one way must not stop the others
            self.failures.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
            return None

    def timed_rows(self, launches, least, rows):
        """Time all launches and write a row for each. launches, rows: {name: ...}."""
        from numba_marlin.bench.measure import timed
        from numba_marlin.bench.timing import GraphTimer, interleave

        timers = {
            name: GraphTimer(launch, self.amount.target_us, least)
            for name, launch in launches.items()
        }
        self.watch.settle(SETTLE_SECONDS)  # an earlier cell may have been hot
        self.watch.clear()
        replays = iter(range(10**9))
        times = interleave(
            timers,
            self.amount.rounds,
            lambda: self.watch.sample() if next(replays) % 8 == 0 else None,
        )
        for name, row in rows.items():
            found = timed(times[name])
            tb_per_s = round(row["bytes"] / found["us"] / 1e6, 4)
            self.recorder.write(
                {
                    **row,
                    **found,
                    "tb_per_s": tb_per_s,
                    "rounds": self.amount.rounds,
                    "launches_per_graph": timers[name].launches,
                    "clocks": self.watch.summary(),
                    "ceilings": self.ceilings,
                    **self.environment,
                }
            )

    # loaders

    def loaders(self, k, n):
        from numba_marlin.bench.operands import COLD_FACTOR

        torch = self.torch
        nbytes = k * n // 2
        cold = COLD_FACTOR * torch.cuda.get_device_properties(self.ordinal).L2_cache_size
        # A loader's speed does not depend on the data, so random weights represent both layouts.
        packed = [
            torch.randint(-(2**31), 2**31 - 1, (k // 16, 2 * n), dtype=torch.int32, device="cuda")
            for _ in range(max(1, -(-cold // nbytes)))
        ]
        x = torch.randn((64, k), device="cuda").half()
        launches, rows = {}, {}
        for config in cells.loader_configs(self.amount):
            if f"load_{config.method}" in self.args.skip:
                continue
            launch = self.entrant(
                f"{k} x {n} {config}", lambda: self.loader(config, k, n, packed, x)
            )
            if launch:
                launches[config] = launch
                rows[config] = {
                    "part": "loader",
                    "kernel": f"load_{config.method}",
                    "config": asdict(config),
                    "m": config.batch,
                    "n": n,
                    "k": k,
                    "group_size": -1,
                    "bytes": nbytes,
                    "x_bytes": 2 * config.batch * k * (n // config.columns),
                }
        self.timed_rows(launches, max(3, len(packed)), rows)

    def loader(self, config, k, n, packed, x):
        from numba_marlin import compiler
        from numba_marlin.bench.timing import wait
        from numba_marlin.execution import map_encoding
        from numba_marlin.execution.launch import launcher

        torch, kernel = self.torch, kernels.KERNELS[config.method]
        self.compilers.wait(config.method, config)
        enqueue = launcher(compiler.build(kernel, config, target=self.args.target), self.ordinal)
        grid = kernel.grid(config, config.batch, n, k, self.device.sms)
        c = torch.full((grid[0], kernels.THREADS, 4), -1, dtype=torch.int32, device="cuda")
        prepared = [
            kernel.arguments(
                config,
                {"a": x.data_ptr(), "b": each.data_ptr(), "c": c.data_ptr()},
                config.batch,
                n,
                k,
                k,
                map_encoding.encode_tensor_map,
            )
            for each in packed
        ]

        def launch(index, keep=(c, x, packed)):
            enqueue(grid, prepared[index % len(prepared)], torch.cuda.current_stream().cuda_stream)

        launch(0)
        event = torch.cuda.Event()
        event.record()
        wait(event, 10.0)
        expected = self.xor(packed[0]) ^ (
            self.xor(x[: config.batch].contiguous().view(torch.int32))
            if config.batch and n // config.columns % 2
            else 0
        )
        if self.xor(c) != expected:
            raise ValueError(f"the XOR of what was read is {self.xor(c):#x}, must be {expected:#x}")
        return launch

    def xor(self, values):
        values = values.reshape(-1)
        while values.numel() > 1:
            half = values.numel() // 2
            rest = values[2 * half :]
            values = values[:half] ^ values[half : 2 * half]
            if rest.numel():
                values[:1] ^= rest
        return int(values)

    # whole kernels

    def whole_kernels(self, k, n):
        self.batches(
            "kernel",
            k,
            n,
            cells.BATCHES,
            lambda m: {
                name: (name, variant, cells.kernel_config(variant.engine, m, n, k))
                for name, variant in VARIANTS.items()
            },
        )

    def faithful(self, k, n):
        self.batches("faithful", k, n, cells.FAITHFUL_BATCHES, cells.faithful_configs)

    def batches(self, part, k, n, batches, contenders_of):
        """contenders_of(m) -> {key of a row: (kernel's name, Variant, configuration)}."""
        from numba_marlin.bench import operands
        from numba_marlin.heuristics import Problem

        weights, held = operands.random_weights(Problem(1, n, k, cells.GROUP_SIZE)), {}
        for m in batches:
            if self.out_of_time(f"{k} x {n} m={m}"):
                continue
            problem = Problem(m, n, k, cells.GROUP_SIZE)
            batch = operands.random_batch(weights, m)
            launches, rows = {}, {}
            for key, (name, variant, config) in contenders_of(m).items():
                if name in self.args.skip:
                    continue
                found = self.entrant(
                    f"{k} x {n} m={m} {name}",
                    lambda: self.contender(problem, variant, name, config, weights, held, batch),
                )
                if found:
                    contender, error = found
                    launches[key] = contender.launch
                    rows[key] = {
                        "part": part,
                        "kernel": name,
                        "engine": variant.engine,
                        "way": variant.way,
                        "relaid": variant.relaid,
                        "config": asdict(config),
                        **asdict(problem),
                        "bytes": problem.least_bytes,
                        "flops": 2 * m * n * k,
                        "relative_error": error,
                        "registers": contender.compiled.resources.registers,
                    }
            self.timed_rows(launches, max(3, len(weights.packed)), rows)

    def contender(self, problem, variant, name, config, weights, held, batch):
        from numba_marlin.bench import contenders, measure

        self.compilers.wait(name, config)
        if variant.relaid:
            shape = (
                (config.stage_rows, config.columns) if variant.engine == "decode" else config.tile_n
            )
            if shape not in held:
                held[shape] = [variant.packed(config, each) for each in weights.packed]
            weights = replace(weights, packed=held[shape])
        candidate = contenders.candidate_of(variant.definition, config, problem, self.device)
        found = contenders.kernel(
            problem, candidate, weights, batch, "numba-cuda", variant.definition
        )
        return found, float(f"{measure.checked(found, batch):.3g}")


def measure(args):
    amount = cells.QUICK if args.command == "faithful" or args.quick else cells.FULL
    wanted = [
        (name, config)
        for m in cells.FAITHFUL_BATCHES
        for name, _, config in cells.faithful_configs(m).values()
    ]
    if args.command == "measure":
        wanted += [(config.method, config) for config in cells.loader_configs(amount)]
        wanted += [
            (name, cells.kernel_config(variant.engine, m, n, k))
            for k, n in cells.KERNEL_SHAPES
            for m in cells.BATCHES
            for name, variant in VARIANTS.items()
        ]
    compilers = Compilers(wanted, args.target, args.processes)
    from numba_marlin.bench.rows import Recorder

    with Recorder(args.out) as recorder:
        run = Measurement(args, amount, compilers, recorder)
        print(
            f"{time.monotonic() - BEGIN:5.1f} s: ready, memory"
            f" {run.ceilings['read_bytes'] / 1e12:.2f} TB/s",
            flush=True,
        )
        parts = [(run.faithful, cells.KERNEL_SHAPES)]
        if args.command == "measure":
            parts += (run.loaders, cells.LOADER_SHAPES), (run.whole_kernels, cells.KERNEL_SHAPES)
        for part, shapes in parts:
            for k, n in shapes:
                if run.out_of_time(f"{part.__name__} {k} x {n}"):
                    continue
                before = len(recorder.rows)
                run.entrant(f"{part.__name__} {k} x {n}", lambda: part(k, n))
                run.torch.cuda.empty_cache()
                print(
                    f"{time.monotonic() - BEGIN:5.1f} s: {part.__name__} {k} x {n}:"
                    f" {len(recorder.rows) - before} rows",
                    flush=True,
                )
        for each in run.failures:
            print(f"not measured: {each}", flush=True)
        compilers.close()
        if not recorder.rows:
            raise SystemExit("nothing was measured")
    import report

    report.show(recorder.rows)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure", help="time on this machine's GPU (needs torch)")
    measured.add_argument("--quick", action="store_true", help="fewer stages and shorter graphs")
    faithful = commands.add_parser("faithful", help="of that only the faithful kernel")
    for run in (measured, faithful):
        run.add_argument(
            "--budget",
            type=float,
            default=0,
            help="begin no further cell after so many seconds (default 0: measure all)",
        )
        run.add_argument(
            "--skip",
            type=lambda names: names.split(","),
            default=[],
            help="kernels to leave out, comma separated: load_cp_async, decode_relaid, ...",
        )
        run.add_argument(
            "--processes",
            type=int,
            default=min(16, len(os.sched_getaffinity(0))),
            help="that compile (default: one a core, 16 at most)",
        )
        run.add_argument("--target", default="sm_90a")
        run.add_argument("--out", default=str(HERE / "results.jsonl"))
    commands.add_parser("count", help="instructions of the faithful kernel, without a GPU")
    commands.add_parser("report", help="write tables and plot from results.jsonl into README.md")
    args = parser.parse_args(argv)
    if args.command in ("measure", "faithful"):
        measure(args)
    elif args.command == "count":
        import count

        count.write(HERE / "counts.jsonl")
    else:
        import report

        report.write(HERE / "results.jsonl", HERE / "README.md", HERE / "loaders.png")


if __name__ == "__main__":
    main()
