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
from numba_marlin.emulator.tensor.warpgroups import places
from numba_marlin.emulator.tensor.wgmma_forms import BITS, FORMS, Form
from numba_marlin.emulator.tensor.wgmma_products import Shape, Sparse
from numba_marlin.emulator.text.program import Instruction, Register, Vector
from numba_marlin.layout import wgmma as layout
from numba_marlin.layout.sparsity import Metadata

SPARSE = "sp"
SHAPE = re.compile(r"m64n(\d+)k(\d+)")


@instruction("wgmma.mma_async")
def mma_async(ins, m):
    """#...-wgmma-mma-async: .sync.aligned.m64nNkK{.satfinite} and three types of ``wgmma_forms``;
    d, a | a-desc, b-desc, scale-d, and where the types have them imm-scale-a, imm-scale-b (±1) and
    {imm-trans-a, }imm-trans-b (0 or 1). Of .sp, twice as deep, two operands more behind b-desc:
    sp-meta and sp-sel (``layout.sparsity``)."""
    form, columns = shape_of(ins)
    more = 2 if SPARSE in ins.modifiers else 0
    saturated = "satfinite" in ins.modifiers
    in_registers = isinstance(ins.operands[1], Vector)
    transposes = (1 if in_registers else 2) if form.transposes else 0
    given = operands(ins, 4 + more + form.immediates + transposes)
    signs = [m.immediate(ins, 4 + more + i) for i in range(form.immediates)]
    if any(sign not in (1, -1) for sign in signs):
        raise unsupported(ins, f"imm-scale-a and imm-scale-b {signs} must be 1 or -1")
    turned = [m.immediate(ins, len(given) - transposes + i) for i in range(transposes)]
    if any(flag not in (0, 1) for flag in turned):
        raise unsupported(ins, f"imm-trans-a and imm-trans-b {turned} must be 0 or 1")
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
        len(turned) == 2 and turned[0] == 1,
        turned[-1:] == [1],
        sparse_of(ins, m, form) if more else None,
    )
    a_desc = None if in_registers else m.source(ins, given[1], "u64")
    b_desc, adds = m.source(ins, given[2], "u64"), m.source(ins, given[3 + more], "pred")

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
    sparse = SPARSE in ins.modifiers[:1]
    modifiers = ins.modifiers[1:] if sparse else ins.modifiers
    named, rest = modifiers[:3], modifiers[3:]
    saturated = rest[:1] == ("satfinite",)
    form = FORMS.get(rest[1:] if saturated else rest)
    if (
        named[:2] != ("sync", "aligned")
        or form is None
        or saturated
        and not form.saturates
        or sparse
        and form.a == "b1"
    ):
        raise unsupported(
            ins,
            "only .sync.aligned.m64nNkK of these types is implemented, integers with .satfinite or"
            f" without, and all but bits with .sp: {', '.join(map('.'.join, FORMS))}",
        )
    match = SHAPE.fullmatch(named[2]) if len(named) == 3 else None
    columns, depth = (int(match[1]), int(match[2])) if match else (0, 0)
    wanted = form.depth * (2 if sparse else 1)
    if columns not in form.columns or depth != wanted:
        raise unsupported(
            ins,
            f"the shape must be m64nNk{wanted}, N one of {', '.join(map(str, form.columns))}",
        )
    return form, columns


def sparse_of(ins: Instruction, m, form: Form) -> Sparse:
    metadata, selector = Metadata(BITS[form.a], 2 * form.depth), m.immediate(ins, 4)
    if selector not in range(metadata.selectors):
        raise unsupported(
            ins, f"sp-sel {selector} must be one of {tuple(range(metadata.selectors))}"
        )
    operand = ins.operands[3]
    if not isinstance(operand, Register) or operand.width != 32:
        raise PtxSyntaxError(
            f"{ins.opcode} needs a 32-bit register of metadata", line=ins.line, text=ins.text
        )
    return Sparse(metadata, selector, operand.index, m.warpgroups.checks.rows_of(operand))


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
