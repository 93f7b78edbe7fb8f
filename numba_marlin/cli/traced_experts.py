"""What ``numba-marlin trace`` runs if it is the products of a mixture of experts."""

from __future__ import annotations

from numba_marlin.cli import mixtures
from numba_marlin.cli.traced import GROUP_SIZE, Described, Quantised, changed_config, stored_layer


def described(args) -> Described:
    """As ``traced.described``. Omitted arguments default to the kernel's demonstration."""
    from dataclasses import replace

    import numpy as np

    from numba_marlin.hardware import devices
    from numba_marlin.heuristics import candidate
    from numba_marlin.kernels.registry import find_kernel, kernels
    from numba_marlin.problems import EXPERTS, ExpertsProblem

    mixtures.refuse_files(args, "input", "tensor", "transpose", "floats")
    stored_layer(args)  # checks --sms
    definition = find_kernel(args.kernel) if args.kernel else kernels(EXPERTS)[-1]
    args.kernel, demo = definition.name, definition.about.demo
    for name, size in zip("mnk", demo.trace):
        if getattr(args, name) is None:
            setattr(args, name, size)
    kind = args.weights or "int4"
    if kind not in mixtures.WEIGHTS:
        raise ValueError(f"--weights {kind} must be one of {', '.join(mixtures.WEIGHTS)} here")
    bits, block_rows = mixtures.WEIGHTS[kind]
    if block_rows is not None and args.group_size not in (None, block_rows):
        raise ValueError(
            f"--group-size {args.group_size} must be {block_rows} for --weights {kind}: omit it"
        )
    problem = ExpertsProblem(
        args.m,
        args.n,
        args.k,
        args.group_size or block_rows or GROUP_SIZE,
        bits=bits,
        codes="integer" if block_rows is None else "e2m1",
        **mixtures.fields(args),
    )
    random = np.random.default_rng(args.seed)
    device = replace(devices.MODEL, sms=args.sms or demo.trace_sms or devices.MODEL.sms)
    config = (
        None
        if args.config is None
        else changed_config(args.config, candidate(problem, device, args.kernel).config)
    )
    chosen = candidate(problem, device, args.kernel, config)

    def quantised() -> Quantised:
        made = mixtures.made(problem, random)

        def judged(results: dict) -> tuple[int, int]:
            given = (made, problem, args.kernel, chosen.config)
            verdict = mixtures.judged(results["c"], *given, launch=True)
            return verdict.failures, verdict.size

        routing = {"ids": made.routing.ids.tolist(), "weights": made.routing.weights.tolist()}
        return Quantised(made.operands, None, judged, about={"routing": routing})

    return Described(problem, device, chosen, f"random, seed {args.seed}", quantised)
