"""The PTX of the light instrumented builds (``totals``): what is inserted before a kernel's first
instruction, where the clock is read, and before the kernel's end.

Register ``%nmr_sN`` holds the cycles of section N, ``%nmr_a`` the clock value read last, and
``%nmr_now`` the current section of the warp where it does not follow from the position in the code.
"""

from __future__ import annotations

from numba_marlin.emulator.text.program import Instruction
from numba_marlin.profile.instrument.coarse import Reading
from numba_marlin.profile.instrument.recorder import block_number
from numba_marlin.profile.instrument.sections import NUMBER, SECTIONS, START

SLOT_BYTES, SECTIONS_AT = 128, 32
PLACES = -(-len(SECTIONS) // 4) * 4  # a multiple of four, for vectorised stores


def leaving(branch: Instruction) -> str:
    """Replace a branch to the kernel's end by an exit without a record. If idle lanes met their
    leader again at the end, the assembler could no longer infer that a single lane works and that
    its operands are uniform across the warp."""
    guard = (
        ""
        if branch.guard is None
        else f"@{'!' if branch.guard_negated else ''}{branch.guard.name} "
    )
    return f"	{guard}exit; // instead of "


def prologue(used: list[str]) -> str:
    """Declare the registers and begin the first section. used: the names of the sections that the
    kernel has."""
    return f"""
	.reg .b32 %nmr_a, %nmr_b, %nmr_c, %nmr_d, %nmr_now;
	.reg .b32 %nmr_s<{PLACES}>;
	.reg .b64 %nmr_to, %nmr_t;
	.reg .pred %nmr_p, %nmr_q;
	mov.u32 %nmr_a, %clock;
{_begun(used)}"""


def _begun(used: list[str]) -> str:
    """Zero all sections and begin the first one at the time in %nmr_a."""
    text = "".join(f"	mov.u32 %nmr_s{NUMBER[name]}, 0;\n" for name in used if name != START)
    first = NUMBER[START]
    return text + f"	neg.s32 %nmr_s{first}, %nmr_a;\n" + f"	mov.u32 %nmr_now, {first};\n"


def _slot(name: str, warps: int) -> str:
    """Compute %nmr_to: the address of the warp's slot; %nmr_p: whether the lane writes; %nmr_c: the
    warp's index. They are computed at the end, so that they occupy no registers before it."""
    return (
        block_number("%nmr_b", "%nmr_c")
        + f"""	mov.u32 %nmr_c, %tid.x;
	and.b32 %nmr_now, %nmr_c, 31;
	setp.eq.u32 %nmr_p, %nmr_now, 0;
	shr.u32 %nmr_c, %nmr_c, 5;
	mad.lo.u32 %nmr_b, %nmr_b, {warps}, %nmr_c;
	ld.param.u64 %nmr_to, [{name}];
	mul.wide.u32 %nmr_t, %nmr_b, {SLOT_BYTES};
	add.u64 %nmr_to, %nmr_to, %nmr_t;
"""
    )


def _move(ending: str, beginning: str, guard: str = "") -> str:
    """End one section and begin another at the time in %nmr_a."""
    end, begin = f"%nmr_s{NUMBER[ending]}", f"%nmr_s{NUMBER[beginning]}"
    return f"\t{guard}add.u32 {end}, {end}, %nmr_a;\n\t{guard}sub.u32 {begin}, {begin}, %nmr_a;\n"


def reading(each: Reading, used: list[str], label: str) -> str:
    """The PTX of one reading of the clock. label: unique, for branches around parts of it."""
    text, begun = "", f"{label}_wait"
    if each.enter and each.again:
        text += f"	setp.eq.u32 %nmr_p, %nmr_now, {NUMBER[each.enter[0]]};\n"
        text += f"	@%nmr_p bra {begun};\n"
    always = (
        (each.leave and not each.maybe)
        or each.restart
        or each.enter
        or (each.switch and each.switch[0] not in each.switch[1])
    )
    if always:
        text += "	mov.u32 %nmr_a, %clock;\n"
    if each.leave and not each.maybe:
        text += _move(*each.leave) + (
            f"	mov.u32 %nmr_now, {NUMBER[each.leave[1]]};\n" if each.told else ""
        )
    elif each.leave:
        wait, section = each.leave
        text += (
            ("" if always else "	mov.u32 %nmr_a, %clock;\n")
            + f"	setp.eq.u32 %nmr_p, %nmr_now, {NUMBER[wait]};\n"
            + _move(wait, section, "@%nmr_p ")
        )
        text += f"	@%nmr_p mov.u32 %nmr_now, {NUMBER[section]};\n"
    if each.restart:
        text += _begun(used)
    if each.switch:
        text += _switch(*each.switch, label, bool(always))
    if each.enter:
        wait, section = each.enter
        text += _move(section, wait) + (
            f"	mov.u32 %nmr_now, {NUMBER[wait]};\n" if each.told else ""
        )
        text += f"{begun}:\n" if each.again else ""
    return text


def _switch(section: str, before: frozenset[str], label: str, read: bool) -> str:
    """Begin ``section`` and end the current one of ``before``. Skip everything if ``section`` has
    already begun. read: whether %nmr_a already holds the time."""
    others = sorted(NUMBER[name] for name in before if name != section)
    text = ""
    if section in before:
        text += f"	setp.eq.u32 %nmr_p, %nmr_now, {NUMBER[section]};\n"
        text += f"	@%nmr_p bra {label};\n"
    if not read:
        text += "	mov.u32 %nmr_a, %clock;\n"
    if len(others) == 1:
        text += f"	add.u32 %nmr_s{others[0]}, %nmr_s{others[0]}, %nmr_a;\n"
    else:
        for other in others:
            text += f"	setp.eq.u32 %nmr_q, %nmr_now, {other};\n"
            text += f"	@%nmr_q add.u32 %nmr_s{other}, %nmr_s{other}, %nmr_a;\n"
    number = NUMBER[section]
    text += f"	sub.u32 %nmr_s{number}, %nmr_s{number}, %nmr_a;\n"
    text += f"	mov.u32 %nmr_now, {number};\n"
    return text + (f"{label}:\n" if section in before else "")


def epilogue(name: str, warps: int, used: list[str], waits: bool) -> str:
    """End the current section, whichever it is, and store the warp's slot. name: the parameter that
    points to the slots; waits: whether the kernel executes griddepcontrol.wait."""
    text = "	mov.u32 %nmr_a, %clock;\n"
    for section in used:
        number = NUMBER[section]
        text += f"	setp.eq.u32 %nmr_q, %nmr_now, {number};\n"
        text += f"	@%nmr_q add.u32 %nmr_s{number}, %nmr_s{number}, %nmr_a;\n"
    known = {NUMBER[section] for section in used}
    text += "".join(
        f"	mov.u32 %nmr_s{number}, 0;\n" for number in range(PLACES) if number not in known
    )
    text += _slot(name, warps)
    text += "".join(
        f"	@%nmr_p st.global.v4.u32 [%nmr_to+{SECTIONS_AT + 4 * first}],"
        f" {{{', '.join(f'%nmr_s{number}' for number in range(first, first + 4))}}};\n"
        for first in range(0, PLACES, 4)
    )
    return (
        text
        + f"""	mov.u32 %nmr_a, %smid;
	mov.u32 %nmr_b, 1;
	mov.u32 %nmr_d, {int(waits)};
	@%nmr_p st.global.v4.u32 [%nmr_to+16], {{%nmr_a, %nmr_c, %nmr_b, %nmr_d}};
	mov.u64 %nmr_t, %clock64;
	@%nmr_p st.global.u64 [%nmr_to+8], %nmr_t;
	setp.eq.and.u32 %nmr_p, %nmr_c, 0, %nmr_p;
	@%nmr_p mov.u64 %nmr_t, %globaltimer;
	@%nmr_p st.global.u64 [%nmr_to], %nmr_t;
"""
    )
