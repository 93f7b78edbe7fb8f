"""Glue between products, in Triton: SiLU of the gate times what goes up.

both    [rows, 2 width] float16 or bfloat16, gate before up
result  [rows, width]; fp32 between, rounded once

For the order of launches see ``fused``.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

COLUMNS = 1024  # of a block
WARPS = 4


@triton.jit
def gate_kernel(both, result, width, COLUMNS: tl.constexpr):
    gdc_launch_dependents()
    row, column = tl.program_id(1), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mine, place = column < width, both + row * 2 * width + column
    gdc_wait()
    gate = tl.load(place, mask=mine, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=mine, other=0.0).to(tl.float32)
    found = gate / (1 + tl.exp(-gate)) * up
    tl.store(result + row * width + column, found.to(both.dtype.element_ty), mask=mine)


def gated(both):
    rows, width = both.shape[0], both.shape[1] // 2
    result = both.new_empty((rows, width))
    grid = (triton.cdiv(width, COLUMNS), rows)
    gate_kernel[grid](both, result, width, COLUMNS=COLUMNS, num_warps=WARPS, launch_pdl=True)
    return result
