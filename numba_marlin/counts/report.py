"""The result of counting: frozen data, printed as tables or converted to JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np

from numba_marlin.counts.tally import GlobalTally, Tally
from numba_marlin.counts.transactions import SECTOR_BYTES, SECTORS_PER_LINE


@dataclass(frozen=True)
class InstructionCounts:
    """One instruction. ``line`` and ``text`` of the PTX; ``kind`` its class; ``source`` "file:line"
    of the kernel, None without line numbers."""

    pc: int
    line: int
    text: str
    kind: str
    phase: str
    source: str | None
    tally: Tally


@dataclass(frozen=True)
class PhaseCounts:
    """Counts of a group of instructions. ``block_sectors``: distinct sectors of global memory (32
    bytes), counted once per block that touches them;

    ``sectors``: counted once; ``block_lines`` and ``lines``: the same for lines (128 bytes). With
    infinite caches, L1 would request ``block_sectors`` from L2, and L2 ``sectors`` from memory.
    """

    name: str
    tally: Tally
    block_sectors: int
    sectors: int
    block_lines: int
    lines: int

    @property
    def asked(self) -> int:
        return self.tally.reads.sectors + self.tally.writes.sectors

    @property
    def l1_reuse(self) -> float | None:
        """Mean number of requests of a block for a sector that it touches."""
        return self.asked / self.block_sectors if self.block_sectors else None

    @property
    def l2_reuse(self) -> float | None:
        """Mean number of blocks that share a sector."""
        return self.block_sectors / self.sectors if self.sectors else None


@dataclass(frozen=True)
class BufferCounts:
    """Traffic of one buffer of ``nbytes``; ``read_distinct`` and ``written_distinct``: bytes of its
    distinct sectors."""

    name: str
    nbytes: int
    reads: GlobalTally
    writes: GlobalTally
    read_distinct: int
    written_distinct: int


@dataclass(frozen=True)
class Counts:
    """``phases``: in the order of the code; ``total``: of all phases; ``buffers``: those that were
    accessed; ``instructions``: by pc."""

    kernel: str
    blocks: int
    total: PhaseCounts
    phases: tuple[PhaseCounts, ...]
    buffers: tuple[BufferCounts, ...]
    instructions: tuple[InstructionCounts, ...]

    @classmethod
    def of(
        cls,
        kernel: str,
        result,
        instructions: Iterable[InstructionCounts],
        seen: dict,
        buffers: tuple,
        shift: int,
    ) -> Counts:
        """Counts from the instructions' tallies and the sectors ``seen`` (by a key that begins with
        the pc; the block's number is shifted left by ``shift`` bits)."""
        rows = tuple(instructions)
        by_phase: dict[str, list[InstructionCounts]] = {}
        for row in rows:
            by_phase.setdefault(row.phase, []).append(row)
        phases = tuple(phase_of(name, each, seen, shift) for name, each in by_phase.items())
        return cls(
            kernel,
            result.blocks,
            phase_of("total", rows, seen, shift),
            tuple(each for each in phases if each.tally.executed),
            buffers,
            rows,
        )

    def phase(self, name: str) -> PhaseCounts:
        for each in self.phases:
            if each.name == name:
                return each
        raise KeyError(
            f"{name!r} is no phase of {self.kernel}; there are"
            f" {', '.join(each.name for each in self.phases)}"
        )

    def buffer(self, name: str) -> BufferCounts:
        for each in self.buffers:
            if each.name == name:
                return each
        raise KeyError(
            f"{name!r} is no buffer that {self.kernel} touched; there are"
            f" {', '.join(each.name for each in self.buffers)}"
        )

    def as_dict(self, instructions: bool = True) -> dict:
        """Plain data for JSON, with what is derived: coalescing in per cent, conflicts, reuse.
        ``instructions``: include each executed instruction."""
        data = {
            "kernel": self.kernel,
            "blocks": self.blocks,
            "total": plain_phase(self.total),
            "phases": [plain_phase(each) for each in self.phases],
            "buffers": [
                {
                    **asdict(each),
                    "reads": plain_global(each.reads),
                    "writes": plain_global(each.writes),
                }
                for each in self.buffers
            ],
        }
        if instructions:
            rows = [row for row in self.instructions if row.tally.executed]
            data["instructions"] = [
                {**asdict(replace(row, tally=Tally())), "tally": plain_tally(row.tally)}
                for row in rows
            ]
        return data

    def __str__(self) -> str:
        phases = [(each.name, *phase_cells(each)) for each in (*self.phases, self.total)]
        buffers = [
            (
                each.name,
                number(each.nbytes),
                number(each.reads.bytes),
                number(each.reads.traffic),
                number(each.read_distinct),
                percent(each.reads),
                number(each.writes.bytes),
                number(each.writes.traffic),
                percent(each.writes),
            )
            for each in self.buffers
        ]
        mix = sorted(self.total.tally.classes.items(), key=lambda item: -item[1])
        share = max(self.total.tally.executed, 1)
        copied = (
            ", ".join(
                f"{kind} {number(nbytes)} bytes" for kind, nbytes in self.total.tally.copied.items()
            )
            or "none"
        )
        in_tensor_memory = [
            f"{nbytes:,} bytes {what}" for what, nbytes in self.total.tally.tensor_memory.items()
        ]
        sentences = (
            "instructions: "
            + ", ".join(f"{name} {100 * count / share:.1f}%" for name, count in mix),
            (
                f"asynchronous copies: {copied}; operands of wgmma and tcgen05 from shared memory:"
                f" {self.total.tally.operand_bytes:,} bytes"
            ),
            *([f"tensor memory: {', '.join(in_tensor_memory)}"] if in_tensor_memory else []),
            (
                f"sectors of 32 bytes: {self.total.asked:,} asked for, {self.total.block_sectors:,}"
                f" different ones in a block, {self.total.sectors:,} in all: reuse"
                f" {ratio(self.total.l1_reuse)} in L1, {ratio(self.total.l2_reuse)} in L2 at best"
            ),
        )
        title = (
            f"{self.kernel}, {self.blocks} block(s): counted on the PTX machine, by warp"
            " instruction"
        )
        tables = [table(PHASE_HEADS, phases), *([table(BUFFER_HEADS, buffers)] if buffers else [])]
        return "\n\n".join(
            [
                title,
                *tables,
                "\n".join(
                    line for sentence in sentences for line in textwrap.wrap(sentence, WIDTH)
                ),
            ]
        )


WIDTH = 120  # columns of sentences
PHASE_HEADS = (
    "phase",
    "instr.",
    "tensor flops",
    "read bytes",
    "coalesced",
    "written",
    "coalesced",
    "shared bytes",
    "wavefronts",
    "conflicts",
    "registers",
)
BUFFER_HEADS = (
    "buffer",
    "bytes",
    "asked for",
    "sectors' bytes",
    "distinct",
    "coalesced",
    "written",
    "sectors' bytes",
    "coalesced",
)


def phase_cells(phase: PhaseCounts) -> tuple[str, ...]:
    tally = phase.tally
    return (
        number(tally.executed),
        number(tally.flops),
        number(tally.reads.bytes),
        percent(tally.reads),
        number(tally.writes.bytes),
        percent(tally.writes),
        number(tally.shared.bytes),
        number(tally.shared.wavefronts),
        number(tally.shared.conflicts) if tally.shared.requests else "",
        number(tally.registers),
    )


def phase_of(name: str, rows: Iterable[InstructionCounts], seen: dict, shift: int) -> PhaseCounts:
    rows = list(rows)
    pcs = {row.pc for row in rows}
    found = [values for (pc, *_), values in seen.items() if pc in pcs]
    together = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    alone = np.unique(together & (1 << shift) - 1)
    sizes = [
        len(together),
        len(alone),
        len(np.unique(together // SECTORS_PER_LINE)),
        len(np.unique(alone // SECTORS_PER_LINE)),
    ]
    return PhaseCounts(name, sum((row.tally for row in rows), Tally()), *sizes)


def plain_global(tally: GlobalTally) -> dict:
    return {**asdict(tally), "traffic": tally.traffic, "coalescing": tally.coalescing}


def plain_tally(tally: Tally) -> dict:
    shared = {**asdict(tally.shared), "conflicts": tally.shared.conflicts}
    return {
        **asdict(tally),
        "reads": plain_global(tally.reads),
        "writes": plain_global(tally.writes),
        "shared": shared,
    }


def plain_phase(phase: PhaseCounts) -> dict:
    return {
        **asdict(phase),
        "tally": plain_tally(phase.tally),
        "l1_reuse": phase.l1_reuse,
        "l2_reuse": phase.l2_reuse,
        "sector_bytes": SECTOR_BYTES,
    }


def number(value: int) -> str:
    """Blank for zero, so that a table shows what there is."""
    return f"{value:,}" if value else ""


def percent(tally: GlobalTally) -> str:
    return "" if tally.coalescing is None else f"{tally.coalescing:.1f}%".replace(".0%", "%")


def ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table: the first column is aligned left, the others right; empty columns are left out."""
    keep = [i for i in range(len(heads)) if i == 0 or any(row[i] for row in rows)]
    cells = [[row[i] for i in keep] for row in (heads, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(keep))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
