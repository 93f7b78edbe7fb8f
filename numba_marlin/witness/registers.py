"""Probes of instructions that compute registers from registers: a thread a lane, operands out of
arrays, results into arrays.

The text is made from the declared operands alone; what operands are worth drawing depends on the
instruction's name.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.witness import draws
from numba_marlin.witness.probe import Probe, Result, Snippets, frame, instructions

LANES, BLOCK = 1 << 20, 256
DTYPES = {"u16": np.uint16, "u32": np.uint32, "i32": np.uint32, "f32": np.uint32, "u64": np.uint64}
VARIANTS, VARIANT_LANES = 256, 1 << 12
WIDTHS = {
    "keep_f32": {"width": 3},
    "keep_u32": {"width": 2},
    "keep_i32": {"width": 4},
    "zero_f32": {"width": 5},
    "zero_i32": {"width": 3},
}
PLAIN = (
    "add_f16x2",
    "sub_f16x2",
    "mul_f16x2",
    "fma_rn_f16x2",
    "fma_rn_bf16x2",
    "mul_bf16x2",
    "sub_bf16x2",
    "fma_rn_f32",
    "cvt_f32_f16",
    "cvt_f32_f16_high",
    "cvt_f32_f16_low",
    "cvt_f32_bf16_high",
    "cvt_f32_bf16_low",
    "cvt_rn_f16_f32",
    "cvt_rn_f16x2_f32",
    "cvt_rn_bf16x2_f32",
    "both_high_f16x2",
    "both_low_f16x2",
    "cvt_rn_f16x2_e4m3x2",
    "cvt_rn_f16x2_e4m3x4",
    "cvt_rn_satfinite_e4m3x2_f32",
    "cvt_rn_satfinite_e5m2x2_f32",
    "max_f32",
    "min_f32",
    "rcp_rn_f32",
    "bits_of_f32",
    "f32_of_bits",
    "opaque_u32",
    "vabsdiff4_u32",
    "tid_x",
    *WIDTHS,
)


def result_floats(name: str) -> str | None:
    """What a NaN looks like in the results of an instruction; None where results are bits."""
    if "bf16x2" in name:
        return "bfloat16"
    if name.startswith(("add_f16", "sub_f16", "mul_f16", "fma_rn_f16", "cvt_rn_f16")):
        return "float16"
    return (
        "float32"
        if name.startswith(("fma_rn_f32", "cvt_f32_f16", "max_f32", "min_f32", "rcp_rn_f32"))
        else None
    )


def operands(name: str, lanes: int) -> dict[str, np.ndarray]:
    """{operand element: bits [lanes]} for an instruction."""
    inputs = [o.resolved(WIDTHS.get(name, {})) for o in instructions()[name].inputs]
    elements = [(o.type, e) for o in inputs for e in o.elements]
    if not elements:
        return {}
    if "bf16" in name and all(kind == "u32" for kind, _ in elements):
        values = draws.narrow_pairs(name, lanes, len(elements), draws.BRAINS)
    elif elements[0][0] == "u16":
        values = [draws.half_registers(name, lanes) for _ in elements]
    elif elements[0][0] == "f32":
        values = draws.floats(name, lanes, len(elements))
    elif "f16" in name:
        values = draws.narrow_pairs(name, lanes, len(elements), draws.HALVES)
        if len(elements) == 1:
            # every pattern in both halves
            values[0][-1 << 16 :] = np.arange(1 << 16, dtype=np.uint32) * np.uint32(0x10001)
    else:
        values = [draws.mixed(f"{name}/{e}", lanes, draws.WORDS, np.uint32) for _, e in elements]
    return {element: bits for (_, element), bits in zip(elements, values)}


def plain(name: str) -> Probe:
    """One call per lane."""
    immediates, snippets = WIDTHS.get(name, {}), Snippets()
    instruction = instructions()[name].resolved(**immediates)
    inputs = [(o.type, e) for o in instruction.inputs for e in o.elements]
    outputs = [(o.type, f"{o.name}{i}_out") for o in instruction.outputs for i in range(o.width)]
    tied = bool(instruction.tied)
    body, registers = "", ""
    for position, (kind, element) in enumerate(inputs):
        size = np.dtype(DTYPES[kind]).itemsize
        registers += f".reg .{'f32' if kind == 'f32' else f'b{8 * size}'} %in_{element};\n"
        body += (
            f"mad.wide.u32 %rd0, %g, {size}, %p{position}; ld.global.b{8 * size} %in_{element},"
            " [%rd0];\n"
        )
    given = [f"%in_{element}" for _, element in inputs]
    targets = given[: len(outputs)] if tied else [f"%{name_}" for _, name_ in outputs]
    if not tied:
        registers += "".join(
            f".reg .{'f32' if kind == 'f32' else f'b{8 * np.dtype(DTYPES[kind]).itemsize}'}"
            f" {target};\n"
            for (kind, _), target in zip(outputs, targets)
        )
    body += snippets.put(name, *(given if tied else [*targets, *given]), **immediates)
    for position, ((kind, _), target) in enumerate(zip(outputs, targets)):
        size = np.dtype(DTYPES[kind]).itemsize
        body += (
            f"mad.wide.u32 %rd0, %g, {size}, %p{len(inputs) + position}; st.global.b{8 * size}"
            f" [%rd0], {target};\n"
        )

    def buffers():
        found = dict(operands(name, LANES))
        return found | {out: np.zeros(LANES, DTYPES[kind]) for kind, out in outputs}

    return Probe(
        name,
        (name,),
        frame(body, BLOCK, len(inputs) + len(outputs), registers=registers),
        buffers,
        {out: Result(result_floats(name)) for _, out in outputs},
        LANES // BLOCK,
        BLOCK,
        LANES,
    )


def selectors() -> list[int]:
    """Selectors of prmt: every nibble in every place, then random ones."""
    every = [
        (nibble << 4 * place) | (0x3210 & ~(15 << 4 * place))
        for place in range(4)
        for nibble in range(16)
    ]
    return every + (draws.words32("prmt", VARIANTS - len(every)) & np.uint32(0xFFFF)).tolist()


def variants(name: str, immediate: str, values: list[int]) -> Probe:
    """An instruction with an immediate: 256 values of it in one kernel, 4096 lanes each."""
    snippets, inputs = Snippets(), [o.name for o in instructions()[name].inputs]
    body = "".join(
        f"mad.wide.u32 %rd0, %g, 4, %p{i}; ld.global.b32 %r{i}, [%rd0];\n"
        for i in range(len(inputs))
    )
    body += f"mad.wide.u32 %rd1, %g, 4, %p{len(inputs)};\n"
    for number, value in enumerate(values):
        body += (
            snippets.put(name, "%r8", *[f"%r{i}" for i in range(len(inputs))], **{immediate: value})
            + f"st.global.b32 [%rd1 + {4 * VARIANT_LANES * number}], %r8;\n"
        )

    def buffers():
        return {
            **operands(name, VARIANT_LANES),
            "d_out": np.zeros((len(values), VARIANT_LANES), np.uint32),
        }

    return Probe(
        name,
        (name,),
        frame(body, BLOCK, len(inputs) + 1),
        buffers,
        {"d_out": Result()},
        VARIANT_LANES // BLOCK,
        BLOCK,
        VARIANT_LANES * len(values),
        note=f"{len(values)} values of its immediate, {VARIANT_LANES} lanes each",
    )


def probes() -> list[Probe]:
    return [
        *map(plain, PLAIN),
        variants("lop3", "table", list(range(256))),
        variants("prmt_b32", "selector", selectors()),
    ]
