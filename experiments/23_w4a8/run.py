"""How fast is W4A8, activations quantised to int8 on the way, beside 16-bit activations?

    python experiments/23_w4a8/run.py measure [--m 1024,4096]   # needs a Hopper GPU and torch
    python experiments/23_w4a8/run.py report                    # the table into README.md
    python experiments/23_w4a8/run.py expect                    # what is expected; no GPU

In each cell, in the same interleaved rounds (cold L2, CUDA graphs): ``cublas``, fp16;
``w4a16``, what ``nm.matmul`` chooses for 16-bit activations; ``w4a8``, quantisation of x and the
product, two launches; ``quantize``, its first launch alone. Results are checked before anything is
timed: codes and scales of x equal to the rule's, bit for bit, products within the error of 8-bit
activations. Rows are appended to results.jsonl; the newest of a cell counts. "Expected" is
modelled: the time that ``w4a8.wgmma_int8.choose`` reckons, and 3 bytes of memory traffic for each
number that is quantised.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.bench import rows
from numba_marlin.bench.tables import markdown, origin, replace_between

RESULTS = HERE / "results.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
SHAPES = ((8192, 8192), (8192, 57344), (28672, 8192), (4096, 4096))  # k, n
BATCHES = (16, 64, 256, 1024, 2048, 4096)
GROUPS = (128, -1)
ENTRANTS = ("cublas", "w4a16", "w4a8", "quantize")
LARGEST_ERROR = (
    0.02  # norm-wise, of int8 with a scale per row on normal x; an index that is wrong: 1
)
LAUNCH_US = 2.5


def cells(batches=BATCHES):
    """(problem with 16-bit activations, the same in int8) of every cell, weight by weight."""
    from numba_marlin.problems import ActivationsProblem, WeightProblem

    for k, n in SHAPES:
        for group_size in GROUPS:
            for m in batches:
                yield WeightProblem(m, n, k, group_size), ActivationsProblem(m, n, k, group_size)


def expected_us(problem, device):
    """Of the product in int8 and of the quantisation of x, modelled."""
    from numba_marlin.heuristics import rank

    product = rank(problem, device)[0].figures["predicted_us"]
    moved = 3 * problem.m * problem.k  # 2 bytes read, 1 written
    return product + LAUNCH_US + moved / device.bandwidth_bytes * 1e6


def quantizer(batch):
    """(its launch: a function of the stream; codes, scales) for the batch's x."""
    import torch

    from numba_marlin.execution import driver, gpu, quantizing
    from numba_marlin.kernels.quantize_activations import RowTypes

    ordinal = torch.cuda.current_device()
    m, k = batch.x.shape
    binding = quantizing.binding(RowTypes(), m, k, driver.describe(ordinal).target)
    codes = torch.empty((m, k), dtype=torch.int8, device="cuda")
    scales = torch.empty((m,), dtype=torch.float32, device="cuda")
    tensors = {"x": batch.x, "codes": codes, "scales": scales}
    addresses = {name: each.data_ptr() for name, each in tensors.items()}
    launcher, arguments = (
        gpu.loaded(binding, ordinal),
        gpu.arguments(binding, addresses, ordinal),
    )

    def launch(index):
        stream = torch.cuda.current_stream().cuda_stream
        launcher(binding.grid, arguments, stream)

    return launch, codes, scales


class Quantised:
    """A batch whose x is quantised, as ``bench.contenders.kernel`` wants it."""

    scaling = None

    def __init__(self, batch, codes, scales):
        self.x, self.fixed = batch.x, {"a": codes, "a_scales": scales}


def check_codes(batch, codes, scales):
    """ValueError unless the first rows are quantised as the rule says, bit for bit."""
    from numba_marlin.quantizers.activations import quantize_rows

    few = min(16, len(codes))
    wanted = quantize_rows(batch.x[:few].cpu().numpy())
    if not (codes[:few].cpu().numpy() == wanted.codes).all():
        raise ValueError(f"codes of x {tuple(batch.x.shape)} are not those of the rule")
    if not (scales[:few].cpu().numpy() == wanted.scales).all():
        raise ValueError(f"scales of x {tuple(batch.x.shape)} are not those of the rule")


def entrants(bench, problem, quantized):
    """{name: (launch, copies of its weights, configuration)}, every result checked."""
    from dataclasses import asdict

    import torch

    from numba_marlin.bench import contenders, operands
    from numba_marlin.bench.measure import checked, relative_error
    from numba_marlin.heuristics import rank

    weights = bench.weights(problem)
    batch = operands.random_batch(weights, problem.m)
    quantize, codes, scales = quantizer(batch)
    quantize(0)
    torch.cuda.synchronize()
    check_codes(batch, codes, scales)
    cublas = contenders.cublas(weights, batch)
    half = bench.contender(problem, rank(problem, bench.device)[0], weights, batch)
    checked(half, batch)
    best = rank(quantized, bench.device)[0]
    eight = contenders.kernel(quantized, best, weights, Quantised(batch, codes, scales))
    error = relative_error(eight, batch)
    if not error < LARGEST_ERROR:
        raise ValueError(f"{quantized.in_words()}: relative error {error:.3g}")

    def both(index):
        quantize(index)
        eight.launch(index)

    return {
        "cublas": (cublas.launch, cublas.copies, {}),
        "w4a16": (half.launch, half.copies, {"kernel": half.name, **asdict(half.candidate.config)}),
        "w4a8": (both, eight.copies, {"kernel": best.kernel, **asdict(best.config)}),
        "quantize": (quantize, 1, {}),
    }, error


def row_of(name, config, problem, us, environment, **more):
    """us: one for each round."""
    from numba_marlin.bench.measure import timed

    return {
        "kernel": name,
        "config": config,
        "compiler": "numba-cuda",
        "kind": "measured",
        **problem.to_dict(),
        **timed(us),
        **more,
        **environment,
    }


def measure(args):
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.bench.timing import GraphTimer, interleave

    bench = Bench(Settings(rounds=args.rounds))
    with rows.Recorder(RESULTS) as out:
        for problem, quantized in cells(args.m):
            found, error = entrants(bench, problem, quantized)
            timers = {
                name: GraphTimer(launch, least=max(3, copies))
                for name, (launch, copies, _) in found.items()
            }
            bench.watch.settle()
            bench.watch.clear()
            times = interleave(timers, args.rounds, bench.watch.sample)
            more = {
                "rounds": args.rounds,
                "clocks": bench.watch.summary(),
                "relative_error": float(f"{error:.3g}"),
            }
            for name, us in times.items():
                config = found[name][2]
                out.write(row_of(name, config, problem, us, bench.environment, **more))
            medians = {name: sorted(us)[len(us) // 2] for name, us in times.items()}
            print(problem.in_words(), {n: round(us, 1) for n, us in medians.items()}, flush=True)


def table(found, device):
    """A line for each cell that has all ENTRANTS."""
    times = {}
    for row in found:
        key = row["k"], row["n"], row["group_size"], row["m"]
        times.setdefault(key, {})[row["kernel"]] = row["us"]
    lines = []
    for problem, quantized in cells(sorted({row["m"] for row in found})):
        cell = times.get((problem.k, problem.n, problem.group_size, problem.m), {})
        if set(cell) < set(ENTRANTS):
            continue
        us = cell["w4a8"]
        lines.append(
            [
                f"{problem.k} x {problem.n}",
                "columns" if problem.group_size == -1 else str(problem.group_size),
                str(problem.m),
                *(f"{cell[name]:.1f}" for name in ENTRANTS),
                f"{cell['cublas'] / us:.2f}",
                f"{cell['w4a16'] / us:.2f}",
                f"{problem.flops / us * 1e-6:.0f}",
                f"{expected_us(quantized, device):.1f}",
            ]
        )
    header = ["k x n", "groups", "m", *(f"{name}: us" for name in ENTRANTS)]
    header += ["of cuBLAS", "of W4A16", "TFLOP/s", "expected: us (modelled)"]
    return markdown(header, lines)


def report(args):
    from numba_marlin.hardware import devices

    found = list(rows.newest(rows.read(RESULTS)).values())
    body = f"{table(found, devices.device('H200'))}\n\n{origin(found)}"
    replace_between(HERE / "README.md", MARKERS, body)


def expect(args):
    from numba_marlin.hardware import devices

    device = devices.device("H200")
    for _, quantized in cells(args.m):
        print(f"{expected_us(quantized, device):10.1f} us  {quantized.in_words()}")


def batches(text):
    return [int(each) for each in text.split(",")]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for run in (measure, report, expect):
        command = commands.add_parser(run.__name__)
        command.add_argument("--rounds", type=int, default=9)
        command.add_argument("--m", type=batches, default=list(BATCHES))
        command.set_defaults(run=run)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
