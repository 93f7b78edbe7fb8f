"""``ColumnParallelLinear`` and ``RowParallelLinear``: a quantised linear layer over the ranks of a
process group (tensor parallelism), each of which keeps and multiplies a part of the weight.

A pair of them needs one sum over ranks: columns of the first layer's result are what the second
one's rows multiply. What is the same on all ranks goes in, and comes out.

**Which bits.** A column-parallel layer's columns are those of ``Linear`` over the whole weight on
one such device if both have ``batch_invariant = True``: then the part takes the order of sums that
is chosen for the whole. Without it kernels and their splits of k are chosen by the size of what
they multiply, so the last bits differ; on the CPU, by the reference, they are the same always.
A row-parallel layer's result has the same bits on all ranks and in every run
(``torch.collectives``), but not those of one device: each rank's product is rounded to x's type
before the sum, which is rounded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import numba_marlin as nm
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.torch.collectives import all_sum, copy_to_group, gather_columns
from numba_marlin.torch.linear import Linear


@dataclass(frozen=True)
class Membership:
    """This process in a group. group: the name of the group, which unlike the group itself can be
    copied and compiled; rank: of this process in it."""

    group: str
    rank: int
    world: int

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> Membership:
        """Of the group of all processes, or of ``group``. RuntimeError if torch.distributed is not
        initialised; TypeError or ValueError for what is no group, or not this process's."""
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed is not initialised: start the program with torchrun and call"
                " torch.distributed.init_process_group() first"
            )
        found = dist.group.WORLD if group is None else group
        if not isinstance(found, dist.ProcessGroup):
            raise TypeError(
                f"group is a {type(found).__name__}, must be a torch.distributed.ProcessGroup that"
                f" this process is in (rank {dist.get_rank()} of all), or None for all processes"
            )
        if dist.get_rank(found) < 0:
            raise ValueError(f"rank {dist.get_rank()} of all is not in the group given")
        return cls(found.group_name, dist.get_rank(found), dist.get_world_size(found))


class _ParallelLinear(Linear):
    """What both have. member: this process in the group; sizes: columns or rows of each rank's
    part; columns: those of x that this rank multiplies, None if they are neighbours."""

    dim = ""
    _OPTIONS: tuple[str, ...] = ()

    def __init__(self, whole: PackedWeight | PackedBlocks, bias, group, sizes):
        if not isinstance(whole, (PackedWeight, PackedBlocks)):
            raise TypeError(f"p is a {type(whole).__name__}, must be packed: pass nm.pack(q)")
        member = Membership.of(group)
        if bias is not None and tuple(bias.shape) != (whole.n,):
            raise ValueError(f"bias.shape={tuple(bias.shape)} must be (n,)=({whole.n},)")
        place = whole.place
        part, columns = nm.shard(
            whole.to("cpu"), member.rank, member.world, self.dim, sizes=sizes, return_columns=True
        )
        super().__init__(
            part if place == "cpu" else part.to(place, "torch"), self._bias_of(bias, columns)
        )
        length = getattr(whole, self.dim)
        self.member = member
        self.sizes = (length // member.world,) * member.world if sizes is None else tuple(sizes)
        ordered = self.dim == "k" and whole.permutation is not None
        self.register_buffer(
            "columns", torch.from_numpy(columns).to(self.qweight.device) if ordered else None
        )

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        group: dist.ProcessGroup | None = None,
        sizes: Sequence[int] | None = None,
        **options: Any,
    ):
        """Quantise a torch.nn.Linear that all ranks have, and keep this rank's part, on its device.
        options: those of ``from_packed`` but the bias, and of ``numba_marlin.quantize``."""
        own = {name: options.pop(name) for name in cls._OPTIONS if name in options}
        Membership.of(group)  # before the work
        return cls.from_whole(
            Linear.from_linear(linear, **options), group=group, sizes=sizes, **own
        )

    @classmethod
    def from_whole(cls, layer: Linear, **options: Any):
        """This rank's part of a quantised layer that all ranks have, which stays as it is.
        options: those of ``from_packed`` but the bias."""
        made = cls.from_packed(layer.weight, layer.bias, **options)
        made.batch_invariant = layer.batch_invariant
        if made.bias is not None:
            made.bias.requires_grad_(layer.bias.requires_grad)
        return made.train(layer.training)

    @property
    def start(self) -> int:
        """The first of this rank's columns or rows."""
        return sum(self.sizes[: self.member.rank])

    def _identity(self) -> str:
        """A state is of one rank's part: those of others have the same shapes."""
        member = self.member
        part = f"rank {member.rank} of {member.world} along {self.dim}={self.sizes}"
        return f"{part} {super()._identity()}"

    def extra_repr(self) -> str:
        member, last = self.member, self.start + self.sizes[self.member.rank] - 1
        return (
            f"{super().extra_repr()}, rank {member.rank} of {member.world}:"
            f" {self.dim} {self.start} to {last} of {sum(self.sizes)}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """This rank's columns of y = x @ W + bias: x [..., k], the same on all ranks, -> [..., n of the
    rank], or all columns on every rank with ``gather_output``.

    ``in_features`` and ``out_features`` are those of x and y. batch_invariant: besides what it is
    in ``Linear``, y has the bits of the whole layer's columns.

    The gradient of x is the sum of all ranks', so all of them must run backward.
    """

    dim = "n"
    _OPTIONS = ("gather_output",)

    def __init__(self, whole, bias=None, group=None, sizes=None, gather_output: bool = False):
        super().__init__(whole, bias, group, sizes)
        self.whole_n, self.gather_output = whole.n, gather_output
        if gather_output:
            self.out_features = whole.n

    @classmethod
    def from_packed(
        cls,
        p: PackedWeight | PackedBlocks,
        bias: Tensor | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        sizes: Sequence[int] | None = None,
        gather_output: bool = False,
    ) -> ColumnParallelLinear:
        """This rank's part of a whole packed weight [k, n] and of its bias [n], where they are.

        group: default, all processes. sizes: columns of each rank, multiples of 8 that add up to n;
            default: equal parts.

        Raises as ``numba_marlin.shard`` does, RuntimeError without torch.distributed.
        """
        return cls(p, bias, group, sizes, gather_output)

    @staticmethod
    def _bias_of(bias, columns):
        return None if bias is None else bias[int(columns[0]) : int(columns[-1]) + 1]

    def forward(self, x: Tensor) -> Tensor:
        member = self.member
        if member.world == 1:
            return super().forward(x)
        y = super().forward(copy_to_group(x, member.group))
        return gather_columns(y, self.sizes, member.group) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
    """y = x @ W + bias, [..., n] and the same on all ranks, from this rank's columns of x: the
    ranks' products are summed, then the bias is added, once.

    input_is_parallel: x is this rank's part [..., k of the rank], as a column-parallel layer gives
        it. False: x [..., k] is the same on all ranks, and each takes its columns.
    deterministic: sum in the order of ranks (``torch.collectives``). False: by the library's
        all-reduce, in x's type.

    Activation order: a rank's rows multiply columns of x that are not neighbours, so a parallel x
    is gathered from all ranks first: one more step, of k numbers a row. To avoid it, put the
    columns of the layer before in that order once (columns ``p.permutation``, before it is packed),
    and make this layer of ``p.sorted_rows``, which has no order.
    """

    dim = "k"
    _OPTIONS = ("input_is_parallel", "deterministic")

    def __init__(
        self,
        whole,
        bias=None,
        group=None,
        sizes=None,
        input_is_parallel: bool = True,
        deterministic: bool = True,
    ):
        super().__init__(whole, bias, group, sizes)
        self.input_is_parallel, self.deterministic = input_is_parallel, deterministic
        if not input_is_parallel:
            self.in_features = whole.k

    @classmethod
    def from_packed(
        cls,
        p: PackedWeight | PackedBlocks,
        bias: Tensor | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        sizes: Sequence[int] | None = None,
        input_is_parallel: bool = True,
        deterministic: bool = True,
    ) -> RowParallelLinear:
        """This rank's part of a whole packed weight [k, n], where it is; the bias [n] stays whole.

        group: default, all processes. sizes: rows of each rank, multiples of 16 that add up to k;
            default: equal parts.

        Raises as ``numba_marlin.shard`` does, RuntimeError without torch.distributed.
        """
        return cls(p, bias, group, sizes, input_is_parallel, deterministic)

    @staticmethod
    def _bias_of(bias, columns):
        return bias

    def forward(self, x: Tensor) -> Tensor:
        member = self.member
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"x.shape={tuple(x.shape)} must be (..., {self.in_features}):"
                f" input_is_parallel={self.input_is_parallel}, rank {member.rank} of {member.world}"
                f" has {self.sizes[member.rank]} of k={sum(self.sizes)}"
            )
        if self.input_is_parallel and self.columns is not None:
            x = gather_columns(x, self.sizes, member.group)
        if self.columns is not None or not self.input_is_parallel:
            x = self._own_columns(copy_to_group(x, member.group))
        if member.world == 1:  # as ``Linear``, which rounds once
            return self._product(x, self.bias)
        return all_sum(self._product(x, None), self.bias, member.group, self.deterministic)

    def _own_columns(self, x: Tensor) -> Tensor:
        if self.columns is None:
            return x.narrow(-1, self.start, self.sizes[self.member.rank])
        return x.index_select(-1, self.columns)
