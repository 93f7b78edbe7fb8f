"""A snippet of ptx/ as a kernel of two warps: a thread loads its operands, runs the snippet, stores
the results; every thread owns 16 bytes of shared and of global memory, and addresses point to other
threads' windows. And operands for it, drawn at random.
"""

from dataclasses import dataclass, field

import numpy as np

from numba_marlin.emulator import Machine

THREADS, WINDOW = 64, 16
REGISTER = {"u16": "b16", "u32": "b32", "i32": "b32", "u64": "b64", "f32": "f32"}
SPECIAL_HALVES = np.array(
    [
        0x0000,
        0x8000,
        0x0001,
        0x83FF,
        0x0400,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E01,
        0x3C00,
        0x6408,
        0xD480,
    ],
    np.uint16,
)


@dataclass
class World:
    """inputs: operand -> uint64 [THREADS, width] of register bits (addresses: byte offsets);
    shared, memory: uint32 [THREADS, 4] windows. A formula returns the outputs, uint64 [THREADS,
    width], and changes the windows in place."""

    inputs: dict
    shared: np.ndarray
    memory: np.ndarray
    results: np.ndarray = field(default=None)


def kernel_text(instruction, immediates):
    template, _ = instruction.assembly(**immediates)
    elements = [(o, e) for o in instruction.outputs + instruction.inputs for e in range(o.width)]
    names = [f"%{o.name}_{e}" for o, e in elements]
    for index in reversed(range(len(names))):
        template = template.replace(f"${index}", names[index])
    outputs = sum(o.width for o in instruction.outputs)
    loads, stores = [], []
    for index, ((operand, _), name) in enumerate(zip(elements, names)):
        kind = operand.type
        if index < outputs:
            move = {"u16": f"cvt.u64.u16 %v, {name};", "u64": f"mov.u64 %v, {name};"}.get(
                kind, f"mov.b32 %w, {name}; cvt.u64.u32 %v, %w;"
            )
            stores.append(f"{move} st.global.u64 [%out + {8 * index}], %v;")
            continue
        load = f"ld.global.u64 %v, [%in + {8 * (index - outputs)}];"
        if operand.name == "policy":
            load = f"createpolicy.fractional.L2::evict_first.b64 {name}, 1.0;"
        elif operand.name in ("gmem", "address") and kind == "u64":
            load += f" add.u64 {name}, %v, %memory;"
        elif operand.name in ("smem", "address"):
            load += f" cvt.u32.u64 %w, %v; add.u32 {name}, %w, %base;"
        else:
            load += {"u16": f" cvt.u16.u64 {name}, %v;", "u64": f" mov.u64 {name}, %v;"}.get(
                kind, f" cvt.u32.u64 %w, %v; mov.b32 {name}, %w;"
            )
        loads.append(load)
    registers = "\n".join(
        dict.fromkeys(f".reg .{REGISTER[o.type]} {name};" for (o, _), name in zip(elements, names))
    )
    strides = 8 * max(1, len(elements) - outputs), 8 * max(1, outputs)
    return f"""
.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 windows[];
.visible .entry snippet(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)
{{
.reg .b64 %in, %out, %memory, %image, %v;
.reg .b32 %base, %w, %t, %x<4>;
{registers}
ld.param.u64 %in, [p0]; ld.param.u64 %out, [p1]; ld.param.u64 %memory, [p2];
ld.param.u64 %image, [p3];
mov.u32 %t, %tid.x; mov.u32 %base, windows;
mad.wide.u32 %in, %t, {strides[0]}, %in; mad.wide.u32 %out, %t, {strides[1]}, %out;
mad.wide.u32 %image, %t, {WINDOW}, %image;
mad.lo.u32 %w, %t, {WINDOW}, %base;
ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%image];
st.shared.v4.b32 [%w], {{%x0, %x1, %x2, %x3}};
bar.sync 0;
{chr(10).join(loads)}
{template}
cp.async.wait_all;
bar.sync 0;
{chr(10).join(stores)}
mad.lo.u32 %w, %t, {WINDOW}, %base;
ld.shared.v4.b32 {{%x0, %x1, %x2, %x3}}, [%w];
st.global.v4.b32 [%image], {{%x0, %x1, %x2, %x3}};
ret;
}}
"""


def run_on_machine(instruction, immediates, world):
    machine = Machine(kernel_text(instruction, immediates))
    widths = sum(o.width for o in instruction.outputs)
    records = (
        np.concatenate([world.inputs[o.name] for o in instruction.inputs], axis=1)
        if instruction.inputs
        else np.zeros((THREADS, 1), np.uint64)
    )
    results = np.full((THREADS, max(1, widths)), 0xDEADBEEF, np.uint64)
    arrays = np.ascontiguousarray(records), results, world.memory, world.shared
    arguments = [
        machine.memory.buffer(array, name=name).address
        for name, array in zip(("records", "results", "memory", "shared"), arrays)
    ]
    machine.run("snippet", grid=1, block=THREADS, shared_bytes=THREADS * WINDOW, args=arguments)
    return results[:, :widths]


def halves(generator, count):
    plain = generator.integers(0, 1 << 16, count, dtype=np.uint16)
    return np.where(
        generator.random(count) < 0.4, generator.choice(SPECIAL_HALVES, count), plain
    ).astype(np.uint16)


def draw(instruction, operand, generator):
    shape = (THREADS, operand.width)
    name = instruction.name
    if operand.name in ("smem", "address", "gmem"):
        if name.startswith(("red_", "atom_")):
            # several threads add to one word
            return (generator.integers(0, 8, shape) * WINDOW).astype(np.uint64)
        return (generator.permutation(THREADS)[:, None] * WINDOW).astype(np.uint64)
    if operand.name == "pred":
        return generator.integers(0, 2, shape).astype(np.uint64)
    if operand.name == "bytes":
        return generator.integers(0, 17, shape).astype(np.uint64)
    if name in ("bar_sync", "bar_arrive"):
        return np.full(shape, {"id": 3, "threads": THREADS}[operand.name], np.uint64)
    if operand.name == "mask":
        return np.full(shape, 0xFFFFFFFF, np.uint64)
    if name.startswith("shfl_sync") and operand.name in ("lane", "lane_mask"):
        return generator.integers(0, 32, shape).astype(np.uint64)
    if name == "vote_any":  # of a warp none has a vote, or few
        return (generator.integers(0, 40, shape) == 0).astype(np.uint64)
    # small integers: every sum is exact, in whatever order the tensor core adds
    if name.startswith("mma"):
        if operand.type == "f32":
            return (
                generator.integers(-64, 65, shape)
                .astype(np.float32)
                .view(np.uint32)
                .astype(np.uint64)
            )
        numbers = generator.integers(-8, 9, (*shape, 2))
        pairs = (
            numbers.astype(np.float16).view(np.uint16)
            if "bf16" not in name
            else (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        )
        return pairs.view(np.uint32)[..., 0].astype(np.uint64)
    if operand.type == "f32":
        values = halves(generator, THREADS * operand.width).view(np.float16).astype(
            np.float32
        ) * np.float32(1.0009765)
        return values.view(np.uint32).reshape(shape).astype(np.uint64)
    if operand.type == "u16":
        return halves(generator, THREADS * operand.width).reshape(shape).astype(np.uint64)
    return (
        halves(generator, 2 * THREADS * operand.width)
        .view(np.uint32)
        .reshape(shape)
        .astype(np.uint64)
    )
