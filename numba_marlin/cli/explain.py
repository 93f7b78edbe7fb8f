"""``numba-marlin explain``: which kernel would run, on which grid, and why. Needs neither a GPU nor
a compiler, except to measure (``--autotune``)."""

from __future__ import annotations

from numba_marlin.cli import activations, mixtures
from numba_marlin.cli.kernels import OPERAND_FORMATS
from numba_marlin.cli.types import add_type_arguments, types_of

HELP = "show which kernel and configuration would run for a problem, and why"
RANDOM = "the operands of --autotune"
EXAMPLES = """  numba-marlin explain --m 16 --n 8192 --k 8192
  numba-marlin explain --m 1 --n 4096 --k 4096 --device "RTX 4090" --json
  numba-marlin explain --m 16 --n 8192 --k 8192 --bits 8 --dtype bfloat16 --zeros integer
  numba-marlin explain --m 16 --n 8192 --k 8192 --codes e2m1 --group-size 16
  numba-marlin explain --m 1024 --n 8192 --k 8192 --activations fp8
  numba-marlin explain --m 16 --n 8192 --k 8192 --format nvfp4
  numba-marlin explain --m 16 --n 4096 --k 2048 --experts 128 --top-k 8 --combine
  numba-marlin explain --m 16 --n 8192 --k 8192 --autotune"""


def add_arguments(parser) -> None:
    parser.add_argument(
        "--m",
        type=int,
        required=True,
        metavar="M",
        help="rows of activations (tokens in the batch)",
    )
    parser.add_argument("--n", type=int, required=True, metavar="N", help="columns of the weight")
    parser.add_argument("--k", type=int, required=True, metavar="K", help="rows of the weight")
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="G",
        help="rows that share a scale; -1: all (default 128)",
    )
    add_type_arguments(parser)
    parser.add_argument(
        "--codes",
        choices=("integer", "e2m1"),
        default="integer",
        help="e2m1: block-scaled FP4; NVFP4 with --group-size 16, MXFP4 with 32 (default integer)",
    )
    parser.add_argument(
        "--format",
        choices=OPERAND_FORMATS,
        help="both operands block-scaled, for block_scaled_matmul",
    )
    mixtures.add_arguments(parser)
    activations.add_argument(parser)
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=(
            "a device of the table, or 'model', the PTX machine's (default: this computer's GPU,"
            " else H200)"
        ),
    )
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help=(
            "only configurations whose results do not depend on M; with the predicted cost of that"
        ),
    )
    parser.add_argument(
        "--autotune",
        action="store_true",
        help="first measure the candidates on this computer's GPU and store the winner",
    )


def execute(args, report) -> bool:
    from numba_marlin import api
    from numba_marlin.cli.report import BOLD, DIM, columns
    from numba_marlin.heuristics import tuned

    types = types_of(args)
    types |= (mixtures if mixtures.asked(args) else activations).fields(args)
    given = (args.m, args.n, args.k, args.group_size, args.device)
    explanation = api.explain(*given, **types)
    if args.autotune:
        _measure(args, report, explanation)
        explanation = api.explain(*given, **types)
    stored = tuned.stored_choice(explanation.problem, explanation.device)
    report.data |= explanation.to_dict() | {"tuned": None if stored is None else stored.to_dict()}
    head, *candidates = explanation.text(columns()).split("\n\n")
    report.text(head, BOLD)
    # the first is the choice, the others are for comparison
    for position, candidate in enumerate(candidates):
        report.text("\n" + candidate, "" if position == 0 else DIM)
    return True


def _measure(args, report, explanation) -> None:
    from numba_marlin.errors import CapabilityMissing

    if explanation.device.source != "measured":
        raise CapabilityMissing(
            f"--autotune measures on this machine's GPU: {explanation.device.name}"
            f" ({explanation.device.source}) is none"
        )
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.bench.tune import tune

    with report.step("measuring the candidates"):
        found = tune(Bench(Settings(seed=args.seed)), explanation.problem)
    report.data["measured"] = [
        {
            name: row[name]
            for name in ("kernel", "config", "us", "us_spread", "speedup", "limit_share")
        }
        for row in found.rows
    ]
