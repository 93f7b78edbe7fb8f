"""What declarations of kernels for mixtures of experts share."""

from __future__ import annotations

from numba_marlin.kernels.language.definition import TakesExperts

TAKES = TakesExperts(
    dtypes=tuple(
        (dtype, scales) for dtype in ("float16", "bfloat16") for scales in ("float16", "bfloat16")
    ),
    bits=(4, 8),
    zeros=(None, "integer", "float16"),
    bias=True,
    column_step=8,
    group_sizes=(-1, 32, 64, 128, 256),
    fp4_groups=(16, 32),
)
PARAMETERS = (
    ("a", "u64"),
    ("b", "u64"),
    ("c", "u64"),
    ("scales", "u64"),
    ("zeros", "u64"),
    ("factors", "u64"),
    ("bias", "u64"),
    ("partials", "u64"),
    ("locks", "u64"),
    ("pairs", "u64"),
    ("offsets", "u64"),
    ("weights", "u64"),
    ("n", "i32"),
    ("k", "i32"),
    ("a_stride", "i32"),
)
DIVISION = (
    "The rows of each expert are cut into blocks of rows, and those times columns are tiles; the"
    " tiles of all experts in a row are cut into equal stripes, one for each block, so that every"
    " block reads as many bytes however uneven the routing is."
)
