"""What ``moe_matmul`` does where no launch does it: ``looped``, ``matmul`` for one expert after the
other, and ``activated``, gate and up in a pass behind a launch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from numba_marlin.api.matmul import matmul
from numba_marlin.execution import arrays
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.routing import Routing


def flat(x):
    """[m, top_k, k] -> [m top_k, k]; a copy only where it cannot be a view."""
    return x.reshape(-1, x.shape[-1])


def looped(x, experts, routing: Routing, bias, combine: bool, **options):
    """The products, [m, top_k, n], or with ``combine`` [m, n]: of each expert's rows, gathered and
    scattered. x: as that of ``moe_matmul``, or quantised, with a row for each token or each pair.
    options: of ``matmul``."""
    quantised, top_k = isinstance(x, QuantizedActivations), routing.top_k
    view = arrays.view("x", x.codes if quantised else x)
    dtype = x.dtype if quantised else None
    result = arrays.empty_like(view, (routing.m * top_k, experts.n), dtype)
    offsets = routing.on_host().offsets
    if offsets[-1] < len(result):
        result[...] = 0
    for expert in range(len(experts)):
        begin, end = int(offsets[expert]), int(offsets[expert + 1])
        if begin == end:
            continue
        pairs = routing.pairs[begin:end]
        of_expert = None if bias is None else bias[expert]
        rows = _taken(x, pairs, routing)
        result[pairs] = matmul(rows, experts[expert], bias=of_expert, **options)
    result = result.reshape(routing.m, top_k, experts.n)
    return _summed(result, routing) if combine else result


def _taken(x, pairs, routing: Routing):
    """The rows of some pairs."""
    if isinstance(x, QuantizedActivations):
        rows = pairs // routing.top_k if x.m == routing.m else pairs
        return x.rows(rows)
    return x[pairs // routing.top_k] if len(x.shape) == 2 else flat(x)[pairs]


def _summed(rows: Any, routing: Routing):
    """[m, top_k, n] -> [m, n]: in fp32, expert after expert, rounded once."""
    numpy = isinstance(rows, np.ndarray)
    total = 0
    for slot in range(routing.top_k):
        row = rows[:, slot].astype(np.float32) if numpy else rows[:, slot].float()
        total = total + routing.weights[:, slot, None] * row
    return round_to(total, rows.dtype) if numpy else total.to(rows.dtype)


def activated(rows: Any, activation: str):
    """[..., 2 h] -> [..., h], of the rows' type."""
    if isinstance(rows, np.ndarray):
        from numba_marlin.reference.experts import activate

        return round_to(activate(rows.astype(np.float32), activation), rows.dtype)
    torch = sys.modules["torch"]
    gate, up = rows.float().chunk(2, dim=-1)
    if activation == "silu":
        return (torch.nn.functional.silu(gate) * up).to(rows.dtype)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).to(rows.dtype)
