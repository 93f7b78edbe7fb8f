"""``ParallelExperts``: the experts of a mixture over the ranks of a process group.

    by number   each rank has some of the experts whole (expert parallelism): pairs of a token and
                another rank's expert add nothing here
    by column   each rank has some columns of gate and up of every expert, and the rows of down that
                they multiply (tensor parallelism): every rank reads as many bytes, whatever the
                routing is

Tokens and routing are the same on all ranks, as they are after a ``RowParallelLinear``, and the
result is the ranks' sum, in one order (``torch.collectives``): one sum a layer, with the same bits
on all ranks. Where each rank has tokens of its own, exchanging them (all-to-all) is the caller's,
with torch.distributed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

import numba_marlin as nm
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.torch.collectives import all_sum, copy_to_group
from numba_marlin.torch.experts import Experts
from numba_marlin.torch.parallel import Membership

WAYS = ("number", "column")


class ParallelExperts(Experts):
    """This rank's part of ``Experts``; made by ``from_whole``. sizes: experts, or columns of gate,
    of each rank; dim: "experts" or "h"."""

    member: Membership
    sizes: tuple[int, ...]
    dim: str

    @classmethod
    def from_whole(
        cls,
        layer: Experts,
        *,
        group: dist.ProcessGroup | None = None,
        by: str = "number",
        sizes: Sequence[int] | None = None,
    ) -> ParallelExperts:
        """This rank's part of experts that all ranks have, which stay as they are.

        group: default, all processes. by: "number" or "column". sizes: experts of each rank, at
            least one; or columns of gate, multiples of 16; default: equal parts.

        Raises as ``numba_marlin.shard`` does, RuntimeError without torch.distributed.
        """
        if not isinstance(layer, Experts) or isinstance(layer, ParallelExperts):
            raise TypeError(f"layer is a {type(layer).__name__}, must be whole Experts")
        if by not in WAYS:
            raise ValueError(f"by={by!r} must be one of {', '.join(WAYS)}")
        member = Membership.of(group)
        cut = _by_number if by == "number" else _by_column
        gate_up, down, biases, counts, first = cut(layer, member, sizes)
        made = cls(
            gate_up,
            down,
            activation=layer.activation,
            gate_up_bias=biases[0],
            down_bias=biases[1],
        )
        made.member, made.sizes = member, counts
        made.dim = "experts" if by == "number" else "h"
        made.first, made.whole = first, layer.whole
        made.batch_invariant = layer.batch_invariant
        for bank in (made.gate_up, made.down):
            bank.part = f"rank {member.rank} of {member.world} along {made.dim}={counts}"
        return made.to(layer.gate_up.qweight.device).train(layer.training)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        member = self.member
        if member.world == 1:
            return super().forward(x, ids, weights)
        group = member.group
        y = super().forward(copy_to_group(x, group), ids, copy_to_group(weights, group))
        return all_sum(y, None, group)

    def extra_repr(self) -> str:
        member = self.member
        return f"{super().extra_repr()}, rank {member.rank} of {member.world} by {self.dim}"


def _counts(sizes: Sequence[int] | None, whole: int, world: int) -> tuple[int, ...]:
    return (whole // world,) * world if sizes is None else tuple(sizes)


def _by_number(layer: Experts, member: Membership, sizes):
    parts = [
        nm.shard(bank.weight, member.rank, member.world, "experts", sizes=sizes)
        for bank in (layer.gate_up, layer.down)
    ]
    counts = _counts(sizes, layer.gate_up.experts, member.world)
    first = sum(counts[: member.rank])
    these = slice(first, first + counts[member.rank])
    biases = [
        None if bank.bias is None else bank.bias[these] for bank in (layer.gate_up, layer.down)
    ]
    return *parts, biases, counts, first


def _by_column(layer: Experts, member: Membership, sizes):
    down, rows = nm.shard(
        layer.down.weight, member.rank, member.world, "k", sizes=sizes, return_columns=True
    )
    h, whole = layer.down.in_features, layer.gate_up.weight
    begin, end = int(rows[0]), int(rows[-1]) + 1
    sides = [whole.cut(range(whole.k), range(start + begin, start + end)) for start in (0, h)]
    gate_up = PackedExperts.of(nm.concat(list(both)) for both in zip(*sides))
    bias, of_down = layer.gate_up.bias, layer.down.bias
    if bias is not None:
        columns = [*range(begin, end), *range(h + begin, h + end)]
        bias = bias[:, columns]
    # added once, by the first rank
    of_down = of_down if member.rank == 0 else None
    return gate_up, down, [bias, of_down], _counts(sizes, h, member.world), 0
