"""The light instrumented build: how long each warp was in each section altogether, and nothing about when.

``instrument(compiled) -> Instrumented``, as ``recorder`` makes, but a mark only adds the cycles since the last one to a register of the section that ends: two or three instructions and no store, which
would keep later loads from being issued before it. (On an H200 the recorder of events cost 11 to 26% of a kernel's time.) What warps did before the launch before theirs had ended
(``griddepcontrol.wait``) is kept apart: in a row of launches it is nobody's time. A slot is 256 bytes a warp:

    byte 0  u64 %globaltimer, 8  u64 %clock64 at the start     16  u32 %smid    20  u32 the warp's number in the block
        24  u64 %globaltimer, 32  u64 %clock64 at the end      40  u32 1         44  u32 %clock when the wait for the kernel before was over
        64  u32 cycles of each section since then             128  u32 cycles of each section before that; zeros in a kernel that does not wait

``read`` gives ``Totals``; ``shares`` says where the time of a launch in a row of launches went, as ``records.shares`` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.compiler import CompiledKernel
from numba_marlin.inspect.recorder import Instrumented, edited, rebuilt
from numba_marlin.inspect.records import LAUNCH, RECORDER, TAIL, Raw, lines_of, on_line
from numba_marlin.inspect.sections import NUMBER, SECTIONS, START, Mark

SLOT_BYTES, SINCE_AT, BEFORE_AT = 256, 64, 128
WAIT = "wait_kernel"

_SLOT = np.dtype({
    "names": ["timer0", "clock0", "smid", "warp", "timer1", "clock1", "used", "waited", "since", "before"],
    "formats": ["<u8", "<u8", "<u4", "<u4", "<u8", "<u8", "<u4", "<u4", ("<u4", len(SECTIONS)), ("<u4", len(SECTIONS))],
    "offsets": [0, 8, 16, 20, 24, 32, 40, 44, SINCE_AT, BEFORE_AT], "itemsize": SLOT_BYTES,
})  # fmt: skip


def instrument(compiled: CompiledKernel) -> Instrumented:
    """ValueError if the PTX has no line numbers."""
    name, warps = f"{compiled.entry}_param_{len(compiled.parameters)}", -(-compiled.threads // 32)
    used: list[str] = []

    def first(marks: list[Mark]) -> str:
        used.extend(name for name in NUMBER if name == START or any(name == mark.section or name in mark.before for mark in marks))
        return _prologue(name, warps, used)

    ptx, count = edited(compiled.ptx, compiled.entry, name, first, lambda mark: _mark(name, warps, mark, used), lambda: _epilogue(name, warps, used))
    return Instrumented(rebuilt(compiled, ptx), count, SLOT_BYTES)


def _slot(name: str, warps: int) -> str:
    """%nmr_to: this warp's slot; %nmr_p: whether this lane writes. Worked out anew each time, so that it takes no register in between."""
    return f"""	mov.u32 %nmr_a, %ctaid.z;
	mov.u32 %nmr_b, %nctaid.y;
	mul.lo.u32 %nmr_a, %nmr_a, %nmr_b;
	mov.u32 %nmr_b, %ctaid.y;
	add.u32 %nmr_a, %nmr_a, %nmr_b;
	mov.u32 %nmr_b, %nctaid.x;
	mul.lo.u32 %nmr_a, %nmr_a, %nmr_b;
	mov.u32 %nmr_b, %ctaid.x;
	add.u32 %nmr_a, %nmr_a, %nmr_b;
	mov.u32 %nmr_b, %tid.x;
	shr.u32 %nmr_c, %nmr_b, 5;
	mad.lo.u32 %nmr_a, %nmr_a, {warps}, %nmr_c;
	and.b32 %nmr_b, %nmr_b, 31;
	setp.eq.u32 %nmr_p, %nmr_b, 0;
	ld.param.u64 %nmr_to, [{name}];
	mul.wide.u32 %nmr_t, %nmr_a, {SLOT_BYTES};
	add.u64 %nmr_to, %nmr_to, %nmr_t;
"""


def _prologue(name: str, warps: int, used: list[str]) -> str:
    zero = "".join(f"	st.global.u32 [%nmr_to+{BEFORE_AT + 4 * number}], 0;\n" for number in range(len(SECTIONS)))
    zero += "".join(f"	st.global.u32 [%nmr_to+{SINCE_AT + 4 * number}], 0;\n" for name_, number in NUMBER.items() if name_ not in used)
    return f"""
	.reg .b32 %nmr_a, %nmr_b, %nmr_c, %nmr_last, %nmr_now;
	.reg .b32 %nmr_s<{len(SECTIONS)}>;
	.reg .b64 %nmr_to, %nmr_t;
	.reg .pred %nmr_p;
{_slot(name, warps)}	@!%nmr_p bra $nmr_begun;
	mov.u32 %nmr_a, %smid;
	st.global.v2.u32 [%nmr_to+16], {{%nmr_a, %nmr_c}};
	st.global.u32 [%nmr_to+44], 0;
{zero}	mov.u64 %nmr_t, %globaltimer;
	st.global.u64 [%nmr_to], %nmr_t;
	mov.u64 %nmr_t, %clock64;
	st.global.u64 [%nmr_to+8], %nmr_t;
$nmr_begun:
	mov.u32 %nmr_last, %clock;
	mov.u32 %nmr_now, {NUMBER[START]};
{_cleared(used)}"""


def _cleared(used: list[str]) -> str:
    return "".join(f"	mov.u32 %nmr_s{NUMBER[name]}, 0;\n" for name in used)


def _add_up(before: frozenset[str]) -> str:
    """Cycles since the last mark go to the section that ends."""
    text = "	mov.u32 %nmr_a, %clock;\n	sub.u32 %nmr_b, %nmr_a, %nmr_last;\n	mov.u32 %nmr_last, %nmr_a;\n"
    if len(before) == 1:
        number = NUMBER[next(iter(before))]
        return text + f"	add.u32 %nmr_s{number}, %nmr_s{number}, %nmr_b;\n"
    for number in sorted(NUMBER[name] for name in before):
        text += f"	setp.eq.u32 %nmr_p, %nmr_now, {number};\n	@%nmr_p add.u32 %nmr_s{number}, %nmr_s{number}, %nmr_b;\n"
    return text


def _mark(name: str, warps: int, mark: Mark, used: list[str]) -> str:
    text = _add_up(mark.before)
    if mark.before == {WAIT}:
        text += _slot(name, warps) + "	@%nmr_p st.global.u32 [%nmr_to+44], %nmr_last;\n" + _stored(BEFORE_AT, used) + _cleared(used)
    return text + f"	mov.u32 %nmr_now, {NUMBER[mark.section]};\n"


def _stored(at: int, used: list[str]) -> str:
    return "".join(f"	@%nmr_p st.global.u32 [%nmr_to+{at + 4 * NUMBER[name]}], %nmr_s{NUMBER[name]};\n" for name in used)


def _epilogue(name: str, warps: int, used: list[str]) -> str:
    """(Which section ends here is not known: any of them may.)"""
    return f"""{_add_up(frozenset(used))}{_slot(name, warps)}{_stored(SINCE_AT, used)}	@%nmr_p st.global.u32 [%nmr_to+40], 1;
	mov.u64 %nmr_t, %clock64;
	@%nmr_p st.global.u64 [%nmr_to+32], %nmr_t;
	mov.u64 %nmr_t, %globaltimer;
	@%nmr_p st.global.u64 [%nmr_to+24], %nmr_t;
"""


@dataclass(frozen=True, eq=False)
class Totals:
    """One launch. smid, block, warp: int [warps]; start_ns, waited_ns (the wait for the kernel before was over; the start where there is none), end_ns: float64 [warps];
    since_ns, before_ns: float64 [warps, sections], after and before ``waited_ns``."""

    smid: np.ndarray
    block: np.ndarray
    warp: np.ndarray
    start_ns: np.ndarray
    waited_ns: np.ndarray
    end_ns: np.ndarray
    since_ns: np.ndarray
    before_ns: np.ndarray

    @property
    def first_ns(self) -> float:
        return float(self.start_ns.min())

    @property
    def last_ns(self) -> float:
        return float(self.end_ns.max())


def raw(buffer: np.ndarray, instrumented: Instrumented, blocks: int) -> Raw:
    """Of uint8 [nbytes]; ValueError if a warp did not come to its end."""
    slots = np.ascontiguousarray(buffer[: instrumented.nbytes(blocks)]).view(_SLOT)
    if not slots["used"].all():
        raise ValueError(f"warp {int(np.argmin(slots['used']))} of {len(slots)} left no record")
    return Raw(slots, np.zeros((len(slots), 0, 2), np.uint32), instrumented.warps, np.zeros(len(slots), bool))


def align(raws: list[Raw]) -> list[Totals]:
    """Launches that followed each other, on one axis of time."""
    lines = lines_of(raws)
    found = []
    for each in raws:
        header = each.header
        start, end, slope = on_line(header, lines)
        waits = header["waited"] != 0
        waited = np.where(waits, start + (header["waited"] - header["clock0"].astype(np.uint32)).astype(np.float64) * slope, start)
        scale = slope[:, None]
        found.append(Totals(
            header["smid"].astype(np.int64), np.arange(len(header)) // each.warps_per_block, header["warp"].astype(np.int64), start, waited, end,
            header["since"] * scale, header["before"] * scale,
        ))  # fmt: skip
    return found


def shares(launches: list[Totals], warps=None) -> dict[str, float]:
    """ns of an average warp by section, from the end of the launch before to the end of its own, "launch", "tail" and "recorder" (its own
    first and last instructions) included; a single launch has its own span. ``warps``: bool [warps], of whom only."""
    windows = [(launches[i - 1].last_ns, launches[i]) for i in range(1, len(launches))] or [(launches[0].first_ns, launches[0])]
    total = {name: 0.0 for name in (LAUNCH, *NUMBER, RECORDER, TAIL)}
    for opening, each in windows:
        rows = slice(None) if warps is None else warps
        start, waited, end, since, before = (array[rows] for array in (each.start_ns, each.waited_ns, each.end_ns, each.since_ns, each.before_ns))
        overlap = np.clip(opening - start, 0, None)
        late = np.clip(waited - np.maximum(start, opening), 0, None)  # of the time before ``waited``, what lies in the window
        early = (overlap > 0)[:, None]
        parts = since.mean(axis=0) + np.where(early, 0, before).mean(axis=0)
        total[LAUNCH] += float(np.clip(start - opening, 0, None).mean())
        total[TAIL] += float((each.last_ns - end).mean())
        for name, number in NUMBER.items():
            total[name] += float(parts[number])
        total[WAIT] += float(np.where(early[:, 0], late, 0).mean())
        alive = np.where(early[:, 0], end - np.maximum(waited, opening) + late, end - start)
        total[RECORDER] += float(alive.mean() - parts.sum() - np.where(early[:, 0], late, 0).mean())
    return {name: value / len(windows) for name, value in total.items()}
