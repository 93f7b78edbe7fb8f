"""Hand-written PTX for the machine's tests: a kernel that maps arrays elementwise, and a bare frame
for anything else."""

from __future__ import annotations

import re

import numpy as np
import pytest

from numba_marlin.emulator import (
    Machine,
    RunResult,
)
from numba_marlin.isa import load_instructions

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"
NAMES = "abcefg"


def frame(body: str, parameters: int = 1, before: str = "", directives: str = "") -> str:
    """A kernel ``k`` with u64 parameters p0, p1 ... loaded into %p0 ..., a thread number %t and
    plenty of registers."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    loads = "".join(f"ld.param.u64 %p{i}, [p{i}];\n" for i in range(parameters))
    return f"""{HEADER}{before}
.visible .entry k({declared})
{directives}
{{
.reg .pred %q<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .b64 %rd<64>;
.reg .f32 %f<32>;
.reg .f64 %fd<8>;
.reg .b64 %p<8>;
.reg .b32 %t;
{loads}mov.u32 %t, %tid.x;
{body}
ret;
}}
"""


def snippet(name: str, *operands, **immediates: int) -> str:
    """The body of ptx/``name``.ptx with ``operands`` put in, outputs first; a vector is a tuple; an
    operand in place is given once."""
    instruction = load_instructions()[name].resolved(**immediates)
    template, _ = instruction.assembly(**immediates)
    flat = [
        text
        for operand in operands
        for text in (operand if isinstance(operand, tuple) else (operand,))
    ]
    if instruction.tied:
        flat = flat[: instruction.outputs[0].width] + flat
    assert len(flat) == sum(
        operand.width for operand in instruction.outputs + instruction.inputs
    ), f"{name} takes other operands"
    return re.sub(r"\$(\d+)", lambda match: flat[int(match[1])], template) + "\n"


def launch(
    body: str,
    arrays: dict | None = None,
    before: str = "",
    readonly: tuple = (),
    directives: str = "",
    checks: str = "strict",
    **launch_options,
) -> RunResult:
    """Run ``body`` in ``frame`` with the arrays' addresses as %p0, %p1, ... Options as of
    Machine.run."""
    arrays = arrays or {}
    machine = Machine(frame(body, len(arrays), before, directives), checks=checks)
    args = [machine.memory.buffer(a, n, readonly=n in readonly).address for n, a in arrays.items()]
    return machine.run("k", args=args, **launch_options)


def compute(body: str, *inputs: np.ndarray, out) -> np.ndarray:
    """Elementwise: element i of the inputs is in %a, %b, %c, %e ... of thread i, of their own
    width; %d is the result.

    ``body`` may use predicates %q0.., 32-bit %r0.., 64-bit %rd0.. as scratch.
    """
    inputs = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*inputs)]
    count, out = inputs[0].size, np.dtype(out)
    result = np.zeros(count, out)
    registers = "".join(f".reg .b{max(16, 8 * x.itemsize)} %{n};\n" for n, x in zip(NAMES, inputs))
    registers += f".reg .b{max(16, 8 * out.itemsize)} %d;\n"
    loads = ""
    for i, (name, x) in enumerate(zip(NAMES, inputs)):
        loads += (
            f"mad.wide.u32 %rd62, %r63, {x.itemsize}, %p{i};\nld.global.b{8 * x.itemsize} %{name},"
            " [%rd62];\n"
        )
    store = (
        f"mad.wide.u32 %rd62, %r63, {out.itemsize}, %p{len(inputs)};\nst.global.b{8 * out.itemsize}"
        " [%rd62], %d;\n"
    )
    text = f"""{registers}mov.u32 %r62, %ctaid.x;
mad.lo.u32 %r63, %r62, 256, %t;
setp.ge.u32 %q15, %r63, {count};
@%q15 ret;
{loads}{body}
{store}"""
    arrays = {f"in{i}": x.reshape(-1) for i, x in enumerate(inputs)}
    launch(text, {**arrays, "out": result}, grid=-(-count // 256), block=256)
    return result.reshape(inputs[0].shape)


def words(count: int, dtype=np.uint32, seed: int = 0) -> np.ndarray:
    """Random bit patterns with the corners (0, 1, all ones, sign bit and neighbours) in front."""
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    unsigned = raw.view(f"u{dtype.itemsize}")
    top = 1 << (8 * dtype.itemsize - 1)
    corners = [0, 1, 2, 2 * top - 1, 2 * top - 2, top, top - 1, top + 1]
    unsigned[: len(corners)] = corners[:count]
    return unsigned.view(dtype)


def fails(kind, body, arrays=None, **options):
    """The error that running ``body`` must raise; its message must name line, text, block and
    warp."""
    with pytest.raises(kind) as caught:
        launch(body, arrays or {"x": np.zeros(64, np.uint32)}, **options)
    error, message = caught.value, str(caught.value)
    marked = next((line for line in body.splitlines() if "BAD" in line), None)
    if marked is not None:
        assert error.text and error.text in " ".join(marked.split())
    assert f"PTX line {error.line}: {error.text}" in message
    assert f"block {error.block}, warp {error.warp}, lane" in message
    return error
