"""``numba-marlin methods``: the error of each layer's outputs by each method of quantising, side by
side. Nothing is written.

SRC, ``--tensor``, ``--calib`` and the options of a method are those of ``quantize``. Integers
take ``--bits``, ``--group-size`` and ``--asymmetric``; NVFP4 and MXFP4 have their own sizes.
"""

from __future__ import annotations

HELP = "compare methods of quantising by the error of each layer's outputs"
EXAMPLES = """  numba-marlin methods w.npy --calib x.npy
  numba-marlin methods model/ --tensor '*_proj.weight' --calib texts.txt
  numba-marlin methods model/ --tensor '*_proj.weight' --hessians h.safetensors \\
      --methods rtn,gptq,nvfp4 --group-size 64"""
INTEGER = ("rtn", "mse", "gptq")
FLOATS = ("nvfp4", "mxfp4")


def add_arguments(parser) -> None:
    from numba_marlin.cli.quantize import add_number_arguments, add_source_arguments

    add_source_arguments(parser)
    parser.add_argument(
        "--methods",
        metavar="LIST",
        default=",".join(INTEGER),
        help=f"of {', '.join((*INTEGER, *FLOATS))}, separated by commas (default"
        f" {','.join(INTEGER)})",
    )
    add_number_arguments(parser)


def execute(args, report) -> bool:
    from numba_marlin.calibration import MethodComparison, compare_methods
    from numba_marlin.cli.calibration import hessians
    from numba_marlin.cli.float_source import float_source
    from numba_marlin.cli.progress import bar

    methods = _methods(args)
    if args.calib is None and args.hessians is None:
        raise ValueError(
            "the outputs need inputs: --calib FILE (.npy, .safetensors, .txt) or --hessians FILE"
        )
    source = float_source(args, report)
    found = hessians(args, report, source)
    errors, shapes = {}, {}
    with bar("comparing", "layers") as advance:
        for number, name in enumerate(source.layers):
            advance(number, len(source.layers), name)
            one = compare_methods({name: source.layers[name]}, found, methods)
            errors |= one.errors
            shapes |= one.shapes
        advance(len(source.layers), len(source.layers), "")
    table = MethodComparison(errors, shapes)
    report.text("error of the outputs, |x (Q - W)| / |x W|:")
    report.text(str(table))
    report.data |= {"source": str(args.source), **table.to_dict()}
    return True


def _methods(args) -> dict[str, dict]:
    """Name -> options of ``nm.quantize``. ValueError for names that do not exist, and for options
    that none of the methods takes."""
    from numba_marlin.cli.quantize import GPTQ_ONLY, gptq_options
    from numba_marlin.wording import did_you_mean

    names = [name.strip() for name in args.methods.split(",")]
    for name in names:
        if name not in INTEGER + FLOATS or names.count(name) > 1:
            near = did_you_mean(name, INTEGER + FLOATS)
            raise ValueError(
                f"--methods {args.methods}: {name!r} must be one of"
                f" {', '.join(INTEGER + FLOATS)}, once{'' if name in INTEGER + FLOATS else near}"
            )
    for option in GPTQ_ONLY:
        if "gptq" not in names and getattr(args, option) not in (None, False):
            raise ValueError(f"--{option.replace('_', '-')} is for gptq, add it to --methods")
    if not set(names) & set(INTEGER):
        for option in ("bits", "group_size", "asymmetric"):
            if getattr(args, option) not in (None, False):
                raise ValueError(
                    f"--{option.replace('_', '-')} is for {', '.join(INTEGER)}, add one to"
                    " --methods"
                )
    numbers = {
        "bits": args.bits,
        "group_size": args.group_size,
        "symmetric": not args.asymmetric,
    }
    return {
        name: {"format": name}
        if name in FLOATS
        else {"method": name, **numbers, **(gptq_options(args) if name == "gptq" else {})}
        for name in names
    }
