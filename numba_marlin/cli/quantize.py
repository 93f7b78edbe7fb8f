"""``numba-marlin quantize``: quantises float matrices of a file or directory, writes them to a new
checkpoint, and copies all other tensors.

``--format`` also decides which numbers they become (``StoredFormat.numbers``): integer codes, or
block-scaled floats, whose bits and blocks are the format's and which are rounded to nearest.

SRC is a .npy file (one matrix), a .safetensors file or a directory of those. ``--tensor`` patterns
choose the matrices; without them SRC must contain exactly one. A tensor "a.b.weight" becomes the
layer "a.b" of DST, and a .npy file becomes the layer "weight". A directory's config.json and small
files (tokenizers and the like) go along. ``--calib`` and ``--hessians`` (``calibration``) give GPTQ
what it needs, and any method the error of the layer's outputs.

Which way the matrices of a checkpoint lie is inferred (``orientation``), said, and refused where
that is not clear; a .npy file holds [k, n] unless ``--transpose``.

Layers are quantised one after the other while DST is written. DST is written under a temporary name
and renamed when it is complete. Memory holds one float matrix, its codes and its Hessian at a time.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path

HELP = "quantise float weights: round to nearest, search scales, or GPTQ with calibration data"
EXAMPLES = """  numba-marlin quantize w.npy q.safetensors
  numba-marlin quantize w.npy q.safetensors --method gptq --calib x.npy
  numba-marlin quantize w.npy q.safetensors --format nvfp4-pack-quantized
  numba-marlin quantize model/ model-int4/ --tensor '*_proj.weight' \\
      --method gptq --calib inputs.safetensors --act-order --format gptq
  numba-marlin quantize model/ model-int4/ --tensor '*_proj.weight' \\
      --method gptq --calib texts.txt --hessians h.safetensors"""
# Listed here because --help does not load NumPy; a test compares the list with the registry.
FORMATS = (
    "marlin",
    "gptq",
    "gptq_v2",
    "awq",
    "vllm-marlin",
    "pack-quantized",
    "modelopt-nvfp4",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
GPTQ_ONLY = ("damping", "no_clip", "act_order", "static_groups")


def add_arguments(parser) -> None:
    add_source_arguments(parser)
    parser.add_argument(
        "target",
        metavar="DST",
        help="the .safetensors file or directory to write; must not exist",
    )
    parser.add_argument(
        "--method",
        choices=("rtn", "mse", "gptq"),
        default="rtn",
        help="rtn: round to nearest (default); mse: rtn with a search for scales; gptq: GPTQ",
    )
    add_number_arguments(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="marlin",
        help="format of DST (default marlin); those of NVFP4 and MXFP4 hold block-scaled floats",
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="write even if the format cannot store everything",
    )


def add_source_arguments(parser) -> None:
    """What is quantised, and on which inputs it is judged."""
    parser.add_argument(
        "source", metavar="SRC", help="float weights: .npy, .safetensors or a directory of those"
    )
    parser.add_argument(
        "--calib",
        metavar="FILE",
        help="inputs of the layer, .npy [..., k]; of several layers, .safetensors; or texts, .txt,"
        " one a line, on which transformers runs the model in SRC",
    )
    parser.add_argument(
        "--hessians",
        metavar="FILE.safetensors",
        help="the layers' Hessians: in place of --calib; beside it, where they are written",
    )
    parser.add_argument(
        "--tensor",
        metavar="PATTERN",
        action="append",
        help="names of the tensors to quantise, with * and ?; may be repeated",
    )
    parser.add_argument(
        "--transpose",
        action=argparse.BooleanOptionalAction,
        help="the file holds [n, k], as torch.nn.Linear does, or [k, n] (default: inferred from"
        " config.json and biases; [k, n] for .npy)",
    )


def add_number_arguments(parser) -> None:
    """How it is quantised."""
    parser.add_argument("--bits", type=int, choices=(4, 8), help="bits of a code (default 4)")
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="G",
        help="rows that share a scale; -1: all (default 128, or the format's block)",
    )
    parser.add_argument("--asymmetric", action="store_true", help="quantise with zero points")
    parser.add_argument(
        "--damping",
        type=float,
        metavar="D",
        help="gptq: added to the Hessian's diagonal, in units of its mean (default 0.01)",
    )
    parser.add_argument(
        "--no-clip", action="store_true", help="gptq: no search for scales: grids span all weights"
    )
    parser.add_argument(
        "--act-order", action="store_true", help="gptq: quantise rows with the largest inputs first"
    )
    parser.add_argument(
        "--static-groups",
        action="store_true",
        help="gptq: with --act-order, groups are neighbouring rows, so that no g_idx is stored",
    )


def execute(args, report) -> bool:
    from numba_marlin import checkpoints
    from numba_marlin.checkpoints.companions import links_out
    from numba_marlin.cli.calibration import hessians
    from numba_marlin.cli.float_source import float_source
    from numba_marlin.cli.progress import bar
    from numba_marlin.formats.files import find_stored

    _settle_numbers(args, find_stored(args.format))
    if args.method != "gptq":
        for name in GPTQ_ONLY:
            if getattr(args, name) not in (None, False):
                raise ValueError(f"--{name.replace('_', '-')} is for --method gptq")
    elif args.calib is None and args.hessians is None:
        raise ValueError("--method gptq needs --calib FILE: inputs of the layer (or --hessians)")
    if args.damping is not None and not 0 <= args.damping < math.inf:
        raise ValueError(f"--damping {args.damping} must be a finite number, 0 or more")
    if Path(args.target).exists():
        raise ValueError(
            f"{args.target} exists: a checkpoint is never overwritten; remove it or choose another"
            " name"
        )
    source = float_source(args, report)
    for name, shape in source.shapes.items():
        _check_holds(args, name, *shape)
    others = source.others
    report.data |= {
        "source": str(args.source),
        "method": args.method,
        "format": args.format,
        "layers": {},
    }
    inputs = hessians(args, report, source)
    start = time.perf_counter()
    with bar("quantising", "weights") as advance:
        quantised = _Quantised(args, report, source, inputs, advance)
        written = checkpoints.save_checkpoint(
            args.target,
            quantised,
            args.format,
            others=others,
            config=source.config,
            companions=source.directory,
            allow_loss=args.allow_loss,
        )
    nbytes = sum(
        file.stat().st_size
        for file in ([written] if written.is_file() else written.glob("*.safetensors"))
    )
    links = [] if source.directory is None else links_out(source.directory)
    if links:
        report.row("links", f"not copied, as they lead out of {args.source}: {', '.join(links)}")
    copied = f", {len(others)} other tensors copied" if others else ""
    report.row(
        "wrote",
        f"{written}: {len(quantised)} layers, {nbytes:,} bytes, format {args.format}{copied},"
        f" {time.perf_counter() - start:.1f} s",
    )
    report.data |= {
        "target": str(written),
        "bytes": nbytes,
        "copied": sorted(others),
        "links_not_copied": links,
        "seconds": round(time.perf_counter() - start, 3),
    }
    return True


def _settle_numbers(args, form) -> None:
    """Replace --bits and --group-size by what they are if they were left out. Raises ValueError,
    which names them all, for options that do not go with the numbers of format ``form``."""
    from numba_marlin.formats.operands import BLOCK_FORMATS

    if form.numbers == "integer":
        bits, rows, wrong = 4, 128, []
    else:
        block = BLOCK_FORMATS[form.numbers]
        bits, rows = block.bits, block.block
        said = {"method": "rtn", "bits": bits, "group_size": rows}
        wrong = [
            f"--{name.replace('_', '-')} {value}"
            for name, fixed in said.items()
            if (value := getattr(args, name)) not in (None, fixed)
        ]
        wrong += [
            f"--{name.replace('_', '-')}"
            for name in ("asymmetric", *GPTQ_ONLY)
            if getattr(args, name) not in (None, False)
        ]
    if wrong:
        raise ValueError(
            f"--format {form.name} holds {form.numbers.upper()}: {bits}-bit floats in blocks of"
            f" {rows} rows, rounded to nearest: leave out {' and '.join(wrong)}"
        )
    args.bits = bits if args.bits is None else args.bits
    args.group_size = rows if args.group_size is None else args.group_size


class _Quantised(Mapping):
    """{layer: QuantizedWeight or BlockWeight}. A weight is quantised when it is looked up, and is
    not cached."""

    def __init__(self, args, report, source, inputs, advance):
        self.args, self.report, self.inputs, self.advance = args, report, inputs, advance
        self.layers = source.layers
        self.weights = {name: k * n for name, (k, n) in source.shapes.items()}
        self.begun: list[str] = []

    def __iter__(self):
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, name: str):
        done = sum(self.weights[each] for each in self.begun)
        self.begun.append(name)
        total = sum(self.weights.values())
        self.advance(done, total, f"{name} ({len(self.begun)} of {len(self)})")
        found = _quantise(self.args, self.report, name, self.layers[name], self.inputs)
        self.advance(done + self.weights[name], total, "")
        return found


def _check_holds(args, name: str, k: int, n: int) -> None:
    """Check that DST's format can store such a weight (of integers: with a weight of zeros), before
    any weight is quantised. Raises ValueError (LossError if something would be lost)."""
    import numpy as np

    from numba_marlin.formats import QuantizedWeight
    from numba_marlin.formats.changes import LossError
    from numba_marlin.formats.files import find_stored
    from numba_marlin.formats.stored import Geometry

    form = find_stored(args.format)
    scales = np.ones((k // args.group_size if 0 < args.group_size < k else 1, n), np.float16)
    permuted = args.act_order and not args.static_groups and len(scales) > 1
    try:
        if form.numbers != "integer":
            form.specs(Geometry(k, n, args.bits, args.group_size))
            return
        weight = QuantizedWeight(
            np.zeros((k, n), np.uint8),
            scales,
            np.zeros(scales.shape, np.uint8) if args.asymmetric else None,
            args.bits,
            args.group_size,
            np.arange(k, dtype=np.int32)[::-1].copy() if permuted else None,
        )
        losses = form.losses(weight)
        form.write(weight, allow_loss=True)
    except ValueError as error:
        raise ValueError(f"{name} ({k} x {n}): {error}") from error
    if losses and not args.allow_loss:
        raise LossError(form.name, losses).about(f"layer {name!r}")


def _quantise(args, report, name: str, w, inputs):
    import numpy as np

    from numba_marlin import api
    from numba_marlin.formats.files import find_stored
    from numba_marlin.quantizers import dequantize

    form = find_stored(args.format)
    start, options = time.perf_counter(), {}
    hessian = None if inputs is None else inputs[name]
    try:
        if args.method == "gptq":
            options = {"calibration": hessian, **gptq_options(args)}
        weight = api.quantize(
            w,
            bits=args.bits,
            group_size=args.group_size,
            symmetric=not args.asymmetric,
            method=args.method,
            format=None if form.numbers == "integer" else form.numbers,
            **options,
        )
        if form.numbers != "integer":
            # A global scale that divides in this format is the inverse that the codes were made
            # with: nothing is lost, and the error below is that of what is written.
            weight, _ = form.prepare(weight)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from error
    wanted = w.astype(np.float32)
    error = dequantize(weight, np.float32) - wanted
    # the squares of very large and very small weights are no float32: the largest becomes 1
    largest = float(np.abs(wanted).max())
    wanted /= largest or 1
    error /= largest or 1
    said = {
        "k": weight.k,
        "n": weight.n,
        "bits": args.bits,
        "group_size": args.group_size,
        "relative_error": _ratio(np.square(error).sum(), np.square(wanted).sum()),
    }
    text = f"{weight.k} x {weight.n}: error {said['relative_error']:.2%} of the weights' rms"
    if hessian is not None:
        said |= {
            "calibration_rows": hessian.rows,
            "relative_output_error": hessian.output_error(w, weight),
        }
        text += (
            f", {said['relative_output_error']:.2%} of the outputs' on {hessian.rows:,} rows of"
            " calibration"
        )
    said["seconds"] = round(time.perf_counter() - start, 3)
    report.data["layers"][name] = said
    report.row("layer", f"{name}, {text}, {said['seconds']:.1f} s")
    return weight


def gptq_options(args) -> dict:
    """What of the command line is GPTQ's, as ``nm.quantize`` takes it."""
    options = {
        "clip": not args.no_clip,
        "act_order": args.act_order,
        "static_groups": args.static_groups,
    }
    return options | ({} if args.damping is None else {"damping": args.damping})


def _ratio(part: float, whole: float) -> float:
    """The ratio of the square roots of two sums of squares; 0 if ``whole`` is 0."""
    return float((max(float(part), 0.0) / float(whole)) ** 0.5) if whole else 0.0
