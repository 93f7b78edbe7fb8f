"""What ``numba-marlin trace`` runs: the problem that its arguments describe, a kernel for it, and
its operands, which are activations and a quantised weight, or two block-scaled matrices."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numba_marlin.cli import activations, mixtures
from numba_marlin.cli.kernels import multiplies_operands, shown_first, shown_for

GROUP_SIZE = 128  # default
# kind of weight -> (bits of a code, rows that share a scale; None: --group-size)
WEIGHTS = {
    "int4": (4, None),
    "int8": (8, None),
    "nvfp4": (4, 16),
    "mxfp4": (4, 32),
    "mxfp8-e4m3": (8, 32),
}


_INTEGER = re.compile(r"-?[0-9]{1,18}")
# of a field of a configuration -> what it must be, in words
_TYPES = {int: "int", bool: "bool: true or false", type(None): "none"}


@dataclass(frozen=True, eq=False)
class Quantised:
    """The operands of a launch.

    operands: {parameter: array}.
    scaling: a ``binding.Scaling``, or None for a quantised weight.
    judged: function of {parameter: result} -> (number of outputs out of their bounds, number of
        outputs).
    floats: some of the floats that were quantised, as ``trace.pages.weights`` shows them, or None.
    about: what else the trace keeps.
    """

    operands: dict[str, Any]
    scaling: Any
    judged: Callable[[dict], tuple[int, int]]
    floats: dict[str, Any] | None = None
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Described:
    """A problem, the device that the PTX machine models, and the candidate chosen for them.

    source: where the weight is from.
    quantised: function that quantises the operands, which takes time.
    reasons: for the choice, in addition to the candidate's.
    """

    problem: Any
    device: Any
    chosen: Any
    source: str
    quantised: Callable[[], Quantised]
    reasons: tuple[str, ...] = ()


def described(args) -> Described:
    """Return what the arguments describe. Omitted arguments default to the kernel's demonstration.
    Raises ValueError for arguments that contradict each other."""
    if mixtures.asked(args):
        from numba_marlin.cli.traced_experts import described as of_experts

        return of_experts(args)
    return (_two_operands if multiplies_operands(args.kernel) else _one_weight)(args)


def _one_weight(args) -> Described:
    from dataclasses import replace

    import numpy as np

    from numba_marlin import api, reference
    from numba_marlin.cli.weights import weight_of
    from numba_marlin.execution.binding import activation_operands, weight_operands
    from numba_marlin.formats import PackedWeight
    from numba_marlin.formats.fp4_marlin import PackedBlocks
    from numba_marlin.hardware import devices
    from numba_marlin.heuristics import candidate
    from numba_marlin.kernels.registry import find_kernel, kernels
    from numba_marlin.problems import OPERANDS, ActivationsProblem, WeightProblem

    shown = find_kernel(args.kernel or shown_first()).about.demo.trace
    args.m = shown[0] if args.m is None else args.m
    random = np.random.default_rng(args.seed)
    stored = stored_layer(args)
    if stored is None:
        kind = args.weights or "int4"
        bits, block_rows = WEIGHTS[kind]
        if kind == "mxfp8-e4m3":
            able = [each.name for each in kernels(OPERANDS) if "mxfp8-e4m3" in each.takes.formats]
            raise ValueError(
                f"--weights mxfp8-e4m3 is for --kernel {' or '.join(able)}: no other kernel"
                " multiplies 8-bit floats"
            )
        if block_rows is not None and args.group_size not in (None, block_rows):
            raise ValueError(
                f"--group-size {args.group_size} must be {block_rows} for --weights {kind}: omit it"
            )
        args.group_size = (
            args.group_size if args.group_size is not None else block_rows or GROUP_SIZE
        )
        if args.input is None:
            args.n = shown[1] if args.n is None else args.n
            args.k = shown[2] if args.k is None else args.k
        weight = weight_of(args, random)
        (k, n), source = weight.shape, weight.source
        problem = WeightProblem(
            args.m,
            n,
            k,
            args.group_size,
            bits=bits,
            codes="integer" if block_rows is None else "e2m1",
        )
    else:
        stored, source = stored
        stored = stored if isinstance(stored, (PackedWeight, PackedBlocks)) else api.pack(stored)
        problem = WeightProblem.of(args.m, stored)
    of_x = activations.fields(args)
    if of_x:
        problem = ActivationsProblem(**problem.to_dict(), **of_x)
    args.kernel = args.kernel or shown_for(problem)
    device = devices.MODEL if args.sms is None else replace(devices.MODEL, sms=args.sms)
    config = (
        None
        if args.config is None
        else changed_config(args.config, candidate(problem, device, args.kernel).config)
    )

    def quantised() -> Quantised:
        packed, shown = stored, None
        if packed is None and block_rows is not None:
            packed = api.pack(in_blocks(weight.values, kind))
        elif packed is None:
            values = weight.values if args.floats is None else _with_floats(weight.values, args)
            found = api.quantize(values, bits=bits, group_size=args.group_size)
            packed, shown = api.pack(found), _shown_floats(values, found, args.floats is not None)
        x = random.standard_normal((args.m, problem.k)).astype(np.float16)
        if of_x:
            x = api.quantize_activations(x, of_x["activations"])

        def judged(results: dict) -> tuple[int, int]:
            if of_x:
                verdict, other_bits = activations.judged(results["c"], x, packed, chosen)
                return other_bits or verdict.failures, verdict.size
            method = find_kernel(chosen.kernel).method(chosen.config)
            verdict = reference.check(results["c"], x, packed, order="random", method=method)
            return verdict.failures, verdict.size

        operands = weight_operands(packed) | (activation_operands(x) if of_x else {"a": x})
        return Quantised(operands, None, judged, shown)

    chosen = candidate(problem, device, args.kernel, config)
    return Described(problem, device, chosen, source, quantised)


def _two_operands(args) -> Described:
    from dataclasses import replace

    import numpy as np

    from numba_marlin.cli.weights import Drawn, Weight
    from numba_marlin.hardware import devices
    from numba_marlin.heuristics import candidate, configured
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.problems import BlockProblem
    from numba_marlin.profile.sources.samples import of_blocks
    from numba_marlin.quantizers.operands import quantize_blocks
    from numba_marlin.reference.operands import block_scaled_bounds, within_bounds

    activations.refuse(args)
    definition, stored = find_kernel(args.kernel), stored_layer(args)
    demo = definition.about.demo
    random = np.random.default_rng(args.seed)
    given = config_changes(args.config or [], definition.config_type)
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

    def quantised() -> Quantised:
        other = b
        if isinstance(b, (Weight, Drawn)):  # drawn before the activations are
            other = quantize_blocks(np.ascontiguousarray(b.values.T, np.float32), problem.format)
        a = quantize_blocks(random.standard_normal((args.m, k)).astype(np.float32), problem.format)
        sample = of_blocks(problem, a, other, random)

        def judged(results: dict) -> tuple[int, int]:
            exact, error = block_scaled_bounds(
                a,
                other,
                beta=sample.scaling.beta,
                c=sample.operands["c"],
                bias=sample.operands["bias"],
                activation=problem.activation,
            )
            right = within_bounds(sample.result(results), exact, error, problem.rounding)
            return int((~right).sum()), right.size

        return Quantised(sample.operands, sample.scaling, judged)

    reasons = (demo.trace_why,) if demo.trace_why and not given else ()
    return Described(problem, device, chosen, source, quantised, reasons)


def _weight(args, stored, changes: dict, random):
    """Return (B, n, k, where B is from). B is a BlockScaled, or a float Weight [k, n] that is still
    to be quantised. Adds its format to ``changes`` if the kernel takes several."""
    from numba_marlin.cli.weights import weight_of
    from numba_marlin.formats.block_weight import BlockWeight
    from numba_marlin.formats.operands import from_weight
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.problems import WeightProblem

    if stored is None:
        kind = args.weights or changes.get("format", "nvfp4")
        if kind in ("int4", "int8"):
            raise ValueError(
                f"--weights {kind} is for other kernels: {args.kernel} multiplies block-scaled"
                " floats (default nvfp4)"
            )
        if args.group_size not in (None, WEIGHTS.get(kind, (None, None))[1]):
            raise ValueError(
                f"--group-size {args.group_size} does not fit {kind}, whose blocks have a fixed"
                " size: omit it"
            )
        weight = weight_of(args, random)
        (k, n), found, source = weight.shape, weight, weight.source
    else:
        weight, source = stored
        if not isinstance(weight, BlockWeight):
            other = shown_for(WeightProblem.of(args.m, weight))
            raise ValueError(
                f"{source} is not a block-scaled layer, but {args.kernel} multiplies only those:"
                f" choose another kernel (--kernel {other}) or another layer"
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


FLOATS = 8  # weights that are followed from floats to bytes


def _with_floats(values, args):
    """Return a copy of weights [k, n] whose column 0 begins with --floats; the rest of their group
    is 0, so that they alone determine its scale."""
    import numpy as np

    changed = np.array(values, np.float32)
    rows = len(changed) if args.group_size == -1 else args.group_size
    changed[:rows, 0] = 0
    changed[: len(args.floats), 0] = args.floats
    return changed


def _shown_floats(values, found, given: bool) -> dict[str, Any]:
    """Return the first weights of column 0 with their scale and codes."""
    count = min(FLOATS, values.shape[0])
    return {
        "values": [float(each) for each in values[:count, 0]],
        "k": list(range(count)),
        "n": 0,
        "scale": float(found.scales[0, 0]),
        "codes": [int(each) for each in found.codes[:count, 0]],
        "group_size": values.shape[0] if found.group_size == -1 else found.group_size,
        "bits": found.bits,
        "given": given,
    }


def check_floats(args) -> None:
    """Raise ValueError if --floats are too many, no numbers, or not for these weights."""
    from math import isfinite

    if args.floats is None:
        return
    if multiplies_operands(args.kernel) or args.weights not in (None, "int4", "int8"):
        raise ValueError("--floats are quantised to integer codes: omit --weights, or give int4")
    if args.input is not None:
        raise ValueError("--floats replace random weights; omit --input")
    if len(args.floats) > FLOATS or not all(map(isfinite, args.floats)):
        raise ValueError(f"--floats must be at most {FLOATS} finite numbers")


def stored_layer(args):
    """Return (weight, where it is from) if --input is a quantised checkpoint, else None. Raises
    ValueError for --sms below 1, and for options that contradict such a checkpoint."""
    if args.sms is not None and args.sms < 1:
        raise ValueError(f"--sms {args.sms} must be at least 1")
    from numba_marlin.cli.weights import layer

    found = None if args.input is None else layer(args.input, args.tensor, args.transpose)
    for name in ("n", "k", "weights", "group_size"):
        if found is not None and getattr(args, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} is for weights that are quantised here; {found[1]}"
                " determines it"
            )
    return found


def in_blocks(values, kind: str):
    """Quantise float values [k, n] to a BlockWeight of NVFP4 or MXFP4, rounding to nearest."""
    import numpy as np

    from numba_marlin.formats.operands import to_weight
    from numba_marlin.quantizers.operands import quantize_blocks

    return to_weight(quantize_blocks(np.ascontiguousarray(values.T, np.float32), kind))


def changed_config(texts: list[str], default):
    """Return the configuration ``default`` with the fields of "NAME=VALUE" texts replaced. Raises
    ValueError, which lists the known names, for any other text."""
    from dataclasses import replace

    return replace(default, **config_changes(texts, type(default)))


def config_changes(texts: list[str], config_type: type) -> dict:
    """Parse "NAME=VALUE" texts into {name: bool, None, int or str}. Raises ValueError for a name
    that is no field of the dataclass ``config_type``, and for a value of another type than it
    has."""
    from dataclasses import fields
    from typing import get_args, get_type_hints

    from numba_marlin.wording import did_you_mean

    known, hints = sorted(each.name for each in fields(config_type)), get_type_hints(config_type)
    changes = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known or not value:
            guess = "" if name in known else did_you_mean(name, known)
            raise ValueError(
                f"--config {text} must be NAME=VALUE with one of {', '.join(known)}{guess}"
            )
        parsed = {"true": True, "false": False, "none": None}.get(
            value.lower(), int(value) if _INTEGER.fullmatch(value) else value
        )
        allowed = get_args(hints[name]) or (hints[name],)
        if type(parsed) not in allowed:
            words = " or ".join(_TYPES.get(each, each.__name__) for each in allowed)
            raise ValueError(f"--config {text}: {name} must be {words}")
        changes[name] = parsed
    return changes
