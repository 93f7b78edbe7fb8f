"""The configuration of ``moe`` for a layer. A guess so far: arrangements are those of ``decode``
that did best for as many rows (``decode.choose``); rows of an expert are what the routing would
give if it were even."""

from __future__ import annotations

from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.language.choice import with_stages_that_fit
from numba_marlin.kernels.moe.config import MoeConfig

# (most rows of an expert if all have as many, batch, warps_n, warps_k, stage_k, stages)
ARRANGEMENTS = (
    (4, 8, 4, 2, 128, 11),
    (12, 16, 4, 2, 256, 4),
    (None, 32, 2, 4, 128, 6),  # spills 84 bytes, 32 x 512 tiles 140: nobody knows yet where
)
INVARIANT = (8, 1, 8, 256, 11)  # whole tiles: batch, warps_n, warps_k, stage_k, stages


def configuration(
    *,
    m: int,
    n: int,
    k: int,
    experts: int,
    top_k: int,
    group_size: int,
    batch_invariant: bool = False,
    **types,
) -> MoeConfig:
    """types: further fields of MoeConfig: dtype, scale_dtype, bits, bias, x_of_pairs, combine."""
    rows = m * top_k / experts
    batch, warps_n, warps_k, stage_k, stages = (
        INVARIANT
        if batch_invariant
        else next(rest for most, *rest in ARRANGEMENTS if most is None or rows <= most)
    )
    found = with_stages_that_fit(
        MoeConfig,
        stages,
        2,
        batch=batch,
        warps_n=warps_n,
        warps_k=warps_k,
        stage_k=stage_k,
        resident=1,
        whole=batch_invariant,
        ragged=bool(k % stage_k or n % (COLUMNS * warps_n)),
        group_blocks=-1 if group_size == -1 else group_size // 16,
        experts=experts,
        top_k=top_k,
        **types,
    )
    if found is None:
        raise ValueError(f"no stages fit into shared memory for {experts} experts")
    return found
