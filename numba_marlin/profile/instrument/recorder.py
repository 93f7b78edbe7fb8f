"""An instrumented build: the same compiled kernel, which also records the time at which each of its
warps began each section, and its SM.

``instrument(compiled, capacity) -> Instrumented``. It works on the PTX text, so the kernel's own
code stays as it is and every kernel can be recorded: at each of ``sections.marks`` lane 0 of a warp
stores %clock and the section's number in a buffer of its warp; before the first instruction and
before ``ret`` it stores %globaltimer, %clock64 and %smid. One parameter is added as the last: the
address of the buffer, a multiple of ``slot_bytes``. The buffer has ``slot_bytes`` per warp, blocks
in order, x fastest:

    byte  0  u64  %globaltimer at the start
          8  u64  %clock64 at the start
         16  u32  %smid
         20  u32  number of the warp in the block
         24  u64  %globaltimer at the end
         32  u64  %clock64 at the end
         40  u32  bytes of the slot in use; when it is full, later sections are not recorded
         64  pairs of u32: %clock, section

The kernel must have been compiled with ``line_info``. ``records`` reads the buffer; the PTX machine
and a GPU fill it in the same way.
(https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-clock64, -globaltimer,
-smid. %clock is 32 bits wide, and overflows after about 2 s on a GPU.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from numba_marlin.compiler import TARGETS, CompiledKernel
from numba_marlin.emulator import Machine
from numba_marlin.profile.instrument.sections import NUMBER, START, marks

PARAMETER = "record"
HEADER_BYTES, EVENT_BYTES = 64, 8
CAPACITY = 1016  # sections per warp: with the header 8 KiB
NOBODY = 0xFFFFFFFF  # the place of lanes that record nothing


@dataclass(frozen=True)
class Instrumented:
    """``compiled``: the kernel with one more parameter; ``marks``: number of places that record;
    ``slot_bytes``: per warp."""

    compiled: CompiledKernel
    marks: int
    slot_bytes: int

    @property
    def warps(self) -> int:
        """Warps per block."""
        return -(-self.compiled.threads // 32)

    def nbytes(self, blocks: int) -> int:
        """Bytes of the buffer for a grid of ``blocks`` blocks; allocate ``slot_bytes`` more to
        align it."""
        return blocks * self.warps * self.slot_bytes


def instrument(
    compiled: CompiledKernel, capacity: int = CAPACITY, machine_code: bool = True
) -> Instrumented:
    """Raises ValueError if the capacity and the header do not fill a power of two, or if the PTX
    has no line numbers. machine_code: False for the PTX machine, which needs none."""
    slot_bytes = HEADER_BYTES + EVENT_BYTES * capacity
    if slot_bytes & (slot_bytes - 1) or capacity < 1:
        raise ValueError(
            f"capacity={capacity}: a slot of {HEADER_BYTES} + {EVENT_BYTES} * capacity bytes must"
            " be a power of two"
        )
    ptx, count = instrumented_text(
        compiled.ptx,
        compiled.entry,
        len(compiled.parameters),
        -(-compiled.threads // 32),
        slot_bytes,
    )
    return Instrumented(rebuilt(compiled, ptx, machine_code), count, slot_bytes)


def rebuilt(compiled: CompiledKernel, ptx: str, machine_code: bool = True) -> CompiledKernel:
    """``compiled`` rebuilt from the edited PTX, with the recorder's parameter; without machine code
    if nothing needs it."""
    from numba_marlin.compiler.assemble import assemble

    cubin, resources = (
        assemble(ptx, TARGETS[compiled.target]) if machine_code else (None, compiled.resources)
    )
    return replace(
        compiled,
        ptx=ptx,
        cubin=cubin,
        resources=resources,
        parameters=(*compiled.parameters, (PARAMETER, "u64")),
        key="",
        from_cache=False,
    )


def instrumented_text(
    ptx: str, entry: str, parameters: int, warps: int, slot_bytes: int
) -> tuple[str, int]:
    """(PTX that records, number of places that record)."""
    name = f"{entry}_param_{parameters}"
    return edited(
        ptx,
        entry,
        name,
        marks,
        lambda: _prologue(name, warps, slot_bytes),
        lambda mark: _mark(name, NUMBER[mark.section], mark.sure, slot_bytes),
        lambda: _epilogue(name, slot_bytes),
    )


def edited(
    ptx: str,
    entry: str,
    parameter: str,
    places: Callable,
    first: Callable,
    at_place: Callable,
    last: Callable,
) -> tuple[str, int]:
    """(PTX with one more parameter of 64 bits, and ``first()`` before the first instruction,
    ``at_place(place)`` before the instruction of every one of ``places(module, kernel)``,
    ``last()`` before ret; how many places)."""
    machine = Machine(ptx)
    kernel = machine.kernel(entry)
    if not any(ins.inlined or ins.source for ins in kernel.instructions):
        raise ValueError(f"PTX of {entry} has no line numbers: compile with line_info=True")
    found = places(machine.module, kernel)
    before: dict[int, list[str]] = {}
    before.setdefault(kernel.instructions[0].line, []).append(first())
    for place in found:
        before.setdefault(kernel.instructions[place.pc].line, []).append(at_place(place))
    for ins in kernel.instructions:
        if ins.root in ("ret", "exit"):
            if ins.guard is not None:
                raise ValueError(
                    f"PTX line {ins.line}: {ins.text} under a condition cannot be recorded"
                )
            before.setdefault(ins.line, []).append(last())
    lines = ptx.splitlines(keepends=True)
    text = "".join(
        "".join(before.get(number, ())) + line for number, line in enumerate(lines, start=1)
    )
    start = text.index(f".entry {entry}(")
    end = text.index(")", start)
    return text[:end].rstrip() + f",\n\t.param .u64 {parameter}\n" + text[end:], len(found)


def block_number(into: str, other: str) -> str:
    """PTX that computes the block's number in the grid, x fastest, in one register, and uses
    another one for intermediate results."""
    return f"""	mov.u32 {into}, %ctaid.z;
	mov.u32 {other}, %nctaid.y;
	mul.lo.u32 {into}, {into}, {other};
	mov.u32 {other}, %ctaid.y;
	add.u32 {into}, {into}, {other};
	mov.u32 {other}, %nctaid.x;
	mul.lo.u32 {into}, {into}, {other};
	mov.u32 {other}, %ctaid.x;
	add.u32 {into}, {into}, {other};
"""


def _prologue(name: str, warps: int, slot_bytes: int) -> str:
    """Set %nmr_at, where in the buffer this lane writes next (NOBODY for lanes that do not write),
    and %nmr_now, the section that has begun."""
    return f"""
	.reg .b32 %nmr_at, %nmr_now, %nmr_a, %nmr_b;
	.reg .b64 %nmr_to, %nmr_t;
	.reg .pred %nmr_p;
{block_number("%nmr_a", "%nmr_b")}	mul.lo.u32 %nmr_a, %nmr_a, {warps};
	mov.u32 %nmr_b, %tid.x;
	shr.u32 %nmr_at, %nmr_b, 5;
	add.u32 %nmr_a, %nmr_a, %nmr_at;
	mul.lo.u32 %nmr_a, %nmr_a, {slot_bytes};
	and.b32 %nmr_b, %nmr_b, 31;
	setp.eq.u32 %nmr_p, %nmr_b, 0;
	mov.u32 %nmr_b, %nmr_at;
	add.u32 %nmr_at, %nmr_a, {HEADER_BYTES};
	selp.b32 %nmr_at, %nmr_at, {NOBODY:#x}, %nmr_p;
	mov.u32 %nmr_now, {NUMBER[START]};
	ld.param.u64 %nmr_to, [{name}];
	cvt.u64.u32 %nmr_t, %nmr_a;
	add.u64 %nmr_to, %nmr_to, %nmr_t;
	mov.u32 %nmr_a, %smid;
	@%nmr_p st.global.v2.u32 [%nmr_to+16], {{%nmr_a, %nmr_b}};
	mov.u64 %nmr_t, %globaltimer;
	@%nmr_p st.global.u64 [%nmr_to], %nmr_t;
	mov.u64 %nmr_t, %clock64;
	@%nmr_p st.global.u64 [%nmr_to+8], %nmr_t;
"""


def _mark(name: str, number: int, sure: bool, slot_bytes: int) -> str:
    condition = "" if sure else f"	setp.ne.and.u32 %nmr_p, %nmr_now, {number}, %nmr_p;\n"
    return f"""	and.b32 %nmr_a, %nmr_at, {slot_bytes - 1};
	setp.lt.u32 %nmr_p, %nmr_a, {slot_bytes - EVENT_BYTES};
{condition}	@%nmr_p mov.u32 %nmr_a, %clock;
	ld.param.u64 %nmr_to, [{name}];
	cvt.u64.u32 %nmr_t, %nmr_at;
	add.u64 %nmr_to, %nmr_to, %nmr_t;
	mov.u32 %nmr_now, {number};
	@%nmr_p st.global.v2.u32 [%nmr_to], {{%nmr_a, %nmr_now}};
	@%nmr_p add.u32 %nmr_at, %nmr_at, {EVENT_BYTES};
"""


def _epilogue(name: str, slot_bytes: int) -> str:
    return f"""	setp.ne.u32 %nmr_p, %nmr_at, {NOBODY:#x};
	and.b32 %nmr_a, %nmr_at, {~(slot_bytes - 1) & 0xFFFFFFFF:#x};
	ld.param.u64 %nmr_to, [{name}];
	cvt.u64.u32 %nmr_t, %nmr_a;
	add.u64 %nmr_to, %nmr_to, %nmr_t;
	and.b32 %nmr_a, %nmr_at, {slot_bytes - 1};
	@%nmr_p st.global.u32 [%nmr_to+40], %nmr_a;
	mov.u64 %nmr_t, %clock64;
	@%nmr_p st.global.u64 [%nmr_to+32], %nmr_t;
	mov.u64 %nmr_t, %globaltimer;
	@%nmr_p st.global.u64 [%nmr_to+24], %nmr_t;
"""
