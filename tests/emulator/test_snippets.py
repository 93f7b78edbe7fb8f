"""Contract under test: every file of ptx/ does on the PTX machine what an independent NumPy formula says.

Each snippet is wrapped, mechanically, into a kernel of two warps: a thread loads its operands, runs the snippet, stores the results; every
thread owns 16 bytes of shared and of global memory, and addresses point to other threads' windows. A file without a formula here fails.
"""
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.emulator import Machine
from numba_marlin.formats.small_floats import decode, encode
from numba_marlin.isa import load_instructions

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and NaN are what is tested

THREADS, WINDOW = 64, 16
INSTRUCTIONS = load_instructions()
IMMEDIATES = {"lop3": {"table": 0xEA}, "prmt_b32": {"selector": 0x7531}, "cp_async_wait_group": {"n": 0}, "keep_f32": {"width": 3},
              "keep_u32": {"width": 2}, "zero_f32": {"width": 5}}
REGISTER = {"u16": "b16", "u32": "b32", "i32": "b32", "u64": "b64", "f32": "f32"}
SPECIAL_HALVES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0x3C00, 0x6408, 0xD480], np.uint16)


@dataclass
class World:
    """inputs: operand -> uint64 [THREADS, width] of register bits (addresses: byte offsets); shared, memory: uint32 [THREADS, 4] windows.
    A formula returns the outputs, uint64 [THREADS, width], and changes the windows in place."""
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
            move = {"u16": f"cvt.u64.u16 %v, {name};", "u64": f"mov.u64 %v, {name};"}.get(kind, f"mov.b32 %w, {name}; cvt.u64.u32 %v, %w;")
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
            load += {"u16": f" cvt.u16.u64 {name}, %v;", "u64": f" mov.u64 {name}, %v;"}.get(kind, f" cvt.u32.u64 %w, %v; mov.b32 {name}, %w;")
        loads.append(load)
    registers = "\n".join(dict.fromkeys(f".reg .{REGISTER[o.type]} {name};" for (o, _), name in zip(elements, names)))
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
ld.param.u64 %in, [p0]; ld.param.u64 %out, [p1]; ld.param.u64 %memory, [p2]; ld.param.u64 %image, [p3];
mov.u32 %t, %tid.x; mov.u32 %base, windows;
mad.wide.u32 %in, %t, {strides[0]}, %in; mad.wide.u32 %out, %t, {strides[1]}, %out; mad.wide.u32 %image, %t, {WINDOW}, %image;
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
    records = np.concatenate([world.inputs[o.name] for o in instruction.inputs], axis=1) if instruction.inputs else np.zeros((THREADS, 1), np.uint64)
    results = np.full((THREADS, max(1, widths)), 0xDEADBEEF, np.uint64)
    arrays = np.ascontiguousarray(records), results, world.memory, world.shared
    arguments = [machine.memory.buffer(array, name=name).address for name, array in zip(("records", "results", "memory", "shared"), arrays)]
    machine.run("snippet", grid=1, block=THREADS, shared_bytes=THREADS * WINDOW, args=arguments)
    return results[:, :widths]


# ---- operands ------------------------------------------------------------------------------------------------------------------------------

def halves(generator, count):
    plain = generator.integers(0, 1 << 16, count, dtype=np.uint16)
    return np.where(generator.random(count) < 0.4, generator.choice(SPECIAL_HALVES, count), plain).astype(np.uint16)


def draw(instruction, operand, generator):
    shape = (THREADS, operand.width)
    name = instruction.name
    if operand.name in ("smem", "address", "gmem"):
        if name.startswith(("red_", "atom_")):
            return (generator.integers(0, 8, shape) * WINDOW).astype(np.uint64)  # several threads add to one word
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
    if name.startswith("mma"):  # small integers: every sum is exact, in whatever order the tensor core adds
        if operand.type == "f32":
            return generator.integers(-64, 65, shape).astype(np.float32).view(np.uint32).astype(np.uint64)
        numbers = generator.integers(-8, 9, (*shape, 2))
        pairs = numbers.astype(np.float16).view(np.uint16) if "bf16" not in name else (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return pairs.view(np.uint32)[..., 0].astype(np.uint64)
    if operand.type == "f32":
        values = halves(generator, THREADS * operand.width).view(np.float16).astype(np.float32) * np.float32(1.0009765)
        return values.view(np.uint32).reshape(shape).astype(np.uint64)
    if operand.type == "u16":
        return halves(generator, THREADS * operand.width).reshape(shape).astype(np.uint64)
    return halves(generator, 2 * THREADS * operand.width).view(np.uint32).reshape(shape).astype(np.uint64)


# ---- formulas: exact arithmetic in fractions, rounded once ------------------------------------------------------------------------------------

def rounded(exact, dtype):
    """A Fraction to the nearest float16 or float32, ties to even; beyond the range infinity."""
    guess = dtype(float(exact))
    if not np.isfinite(guess):
        limit = Fraction(65520) if dtype is np.float16 else Fraction(2) ** 128 - Fraction(2) ** 103
        return guess if abs(exact) >= limit else np.copysign(np.finfo(dtype).max, guess)
    near = [np.nextafter(guess, dtype(-np.inf)), guess, np.nextafter(guess, dtype(np.inf))]
    bits = {np.float16: np.uint16, np.float32: np.uint32}[dtype]
    return min((v for v in near if np.isfinite(v)), key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(bits)) & 1))


def arithmetic(operation, dtype, *operands):
    """``operation`` over numbers: IEEE rules for what is not finite or zero from NumPy in float64, everything else exactly."""
    result = []
    for values in zip(*operands):
        with np.errstate(all="ignore"):
            wide = operation(*(np.float64(v) for v in values))
        exact = operation(*(Fraction(float(v)) for v in values)) if all(np.isfinite(v) for v in values) else None
        result.append(dtype(wide) if not exact else rounded(exact, dtype))
    return np.array(result, dtype)


def packed(operation):
    def formula(w):
        operands = [np.ascontiguousarray(v.astype(np.uint32)).view(np.float16).ravel() for v in w.inputs.values()]
        return arithmetic(operation, np.float16, *operands).view(np.uint32).astype(np.uint64)[:, None]
    return formula


def word(w, name):
    return w.inputs[name].astype(np.uint32)[:, 0]


def windows(array, offsets):
    return array[(offsets[:, 0] // WINDOW).astype(int)]


def load(space, words):
    return lambda w: windows(getattr(w, space), w.inputs["address"])[:, :words].astype(np.uint64)


def load_half(space):
    return lambda w: (windows(getattr(w, space), w.inputs["address"])[:, :1] & 0xFFFF).astype(np.uint64)


def store(space):
    def formula(w):
        target, value = getattr(w, space), w.inputs["value"].astype(np.uint32)
        target[(w.inputs["address"][:, 0] // WINDOW).astype(int), :value.shape[1]] = value
    return formula


def store_half(space):
    def formula(w):
        rows = (w.inputs["address"][:, 0] // WINDOW).astype(int)
        target = getattr(w, space)
        target[rows, 0] = target[rows, 0] & 0xFFFF0000 | w.inputs["value"][:, 0].astype(np.uint32)
    return formula


def copy(w):
    source = windows(w.memory, w.inputs["gmem"]).copy().view(np.uint8).reshape(THREADS, WINDOW)
    size = w.inputs["bytes"] if "bytes" in w.inputs else np.full((THREADS, 1), WINDOW)
    source = np.where(np.arange(WINDOW) < size, source, 0).astype(np.uint8).view(np.uint32)
    taken = w.inputs["pred"][:, 0] != 0 if "pred" in w.inputs else np.ones(THREADS, bool)
    w.shared[(w.inputs["smem"][:, 0] // WINDOW).astype(int)[taken]] = source[taken]


def add_atomically(w):
    np.add.at(w.memory[:, 0], (w.inputs["address"][:, 0] // WINDOW).astype(int), word(w, "value"))


def ldmatrix(transposed, count=4):
    def formula(w):
        rows = windows(w.shared, w.inputs["address"]).copy().view(np.uint16).reshape(2, 4, 8, 8)  # warp, matrix, row, column
        lane = np.arange(32)
        out = np.empty((2, 32, 4), np.uint64)
        for matrix in range(4):  # with fewer than four, the first lanes' addresses count
            tile = rows[:, matrix].swapaxes(1, 2) if transposed else rows[:, matrix]
            low, high = tile[:, lane // 4, 2 * (lane % 4)], tile[:, lane // 4, 2 * (lane % 4) + 1]
            out[:, :, matrix] = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(16)
        return out.reshape(THREADS, 4)[:, :count]
    return formula


def mma(depth, decode):
    def formula(w):
        lane = np.arange(32)
        group, inside = lane // 4, lane % 4
        out = np.empty((2, 32, 4), np.float32)
        for warp in range(2):
            def registers(name, warp=warp):
                return np.ascontiguousarray(w.inputs[name][32 * warp:32 * warp + 32].astype(np.uint32))
            a_numbers, b_numbers = (decode(registers(name).view(np.uint16)) for name in "ab")
            c_bits = registers("c").view(np.float32)
            a, b, c = np.empty((16, depth)), np.empty((depth, 8)), np.empty((16, 8))
            for e in range(depth // 2):
                a[group + 8 * (e // 2 % 2), 2 * inside + e % 2 + 8 * (e // 4)] = a_numbers[:, e]
            for e in range(depth // 4):
                b[2 * inside + e % 2 + 8 * (e // 2), group] = b_numbers[:, e]
            for e in range(4):
                c[group + 8 * (e // 2), 2 * inside + e % 2] = c_bits[:, e]
            d = a @ b + c
            for e in range(4):
                out[warp, :, e] = d[group + 8 * (e // 2), 2 * inside + e % 2]
        return out.view(np.uint32).reshape(THREADS, 4).astype(np.uint64)
    return formula


def half_numbers(bits):
    return bits.view(np.float16)


def brain_numbers(bits):
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def brain_bits(operation, *operands):
    """``operation`` over numbers to bfloat16 bits, as ``arithmetic``: rounded once to nearest, ties to even; infinity counts as 2^128."""
    result = []
    for values in zip(*operands):
        with np.errstate(all="ignore"):
            wide = operation(*(np.float64(v) for v in values))
        exact = operation(*(Fraction(float(v)) for v in values)) if all(np.isfinite(v) for v in values) else None
        if not exact:
            result.append(0x7FFF if np.isnan(wide) else int(np.float32(wide).view(np.uint32)) >> 16)
            continue
        size = abs(exact)
        near = int(np.float32(min(float(size), np.finfo(np.float32).max)).view(np.uint32)) >> 16
        numbers = {bits: Fraction(2) ** 128 if bits == 0x7F80 else Fraction(float(brain_numbers(np.uint16(bits)))) for bits in (near, near + 1)}
        result.append(min(numbers, key=lambda bits: (abs(numbers[bits] - size), bits & 1)) | 0x8000 * (exact < 0))  # noqa: B023 (called here)
    return np.array(result, np.uint16)


def packed_brain(operation):
    def formula(w):
        operands = [brain_numbers(np.ascontiguousarray(v.astype(np.uint32)).view(np.uint16).ravel()) for v in w.inputs.values()]
        return brain_bits(operation, *operands).view(np.uint32).astype(np.uint64)[:, None]
    return formula


def stmatrix(transposed):
    """Lane 8j + i of a warp names the row i of matrix j."""
    def formula(w):
        rows = np.empty((2, 4, 8, 8), np.uint16)
        lane = np.arange(32)
        pairs = np.ascontiguousarray(w.inputs["r"].astype(np.uint32)).view(np.uint16).reshape(2, 32, 4, 2)
        for matrix in range(4):
            for half in range(2):
                where = (lane // 4, 2 * (lane % 4) + half)
                rows[:, matrix][(slice(None), *(where[::-1] if transposed else where))] = pairs[:, :, matrix, half]
        w.shared[(w.inputs["address"][:, 0] // WINDOW).astype(int)] = rows.reshape(THREADS, 8).view(np.uint32)
    return formula


def lop3(w):
    a, b, c = (word(w, name) for name in "abc")
    return ((a & b) | c).astype(np.uint64)[:, None]  # table 0xEA


def prmt(w):
    source = np.stack([word(w, "a"), word(w, "b")], axis=1).view(np.uint8)
    return np.ascontiguousarray(source[:, [1, 3, 5, 7]]).view(np.uint32).astype(np.uint64)  # selector 0x7531


def to_half(w):
    return w.inputs["a"].astype(np.uint32).view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint64)


def to_half_pair(w):
    low, high = (w.inputs[name].astype(np.uint32).view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint64) for name in ("low", "high"))
    return low | high << np.uint64(16)


def to_brain_pair(w):
    low, high = (brain_bits(lambda a: a, w.inputs[name].astype(np.uint32).view(np.float32)[:, 0]).astype(np.uint64) for name in ("low", "high"))
    return (low | high << np.uint64(16))[:, None]


def from_half(shift):
    return lambda w: (w.inputs["a"] >> np.uint64(shift)).astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32).astype(np.uint64)


def both(shift):
    def formula(w):
        half = w.inputs["a"] >> np.uint64(shift) & np.uint64(0xFFFF)
        return half | half << np.uint64(16)
    return formula


def fma_f32(w):
    operands = [v.astype(np.uint32).view(np.float32).ravel() for v in w.inputs.values()]
    return arithmetic(lambda a, b, c: a * b + c, np.float32, *operands).view(np.uint32).astype(np.uint64)[:, None]


def shuffle(w):
    lanes = w.inputs["lane"][:, 0].astype(int) + np.arange(THREADS) // 32 * 32
    return w.inputs["value"][lanes]


def shuffle_across(w):
    return w.inputs["value"][np.arange(THREADS) ^ w.inputs["lane_mask"][:, 0].astype(int)]


def from_small(kind):
    def formula(w):
        low, high = (decode((w.inputs["a"] >> np.uint64(shift) & np.uint64(0xFF)).astype(np.uint8), kind).astype(np.float16).view(np.uint16).astype(np.uint64) for shift in (0, 8))
        return low | high << np.uint64(16)
    return formula


def to_small(kind):
    def formula(w):
        low, high = (encode(w.inputs[name].astype(np.uint32).view(np.float32), kind).astype(np.uint64) for name in ("low", "high"))
        return low | high << np.uint64(8)
    return formula


def on_floats(operation):
    def formula(w):
        with np.errstate(all="ignore"):
            return operation(*(each.astype(np.uint32).view(np.float32) for each in w.inputs.values())).astype(np.float32).view(np.uint32).astype(np.uint64)
    return formula


def put_byte(w):
    for thread in range(THREADS):
        w.memory.view(np.uint8).reshape(-1)[int(w.inputs["address"][thread, 0])] = int(w.inputs["value"][thread, 0]) & 0xFF


def flushed(x):
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(0, x), x)


def old_values(w):
    """Lanes add one after the other, in the order of threads."""
    found = np.empty(THREADS, np.uint64)
    for thread, (row, value) in enumerate(zip((w.inputs["address"][:, 0] // WINDOW).astype(int), word(w, "value"))):
        found[thread] = w.memory[row, 0]
        w.memory[row, 0] += value
    return found[:, None]


def elect(w):
    return (np.arange(THREADS) % 32 == 0).astype(np.uint64)[:, None]


def nothing(w):
    return None


FORMULAS = {
    "add_f16x2": packed(lambda a, b: a + b), "sub_f16x2": packed(lambda a, b: a - b), "mul_f16x2": packed(lambda a, b: a * b),
    "fma_rn_f16x2": packed(lambda a, b, c: a * b + c), "fma_rn_f32": fma_f32, "lop3": lop3, "prmt_b32": prmt,
    "both_low_f16x2": both(0), "both_high_f16x2": both(16), "opaque_u32": lambda w: w.inputs["a"], "shfl_sync_idx": shuffle,
    "tid_x": lambda w: np.arange(THREADS, dtype=np.uint64)[:, None],
    "cvt_f32_f16": from_half(0), "cvt_f32_f16_low": from_half(0), "cvt_f32_f16_high": from_half(16),
    "cvt_rn_f16_f32": to_half, "cvt_rn_f16x2_f32": to_half_pair,
    "cvt_rn_f16x2_e4m3x2": from_small("e4m3"), "cvt_rn_satfinite_e4m3x2_f32": to_small("e4m3"), "cvt_rn_satfinite_e5m2x2_f32": to_small("e5m2"),
    "bits_of_f32": lambda w: w.inputs["a"], "f32_of_bits": lambda w: w.inputs["a"], "max_f32": on_floats(np.fmax), "min_f32": on_floats(np.fmin), "shfl_sync_bfly": shuffle_across,
    "rcp_rn_f32": on_floats(lambda x: 1 / x.astype(np.float64)), "rcp_approx_f32": on_floats(lambda x: flushed(1 / flushed(x).astype(np.float64))),
    "ex2_approx_f32": on_floats(lambda x: flushed(np.exp2(flushed(x).astype(np.float64)))), "st_global_b8": put_byte,
    "ldmatrix_x4": ldmatrix(False), "ldmatrix_x4_trans": ldmatrix(True), "ldmatrix_x2": ldmatrix(False, 2), "ldmatrix_x1": ldmatrix(False, 1),
    "stmatrix_x4": stmatrix(False), "stmatrix_x4_trans": stmatrix(True), "mma_m16n8k16_f32_f16": mma(16, half_numbers),
    "mma_m16n8k16_f32_bf16": mma(16, brain_numbers), "mma_m16n8k8_f32_f16": mma(8, half_numbers),
    "keep_f32": lambda w: w.inputs["d"], "keep_u32": lambda w: w.inputs["d"], "zero_f32": lambda w: np.zeros((THREADS, 5), np.uint64),
    "fma_rn_bf16x2": packed_brain(lambda a, b, c: a * b + c), "mul_bf16x2": packed_brain(lambda a, b: a * b),
    "sub_bf16x2": packed_brain(lambda a, b: a - b), "cvt_rn_bf16x2_f32": to_brain_pair,
    "cvt_f32_bf16_low": lambda w: w.inputs["a"] << np.uint64(16) & np.uint64(0xFFFFFFFF), "cvt_f32_bf16_high": lambda w: w.inputs["a"] & np.uint64(0xFFFF0000),
    "ld_acquire_gpu": load("memory", 1), "st_release_gpu": store("memory"),
    "red_relaxed_gpu_add": add_atomically, "red_release_gpu_add": add_atomically,
    **{f"ld_{space}_{kind}": load(array, words) for space, array in (("shared", "shared"), ("global", "memory"))
       for kind, words in (("b32", 1), ("v2_b32", 2), ("v2_f32", 2), ("v4_b32", 4), ("v4_f32", 4))},
    **{f"st_{space}_{kind}": store(array) for space, array in (("shared", "shared"), ("global", "memory"))
       for kind in ("b32", "v2_b32", "v2_f32", "v4_b32", "v4_f32")},
    "ld_shared_cluster_v4_f32": load("shared", 4), "st_shared_cluster_v4_f32": store("shared"),  # a block's own, here
    "atom_add_acq_rel_gpu": old_values, "elect_sync": elect,
    "ld_global_f32": load("memory", 1), "ld_shared_b16": load_half("shared"), "ld_global_b16": load_half("memory"),
    "st_shared_b16": store_half("shared"), "st_global_b16": store_half("memory"),
    **{f"cp_async_16{kind}": copy for kind in ("", "_pred", "_zfill", "_hint", "_pred_hint", "_zfill_hint", "_evict_first", "_evict_first_pred",
                                               "_evict_first_zfill")},
    **dict.fromkeys(("bar_sync", "bar_arrive", "bar_warp_sync", "fence_acq_rel_gpu", "griddepcontrol_wait", "griddepcontrol_launch_dependents", "cp_async_commit_group", "cp_async_wait_all", "cp_async_wait_group"), nothing),
}

# Instructions that mean nothing alone: the module that tests them, out of the same files (ptx_cases.snippet).
ELSEWHERE = {
    "test_mbarrier": "mbarrier_init mbarrier_inval mbarrier_arrive mbarrier_arrive_expect_tx mbarrier_expect_tx mbarrier_try_wait_parity "
                     "mbarrier_test_wait_parity fence_mbarrier_init",
    "test_bulk_copy": "cp_async_bulk_prefetch cp_async_bulk_g2s cp_async_bulk_g2s_hint cp_async_bulk_s2g cp_async_bulk_commit_group cp_async_bulk_wait_group "
                      "cp_async_bulk_wait_group_read create_policy_evict_last fence_proxy_async_shared fence_proxy_async_global",
    "test_tensor_copy": "cp_async_bulk_tensor_1d_g2s cp_async_bulk_tensor_1d_g2s_hint cp_async_bulk_tensor_2d_g2s cp_async_bulk_tensor_2d_g2s_hint cp_async_bulk_tensor_2d_g2s_cta "
                        "cp_async_bulk_tensor_2d_s2g prefetch_tensormap",
    "test_cluster": "cluster_ctarank cluster_arrive cluster_wait mapa_shared mbarrier_arrive_cluster fence_acq_rel_cluster "
                    "cp_async_bulk_g2s_multicast cp_async_bulk_tensor_2d_g2s_multicast",
    "test_wgmma": "wgmma_fence wgmma_commit_group wgmma_wait_group wgmma_wait_group_f32 wgmma_m64k16_f32_f16_rs wgmma_m64k16_f32_f16_ss "
                  "wgmma_m64k16_f32_bf16_rs wgmma_m64k16_f32_bf16_ss",
    "test_tcgen05": "tcgen05_alloc tcgen05_dealloc tcgen05_relinquish_alloc_permit tcgen05_mma_mxf4nvf4_4x tcgen05_mma_mxf4_2x tcgen05_mma_mxf8f6f4_1x tcgen05_commit "
                    "tcgen05_cp_32x128b_warpx4 tcgen05_ld_32x32b_f32 tcgen05_st_32x32b_f32 tcgen05_wait_ld tcgen05_wait_st tcgen05_fence_before_thread_sync "
                    "tcgen05_fence_after_thread_sync",
    "test_block_scale": "mma_m16n8k64_f32_mxf4nvf4_4x mma_m16n8k64_f32_mxf4_2x",
    "test_machine_registers": "clock64 globaltimer smid setmaxnreg_inc setmaxnreg_dec",
}  # fmt: skip
TESTED_ELSEWHERE = {name: module for module, names in ELSEWHERE.items() for name in names.split()}
OPAQUE = {"create_policy_evict_first"}  # its result says nothing; the *_hint copies use it


def same(actual, expected, dtype):
    """Equal bits; for floating-point results any NaN counts as a NaN (a quiet one's payload is not specified)."""
    if dtype is None:
        return (actual == expected).all()
    if dtype == "bfloat16":
        bits = [np.ascontiguousarray(v.astype(np.uint32)).view(np.uint16) for v in (actual, expected)]
        nan = [np.isnan(brain_numbers(v)) for v in bits]
        return ((bits[0] == bits[1]) | nan[0] & nan[1]).all()
    narrow = [np.ascontiguousarray(v.astype(np.uint32)).view(dtype) for v in (actual, expected)]
    bits = [v.view({2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]) for v in narrow]
    return ((bits[0] == bits[1]) | (np.isnan(narrow[0]) & np.isnan(narrow[1]))).all()


def result_type(name):
    if "bf16x2" in name:
        return "bfloat16"
    if name.startswith(("add_f16", "sub_f16", "mul_f16", "fma_rn_f16", "cvt_rn_f16")):
        return np.float16
    return np.float32 if name.startswith(("fma_rn_f32", "cvt_f32", "max_f32", "min_f32", "rcp", "ex2")) else None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(set(INSTRUCTIONS) - OPAQUE - set(TESTED_ELSEWHERE)))
def test_snippet_computes_its_formula(name, seed):
    assert name in FORMULAS, f"ptx/{name}.ptx has no formula: add one to FORMULAS"
    instruction, generator = INSTRUCTIONS[name].resolved(**IMMEDIATES.get(name, {})), np.random.default_rng(seed)
    world = World({o.name: draw(instruction, o, generator) for o in instruction.inputs},
                  generator.integers(0, 1 << 32, (THREADS, 4), dtype=np.uint32), generator.integers(0, 1 << 32, (THREADS, 4), dtype=np.uint32))
    before = World(dict(world.inputs), world.shared.copy(), world.memory.copy())
    actual = run_on_machine(instruction, IMMEDIATES.get(name, {}), world)
    expected = FORMULAS[name](before)
    if instruction.outputs:
        assert same(actual, expected, result_type(name))
    assert (world.shared == before.shared).all()
    assert (world.memory == before.memory).all()


def test_every_formula_belongs_to_a_file():
    assert set(FORMULAS) | set(TESTED_ELSEWHERE) == set(INSTRUCTIONS) - OPAQUE
    assert not set(FORMULAS) & set(TESTED_ELSEWHERE)


@pytest.mark.parametrize("name", TESTED_ELSEWHERE)
def test_what_is_tested_elsewhere_is(name):
    assert f'"{name}"' in Path(__file__).with_name(f"{TESTED_ELSEWHERE[name]}.py").read_text()
