"""Memory accesses of a run as rows: what moves from where to where, how many sectors it touches,
how many would suffice, and how many wavefronts shared memory's banks needed."""

from __future__ import annotations

import re

import numpy as np

from numba_marlin.counts import transactions
from numba_marlin.counts.instructions import (
    ATOMIC,
    COPY,
    GLOBAL,
    SHARED,
    TENSOR,
    TENSOR_MEMORY,
    class_of,
)
from numba_marlin.counts.observer import padded
from numba_marlin.emulator.text.program import Instruction

FIRST = 24  # accesses of block 0 that are listed one by one


def way(ins: Instruction) -> tuple[str, str] | None:
    """(from, to) of a memory instruction; None for others."""
    kind, root = class_of(ins), ins.root
    if kind == TENSOR_MEMORY:
        return (
            ("tensor memory", "registers")
            if root.endswith("ld")
            else ("registers", "tensor memory")
        )
    if root == "tcgen05.cp":
        return "shared", "tensor memory"
    if kind == COPY:
        if not root.startswith("cp.") or "prefetch" in root:
            return None
        destinations = [
            modifier
            for modifier in ins.modifiers
            if modifier.split("::")[0] in ("shared", "global")
        ]
        return (
            ("shared", "global")
            if destinations and destinations[0] == "global"
            else ("global", "shared")
        )
    if kind == ATOMIC:
        return (
            ("registers", "global")
            if "shared" not in "".join(ins.modifiers)
            else ("registers", "shared")
        )
    if kind in (GLOBAL, SHARED):
        return ("registers", kind) if root.startswith("st") else (kind, "registers")
    return (
        ("shared", "tensor cores")
        if kind == TENSOR and root.startswith(("wgmma", "tcgen05"))
        else None
    )


def short(opcode: str) -> str:
    """An opcode without its less informative modifiers:
    ``ldmatrix.sync.aligned.m8n8.x4.shared.b16`` -> ``ldmatrix.x4.shared.b16``."""
    return (
        re.sub(
            r"\.(sync|aligned|m8n8|row|col|mbarrier::complete_tx::bytes|L2::cache_hint|tile"
            r"|bulk_group)(?=\.|$)",
            "",
            opcode,
        )
        .replace("::cluster", "")
        .replace("::cta", "")
    )


def rows(counted) -> list[dict]:
    """One row for all instructions of a verb with the same opcode; bytes and transactions of the
    whole launch, most bytes first."""
    found: dict[tuple, dict] = {}
    for row, section, ins in zip(
        counted.counts.instructions, counted.sections, counted.kernel.instructions
    ):
        where = way(ins)
        if where is None or not row.tally.executed:
            continue
        tally = row.tally
        opcode = short(ins.opcode)
        mine = found.setdefault(
            (row.phase, opcode, where),
            {
                "verb": row.phase,
                "section": section,
                "opcode": opcode,
                "from": where[0],
                "to": where[1],
                "requests": 0,
                "bytes": 0,
                "sectors": 0,
                "needed": 0,
                "wavefronts": 0,
                "ideal": 0,
            },
        )
        both = tally.reads + tally.writes
        for name, value in (
            (
                "requests",
                max(
                    both.requests,
                    tally.shared.requests,
                    tally.executed if where[1] == "tensor cores" else 0,
                ),
            ),
            (
                "bytes",
                both.bytes
                or tally.shared.bytes
                or tally.operand_bytes
                or sum(tally.tensor_memory.values()),
            ),
            ("sectors", both.sectors),
            ("needed", both.needed),
            ("wavefronts", tally.shared.wavefronts),
            ("ideal", tally.shared.ideal),
        ):
            mine[name] += round(value * counted.factor)
    return sorted(
        (each for each in found.values() if each["bytes"]), key=lambda each: -each["bytes"]
    )


class FirstAccesses:
    """A listener (``watch`` and ``requests`` of Machine.run) that keeps the first accesses of block
    0, in the machine's order."""

    KINDS = (
        "load",
        "store",
        "copy-request",
        "ldmatrix",
        "stmatrix",
        "bulk-read",
        "bulk-write",
        "atomic-request",
    )

    def __init__(self, hidden: str) -> None:
        self.found: list[dict] = []
        self.hidden = hidden  # a buffer that is not the kernel's

    def __call__(self, access) -> None:
        if (
            len(self.found) >= FIRST
            or access.kind not in self.KINDS
            or access.space not in ("global", "shared")
            or self.hidden in access.ins.text
        ):
            return
        placement = access.lanes.placement
        if access.kind.startswith("bulk"):
            warps, address, active = (
                np.unique(access.lanes.warps),
                access.address[None, :],
                np.ones((1, len(access.address)), bool),
            )
        else:
            address, active = padded(access)
            warps = access.lanes.warps if access.lanes.full else np.unique(access.lanes.warps)
        mine = [
            row
            for row, warp in enumerate(warps.tolist())
            if tuple(placement.block_of[warp // placement.warps_per_block]) == (0, 0, 0)
        ]
        if not mine:
            return
        numbers = [int(warps[row]) % placement.warps_per_block for row in mine]
        asked = needed = wavefronts = 0
        if access.kind.startswith("bulk"):
            for start in access.address.tolist():
                sectors = transactions.span(start, access.nbytes) if access.nbytes else (0, 0)
                asked, needed = asked + sectors[0], needed + sectors[1]
        elif access.space == "global":
            asked, needed, _ = (
                int(each.sum())
                for each in transactions.sectors(address[mine], active[mine], access.nbytes)
            )
        else:
            wavefronts = int(
                transactions.wavefronts(address[mine], active[mine], access.nbytes)[0].sum()
            )
        where = way(access.ins) or (access.space, "registers")
        last = self.found[-1] if self.found else None
        if last is not None and (last["opcode"], last["warps"]) == (
            short(access.ins.opcode),
            [min(numbers), max(numbers)],
        ):
            for name, value in (
                ("times", 1),
                ("bytes", int(active[mine].sum()) * access.nbytes),
                ("sectors", asked),
                ("needed", needed),
                ("wavefronts", wavefronts),
            ):
                last[name] += value
            return
        self.found.append(
            {
                "times": 1,
                "warps": [min(numbers), max(numbers)],
                "opcode": short(access.ins.opcode),
                "from": where[0],
                "to": where[1],
                "bytes": int(active[mine].sum()) * access.nbytes,
                "sectors": asked,
                "needed": needed,
                "wavefronts": wavefronts,
                "line": access.ins.line,
            }
        )
