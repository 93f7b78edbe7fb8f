"""What linear layers that are spread over the ranks of a process group say to each other.

Three operations, each the adjoint of another, as in Megatron's layers:

    copy_to_group    forward nothing,      backward the sum over ranks
    all_sum          forward the sum,      backward nothing
    gather_columns   forward side by side, backward the rank's own columns

**Sums have one order.** ``all_sum`` adds the ranks' tensors in the order of their ranks, in fp32
(float64 for float64), and rounds once. So all ranks get the same bits, in every run, and a row gets
the same bits whatever the other rows are: an all-reduce promises none of that, since its algorithm
may depend on the size, the topology and the library. It takes no more time on the wire: small
tensors (and any in a group of two) are gathered by all ranks and added up there, one step; of large
ones each rank adds up a part of the rows, and the sums are gathered, which moves as many bytes as a
ring all-reduce, 2 (world - 1) / world of the tensor. The bits of both are the same.

``all_sum`` and ``gather_columns`` are torch operators that name their group, so that torch.compile
and torch.export go through them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

ONE_STEP_BYTES = 1 << 18  # of a tensor that more than two ranks gather whole; a guess, not measured

torch.library.define(
    "numba_marlin::all_sum",
    "(Tensor x, Tensor? bias, str group, bool deterministic) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    "numba_marlin::gather_columns",
    "(Tensor x, int[] sizes, str group) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


# ---- the sum over ranks


@torch.library.impl("numba_marlin::all_sum", "CompositeExplicitAutograd")
def _all_sum(x, bias, group, deterministic):
    found = _resolve_process_group(group)
    world = dist.get_world_size(found)
    if not deterministic:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=found)
        return total if bias is None else total.add_(bias.to(x.dtype))
    rows = x.reshape(-1, x.shape[-1])
    if world == 1 or rows.numel() == 0:
        return _added(rows[None], bias, x.dtype).reshape(x.shape)
    many = rows.shape[0] >= world and rows.numel() * x.element_size() > ONE_STEP_BYTES
    if world == 2 or not many:
        return _added(_all_gather(rows, found), bias, x.dtype).reshape(x.shape)
    each = -(-rows.shape[0] // world)  # rows that one rank adds up
    padded = torch.nn.functional.pad(rows, (0, 0, 0, each * world - rows.shape[0])).contiguous()
    mine = torch.empty_like(padded)
    dist.all_to_all_single(mine, padded, group=found)
    sums = _added(mine.view(world, each, -1), bias, x.dtype)
    return _all_gather(sums, found).view(each * world, -1)[: rows.shape[0]].reshape(x.shape)


def _added(parts: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The sum over parts' first dimension, first to last, then the bias; rounded once. Not
    ``parts.sum(0)``, whose order is its own."""
    total = parts[0].to(torch.promote_types(dtype, torch.float32), copy=True)
    for part in parts[1:]:
        total.add_(part)
    if bias is not None:
        total.add_(bias)
    return total.to(dtype)


def _all_gather(x: Tensor, group) -> Tensor:
    """[...] of each rank -> [world, ...]."""
    found = x.new_empty((dist.get_world_size(group), *x.shape))
    # its name since torch 2.14
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(found.view(-1), x.contiguous().view(-1), group=group)
    return found


@torch.library.register_fake("numba_marlin::all_sum")
def _all_sum_shape(x, bias, group, deterministic):
    return x.new_empty(x.shape)


def _keep_bias(ctx, inputs, output):
    _, bias, _, _ = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype


def _all_sum_backward(ctx, grad):
    of_bias = None
    if ctx.bias_dtype is not None and ctx.needs_input_grad[1]:
        of_bias = grad.reshape(-1, grad.shape[-1]).sum(0).to(ctx.bias_dtype)
    return grad, of_bias, None, None


torch.library.register_autograd(
    "numba_marlin::all_sum", _all_sum_backward, setup_context=_keep_bias
)


def all_sum(x: Tensor, bias: Tensor | None, group: str, deterministic: bool = True) -> Tensor:
    """The sum of all ranks' x [..., n], plus the bias [n], once. group: the name of the group.
    deterministic: False leaves sum and rounding to the library's all-reduce, in x's type."""
    return torch.ops.numba_marlin.all_sum(x, bias, group, deterministic)


class _CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_sum(grad, None, ctx.group), None


def copy_to_group(x: Tensor, group: str) -> Tensor:
    """x, which all ranks have, for a layer of which each rank has a part: the gradient of x is the
    sum of what the ranks' parts give."""
    return _CopyToGroup.apply(x, group) if x.requires_grad else x


# ---- columns of all ranks


@torch.library.impl("numba_marlin::gather_columns", "CompositeExplicitAutograd")
def _gather_columns(x, sizes, group):
    found = _resolve_process_group(group)
    rows = x.reshape(-1, x.shape[-1])
    widest = max(sizes)  # equal parts are what libraries gather
    gathered = _all_gather(torch.nn.functional.pad(rows, (0, widest - rows.shape[-1])), found)
    parts = [part[:, :size] for part, size in zip(gathered, sizes)]
    return torch.cat(parts, dim=-1).reshape(*x.shape[:-1], sum(sizes))


@torch.library.register_fake("numba_marlin::gather_columns")
def _gather_columns_shape(x, sizes, group):
    return x.new_empty((*x.shape[:-1], sum(sizes)))


def _keep_sizes(ctx, inputs, output):
    _, ctx.sizes, ctx.group = inputs


def _gather_columns_backward(ctx, grad):
    rank = dist.get_rank(_resolve_process_group(ctx.group))
    start = sum(ctx.sizes[:rank])
    return grad[..., start : start + ctx.sizes[rank]].contiguous(), None, None


torch.library.register_autograd(
    "numba_marlin::gather_columns", _gather_columns_backward, setup_context=_keep_sizes
)


def gather_columns(x: Tensor, sizes: tuple[int, ...], group: str) -> Tensor:
    """x [..., sizes[rank]] of each rank -> [..., sum(sizes)], in the order of the ranks. What
    follows must be the same on all ranks: the gradient is the rank's own columns of its own."""
    return torch.ops.numba_marlin.gather_columns(x, list(sizes), group)
