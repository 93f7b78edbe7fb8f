"""``numba-marlin run``: takes one matrix through all steps: it is quantised, packed, multiplied by
the compiled kernel, and checked against float64.

The activations are always random, so their signs are independent of the weights and the tighter of
the reference's bounds (``order="random"``) applies. The verdict is elementwise: a single output out
of bounds makes the exit code 1.
"""

from __future__ import annotations

import time
from pathlib import Path

from numba_marlin.cli.kernels import OPERAND_FORMATS, Names
from numba_marlin.cli.types import add_type_arguments, dtype_of, types_of

HELP = "quantise, pack and multiply a matrix with the Marlin kernel, and check the result"
RANDOM = "the random weight and the activations"
EXAMPLES = """  numba-marlin run
  numba-marlin run --m 64 --n 512 --k 768 --group-size 64 --kernel tiled
  numba-marlin run --bits 8 --dtype bfloat16 --zeros integer --method mse
  numba-marlin run --input w.npy --json
  numba-marlin run --format nvfp4 --kernel tcgen05
  numba-marlin run --input model.safetensors --transpose \\
      --tensor layers.0.mlp.up_proj.weight --save y.npy"""
DEFAULT_N, DEFAULT_K = 256, 1024


def add_arguments(parser) -> None:
    from numba_marlin.cli import estimate

    parser.add_argument(
        "--m", type=int, default=16, metavar="M", help="rows of activations (default 16)"
    )
    parser.add_argument(
        "--n", type=int, metavar="N", help=f"columns of a random weight (default {DEFAULT_N})"
    )
    parser.add_argument(
        "--k", type=int, metavar="K", help=f"rows of a random weight (default {DEFAULT_K})"
    )
    parser.add_argument(
        "--input", metavar="FILE", help="your own weight [k, n]: .npy or .safetensors"
    )
    parser.add_argument("--tensor", metavar="NAME", help="which tensor of a .safetensors file")
    parser.add_argument(
        "--transpose", action="store_true", help="the file holds [n, k], as torch.nn.Linear does"
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="G",
        help="rows that share a scale; -1: all (default 128)",
    )
    add_type_arguments(parser)
    parser.add_argument(
        "--method",
        choices=("rtn", "mse"),
        default="rtn",
        help="how to quantise: round to nearest (default), or that with a search for scales",
    )
    parser.add_argument(
        "--format",
        choices=OPERAND_FORMATS,
        help="both operands block-scaled, for block_scaled_matmul",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "cuda", "emulator", "reference"),
        default="auto",
        help="where to run (default auto: a GPU if there is one)",
    )
    parser.add_argument(
        "--kernel",
        choices=Names(),
        metavar="NAME",
        help="one of %(choices)s (default: the choice of explain)",
    )
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="bit-identical rows for every M",
    )
    parser.add_argument(
        "--compiler",
        choices=("numba-cuda", "numba-cuda-mlir"),
        default="numba-cuda",
        help="the compiler front end (default numba-cuda)",
    )
    estimate.add_argument(parser)
    parser.add_argument(
        "--save", metavar="FILE.npy", help="write the product [m, n], fp16; of bfloat16 as fp32"
    )


def execute(args, report) -> bool:
    import numpy as np

    from numba_marlin.api.reports import problem_of
    from numba_marlin.cli import estimate
    from numba_marlin.cli.report import check_output, write_atomically
    from numba_marlin.cli.weights import weight_of
    from numba_marlin.execution import expected
    from numba_marlin.execution import plan as planning

    target = check_output(args.save, (".npy",), "--save")
    if (
        target is not None
        and args.input is not None
        and target.resolve() == Path(args.input).resolve()
    ):
        raise ValueError(
            f"--save {args.save} is the file of --input: the product would take the weight's place"
        )
    types, dtype = types_of(args), dtype_of(args)
    if args.m < 1:
        raise ValueError(f"--m {args.m} must be at least 1")
    random = np.random.default_rng(args.seed)
    weight = weight_of(args, random)
    k, n = weight.shape
    # refuses shapes before any work
    problem = problem_of(args.m, n, k, args.group_size, **types)
    plan = planning.plan(problem, args.backend, args.kernel)
    estimate.check(
        args,
        report,
        problem,
        lambda each: expected.whole(each, planning.plan(each, args.backend, args.kernel)),
        args.input,
    )
    report.row("weight", f"{weight.source}, {k} x {n} {weight.values.dtype}")
    report.data["weight"] = {
        "source": weight.source,
        "k": k,
        "n": n,
        "dtype": str(weight.values.dtype),
    }
    x = random.standard_normal((args.m, k)).astype(np.float16 if args.format else dtype)
    multiply = _weights if args.format is None else _operands
    y, ok = multiply(args, report, plan, problem, weight.values, x)
    if target is not None:
        # a .npy file has no bfloat16; float32 holds the same numbers
        stored = y if dtype == np.float16 else y.astype(np.float32)
        write_atomically(target, lambda file: np.save(file, stored))
        report.row("wrote", f"{target}, {y.shape[0]} x {y.shape[1]} {stored.dtype}")
        report.data["saved"] = str(target)
    return ok


def _weights(args, report, plan, problem, w, x):
    """Multiply x by the weight, quantised and packed. Returns (y, whether it is right)."""
    from dataclasses import replace

    import numpy as np

    from numba_marlin import api, reference

    with report.step(f"quantising {problem.k} x {problem.n} weights"):
        q = api.quantize(
            w,
            problem.bits,
            problem.group_size,
            symmetric=problem.zeros is None,
            method=args.method,
            scale_dtype=problem.scale_dtype,
        )
        if problem.zeros == "float16":  # the same zero points, as the kernels for such read them
            q = replace(q, zeros=q.zeros.astype(np.float16))
    _report_quantised(report, w, q, args.method)
    with report.step("packing"):
        p = api.pack(q)
    _report_packed(report, p)
    if plan.candidate is not None:
        _compile(report, plan, args.compiler)
    with _multiplying(report, problem, plan):
        y, info = api.matmul(
            x,
            p,
            args.backend,
            kernel=args.kernel,
            compiler=args.compiler,
            batch_invariant=args.batch_invariant,
            return_info=True,
        )
    _report_run(report, info)
    with report.step("comparing with the float64 reference"):
        verdict = reference.check(y, x, p, order="random")
    _report_verdict(report, verdict)
    return y, verdict.ok


def _operands(args, report, plan, problem, w, x):
    """The same with two block-scaled operands."""
    import numpy as np

    from numba_marlin import api
    from numba_marlin.cli.report import GREEN, RED
    from numba_marlin.reference.operands import block_scaled_bounds, within_bounds

    with report.step(f"quantising both operands to {args.format}"):
        a = api.quantize_blocks(x, args.format)
        b = api.quantize_blocks(np.ascontiguousarray(w.T, np.float32), args.format)
    report.row("quantised", f"both operands {args.format}, blocks of {problem.group_size}")
    report.data["quantised"] = {
        "format": args.format,
        "bits": problem.bits,
        "group_size": problem.group_size,
    }
    if plan.candidate is not None:
        _compile(report, plan, args.compiler)
    with _multiplying(report, problem, plan):
        y, info = api.block_scaled_matmul(
            a,
            b,
            out_format=args.dtype,
            backend=args.backend,
            kernel=args.kernel,
            compiler=args.compiler,
            return_info=True,
        )
    _report_run(report, info)
    with report.step("comparing with the float64 reference"):
        exact, error = block_scaled_bounds(a, b)
        wrong = int((~within_bounds(y, exact, error)).sum())
    text = (
        f"WRONG: {wrong:,} of {y.size:,} outputs are out of their error bounds"
        if wrong
        else f"ok: each of {y.size:,} outputs is within its own error bound of the float64 product"
    )
    largest = float(np.abs(y.astype(np.float64) - exact).max())
    report.row("checked", f"{text}\nlargest error {largest:.3g}", RED if wrong else GREEN)
    report.data["check"] = {
        "ok": not wrong,
        "max_error": largest,
        "failures": wrong,
        "outputs": y.size,
    }
    return y, not wrong


def _multiplying(report, problem, plan):
    """The progress of the product."""
    where = {"reference": "the CPU", "emulator": "the PTX machine"}.get(plan.backend)
    what = f"multiplying {problem.m} x {problem.k} activations on {where or plan.device.name}"
    if plan.backend != "emulator":
        return report.step(what)
    from numba_marlin.cli.progress import machine_bar

    return machine_bar(what, report.data["expected"]["instructions"])


def _report_quantised(report, w, q, method: str) -> None:
    import numpy as np

    from numba_marlin.quantizers import dequantize

    error = dequantize(q, np.float32) - w.astype(np.float32)
    root_mean_square = float(np.sqrt(np.mean(np.square(w, dtype=np.float64))))
    relative = (
        float(np.sqrt(np.mean(np.square(error, dtype=np.float64)))) / root_mean_square
        if root_mean_square
        else 0.0
    )
    largest = float(np.abs(error).max())
    groups = "one scale per column" if q.group_size == -1 else f"groups of {q.group_size}"
    zeros = "" if q.zeros is None else f"{q.zeros_kind} zero points, "
    report.row(
        "quantised",
        f"{q.bits} bits, {zeros}{groups}: rms error {relative:.2%} of the weights' rms,"
        f" largest {largest:.3g}",
    )
    report.data["quantised"] = {
        "bits": q.bits,
        "group_size": q.group_size,
        "zeros": q.zeros_kind,
        "scale_dtype": q.scale_dtype,
        "method": method,
        "relative_rms_error": relative,
        "max_error": largest,
    }


def _report_packed(report, p) -> None:
    half_bytes = 2 * p.k * p.n
    report.row(
        "packed",
        f"Marlin layout, {p.nbytes:,} bytes, {8 * p.nbytes / (p.k * p.n):.3f} bits per weight,"
        f" {half_bytes / p.nbytes:.2f} times less than fp16",
    )
    report.data["packed"] = {
        "layout": p.layout,
        "bytes": p.nbytes,
        "bits_per_weight": 8 * p.nbytes / (p.k * p.n),
        "fp16_bytes": half_bytes,
    }


def _compile(report, plan, compiler: str) -> None:
    candidate = plan.candidate
    started, start = time.time(), time.perf_counter()
    with report.step(
        f"compiling {candidate.kernel} for {plan.target} with {compiler} (or reading the cache)"
    ):
        compiled = plan.compile(compiler)
    seconds = time.perf_counter() - start
    cached = _is_cached(compiled, started)
    used = compiled.resources
    if used.registers is None:
        costs = "registers unknown (no ptxas)"
    else:
        spilled = (
            used.spill_stores + used.spill_loads
            if used.spill_stores is not None and used.spill_loads is not None
            else None
        )
        costs = (
            f"{used.registers} registers,"
            f" {'spills unknown' if spilled is None else f'{spilled} bytes spilled'}"
        )
    shared = compiled.shared_bytes + (used.static_shared or 0)
    made = f"{candidate.kernel} for {compiled.target} with {_by_whom(compiled, cached, seconds)}"
    report.row("compiled", f"{made}\n{costs}, {shared / 1024:g} KiB shared memory")
    for reason in candidate.reasons:
        report.row("", f"- {reason}")
    report.data["compiled"] = {
        "kernel": candidate.kernel,
        "target": compiled.target,
        "compiler": compiled.compiler,
        "registers": used.registers,
        "spill_stores": used.spill_stores,
        "spill_loads": used.spill_loads,
        "shared_bytes": compiled.shared_bytes,
        "cached": cached,
        "shipped": compiled.shipped,
        "seconds": round(seconds, 4),
    }


def _by_whom(compiled, cached: bool, seconds: float) -> str:
    from numba_marlin.compiler.shipped import made_with

    if compiled.shipped:
        return f"{made_with(compiled.versions)} before: its PTX comes with the package"
    return f"{compiled.compiler} {'(from the cache)' if cached else f'in {seconds:.1f} s'}"


def _is_cached(compiled, started: float) -> bool:
    """Whether the kernel was in the disk cache before ``started``."""
    from numba_marlin.compiler.cache_directory import cache_directory

    directory = cache_directory()
    entry = None if directory is None else directory / f"{compiled.key}.kernel"
    return entry is not None and entry.is_file() and entry.stat().st_mtime < started


def _report_run(report, info) -> None:
    grid = ""
    if info.candidate is not None:
        blocks = " x ".join(map(str, info.candidate.grid))
        grid = f", grid {blocks}, {info.candidate.threads} threads per block"
    work = "" if info.instructions is None else f"{info.instructions:,} warp instructions in "
    note = ", copies included: not a benchmark" if info.backend == "cuda" else ""
    where = (
        "the PTX machine" + info.device.removeprefix("PTX machine")
        if info.backend == "emulator"
        else info.device
    )
    report.row("ran", f"on {where}{grid}\n{work}{info.seconds:.3g} s{note}\n({info.reason})")
    report.data["run"] = info.to_dict()


def _report_verdict(report, verdict) -> None:
    from numba_marlin.cli.report import GREEN, RED

    worst = (
        f"{verdict.actual_at_worst:.6g} for {verdict.expected_at_worst:.6g} +-"
        f" {verdict.bound_at_worst:.3g}"
    )
    if verdict.ok:
        text = (
            f"ok: each of {verdict.size:,} outputs is within its own error bound of the float64"
            " product\n"
        )
        text += (
            f"largest error {verdict.max_error:.3g}; nearest to its bound"
            f" ({verdict.max_ratio:.0%}): {verdict.worst}, {worst}"
        )
    else:
        text = (
            f"WRONG: {verdict.failures:,} of {verdict.size:,} outputs are out of their error"
            f" bounds\nworst: {verdict.worst}, {worst}"
        )
    report.row("checked", text, GREEN if verdict.ok else RED)
    report.data["check"] = {
        "ok": verdict.ok,
        "max_error": verdict.max_error,
        "max_error_over_bound": verdict.max_ratio,
        "failures": verdict.failures,
        "outputs": verdict.size,
    }
