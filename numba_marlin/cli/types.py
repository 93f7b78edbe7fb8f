"""The types of a product on the command line: options that mean the same in every verb that has
them (``run``, ``explain``, ``bench``), and which of them go with which weights."""

from __future__ import annotations

# option -> its default, of those that describe a quantised weight and no block-scaled operands
_OF_WEIGHTS = {
    "bits": 4,
    "zeros": "none",
    "codes": "integer",
    "batch_invariant": False,
    "method": "rtn",
}


def add_type_arguments(parser) -> None:
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16"),
        default="float16",
        help="type of activations, scales and results (default float16); with --format: of results",
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=(4, 8),
        default=_OF_WEIGHTS["bits"],
        help="bits of a weight (default 4)",
    )
    parser.add_argument(
        "--zeros",
        choices=("none", "integer", "float16"),
        default=_OF_WEIGHTS["zeros"],
        help="zero points (default none: symmetric)",
    )


def types_of(args) -> dict:
    """The fields of the problem (``problems``) that these options decide. Raises ValueError, which
    names them, for options that do not go with --format."""
    if args.format is not None:
        given = [
            f"--{name.replace('_', '-')}"
            for name, default in _OF_WEIGHTS.items()
            if getattr(args, name, default) != default
        ]
        if given:
            raise ValueError(
                f"--format {args.format} is of two block-scaled operands: leave out"
                f" {' and '.join(given)}"
            )
        return {"format": args.format, "result": args.dtype}
    types = {
        "dtype": args.dtype,
        "bits": args.bits,
        "zeros": None if args.zeros == "none" else args.zeros,
        "batch_invariant": args.batch_invariant,
    }
    codes = getattr(args, "codes", "integer")
    return types | ({"scale_dtype": args.dtype} if codes == "integer" else {"codes": codes})


def dtype_of(args):
    """--dtype as a np.dtype. Raises CapabilityMissing without the library that has it."""
    from numba_marlin.errors import CapabilityMissing
    from numba_marlin.formats.floats import float_type

    try:
        return float_type(args.dtype)
    except ImportError as error:
        raise CapabilityMissing(str(error)) from error
