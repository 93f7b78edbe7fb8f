"""``numba-marlin run``: takes one matrix through all steps: it is quantised, packed, multiplied by
the compiled kernel, and checked against float64.

The activations are always random, so their signs are independent of the weights and the tighter of
the reference's bounds (``order="random"``) applies. The verdict is elementwise: a single output out
of bounds makes the exit code 1.
"""

from __future__ import annotations

from pathlib import Path

from numba_marlin.cli import activations, mixtures
from numba_marlin.cli.kernels import OPERAND_FORMATS, Names
from numba_marlin.cli.types import add_type_arguments, dtype_of, types_of

HELP = "quantise, pack and multiply a matrix with the Marlin kernel, and check the result"
RANDOM = "the random weight and the activations"
EXAMPLES = """  numba-marlin run
  numba-marlin run --m 64 --n 512 --k 768 --group-size 64 --kernel tiled
  numba-marlin run --bits 8 --dtype bfloat16 --zeros integer --method mse
  numba-marlin run --input w.npy --json
  numba-marlin run --format nvfp4 --kernel tcgen05
  numba-marlin run --m 16 --n 256 --k 1024 --activations int8
  numba-marlin run --kernel moe
  numba-marlin run --m 64 --experts 32 --top-k 4 --n 128 --k 512 --combine
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
    mixtures.add_arguments(parser)
    activations.add_argument(parser)
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
    of_experts = mixtures.asked(args)
    if of_experts:
        mixtures.refuse_files(args, "input", "tensor", "transpose")
    types |= (mixtures if of_experts else activations).fields(args)
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
    if of_experts:
        y, ok = _experts(args, report, plan, problem, random)
    else:
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
    from numba_marlin.cli.run_report import (
        compiled,
        multiplying,
        report_activations,
        report_packed,
        report_quantised,
        report_run,
        report_verdict,
    )

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
    report_quantised(report, w, q, args.method)
    kind = getattr(problem, "activations", None)
    if kind is not None:
        with report.step(f"quantising {problem.m} x {problem.k} activations to {kind}"):
            floats, x = x, api.quantize_activations(x, kind)
        report_activations(report, floats, x)
    with report.step("packing"):
        p = api.pack(q)
    report_packed(report, p)
    if plan.candidate is not None:
        compiled(report, plan, args.compiler)
    with multiplying(report, problem, plan):
        y, info = api.matmul(
            x,
            p,
            args.backend,
            kernel=args.kernel,
            compiler=args.compiler,
            batch_invariant=args.batch_invariant,
            return_info=True,
        )
    report_run(report, info)
    with report.step("comparing with the float64 reference"):
        if kind is None:
            method = _method(plan.candidate)
            verdict, other_bits = reference.check(y, x, p, order="random", method=method), None
        else:
            verdict, other_bits = activations.judged(y, x, p, plan.candidate)
    report_verdict(report, verdict, other_bits)
    return y, verdict.ok and not other_bits


def _method(candidate):
    """What of a weight the kernel rounds (``reference.METHODS``); None: as the weight's groups say,
    where no kernel runs or it does not say."""
    from numba_marlin.kernels.registry import find_kernel

    return candidate and find_kernel(candidate.kernel).method(candidate.config)


def _operands(args, report, plan, problem, w, x):
    """The same with two block-scaled operands."""
    import numpy as np

    from numba_marlin import api
    from numba_marlin.cli.report import GREEN, RED
    from numba_marlin.cli.run_report import compiled, multiplying, report_run
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
        compiled(report, plan, args.compiler)
    with multiplying(report, problem, plan):
        y, info = api.block_scaled_matmul(
            a,
            b,
            out_format=args.dtype,
            backend=args.backend,
            kernel=args.kernel,
            compiler=args.compiler,
            return_info=True,
        )
    report_run(report, info)
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


def _experts(args, report, plan, problem, random):
    """The same with tokens and the weights of the experts that they are routed to."""
    from numba_marlin.api.experts import moe_matmul
    from numba_marlin.cli.run_report import (
        compiled,
        multiplying,
        report_packed,
        report_quantised,
        report_run,
        report_verdict,
    )

    source = f"random, seed {args.seed}"
    report.row("weights", f"{source}, {problem.experts} experts, {problem.k} x {problem.n} each")
    report.data["weight"] = {
        "source": source,
        "k": problem.k,
        "n": problem.n,
        "dtype": "float32",
        "experts": problem.experts,
    }
    with report.step(f"quantising {problem.experts} experts of {problem.k} x {problem.n} weights"):
        mixture = mixtures.made(problem, random, args.method)
    report_quantised(report, *mixture.quantised, args.method)
    report_packed(report, mixture.experts, problem.experts)
    report.row("routed", mixtures.in_words(problem, mixture.routing))
    report.data["routing"] = {
        "ids": mixture.routing.ids.tolist(),
        "rows": (mixture.routing.offsets[1:] - mixture.routing.offsets[:-1]).tolist(),
    }
    config = None
    if plan.candidate is not None:
        config = plan.candidate.config
        compiled(report, plan, args.compiler)
    with multiplying(report, problem, plan):
        y, info = moe_matmul(
            mixture.x,
            mixture.experts,
            mixture.routing,
            combine=problem.combine,
            backend=args.backend,
            kernel=args.kernel,
            compiler=args.compiler,
            batch_invariant=args.batch_invariant,
            return_info=True,
        )
    report_run(report, info)
    with report.step("comparing with the float64 reference"):
        kernel = None if config is None else plan.candidate.kernel
        verdict = mixtures.judged(y, mixture, problem, kernel, config)
    report_verdict(report, verdict)
    return y.reshape(-1, problem.n), verdict.ok
