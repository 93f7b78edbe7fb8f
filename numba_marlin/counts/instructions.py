"""Classes of opcodes, and the floating point operations of tensor-core instructions.

A class is a kind of work, by PTX opcode and type. What ptxas compiles it to is not considered (a
mov may vanish, a div is a routine).
"""

from __future__ import annotations

import re

from numba_marlin.emulator.text.program import Instruction, Vector
from numba_marlin.layout import tcgen05, wgmma

TENSOR, GLOBAL, SHARED, COPY, ATOMIC, LOCAL, CONSTANT = (
    "tensor",
    "global",
    "shared",
    "copy",
    "atomic",
    "local",
    "parameter",
)
FLOAT, DOUBLE, HALF, SPECIAL, INTEGER, LOGIC, CONVERT, COMPARE, MOVE = (
    "fp32",
    "fp64",
    "fp16",
    "special",
    "integer",
    "logic",
    "convert",
    "compare",
    "move",
)
WARP, SYNC, CONTROL, TENSOR_MEMORY = "warp", "sync", "control", "tensor memory"

_BYTE = "(e4m3|e5m2|s8|u8)"
BYTES = re.compile(rf"mma\S*\.{_BYTE}\.{_BYTE}(?![0-9x])")
"""A product of two 8-bit types."""

_BY_ROOT = {
    **dict.fromkeys(("mma", "wmma.mma", "wgmma.mma_async", "tcgen05.mma"), TENSOR),
    **dict.fromkeys(("tcgen05.ld", "tcgen05.st"), TENSOR_MEMORY),
    **dict.fromkeys(("ldmatrix", "stmatrix"), SHARED),
    **dict.fromkeys(
        (
            "cp.async",
            "cp.async.bulk",
            "cp.async.bulk.tensor",
            "cp.async.bulk.prefetch",
            "cp.async.bulk.prefetch.tensor",
            "cp.reduce.async.bulk",
            "cp.reduce.async.bulk.tensor",
            "prefetch",
            "prefetchu",
            "applypriority",
            "createpolicy",
            "tcgen05.cp",
        ),
        COPY,
    ),
    **dict.fromkeys(("atom", "red"), ATOMIC),
    **dict.fromkeys(("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt", "div"), SPECIAL),
    **dict.fromkeys(
        (
            "and",
            "or",
            "xor",
            "not",
            "cnot",
            "lop3",
            "shl",
            "shr",
            "shf",
            "bfe",
            "bfi",
            "bfind",
            "brev",
            "prmt",
            "popc",
            "clz",
            "copysign",
        ),
        LOGIC,
    ),
    **dict.fromkeys(
        (
            "mul24",
            "mad24",
            "sad",
            "rem",
            "dp4a",
            "dp2a",
            "add.cc",
            "addc",
            "sub.cc",
            "subc",
            "mad.lo.cc",
            "mad.hi.cc",
            "madc",
            "fns",
            *(
                f"{name}{count}"
                for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax")
                for count in (2, 4)
            ),
        ),
        INTEGER,
    ),
    **dict.fromkeys(("cvt",), CONVERT),
    **dict.fromkeys(("setp", "set", "selp", "slct", "testp", "isspacep"), COMPARE),
    **dict.fromkeys(("mov", "cvta", "mapa"), MOVE),
    **dict.fromkeys(
        (
            "shfl",
            "shfl.sync",
            "vote",
            "vote.sync",
            "match.any.sync",
            "match.all.sync",
            "redux.sync",
            "elect.sync",
            "activemask",
        ),
        WARP,
    ),
    **dict.fromkeys(("bra", "ret", "exit", "trap", "brkpt", "nanosleep", "pmevent"), CONTROL),
}
# opcodes that begin with these, unless a rule above is more specific
_SYNC = (
    "bar",
    "barrier",
    "membar",
    "fence",
    "mbarrier",
    "wgmma",
    "tcgen05",
    "griddepcontrol",
    "setmaxnreg",
    "cp.async",
)
_SPACES = {
    "global": GLOBAL,
    "const": CONSTANT,
    "shared": SHARED,
    "shared::cta": SHARED,
    "shared::cluster": SHARED,
    "local": LOCAL,
}


def class_of(ins: Instruction) -> str:
    """The class of an instruction; every opcode that the machine implements has one."""
    if ins.root in ("ld", "ldu", "st"):
        if any(modifier.startswith("param") for modifier in ins.modifiers):
            return CONSTANT
        # a generic address is usually global
        return next(
            (_SPACES[modifier] for modifier in ins.modifiers if modifier in _SPACES), GLOBAL
        )
    if ins.root in ("wmma.load", "wmma.store"):
        return next(
            (_SPACES[modifier] for modifier in ins.modifiers if modifier in _SPACES), GLOBAL
        )
    if ins.root in _BY_ROOT and not (ins.root == "div" and ins.types[-1][0] in "usb"):
        return _BY_ROOT[ins.root]
    if any(ins.root == name or ins.root.startswith(name + ".") for name in _SYNC):
        return SYNC
    kind = ins.types[-1] if ins.types else "b32"
    if kind == "f64":
        return DOUBLE
    if kind == "f32":
        return FLOAT
    return HALF if kind.startswith(("f16", "bf16")) else INTEGER


def flops_of(ins: Instruction) -> int:
    """Multiplications and additions of a tensor-core instruction per executing warp; 0 for other
    instructions, and for tcgen05.mma, whose shape is in a descriptor. Of a sparse one those of what
    is stored of A: half of those of the dense product."""
    if class_of(ins) != TENSOR or ins.root == "tcgen05.mma":
        return 0
    m, n, k = shape_of(ins)
    warps = 4 if ins.root.startswith("wgmma") else 1  # that execute one instruction together
    return (1 if sparse(ins) else 2) * m * n * k // warps


def operand_bytes_of(ins: Instruction) -> float:
    """Bytes of shared memory that a wgmma reads by descriptor, per warp: B, which its four warps
    share, and A unless it is in registers."""
    if ins.root != "wgmma.mma_async":
        return 0
    m, n, _ = shape_of(ins)
    rows = (2 if sparse(ins) else 1) * n + (0 if isinstance(ins.operands[1], Vector) else m)
    return rows * wgmma.DEPTH_BYTES / wgmma.WARPS


def sparse(ins: Instruction) -> bool:
    """Is it mma.sp or wgmma.mma_async.sp?"""
    return any(modifier in ("sp", "sp::ordered_metadata") for modifier in ins.modifiers)


def flops_of_columns(ins: Instruction, columns: int) -> int:
    """``flops_of`` for one tcgen05.mma with this number of columns."""
    named, vectors = (
        next(modifier[len(prefix) :] for modifier in ins.modifiers if modifier.startswith(prefix))
        for prefix in ("kind::", "scale_vec::")
    )
    return 2 * tcgen05.ROWS * columns * tcgen05.KINDS[named, vectors].depth


def tensor_bits(texts) -> int:
    """Bits of a factor of tensor-core instructions, given as text: 4 or 8 of products with block
    scales, by their kind, 8 of those of two 8-bit types, else 16."""
    kinds = " ".join(texts)
    if ".kind::mxf4" in kinds:
        return 4
    return 8 if ".kind::mxf8f6f4" in kinds or BYTES.search(kinds) else 16


def shape_of(ins: Instruction) -> tuple[int, int, int]:
    """(m, n, k) from the instruction's shape modifier."""
    return next(
        tuple(map(int, found.groups()))
        for modifier in ins.modifiers
        if (found := re.fullmatch(r"m(\d+)n(\d+)k(\d+)", modifier))
    )
