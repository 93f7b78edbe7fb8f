"""Routers on a device, in torch: what ``reference.routing`` says; nothing waits for the device."""

from __future__ import annotations

import sys
from typing import Any

from numba_marlin.reference.routing import LEAST_SUM, check_router


def chosen_experts(
    logits: Any,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: Any = None,
    normalize: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
) -> tuple[Any, Any]:
    """logits: a torch tensor [m, experts] -> (ids int32, weights float32), both [m, top_k]. What is
    not finite is not looked for."""
    torch = sys.modules["torch"]
    of_bias = None if bias is None else tuple(bias.shape)
    check_router(tuple(logits.shape), top_k, scoring, of_bias, groups, top_groups)
    logits = logits.float()
    scores = logits.softmax(dim=1) if scoring == "softmax" else logits.sigmoid()
    ranked = scores if bias is None else scores + bias.float()
    if groups > 1:
        of_group = ranked.reshape(len(ranked), groups, -1)
        best_two = of_group.topk(2, dim=2).values.sum(dim=2)
        held = torch.sort(best_two, dim=1, descending=True, stable=True).indices[:, :top_groups]
        allowed = torch.zeros_like(best_two, dtype=torch.bool).scatter_(1, held, True)
        ranked = of_group.masked_fill(~allowed[:, :, None], -torch.inf).reshape(ranked.shape)
    ids = torch.sort(ranked, dim=1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, ids)
    if normalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + float(LEAST_SUM))
    return ids.to(torch.int32), weights * scale
