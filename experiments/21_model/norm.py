"""Glue between products, in Triton: a residual addition and RMSNorm in one kernel, a block a row.

x, more   [rows, width] float16 or bfloat16, width a power of two (ValueError otherwise)
weight    [width] of that type; no kernel may be writing it
eps       1e-5

``add_norm`` -> (x + more, rounded; its norm), ``norm`` -> the norm of x. A row is added
up in fp32 and rounded once. For the order of launches see ``fused``.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

EPS = tl.constexpr(1e-5)
WARPS = 8  # a guess: other numbers were not measured


@triton.jit
def normed(row, weight, WIDTH: tl.constexpr):
    """row, weight [WIDTH] fp32 -> fp32"""
    return row * tl.rsqrt(tl.sum(row * row) / WIDTH + EPS) * weight


@triton.jit
def add_norm_kernel(x, more, weight, total, result, ADD: tl.constexpr, WIDTH: tl.constexpr):
    gdc_launch_dependents()
    column = tl.arange(0, WIDTH)
    scale = tl.load(weight + column).to(tl.float32)
    place = tl.program_id(0) * WIDTH + column
    gdc_wait()
    row = tl.load(x + place)
    if ADD:
        row = (row.to(tl.float32) + tl.load(more + place).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + place, row)
    tl.store(result + place, normed(row.to(tl.float32), scale, WIDTH).to(x.dtype.element_ty))


def check_width(width: int) -> None:
    if width & (width - 1):
        raise ValueError(f"width={width} must be a power of two")


def norm(x, weight):
    return _launch(x, x, weight, x, False)


def add_norm(x, more, weight):
    total = x.new_empty(x.shape)
    return total, _launch(x, more, weight, total, True)


def _launch(x, more, weight, total, add: bool):
    rows, width = x.shape
    check_width(width)
    result = x.new_empty(x.shape)
    add_norm_kernel[(rows,)](
        x, more, weight, total, result, ADD=add, WIDTH=width, num_warps=WARPS, launch_pdl=True
    )
    return result
