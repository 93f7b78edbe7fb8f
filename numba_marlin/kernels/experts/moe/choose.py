"""The configuration of ``moe`` for a layer: that of ``decode`` that did best for as many rows as an
expert has if the routing is even (``decode.choose``).

Timed on an H200 with INT4 (experiments/26_experts): 8 rows to 4.35 TB/s. A tile of 32 rows has
never paid: beside 128 accumulators the registers do not suffice, 30 of them spill in every stage,
and it reads 1.6 TB/s where 16 rows read 3.7; so more rows are further tiles of 16, whose weights
are mostly in L2. (``decode``, of which these are the loops, has the last registers it needs.)
"""

from __future__ import annotations

from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.experts.moe.config import MoeConfig
from numba_marlin.kernels.language.choice import with_stages_that_fit

# (most rows of an expert if all have as many, batch, warps_n, warps_k, stage_k, stages)
ARRANGEMENTS = (
    (4, 8, 4, 2, 128, 11),
    (None, 16, 4, 2, 256, 4),
)
INVARIANT = (8, 1, 8, 256, 11)  # whole tiles: batch, warps_n, warps_k, stage_k, stages


def refusals(problem) -> tuple[str, ...]:
    """Why the kernel does not take an ``ExpertsProblem``, a phrase each, besides what the family
    refuses."""
    return ()


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
    """types: further fields of MoeConfig: dtype, scale_dtype, bits, zeros, codes, bias, x_of_pairs,
    combine, activation."""
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
