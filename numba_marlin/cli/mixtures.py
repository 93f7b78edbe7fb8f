"""Mixtures of experts on the command line: the options, the problem that they describe, and its
operands, which are random: weights of each expert, tokens, and a router that prefers the experts
with low numbers, so that some have many rows and some none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_marlin.cli import activations

EXPERTS, TOP_K = 8, 2  # defaults
PREFERENCE = 1.5  # that the router adds to the first expert's logit, and takes from the last one's
# kind of weights -> (bits of a code, rows that share a scale; None: --group-size)
WEIGHTS = {"int4": (4, None), "int8": (8, None), "nvfp4": (4, 16), "mxfp4": (4, 32)}


def add_arguments(parser) -> None:
    parser.add_argument(
        "--experts",
        type=int,
        metavar="E",
        help=f"a mixture of so many experts, of n x k each (default with such a kernel: {EXPERTS})",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        metavar="K",
        help=f"experts that each of the M tokens goes to (default {TOP_K})",
    )
    parser.add_argument(
        "--combine",
        action="store_true",
        help=(
            "the second product of a layer: a row of x for each expert of a token, whose results,"
            " times its weights, are added up"
        ),
    )


def given(args) -> list[str]:
    """The options of a mixture that were given."""
    values = {name: getattr(args, name, None) for name in ("experts", "top_k", "combine")}
    return [
        f"--{name.replace('_', '-')}"
        for name, value in values.items()
        if value is not None and value is not False
    ]


def asked(args) -> bool:
    """Whether the arguments ask for the products of a mixture: by one of its options, or by a
    kernel. ValueError for such options with another kernel, or with one --format for both
    operands."""
    from numba_marlin.kernels import registry
    from numba_marlin.problems import EXPERTS as KIND

    kernel, options = getattr(args, "kernel", None), given(args)
    if kernel is not None and registry.find_kernel(kernel).kind == KIND:
        return True
    if options and kernel is not None:
        raise ValueError(
            f"{options[0]} is for --kernel {' or '.join(registry.names(KIND))}, not {kernel}"
        )
    if options and getattr(args, "format", None) is not None:
        raise ValueError(f"{options[0]} is of one --format for weights only: leave out --format")
    return bool(options)


def fields(args) -> dict[str, Any]:
    """Of the ExpertsProblem: those that the options of a mixture decide."""
    experts = EXPERTS if args.experts is None else args.experts
    top_k = min(TOP_K, experts) if args.top_k is None else args.top_k
    for name, value in (("--experts", experts), ("--top-k", top_k)):
        if value < 1:
            raise ValueError(f"{name} {value} must be at least 1")
    if top_k > experts:
        raise ValueError(f"--top-k {top_k} must be at most --experts {experts}")
    of_layer = dict.fromkeys(("x_of_pairs", "combine"), args.combine)
    return {"experts": experts, "top_k": top_k, "activations": activations.asked(args), **of_layer}


def refuse_files(args, *names: str) -> None:
    """ValueError for options of one weight, which a random mixture does not have."""
    for name in names:
        if getattr(args, name, None) not in (None, False):
            raise ValueError(
                f"--{name.replace('_', '-')} is of one weight: leave it out, experts are random"
            )


@dataclass(frozen=True, eq=False)
class Mixture:
    """x [m, k], or [m, top_k, k], or of these rows quantised; the packed experts; the routing;
    quantised: the first expert's floats and what became of them."""

    x: Any
    experts: Any
    routing: Any
    quantised: tuple[Any, Any]

    @property
    def operands(self) -> dict[str, Any]:
        """The arrays of a launch, {kernel parameter: array}."""
        from numba_marlin.execution.binding import (
            activation_rows,
            experts_operands,
            routing_operands,
        )
        from numba_marlin.formats.activations import QuantizedActivations

        if isinstance(self.x, QuantizedActivations):
            of_x = activation_rows(self.x)
        else:
            of_x = {"a": self.x.reshape(-1, self.x.shape[-1])}
        return {**of_x, **experts_operands(self.experts), **routing_operands(self.routing)}


def made(problem, random, method: str = "rtn") -> Mixture:
    """Random operands of ``problem``, expert after expert quantised and packed."""
    import numpy as np

    from numba_marlin import api
    from numba_marlin.api.experts import route
    from numba_marlin.formats.experts import PackedExperts
    from numba_marlin.formats.floats import round_to

    packed, first = [], None
    for _ in range(problem.experts):
        values = random.standard_normal((problem.k, problem.n), dtype=np.float32)
        q = quantised(problem, values, method)
        first = first or (values, q)
        packed.append(api.pack(q, dtype=problem.dtype if problem.codes != "integer" else None))
    preference = np.linspace(PREFERENCE, -PREFERENCE, problem.experts, dtype=np.float32)
    logits = random.standard_normal((problem.m, problem.experts), dtype=np.float32) + preference
    shape = (problem.m, *((problem.top_k,) if problem.x_of_pairs else ()), problem.k)
    x = round_to(random.standard_normal(shape), problem.dtype)
    if problem.activations is not None:
        x = api.quantize_activations(x.reshape(-1, problem.k), problem.activations)
    return Mixture(
        x,
        PackedExperts.of(packed),
        route(logits, problem.top_k, normalize=True),
        first or (None, None),
    )


def quantised(problem, values, method: str = "rtn"):
    """float32 [k, n] -> a QuantizedWeight, or a BlockWeight of FP4."""
    from dataclasses import replace

    import numpy as np

    from numba_marlin import api
    from numba_marlin.cli.traced import in_blocks

    if problem.codes != "integer":
        return in_blocks(values, {16: "nvfp4", 32: "mxfp4"}[problem.group_size])
    q = api.quantize(
        values,
        problem.bits,
        problem.group_size,
        symmetric=problem.zeros is None,
        method=method,
        scale_dtype=problem.scale_dtype,
    )
    if problem.zeros == "float16":  # the same zero points, as the kernels for such read them
        q = replace(q, zeros=q.zeros.astype(np.float16))
    return q


def judged(y, mixture: Mixture, problem, kernel: str | None, config, *, launch: bool = False):
    """The reference's verdict on y. kernel, config: None for the float64 reference itself. launch:
    y is what a launch leaves, before a pass behind it."""
    from numba_marlin import reference
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.reference.experts import moe_bounds

    allowed = moe_bounds(
        mixture.x,
        mixture.experts,
        mixture.routing,
        combine=problem.combine and not launch,
        order="random",
        method=None if kernel is None else find_kernel(kernel).method(config),
        out_dtype=problem.launch_shapes["c"][1] if launch else problem.dtype,
    )
    parts = (allowed.product, allowed.accumulated, allowed.rounded)
    rows = (each.reshape(-1, problem.n) for each in parts)
    return reference.judged(y.reshape(-1, problem.n), reference.Bounds(*rows))


def in_words(problem, routing) -> str:
    """Of a routing: rows of the experts, and how many have none."""
    import numpy as np

    rows = np.diff(routing.offsets)
    idle, most = int((rows == 0).sum()), int(rows.max())
    return (
        f"{problem.m} token{'s' * (problem.m > 1)} to {problem.top_k} of {problem.experts} experts:"
        f" expert {rows.argmax()} has most rows, {most};"
        f" {'every expert has some' if not idle else f'{idle} of them none'}"
    )
