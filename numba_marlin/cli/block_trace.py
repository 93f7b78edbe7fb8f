"""``numba-marlin trace`` of a kernel that multiplies two block-scaled operands: the operands, the
run, and what is told about it."""

from __future__ import annotations


def recorded(args, report):
    """(trace, whether the product is right) of the problem that the arguments describe."""
    from dataclasses import asdict, fields, replace

    import numpy as np

    from numba_marlin import compiler
    from numba_marlin import trace as room
    from numba_marlin.cli.trace import (
        ALL_BLOCKS,
        check_place,
        config_changes,
        stored_layer,
    )
    from numba_marlin.execution.machine import set_up
    from numba_marlin.hardware import devices
    from numba_marlin.heuristics import candidate, configured
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.problems import BlockProblem
    from numba_marlin.profile.sources.samples import of_blocks
    from numba_marlin.quantizers.operands import quantize_blocks
    from numba_marlin.reference.operands import block_scaled_bounds, within_bounds

    definition, stored = find_kernel(args.kernel), stored_layer(args)
    about, demo = definition.about, definition.about.demo
    random = np.random.default_rng(args.seed)
    given = config_changes(
        args.config or [], {each.name for each in fields(definition.config_type)}
    )
    changes = given or dict(demo.trace_changes)
    args.m = demo.trace[0] if args.m is None else args.m
    if args.input is None:
        args.n = demo.trace[1] if args.n is None else args.n
        args.k = demo.trace[2] if args.k is None else args.k
    b, n, k, source = _weight(args, stored, changes, random)
    device = replace(devices.MODEL, sms=args.sms or demo.trace_sms or devices.MODEL.sms)
    problem = BlockProblem.with_fields(args.m, n, k, changes)
    config = configured(problem, device, args.kernel, changes)
    chosen = candidate(problem, device, args.kernel, config)
    blocks = check_place(args, chosen)
    with report.step(
        f"quantising {args.m} x {k} activations and {k} x {n} weights to {problem.format}"
    ):
        a = quantize_blocks(random.standard_normal((args.m, k)).astype(np.float32), problem.format)
        b = (
            quantize_blocks(np.ascontiguousarray(b.T, np.float32), problem.format)
            if isinstance(b, np.ndarray)
            else b
        )
    with report.step(
        f"compiling {args.kernel} with line numbers for {definition.min_arch} (or reading the"
        " cache)"
    ):
        compiled = compiler.build(definition, config, target=definition.min_arch, line_info=True)
    with report.step(f"running {args.kernel} on the PTX machine and recording it"):
        sample = of_blocks(problem, a, b, random)
        binding = sample.bound(chosen, device.sms, compiled)
        launch = set_up(binding)
        trace = room.record(
            launch.machine,
            blocks=None if blocks <= ALL_BLOCKS else (args.block,),
            **launch.launch,
        )
    exact, error = block_scaled_bounds(
        a,
        b,
        beta=sample.scaling.beta,
        c=sample.operands["c"],
        bias=sample.operands["bias"],
        activation=problem.activation,
    )
    right = within_bounds(sample.result(launch.results), exact, error, problem.rounding)
    trace.header["about"] = {
        "kernel": args.kernel,
        "config": asdict(config),
        "reasons": [
            *chosen.reasons,
            *([demo.trace_why] if demo.trace_why and not given else []),
        ],
        "weight": source,
        "problem": problem.to_dict(),
        "compiled": {"registers": compiled.resources.registers, "compiler": compiled.compiler},
        "check": {"ok": bool(right.all()), "outputs": right.size, "failures": int((~right).sum())},
        "boxes": binding.boxes,
        **about.of_run(config, trace.header["launch"]["shared_base"]),
    }
    return trace, bool(right.all())


def _weight(args, stored, changes: dict, random):
    """(B as a BlockScaled, or a float weight [k, n] that is to become one; n; k; where it came
    from). ``changes`` get the format that was asked for or found."""
    from numba_marlin.cli.kernels import shown_for
    from numba_marlin.cli.run import weight_of
    from numba_marlin.cli.trace import WEIGHTS
    from numba_marlin.formats.block_weight import BlockWeight
    from numba_marlin.formats.operands import from_weight
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.problems import WeightProblem

    if stored is None:
        kind = args.weights or changes.get("format", "nvfp4")
        if kind in ("int4", "int8"):
            raise ValueError(
                f"--weights {kind} is for other kernels: {args.kernel} multiplies block-scaled"
                " floats, nvfp4 unless --weights says otherwise"
            )
        if args.group_size not in (None, WEIGHTS.get(kind, (None, None))[1]):
            raise ValueError(
                f"--group-size {args.group_size} does not fit {kind}, whose blocks are what they"
                " are: leave it out"
            )
        weight = weight_of(args, random)
        (k, n), found, source = weight.values.shape, weight.values, weight.source
    else:
        weight, source = stored
        if not isinstance(weight, BlockWeight):
            other = shown_for(WeightProblem.of(args.m, weight))
            raise ValueError(
                f"{source} is no block-scaled layer, and {args.kernel} multiplies nothing else:"
                f" choose another kernel (--kernel {other}), or another layer"
            )
        found = from_weight(weight)
        kind, (n, k) = found.format, found.shape
    formats = find_kernel(args.kernel).takes.formats
    if kind not in formats or changes.get("format", kind) != kind:
        raise ValueError(
            f"{kind} operands are not for {args.kernel}, which multiplies {', '.join(formats)}"
            if kind not in formats
            else f"--config format={changes['format']} contradicts {kind} of the weights"
        )
    if len(formats) > 1:
        changes["format"] = kind
    return found, n, k, source
