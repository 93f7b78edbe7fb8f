"""How fast is a product of two NVFP4 matrices on a GPU without FP4 tensor cores, compared with
cuBLAS on the same numbers in fp16?

    python experiments/11_block_scaled/run.py measure           # needs an H100 or H200 and torch
    python experiments/11_block_scaled/run.py measure --quick   # two shapes, several
        configurations: for choosing one
    python experiments/11_block_scaled/run.py measure --arrangements --out
        experiments/11_block_scaled/arrangements.jsonl      # block_decode's, all of them
    python experiments/11_block_scaled/run.py report            # tables from results.jsonl into
        README.md

measure: operands of random codes and scales; each kernel's result is compared with cuBLAS's on the
dequantised operands (fp32 output, before anything is timed), then the kernels of a shape and cuBLAS
are timed in the same interleaved rounds (``numba_marlin.bench``: CUDA graphs). cuBLAS multiplies
the same numbers, because the power that tensor cores draw, and so their clock, depends on them.
Kernels without parts of their work (``variants``) are timed in the same rounds as the whole kernel;
their results are not checked. Rows are appended to results.jsonl as they are measured; a kernel
that fails is named and omitted.
"""

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import cells
from variants import VARIANTS

COMPILE_SECONDS = 240
# of copies of B that are multiplied in turn, at least: three times an H200's L2
COLD_BYTES = 3 * 60 << 20
TARGET = "sm_90a"
BEGIN = time.monotonic()


def compile_one(part, config):
    """Compile into the disk cache, in a separate process. Returns (registers, bytes spilled, the
    assembler's remarks on serialised wgmma)."""
    from numba_marlin import compiler

    resources = compiler.build(kernel_of(part, config), config, target=TARGET).resources
    return resources.registers, resources.spill_stores, resources.serialized


def kernel_of(part, config):
    from numba_marlin.kernels.registry import kernel_of

    return kernel_of(config) if part == "whole" else VARIANTS[part]


class Operands:
    """Random A and B of a shape on the device, in NVFP4 and in fp16, and what else a launch needs.
    There are several copies of B, so that it does not stay in L2."""

    def __init__(self, torch, m, n, k, seed=0):
        self.torch, self.m, self.n, self.k = torch, m, n, k
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.a, self.sfa, self.a_half = self._random(generator, m)
        self.b, self.sfb, b_half = self._random(generator, n)
        self.b_copies = [(self.b, self.sfb)] + [
            (self.b.clone(), self.sfb.clone()) for _ in range(COLD_BYTES // self.b.nbytes)
        ]
        self.b_halves = [b_half] + [b_half.clone() for _ in range(COLD_BYTES // b_half.nbytes)]
        self.bias = torch.randn(n, device="cuda", generator=generator)
        self.c = torch.randn((m, n), device="cuda", generator=generator).half()
        self.locks = torch.zeros(1, dtype=torch.int32, device="cuda")

    def _random(self, generator, rows):
        """-> codes [rows, k/2], scales in 128x4 order, and their numbers as halves, which hold them
        exactly."""
        from numba_marlin.formats.small_floats import table

        torch, k = self.torch, self.k
        data = torch.randint(
            0, 256, (rows, k // 2), dtype=torch.uint8, device="cuda", generator=generator
        )
        scales = torch.randint(
            0x28, 0x40, (rows, k // 16), dtype=torch.uint8, device="cuda", generator=generator
        )
        values = torch.tensor(table("e2m1"), device="cuda").half()
        scale_values = torch.nan_to_num(torch.tensor(table("e4m3"), device="cuda")).half()
        numbers = torch.stack(
            (values[(data & 15).int()], values[(data >> 4).int()]), dim=2
        ).reshape(rows, k // 16, 16)
        numbers = (numbers * scale_values[scales.int()][:, :, None]).reshape(rows, k)
        return data, tiled(torch, scales), numbers

    def launch(self, kernel, config, scaling):
        """-> (launch(index), the results that it writes by name)"""
        from numba_marlin import compiler
        from numba_marlin.execution import driver, gpu
        from numba_marlin.execution.binding import OPERAND, RESULT, bind
        from numba_marlin.problems import BlockProblem

        torch = self.torch
        given = {"a": self.a, "sfa": self.sfa, "bias": self.bias, "c": self.c}
        binding = bind(
            kernel,
            config,
            BlockProblem.of(config, self.m, self.n, self.k),
            {**given, "b": self.b, "sfb": self.sfb},
            sms=driver.describe(0).sms,
            compiled=compiler.build(kernel, config, target=TARGET),
            scaling=scaling,
        )
        results = {
            name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype), device="cuda")
            for name, each in binding.with_role(RESULT).items()
        }
        numbers = {
            name: torch.from_numpy(each.array).cuda()
            for name, each in binding.with_role(OPERAND).items()
            if name not in given and name not in ("b", "sfb")
        }
        held = {**given, "locks": self.locks, **results, **numbers}
        addresses = {name: each.data_ptr() for name, each in held.items()}
        enqueue = gpu.loaded(binding, 0)
        arguments = [
            gpu.arguments(binding, addresses | {"b": b.data_ptr(), "sfb": sfb.data_ptr()}, 0)
            for b, sfb in self.b_copies
        ]

        def launch(index=0, keep=held):
            enqueue(
                binding.grid,
                arguments[index % len(arguments)],
                torch.cuda.current_stream().cuda_stream,
            )

        return launch, results


def tiled(torch, scales):
    """``layout.block_scales.to_tiles`` on the device."""
    from numba_marlin.layout.block_scales import TILE_BLOCKS, TILE_ROWS, tiles

    rows, blocks = scales.shape
    row_tiles, block_tiles = tiles(rows, blocks)
    whole = torch.zeros(
        (row_tiles * TILE_ROWS, block_tiles * TILE_BLOCKS), dtype=torch.uint8, device="cuda"
    )
    whole[:rows, :blocks] = scales
    return whole.view(row_tiles, 4, 32, block_tiles, 4).permute(0, 3, 2, 1, 4).contiguous().view(-1)


class Measurement:
    def __init__(self, args, recorder):
        from numba_marlin.bench import environment
        from numba_marlin.bench.clocks import ClockWatch
        from numba_marlin.bench.timing import torch_on_gpu
        from numba_marlin.execution import driver

        self.args, self.recorder, self.torch = args, recorder, torch_on_gpu()
        self.environment = environment.describe(driver.describe(0).name)
        self.watch, self.failures = ClockWatch(), []

    def cell(self, m, n, k, wanted):
        """wanted: (part, configuration) each."""
        from numba_marlin.bench.measure import timed
        from numba_marlin.bench.timing import GraphTimer, KernelStuck, interleave

        torch = self.torch
        operands = Operands(torch, m, n, k)
        timers, rows = {}, {}
        for part, config in wanted:
            try:
                launch, error = self.checked(operands, part, config)
                timers[part, config] = GraphTimer(launch, least=len(operands.b_copies))
                rows[part, config] = {
                    "kernel": kernel_of(part, config).name,
                    "part": part,
                    "config": asdict(config),
                    "tile": [config.tile_m, config.tile_n],
                    "dependent": kernel_of(part, config).dependent(config),
                    "m": m,
                    "n": n,
                    "k": k,
                    "group_size": 16,
                    "dtype": "nvfp4",
                    "flops": 2 * m * n * k,
                    "relative_error": error and float(f"{error:.3g}"),
                }
            except KernelStuck:
                raise
            except Exception as error:  # the failure of one configuration must not stop the others
                self.failures.append(
                    f"{m} x {n} x {k} {part} {config}: {type(error).__name__}: {str(error)[:300]}"
                )
        out = torch.empty((m, n), dtype=torch.float16, device="cuda")
        timers["cublas"] = GraphTimer(
            lambda index, keep=operands: torch.matmul(
                operands.a_half, operands.b_halves[index % len(operands.b_halves)].T, out=out
            ),
            least=len(operands.b_halves),
        )
        self.watch.settle(0.5)
        self.watch.clear()
        times = interleave(timers, self.args.rounds, self.watch.sample)
        for cell, row in rows.items():
            found = timed(times[cell], times["cublas"])
            self.recorder.write(
                {
                    **row,
                    **found,
                    "tflops": round(row["flops"] / found["us"] / 1e6, 1),
                    "rounds": self.args.rounds,
                    "clocks": self.watch.summary(),
                    **self.environment,
                }
            )
            line = " ".join(
                f"{name}={value}"
                for name, value in row["config"].items()
                if value not in (False, None)
            )
            print(
                f"{m:6} {n:6} {k:6} {row['part']:9} {found['us']:9.1f} us  cuBLAS"
                f" {found['cublas_us']:9.1f}  {found['speedup']:.3f} "
                f" {row['flops'] / found['us'] / 1e6:6.1f} TFLOP/s  {line}",
                flush=True,
            )

    def checked(self, operands, part, config):
        """-> (launch, largest error relative to the largest result, None if it was not compared).
        ValueError for a wrong result."""
        from numba_marlin.bench.timing import wait
        from numba_marlin.execution.binding import Scaling

        torch = self.torch
        inputs = operands.k**0.5 * 2
        launch, results = operands.launch(kernel_of(part, config), config, Scaling(1 / inputs, 0.5))
        for each in results.values():
            each.fill_(0)
        launch()
        event = torch.cuda.Event()
        event.record()
        wait(event, 20.0)
        if int(operands.locks[0]):
            raise ValueError(f"the counter is {int(operands.locks[0])} after the launch, must be 0")
        # tests compare these
        if part != "whole" or results["d"].dtype == torch.uint8 or config.activation:
            return launch, None
        expected = torch.empty((operands.m, operands.n), device="cuda")
        for start in range(0, operands.m, 2048):
            expected[start : start + 2048] = (
                operands.a_half[start : start + 2048].float()
                @ operands.b_halves[0].float().T
                / inputs
            )
        if config.source:
            expected += 0.5 * operands.c.float()
        if config.bias:
            expected += operands.bias
        error = float((results["d"].float() - expected).abs().max() / expected.abs().max())
        if not error < 1e-3:
            raise ValueError(f"error {error:.3g} of the largest result")
        return launch, error


def measure(args):
    wanted = (
        cells.quick() if args.quick else cells.arrangements() if args.arrangements else cells.full()
    )
    kernels = list(dict.fromkeys(each for _, of_shape in wanted for each in of_shape))
    pool = ProcessPoolExecutor(args.processes, mp_context=multiprocessing.get_context("fork"))
    compiled = {each: pool.submit(compile_one, *each) for each in kernels}
    from numba_marlin.bench.rows import Recorder

    with Recorder(args.out) as recorder:
        for kernel, future in compiled.items():
            registers, spilled, serialized = future.result(COMPILE_SECONDS)
            if spilled or serialized:
                print(f"note: {kernel}: {spilled} bytes spilled; {serialized or ''}")
        pool.shutdown()
        run = Measurement(args, recorder)
        print(f"{time.monotonic() - BEGIN:5.1f} s: compiled {len(kernels)} kernels", flush=True)
        for (m, n, k), of_shape in wanted:
            run.cell(m, n, k, of_shape)
            run.torch.cuda.empty_cache()
        for each in run.failures:
            print(f"not measured: {each}", flush=True)
        if run.failures or not recorder.rows:
            raise SystemExit(1)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="time on this machine's GPU (needs torch)")
    run.add_argument("--quick", action="store_true", help="two shapes, every configuration")
    run.add_argument(
        "--arrangements",
        action="store_true",
        help="block_decode in all its arrangements, at ten widths; give --out arrangements.jsonl",
    )
    run.add_argument("--rounds", type=int, default=9)
    run.add_argument(
        "--processes",
        type=int,
        default=min(16, len(os.sched_getaffinity(0))),
        help="that compile (default: one a core, 16 at most)",
    )
    run.add_argument("--out", default=str(HERE / "results.jsonl"))
    commands.add_parser("report", help="write tables from results.jsonl into README.md")
    args = parser.parse_args(argv)
    if args.command == "measure":
        measure(args)
    else:
        import report

        report.write(HERE / "results.jsonl", HERE / "README.md")


if __name__ == "__main__":
    main()
