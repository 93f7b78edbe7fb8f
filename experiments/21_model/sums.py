"""How ranks add up what their halves of o and down give, and gather logits: by NCCL, by torch's
one-shot kernel over symmetric memory, and by ``join``, which has residual addition and norm in it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as distributed
import whole
from decoder import Place
from sizes import Shape

SUMS = ("NCCL", "one-shot", "join")


def nccl() -> Callable:
    def reduce(x):
        distributed.all_reduce(x)
        return x

    return reduce


def one_shot(most: int, place: Place) -> Callable:
    """Sums by one kernel in which each rank reads the others' memory. most: elements at once.
    Whatever torch raises where it cannot."""
    from torch.distributed import _symmetric_memory as symmetric

    group = distributed.group.WORLD.group_name
    device = torch.device(place.device)
    buffer = symmetric.empty(most, dtype=place.dtype, device=device)
    symmetric.rendezvous(buffer, group)
    operator = torch.ops.symm_mem.one_shot_all_reduce

    def reduce(x):
        own = buffer[: x.numel()].view(x.shape)
        own.copy_(x)
        return operator(own, "sum", group)

    ranks = distributed.get_world_size()
    mine = torch.full((1, 64), 1.0 + distributed.get_rank(), dtype=place.dtype, device=device)
    if not torch.equal(reduce(mine), torch.full_like(mine, ranks * (ranks + 1) / 2)):
        raise RuntimeError("one_shot_all_reduce gives a wrong sum")
    return reduce


def joined(shape: Shape, place: Place) -> Callable:
    """Sum, residual addition and norm in one kernel (``join``). Whatever it or torch raises where
    it cannot."""
    if place.device == "cpu":
        raise RuntimeError("it needs GPUs; the part glue runs it on the PTX machine")
    from join import checked

    return checked(shape.hidden, torch.device(place.device))


def summing(name: str, options, shape: Shape, place: Place) -> dict[str, Callable]:
    """{attribute of a decoder: function} of one of ``SUMS``."""
    if name == "join":
        return {"join": joined(shape, place)}
    if name == "NCCL":
        return {"reduce": nccl()}
    return {"reduce": one_shot(max(options.batches) * shape.hidden, place)}


def everywhere(options, ranks: int, here: bool) -> bool:
    """Whether it is so on all ranks: what one of them cannot do, none tries."""
    if ranks == 1:
        return here
    flag = torch.tensor([float(here)], device=options.device)
    distributed.all_reduce(flag, distributed.ReduceOp.MIN)
    return bool(flag)


def agreed(name: str, options, shape: Shape, place: Place, ranks: int) -> dict[str, Callable]:
    """``summing``, or nothing if any rank cannot."""
    sums: dict[str, Callable] = {}
    with whole.told(f"{ranks} GPUs, {name}"):
        sums = summing(name, options, shape, place)
    return sums if everywhere(options, ranks, bool(sums)) else {}


def gathered(world: int) -> Callable:
    """[batch, own columns] of every rank -> [batch, columns]"""

    def gather(x):
        every = x.new_empty((world * len(x), x.shape[1]))
        distributed.all_gather_into_tensor(every, x)
        return every.view(world, *x.shape).transpose(0, 1).reshape(len(x), -1)

    return gather
