"""wgmma: what the instructions say; ``tensor.warpgroups`` says when it happens.

https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from numba_marlin.emulator.errors import PtxSyntaxError
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.state.ends import WarpgroupWait
from numba_marlin.emulator.tensor.warpgroups import Shape, places
from numba_marlin.emulator.tensor.wgmma_forms import FORMS, Form
from numba_marlin.emulator.text.program import Instruction, Register, Vector
from numba_marlin.layout import wgmma as layout

SHAPE = re.compile(r"m64n(\d+)k(\d+)")


@instruction("wgmma.mma_async")
def mma_async(ins, m):
    """#...-wgmma-mma-async: .sync.aligned.m64nNkK{.satfinite} and three types of ``wgmma_forms``;
    d, a | a-desc, b-desc, scale-d, and where the types have them ±1, ±1 and {0, }0"""
    form, columns = shape_of(ins)
    saturated = "satfinite" in ins.modifiers
    in_registers = isinstance(ins.operands[1], Vector)
    transposes = (1 if in_registers else 2) if form.transposes else 0
    given = operands(ins, 4 + form.immediates + transposes)
    signs = [m.immediate(ins, 4 + i) for i in range(form.immediates)]
    if any(sign not in (1, -1) for sign in signs):
        raise unsupported(ins, f"imm-scale-a and imm-scale-b {signs} must be 1 or -1")
    if any(m.immediate(ins, position) for position in range(len(given) - transposes, len(given))):
        raise unsupported(ins, "transposed matrices are not implemented: k must be contiguous")
    d, a = (
        registers(ins, given[0], form.registers(columns)),
        (registers(ins, given[1], 4) if in_registers else []),
    )
    fragment = layout.accumulator(columns)
    back = (fragment.row_of * columns + fragment.col_of).T.reshape(-1)
    checks = m.warpgroups.checks
    what = Shape(
        ins,
        columns,
        np.array([r.index for r in d], np.intp),
        np.array([r.index for r in a], np.intp),
        checks.rows_of(given[0]),
        checks.rows_of(given[1]) if in_registers else np.array([], np.intp),
        places(fragment.row_of, fragment.col_of, columns),
        back,
        form,
        signs.count(-1) == 1,
        saturated,
    )
    a_desc = None if in_registers else m.source(ins, given[1], "u64")
    b_desc, adds = m.source(ins, given[2], "u64"), m.source(ins, given[3], "pred")

    def step(lanes):
        lanes.require_whole_warps(ins, "wgmma")
        lanes = whole(lanes)
        everywhere = [
            None if source is None else np.broadcast_to(source[lanes.sel], lanes.shape)
            for source in (a_desc, b_desc, adds)
        ]
        m.warpgroups.issue(what, lanes, *everywhere)

    return step


def shape_of(ins: Instruction) -> tuple[Form, int]:
    """(types, columns) of a product that the ISA has."""
    named, rest = ins.modifiers[:3], ins.modifiers[3:]
    saturated = rest[:1] == ("satfinite",)
    form = FORMS.get(rest[1:] if saturated else rest)
    if named[:2] != ("sync", "aligned") or form is None or saturated and not form.integer:
        raise unsupported(
            ins,
            "only .sync.aligned.m64nNkK of these types is implemented, integers with .satfinite or"
            f" without: {', '.join(map('.'.join, FORMS))}",
        )
    match = SHAPE.fullmatch(named[2]) if len(named) == 3 else None
    columns, depth = (int(match[1]), int(match[2])) if match else (0, 0)
    if columns not in form.columns or depth != form.depth:
        raise unsupported(
            ins,
            f"the shape must be m64nNk{form.depth}, N one of {', '.join(map(str, form.columns))}",
        )
    return form, columns


def registers(ins: Instruction, operand: Any, count: int) -> list[Register]:
    """The ``count`` different 32-bit registers that must stand here."""
    items = operand.items if isinstance(operand, Vector) else ()
    if len(items) != count or not all(
        isinstance(item, Register) and item.width == 32 for item in items
    ):
        raise PtxSyntaxError(
            f"{ins.opcode} needs {count} 32-bit registers here, not {len(items)}",
            line=ins.line,
            text=ins.text,
        )
    return list(items)


def whole(lanes):
    """The same lanes as whole warps, which they are."""
    return lanes if lanes.full else type(lanes)(lanes.placement, np.unique(lanes.warps), None)


def bare(ins) -> None:
    """Neither guard nor modifiers but .sync.aligned."""
    allow(ins, "sync", "aligned")
    if ins.modifiers != ("sync", "aligned") or ins.guard is not None:
        raise unsupported(ins, "must be .sync.aligned and without a guard")


@instruction("wgmma.fence")
def fence(ins, m):
    """#...-wgmma-fence"""
    bare(ins)
    operands(ins, 0)

    def step(lanes):
        lanes.require_whole_warps(ins, "wgmma.fence")
        m.warpgroups.checks.fence(lanes)

    return step


@instruction("wgmma.commit_group")
def commit_group(ins, m):
    """#...-wgmma-commit-group"""
    bare(ins)
    operands(ins, 0)

    def step(lanes):
        lanes.require_whole_warps(ins, "wgmma.commit_group")
        m.warpgroups.commit(whole(lanes))

    return step


@instruction("wgmma.wait_group")
def wait_group(ins, m):
    """#...-wgmma-wait-group: the scheduler brings the warps of the warpgroup together."""
    bare(ins)
    operands(ins, 1)
    latest = m.immediate(ins, 0)
    if latest < 0:
        raise unsupported(ins, f"{latest} groups must not be negative")
    return WarpgroupWait(ins, latest)
