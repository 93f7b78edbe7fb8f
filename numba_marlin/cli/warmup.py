"""``numba-marlin warmup``: compile what the layers of a checkpoint will need before the first call
needs it. Of the checkpoint, headers and zero points are read; no GPU is needed."""

from __future__ import annotations

HELP = "compile ahead, in parallel, the kernels that a checkpoint's layers will need"
EXAMPLES = """  numba-marlin warmup llama-gptq/
  numba-marlin warmup llama-gptq/ --m 1,8,16-64 --device H200 --processes 8
  numba-marlin warmup model.safetensors --dtype bfloat16 --json"""
_USUAL = "1-256"


def add_arguments(parser) -> None:
    parser.add_argument(
        "source", metavar="CHECKPOINT", help="a .safetensors file, or a directory of them"
    )
    parser.add_argument(
        "--m",
        default=_USUAL,
        metavar="M",
        help=f"rows of activations: numbers and ranges, with commas (default {_USUAL})",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=(
            "compile for a device of the table, or for 'model', the PTX machine's (default: this"
            " computer's GPU, else the PTX machine)"
        ),
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16"),
        help="type of activations (default: what config.json says, else float16)",
    )
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="for calls with batch_invariant=True",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="how many compile at once (default: one for each core)",
    )


def execute(args, report) -> bool:
    from numba_marlin.api.warmup import check_processes, choose
    from numba_marlin.checkpoints import load_checkpoint
    from numba_marlin.cli.inspect import each_once
    from numba_marlin.cli.progress import bar
    from numba_marlin.execution.warmup import compile_missing

    rows = rows_of(args.m)
    check_processes(args.processes, "--processes")
    checkpoint = load_checkpoint(args.source)
    with report.step("choosing kernels"):
        choice = choose(
            checkpoint, rows, args.device, args.dtype, batch_invariant=args.batch_invariant
        )
    report.row("layers", f"{len(checkpoint)} in {args.source}; m = {args.m}")
    report.row("device", choice.device)
    with bar("compiling", "kernels") as progress:
        done = compile_missing(choice, args.processes, progress)
    report.data = {"path": str(args.source)} | done.to_dict()
    if done.kernels and not report.as_json:
        _print_table(done.kernels)
    report.row(
        "kernels",
        f"{len(done.kernels)}: {done.cached} cached before, {done.compiled} compiled in"
        f" {done.seconds:.1f} s, {done.failed} failed; they are in {done.directory}",
    )
    for reason, names in each_once(done.refused.items()).items():
        report.row("cannot run", f"{names}: {reason}")
    for each in done.kernels:
        if each.error is not None:
            report.row("failed", f"{each.job.kernel} for {each.job.target}: {each.error}")
    return done.ok


def rows_of(text: str) -> list[int]:
    """``--m`` "1,8,16-64" as numbers. ValueError for anything else."""
    from numba_marlin.execution.warmup import MOST_PLANS

    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        try:
            first = int(low)
            last = int(high) if dash else first
        except ValueError:
            raise ValueError(
                f"--m {text} must be numbers and ranges with commas, such as {_USUAL} or 1,8,16-64"
            ) from None
        if not 0 < first <= last < 2**31:
            raise ValueError(f"--m {part.strip()} must go up, from 1 to {2**31 - 1}")
        if last - first >= MOST_PLANS:
            raise ValueError(f"--m {part.strip()} must have at most {MOST_PLANS} values")
        found += range(first, last + 1)
    return found


def _print_table(kernels) -> None:
    from numba_marlin.cli.bench_view import print_table

    print_table(
        ["kernel", "target", "m", "k x n", "", "seconds"],
        [
            [
                each.job.kernel,
                each.job.target,
                each.m_text,
                ", ".join(dict.fromkeys(map(_shape, each.problems))),
                each.state,
                "" if each.seconds is None else f"{each.seconds:.1f}",
            ]
            for each in kernels
        ],
        left=5,
        dispensable=("k x n", "target"),
    )


def _shape(problem) -> str:
    return f"{problem.k} x {problem.n}{', bias' if problem.bias else ''}"
