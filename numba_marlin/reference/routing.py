"""Routers of mixtures of experts: from a token's logits to its experts and their weights. The
reference in NumPy; ``torch.routing`` does the same on a device.

    scores   "softmax" over all experts (Mixtral, Qwen3), or "sigmoid" (DeepSeek-V3, Kimi K2)
    choice   the top_k largest scores, of equal ones the expert with the lower number first; with
             ``bias`` the largest scores + bias, which decides only the choice. With ``groups``
             experts are cut into that many groups of neighbours, and only the ``top_groups`` groups
             with the largest sum of their two best are chosen from (DeepSeek-V3)
    weights  scores of those chosen; ``normalize``: divided by their sum; times ``scale``

gpt-oss's softmax over the chosen logits is "softmax" with ``normalize``: the same numbers. All in
fp32, as models do it.
"""

from __future__ import annotations

import numpy as np

SCORINGS = ("softmax", "sigmoid")
LEAST_SUM = np.float32(1e-20)  # DeepSeek-V3's; sigmoids of -100 add up to less than nothing


def check_router(
    shape: tuple[int, ...],
    top_k: int,
    scoring: str,
    bias_shape: tuple[int, ...] | None,
    groups: int,
    top_groups: int,
) -> None:
    """ValueError, naming the value and the rule."""
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"logits.shape={shape} must be (m, experts), both at least 1")
    experts = shape[1]
    if scoring not in SCORINGS:
        raise ValueError(f"scoring={scoring!r} must be one of {', '.join(SCORINGS)}")
    if bias_shape not in (None, (experts,)):
        raise ValueError(f"bias.shape={bias_shape} must be (experts,)=({experts},)")
    for name, value, most in (("groups", groups, experts), ("top_groups", top_groups, groups)):
        if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= value <= most:
            raise ValueError(f"{name}={value!r} must be 1 to {most}")
    if experts % groups or (groups > 1 and experts // groups < 2):
        raise ValueError(f"groups={groups} must divide the {experts} experts into two or more each")
    most = experts // groups * top_groups
    if isinstance(top_k, bool) or not hasattr(top_k, "__index__") or not 1 <= top_k <= most:
        raise ValueError(f"top_k={top_k!r} must be 1 to {most}, the experts to choose from")


def chosen_experts(
    logits: np.ndarray,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: np.ndarray | None = None,
    normalize: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """logits [m, experts] -> (ids int32 [m, top_k], best first; weights float32 [m, top_k])."""
    logits = np.asarray(logits)
    check_router(
        logits.shape,
        top_k,
        scoring,
        np.shape(bias) if bias is not None else None,
        groups,
        top_groups,
    )
    logits = logits.astype(np.float32)
    if not np.isfinite(logits).all():
        token, expert = np.argwhere(~np.isfinite(logits))[0]
        raise ValueError(f"logits[{token}, {expert}]={logits[token, expert]} must be finite")
    if scoring == "softmax":
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    else:
        with np.errstate(over="ignore"):
            scores = np.float32(1) / (np.float32(1) + np.exp(-logits))
    ranked = scores if bias is None else scores + np.asarray(bias, np.float32)
    if groups > 1:
        of_group = ranked.reshape(len(ranked), groups, -1)
        best_two = np.sort(of_group, axis=2)[:, :, -2:].sum(axis=2)
        held = np.argsort(-best_two, axis=1, kind="stable")[:, :top_groups]
        allowed = np.zeros((len(ranked), groups), bool)
        np.put_along_axis(allowed, held, True, axis=1)
        ranked = np.where(allowed[:, :, None], of_group, -np.inf).reshape(ranked.shape)
    ids = np.argsort(-ranked, axis=1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(scores, ids, axis=1)
    if normalize:
        weights = weights / (weights.sum(axis=1, keepdims=True) + LEAST_SUM)
    return ids.astype(np.int32), weights * np.float32(scale)
