"""C of the kernels of two block-scaled operands, the *source*: which types it may have. Pure."""

# types of C -> bytes of an element
SOURCE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
HALVES = ("float16", "bfloat16")


def checked_c_dtype(source: bool, c_dtype: str | None, result: str) -> str | None:
    """``c_dtype`` of a configuration: None where C has the type of D, 16 bits, or there is none, so
    that there is one way to say so. ValueError for a type that C cannot have, or that is not
    said."""
    if c_dtype is not None and (not source or c_dtype not in SOURCE_BYTES):
        raise ValueError(
            f"c_dtype={c_dtype!r} with source={source} must be one of {', '.join(SOURCE_BYTES)}"
            " with a source, else None"
        )
    if source and c_dtype is None and result not in HALVES:
        raise ValueError(
            f"source=True with result={result!r}: c_dtype must say the type of C, which is that of"
            " D only if this is float16 or bfloat16"
        )
    return None if c_dtype == result and result in HALVES else c_dtype
