"""Activations in 8 bits on the command line: the option, what it asks for, and the verdict on a
product of them and one weight. (``mixtures`` has those of experts.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba_marlin.heuristics import Candidate
    from numba_marlin.reference import Report


def add_argument(parser) -> None:
    parser.add_argument(
        "--activations",
        choices=("int8", "fp8"),
        help="x in 8 bits, a scale per row (default: as --kernel, else 16 bits)",
    )


def asked(args) -> str | None:
    """The kind of x in 8 bits: as asked for, or the only one that the named kernel takes; None: 16
    bits."""
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.problems import ACTIVATIONS, EXPERTS

    kernel = getattr(args, "kernel", None)
    if args.activations is not None or kernel is None:
        return args.activations
    takes = find_kernel(kernel).takes
    kinds = {ACTIVATIONS: "activations", EXPERTS: "kinds_of_x"}.get(takes.kind)
    found = (None,) if kinds is None else getattr(takes, kinds)
    return None if None in found else found[0]


def fields(args) -> dict[str, str]:
    """Of the problem of one weight: those that x in 8 bits adds. ValueError for options that do not
    go with it."""
    kind = asked(args)
    if kind is None:
        return {}
    by = "--activations" if args.activations is not None else f"--kernel {args.kernel}"
    for option, given in (
        ("--format", getattr(args, "format", None) is not None),
        ("--autotune", getattr(args, "autotune", False)),
        ("--bits 8", getattr(args, "bits", 4) == 8),
        ("--zeros float16", getattr(args, "zeros", None) == "float16"),
    ):
        if given:
            raise ValueError(f"{option} is for x in 16 bits: leave out {by}")
    return {"activations": kind}


def refuse(args) -> None:
    """ValueError for the option with a kernel of two block-scaled operands."""
    if args.activations is not None:
        raise ValueError(
            f"--activations is not for {args.kernel}, whose operands are block-scaled: leave it out"
        )


def judged(y, x, weight, candidate: Candidate | None) -> tuple[Report, int | None]:
    """The reference's verdict on y, x times the weight, and how many outputs are not to the last
    bit as in ``reference.activations.kernel_product``, None where they need not be. candidate: None
    for the float64 reference itself."""
    import numpy as np

    from numba_marlin import reference
    from numba_marlin.reference.activations import PART, bounds, kernel_product

    config = None if candidate is None else candidate.config
    offsets, parts = getattr(config, "offsets", False), getattr(config, "parts", 1)
    if candidate is not None and _in_order(candidate):
        wanted = kernel_product(x, weight, parts=parts)
        other = (y.view(np.uint16) != wanted.view(np.uint16)) & ~(np.isnan(y) & np.isnan(wanted))
        return reference.judged(y, bounds(x, weight)), int(np.count_nonzero(other))
    found = bounds(x, weight, depth=PART, offsets=offsets, parts=parts)
    return reference.judged(y, found), None


def _in_order(candidate: Candidate) -> bool:
    """Whether the kernel adds up exact sums of whole groups in the order of k, perhaps in parts,
    which leaves no bit open."""
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.kernels.w4a8.config import SUMS_ORDER

    order = find_kernel(candidate.kernel).order_of_sums(candidate.config)
    return order is not None and order.startswith(SUMS_ORDER.format("int8"))
