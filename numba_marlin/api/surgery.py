"""``shard``, ``merge`` and ``concat``: packed weights cut for several devices, and joined, without
unpacking the codes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import numpy as np

from numba_marlin.api.packing import check_packed
from numba_marlin.formats import PackedBlocks, PackedWeight, surgery
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.marlin import BLOCK_K, COLUMN_STEP
from numba_marlin.formats.types import check_permutation

_STEPS = {"k": BLOCK_K, "n": COLUMN_STEP, "experts": 1}


def shard(
    p: PackedWeight | PackedBlocks | PackedExperts,
    rank: int,
    world: int,
    dim: str | int,
    *,
    sizes: Sequence[int] | None = None,
    return_columns: bool = False,
) -> (
    PackedWeight
    | PackedBlocks
    | PackedExperts
    | tuple[PackedWeight | PackedBlocks | PackedExperts, np.ndarray]
):
    """Part number ``rank`` of ``world`` of a packed weight W [k, n]: the bytes that packing these
    rows or columns of the unpacked weight gives. It shares no memory with p.

    dim: "n" (or 1), columns, for a column-parallel layer: the parts' products lie side by side, and
        y[:, columns] = x @ part. "k" (or 0), rows, for a row-parallel one: the products of
        x[:, columns] @ part are added up. A bias [n] is cut with the columns, and added once.
    sizes: rows or columns of each part, ``world`` numbers that add up to k or n, multiples of 16 or
        of 8; default: equal parts.
    return_columns: return (part, columns): int32, the columns of y that the part gives ("n"), or
        the columns of x that it multiplies ("k").

    If a part along k begins or ends within a group of rows that share a scale, its groups are
    smaller (``part.group_size``) and scales are repeated: the same numbers in more bytes. They may
    become as small as 16, which only kernel "general" multiplies; parts of whole groups avoid that.
    A part within one group has a scale per column.

    Activation order: the groups of such a weight are not made of neighbouring columns of x. Along n
    parts keep the whole order. Along k parts are made of neighbouring *packed* rows, have no order
    themselves, and multiply x[:, p.permutation[start:stop]], not x[:, start:stop]; so
    ``return_columns`` is required. Where the layer before is cut along n, its columns can be put
    in this order once, before it is packed (codes[:, p.permutation], scales and zeros alike);
    then each rank computes just the columns of x that it needs.

    Of a ``PackedExperts`` "n" and "k" cut every expert; "experts" takes some of them whole (expert
    parallelism): multiply them with ``routing.local(first, count)``, for which ``return_columns``
    returns the numbers of the experts. (Gate and up side by side are cut before they are joined:
    each rank needs the same columns of both.)

    Parts are on the host, wherever p is. TypeError or ValueError, naming the value and the rule,
    for anything else.
    """
    if isinstance(p, PackedExperts):
        return _shard_experts(p, rank, world, dim, sizes, return_columns)
    check_packed(p)
    p = p.to("cpu")
    name = _dim(dim)
    taken = _taken(rank, world, name, getattr(p, name), sizes)
    columns = np.arange(taken.start, taken.stop, dtype=np.int32)
    if name == "n":
        part = surgery.cut(p, range(p.k), taken)
    else:
        if p.permutation is not None and return_columns:
            columns, p = p.permutation[taken.start : taken.stop].copy(), p.sorted_rows
        elif p.permutation is not None and len(taken) < p.k:
            raise ValueError(
                "p has an activation order (permutation), so a part along k multiplies columns of x"
                " that are not neighbours: pass return_columns=True, and multiply x[:, columns]"
            )
        part = surgery.cut(p, taken, range(p.n))
    return (part, columns) if return_columns else part


def _shard_experts(p, rank, world, dim, sizes, return_columns):
    name = dim if dim == "experts" else _dim(dim)
    whole = len(p) if name == "experts" else getattr(p, name)
    taken = _taken(rank, world, name, whole, sizes)
    if name == "experts":
        part = p.taken(taken.start, len(taken))
    else:
        rows, columns = (range(p.k), taken) if name == "n" else (taken, range(p.n))
        part = p.cut(rows, columns)
    numbers = np.arange(taken.start, taken.stop, dtype=np.int32)
    return (part, numbers) if return_columns else part


def _taken(rank: object, world: object, name: str, whole: int, sizes: object) -> range:
    """What a rank gets of ``whole`` rows, columns or experts."""
    rank, world = _integer("rank", rank), _integer("world", world)
    if world < 1:
        raise ValueError(f"world={world} must be at least 1")
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank} must be from 0 to world - 1 = {world - 1}")
    counts = _counts(name, whole, world, sizes)
    start = sum(counts[:rank])
    return range(start, start + counts[rank])


def merge(
    parts: Iterable[PackedWeight | PackedBlocks],
    dim: str | int,
    *,
    group_size: int | None = None,
    permutation: np.ndarray | None = None,
) -> PackedWeight | PackedBlocks:
    """The inverse of ``shard``: parts, in the order of their ranks, -> the weight.

    dim: "n" (or 1), "k" (or 0), as in ``shard``.
    group_size: along k, rows of the whole that share a scale. Default: as in the parts, which must
        agree; parts with one scale per column give such a weight if all have the same scales, and
        else a weight whose groups are the parts. So it is needed where ``shard`` divided groups,
        or where groups of equal scales should not become one.
    permutation: along k, the activation order of the whole, int32 [k].

    ``merge([shard(p, rank, world, dim) for rank in range(world)], dim)`` is p; along k,
    ``group_size=p.group_size, permutation=p.permutation`` make it so in every case.

    TypeError or ValueError, naming two parts and what differs, if they cannot be joined, or if
    ``group_size`` would need one scale where the parts have two.
    """
    name, parts = _dim(dim), _parts(parts)
    if name == "n":
        for option, value in (("group_size", group_size), ("permutation", permutation)):
            if value is not None:
                raise ValueError(f"{option} must be None along n: parts have it")
        return surgery.join_columns(parts)
    if group_size is not None:
        group_size = _integer("group_size", group_size)
    if permutation is not None:
        if isinstance(parts[0], PackedBlocks):
            raise ValueError("permutation must be None: FP4 weights have no activation order")
        permutation = check_permutation(permutation, sum(part.k for part in parts))
    return surgery.join_rows(parts, group_size, permutation)


def concat(parts: Iterable[PackedWeight | PackedBlocks]) -> PackedWeight | PackedBlocks:
    """Weights of the same inputs side by side, [k, n0], [k, n1] ... -> [k, n0 + n1 + ...]: q, k and
    v, or gate and up, as one product. ``shard(p, i, world, "n", sizes=(n0, n1, ...))`` gives them
    back.

    They must have the same k, type, layout, bits, group size, type of scales and of zero points,
    and activation order; FP4 weights also the same global and input scales (quantise NVFP4 weights
    as one matrix), and be packed for the same type of activations. ValueError names the two that
    differ, and in what.
    """
    return surgery.join_columns(_parts(parts))


def _dim(dim: object) -> str:
    if isinstance(dim, (str, int, np.integer)) and not isinstance(dim, bool):
        if dim in ("k", 0):
            return "k"
        if dim in ("n", 1):
            return "n"
    raise ValueError(
        f"dim={dim!r} must be 'k' (or 0) or 'n' (or 1), the rows or columns of W[k, n]"
    )


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} must be an integer")
    return operator.index(value)


def _counts(name: str, whole: int, world: int, sizes: Sequence[int] | None) -> list[int]:
    """Rows or columns of each part."""
    step = _STEPS[name]
    if sizes is None:
        if whole % (world * step) == 0:
            return [whole // world] * world
        steps = whole // step
        if steps < world:
            raise ValueError(
                f"world={world} must be at most {steps}: {name}={whole} has {steps} times {step}"
            )
        uneven = [step * (steps // world + (rank < steps % world)) for rank in range(world)]
        raise ValueError(
            f"{name}={whole} in world={world} equal parts must be a multiple of {world} x {step}:"
            f" pass sizes=, such as {tuple(uneven)}"
        )
    try:
        counts = [_integer(f"sizes[{number}]", size) for number, size in enumerate(sizes)]
    except TypeError as error:
        if "must be an integer" in str(error):
            raise
        raise TypeError(f"sizes={sizes!r} must be a sequence of integers") from None
    if len(counts) != world:
        raise ValueError(f"sizes={tuple(counts)} must be world={world} numbers")
    for number, size in enumerate(counts):
        if size <= 0 or size % step:
            raise ValueError(
                f"sizes[{number}]={size} must be a positive multiple of {step}, as every cut"
                f" through {name}"
            )
    if sum(counts) != whole:
        raise ValueError(f"sizes={tuple(counts)} must add up to {name}={whole}, not {sum(counts)}")
    return counts


def _parts(parts: object) -> tuple:
    if isinstance(parts, (PackedWeight, PackedBlocks)) or not isinstance(parts, Iterable):
        raise TypeError(
            f"parts is a {type(parts).__name__}, must be a list of packed weights: [q, k, v]"
        )
    found = tuple(parts)
    if not found:
        raise ValueError("parts must not be empty")
    for number, each in enumerate(found):
        if not isinstance(each, (PackedWeight, PackedBlocks)):
            raise TypeError(
                f"parts[{number}] is a {type(each).__name__}, must be packed: pass nm.pack(it)"
            )
    return tuple(each.to("cpu") for each in found)
