"""The configuration of ``moe_wgmma`` for a layer, by counts of work: **not measured**.

A step of k = 64 takes the tensor cores ``tile_m * tile_n / 64`` cycles (4096 products a cycle and
SM), and the schedulers what dequantising takes, about ISSUE cycles for 256 columns (168
instructions of each of eight warps, ``wgmma.tensor``), whatever the rows; the larger counts, and
BESIDES. Rows that are not there cost as much as others. So a tile that is too high multiplies
zeros, and one that is too low dequantises weights again for each row block.

How many row blocks an expert has is not known when a launch is chosen: the mean is taken over
experts with 3/4, all and 5/4 of the rows of an even routing.
"""

from __future__ import annotations

from numba_marlin.kernels.experts.moe_wgmma.config import MoeWgmmaConfig
from numba_marlin.kernels.language.choice import with_stages_that_fit
from numba_marlin.kernels.language.definition import ceil_div

LEAST_ROWS = 32
"""Of an expert, if the routing is even, from which on this kernel is taken (counted, not measured):
``moe`` then dequantises every weight twice, 16 rows at a time, and the dense kernels of both kinds
cross at about 16 rows (experiments/18_ladder)."""

TILES = ((48, 256), (64, 256), (96, 256), (128, 256), (128, 128), (192, 128))
MOST_STAGES = 8
ISSUE, BESIDES = 336, 60
SPREAD = (0.75, 1.0, 1.25)


def row_blocks(rows: float, tile_m: int) -> float:
    """Of an expert, on average."""
    return sum(max(1, ceil_div(int(rows * part), tile_m)) for part in SPREAD) / len(SPREAD)


def step_cycles(tile_m: int, tile_n: int) -> float:
    return max(tile_m * tile_n / 64, ISSUE * tile_n / 256) + BESIDES


def cycles(rows: float, n: int, tile_m: int, tile_n: int) -> float:
    """Of an expert's steps of k = 64, each, all tiles together."""
    return row_blocks(rows, tile_m) * ceil_div(n, tile_n) * step_cycles(tile_m, tile_n)


def refusals(problem) -> tuple[str, ...]:
    """Why the kernel does not take an ``ExpertsProblem``, a phrase each."""
    found = []
    if problem.k % 64:
        found.append(f"k={problem.k}, which must be a multiple of 64")
    if problem.n % 8:
        found.append(f"n={problem.n}, which must be a multiple of 8")
    if problem.codes == "integer" and problem.scale_dtype != problem.dtype:
        found.append(f"scale_dtype={problem.scale_dtype}, which must be dtype={problem.dtype}")
    if problem.zeros == "float16" and problem.group_size == -1:
        found.append("zeros='float16' without groups")
    if problem.activation is not None and problem.zeros is not None:
        found.append(f"activation={problem.activation!r} with zeros={problem.zeros!r}")
    return tuple(found)


def configuration(
    *,
    m: int,
    n: int,
    k: int,
    experts: int,
    top_k: int,
    group_size: int,
    batch_invariant: bool = False,
    scale_dtype: str | None = None,
    **types,
) -> MoeWgmmaConfig:
    """types: further fields of MoeWgmmaConfig. batch_invariant: whole tiles, whose sums have one
    order for every height."""
    rows = m * top_k / experts
    tile_m, tile_n = min(TILES, key=lambda tile: cycles(rows, n, *tile))
    found = with_stages_that_fit(
        MoeWgmmaConfig,
        MOST_STAGES,
        2,
        tile_m=tile_m,
        tile_n=tile_n,
        warpgroups=2,
        split=not batch_invariant,
        group_blocks=-1 if group_size == -1 else group_size // 16,
        experts=experts,
        top_k=top_k,
        **types,
    )
    if found is None:
        raise ValueError(f"no stages fit into shared memory for {experts} experts")
    return found
