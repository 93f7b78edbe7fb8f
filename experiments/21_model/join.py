"""Glue between products of several GPUs, in Triton: the sum over ranks, the residual addition and
RMSNorm in one kernel, a block a row.

x [rows, width] float16 is the same on all ranks, ``partial`` is each rank's own part of what is
added to it -> (x + the sum, rounded to float16; its norm). The parts are added in the order of the
ranks, in fp32, then to x, and rounded once: all ranks get the same bits, in every run.

**Each rank has an inbox** that its peers write to, in memory that all of them map:

inbox   float16 [2, world, most rows, width]: by turn, sender, row
flags   int32   [2, world, most rows]: the number of the call whose row stands in the inbox
calls   int32   [most rows], its own: how often this row was called

A block writes its row into every peer's inbox, and then the call's number behind it (a release at
system scope, after a barrier of the block); it waits for the numbers of all peers (acquires), and
adds up. Rows of a call use turn ``call % 2``: who writes call c has read what its peer wrote in
call c - 1, which the peer wrote once its own call c - 2 was complete. So nobody overwrites what is
not read yet, nothing is cleared, and a captured graph replays.

All ranks must call with the same rows, in the same order, and all blocks of a launch must fit on
the GPU at once with what runs beside them, since they wait for each other: ``most rows`` is 64.
Who waits for seconds in vain (a peer is gone) gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from norm import WARPS, check_width, normed
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

MOST_ROWS = 64
PATIENCE = tl.constexpr(1 << 24)  # looks at a flag, seconds; then the sum is NaN


@triton.jit
def acquired(address):
    """The int32 there, by every thread for itself: what was released with it is behind this. A load
    and no atomic, which a thread that waits may repeat without disturbing anybody."""
    return tl.inline_asm_elementwise(
        "ld.acquire.sys.global.b32 $0, [$1];",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def exchange(
    mine,  # this rank's part of the row: [WIDTH] float16
    inboxes,  # int64 [WORLD]: addresses of all ranks' inboxes; of flags below
    flags,
    rank,
    row,
    call,
    MOST: tl.constexpr,
    WORLD: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The sum [WIDTH] fp32 over all ranks, in their order."""
    column, turn = tl.arange(0, WIDTH), call & 1
    for peer in tl.static_range(WORLD):
        if peer != rank:
            to = tl.load(inboxes + peer).to(tl.pointer_type(tl.float16))
            tl.store(to + ((turn * WORLD + rank) * MOST + row) * WIDTH + column, mine)
    tl.debug_barrier()  # every thread's part of the row, before one thread says that it is there
    for peer in tl.static_range(WORLD):
        if peer != rank:
            to = tl.load(flags + peer).to(tl.pointer_type(tl.int32))
            place = to + (turn * WORLD + rank) * MOST + row
            tl.atomic_xchg(place, call, sem="release", scope="sys")
    total = tl.zeros([WIDTH], tl.float32)
    inbox = tl.load(inboxes + rank).to(tl.pointer_type(tl.float16))
    numbers = tl.load(flags + rank).to(tl.pointer_type(tl.int32))
    for peer in tl.static_range(WORLD):
        if peer == rank:
            total += mine.to(tl.float32)
        else:
            place = (turn * WORLD + peer) * MOST + row
            left = PATIENCE
            while (left > 0) & (acquired(numbers + place) != call):
                left -= 1
            part = tl.load(inbox + place * WIDTH + column, mask=left > 0, other=float("nan"))
            total += part.to(tl.float32)
    return total


@triton.jit
def join_kernel(
    x,  # [ranks of this launch, rows, WIDTH]; partial, total and result likewise
    partial,
    weight,
    total,
    result,
    inboxes,
    flags,
    calls,  # [ranks of this launch, MOST]
    first,  # of the ranks of this launch: one on a GPU, all of them on the PTX machine
    MOST: tl.constexpr,
    WORLD: tl.constexpr,
    WIDTH: tl.constexpr,
):
    gdc_launch_dependents()
    row, here, column = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDTH)
    scale = tl.load(weight + column).to(tl.float32)
    place = (here * tl.num_programs(0) + row) * WIDTH + column
    gdc_wait()
    call = tl.load(calls + here * MOST + row) + 1
    mine = tl.load(partial + place)
    sums = exchange(mine, inboxes, flags, first + here, row, call, MOST, WORLD, WIDTH)
    found = (tl.load(x + place).to(tl.float32) + sums).to(tl.float16)
    tl.store(total + place, found)
    tl.store(result + place, normed(found.to(tl.float32), scale, WIDTH).to(tl.float16))
    tl.store(calls + here * MOST + row, call)


@dataclass
class Inbox:
    """What a rank needs to take part. held: whatever keeps the memory that peers map."""

    rank: int
    world: int
    inboxes: torch.Tensor
    flags: torch.Tensor
    calls: torch.Tensor
    held: Any = None

    def join(self, x, partial, weight):
        """x and partial [rows, width] of this rank, or [ranks, rows, width] of all."""
        *ranks, rows, width = x.shape
        check_width(width)
        if rows > MOST_ROWS:
            raise ValueError(f"rows={rows} must be at most {MOST_ROWS}, which the inbox has")
        total, result = x.new_empty(x.shape), x.new_empty(x.shape)
        join_kernel[(rows, *(ranks or (1,)))](
            x,
            partial,
            weight,
            total,
            result,
            self.inboxes,
            self.flags,
            self.calls,
            self.rank,
            MOST=MOST_ROWS,
            WORLD=self.world,
            WIDTH=width,
            num_warps=WARPS,
            launch_pdl=True,
        )
        return total, result


def shapes(world: int, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of an inbox and of its flags."""
    return (2, world, MOST_ROWS, width), (2, world, MOST_ROWS)


def opened(width: int, device: torch.device) -> Inbox:
    """This rank's part of an inbox for the default group, by torch's symmetric memory. Whatever
    torch raises where the GPUs cannot map each other's memory."""
    import torch.distributed as distributed
    from torch.distributed import _symmetric_memory as symmetric

    rank, world = distributed.get_rank(), distributed.get_world_size()
    held = []

    def mapped(shape, dtype) -> torch.Tensor:
        own = symmetric.empty(shape, dtype=dtype, device=device)
        own.zero_()
        handle = symmetric.rendezvous(own, distributed.group.WORLD.group_name)
        held.append((own, handle))
        return torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=device)

    inbox, flags = shapes(world, width)
    found = mapped(inbox, torch.float16), mapped(flags, torch.int32)
    torch.cuda.synchronize()
    distributed.barrier()  # nobody writes before all have cleared their flags
    calls = torch.zeros(MOST_ROWS, dtype=torch.int32, device=device)
    return Inbox(rank, world, *found, calls, held)


def checked(width: int, device: torch.device) -> Callable:
    """``Inbox.join`` of this rank, after it has given right sums thrice; RuntimeError if not."""
    inbox = opened(width, device)
    weight = torch.ones(width, dtype=torch.float16, device=device)
    for number in range(3):
        x = torch.full((2, width), float(number), dtype=torch.float16, device=device)
        total, _ = inbox.join(x, torch.full_like(x, 1.0 + inbox.rank), weight)
        if not torch.equal(total, x + inbox.world * (inbox.world + 1) / 2):
            raise RuntimeError(f"join gives a wrong sum in call {number}")
    return inbox.join
