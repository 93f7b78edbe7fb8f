"""What each snippet of ptx/ computes, as independent NumPy formulas over a ``snippets.World``:
floats in exact fractions, rounded once."""

import numpy as np

from tests.emulator.number_formulas import (
    both,
    brain_numbers,
    flushed,
    fma_f32,
    from_half,
    from_small,
    half_numbers,
    on_floats,
    packed,
    packed_brain,
    to_brain_pair,
    to_half,
    to_half_pair,
    to_small,
    word,
)
from tests.emulator.snippets import THREADS, WINDOW


def windows(array, offsets):
    return array[(offsets[:, 0] // WINDOW).astype(int)]


def load(space, words):
    return lambda w: windows(getattr(w, space), w.inputs["address"])[:, :words].astype(np.uint64)


def load_half(space):
    return lambda w: (windows(getattr(w, space), w.inputs["address"])[:, :1] & 0xFFFF).astype(
        np.uint64
    )


def store(space):
    def formula(w):
        target, value = getattr(w, space), w.inputs["value"].astype(np.uint32)
        target[(w.inputs["address"][:, 0] // WINDOW).astype(int), : value.shape[1]] = value

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
        # warp, matrix, row, column
        rows = windows(w.shared, w.inputs["address"]).copy().view(np.uint16).reshape(2, 4, 8, 8)
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
                return np.ascontiguousarray(
                    w.inputs[name][32 * warp : 32 * warp + 32].astype(np.uint32)
                )

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


def mma_of_bytes(w):
    """Signed bytes, four to a register; the sums wrap."""
    lane = np.arange(32)
    group, inside = lane // 4, lane % 4
    out = np.empty((2, 32, 4), np.uint64)
    for warp in range(2):
        words = {
            name: np.ascontiguousarray(each[32 * warp : 32 * warp + 32].astype(np.uint32))
            for name, each in w.inputs.items()
        }
        a, b = np.empty((16, 32), np.int64), np.empty((32, 8), np.int64)
        for e in range(16):
            row = group + 8 * (e // 4 % 2)
            a[row, 4 * inside + e % 4 + 16 * (e // 8)] = words["a"].view(np.int8)[:, e]
        for e in range(8):
            b[4 * inside + e % 4 + 16 * (e // 4), group] = words["b"].view(np.int8)[:, e]
        sums = a @ b
        for e in range(4):
            d = sums[group + 8 * (e // 2), 2 * inside + e % 2] + words["c"][:, e]
            out[warp, :, e] = d % 2**32
    return out.reshape(THREADS, 4)


def stmatrix(transposed):
    """Lane 8j + i of a warp names the row i of matrix j."""

    def formula(w):
        rows = np.empty((2, 4, 8, 8), np.uint16)
        lane = np.arange(32)
        pairs = (
            np.ascontiguousarray(w.inputs["r"].astype(np.uint32))
            .view(np.uint16)
            .reshape(2, 32, 4, 2)
        )
        for matrix in range(4):
            for half in range(2):
                where = (lane // 4, 2 * (lane % 4) + half)
                rows[:, matrix][(slice(None), *(where[::-1] if transposed else where))] = pairs[
                    :, :, matrix, half
                ]
        w.shared[(w.inputs["address"][:, 0] // WINDOW).astype(int)] = rows.reshape(THREADS, 8).view(
            np.uint32
        )

    return formula


def lop3(w):
    a, b, c = (word(w, name) for name in "abc")
    return ((a & b) | c).astype(np.uint64)[:, None]  # table 0xEA


def prmt(w):
    source = np.stack([word(w, "a"), word(w, "b")], axis=1).view(np.uint8)
    # selector 0x7531
    return np.ascontiguousarray(source[:, [1, 3, 5, 7]]).view(np.uint32).astype(np.uint64)


def byte_distances(w):
    a, b = (word(w, name).view(np.uint8).astype(np.int16) for name in "ab")
    return np.abs(a - b).astype(np.uint8).view(np.uint32).astype(np.uint64)[:, None]


def shuffle(w):
    lanes = w.inputs["lane"][:, 0].astype(int) + np.arange(THREADS) // 32 * 32
    return w.inputs["value"][lanes]


def shuffle_across(w):
    return w.inputs["value"][np.arange(THREADS) ^ w.inputs["lane_mask"][:, 0].astype(int)]


def put_byte(w):
    for thread in range(THREADS):
        w.memory.view(np.uint8).reshape(-1)[int(w.inputs["address"][thread, 0])] = (
            int(w.inputs["value"][thread, 0]) & 0xFF
        )


def old_values(w):
    """Lanes add one after the other, in the order of threads."""
    found = np.empty(THREADS, np.uint64)
    for thread, (row, value) in enumerate(
        zip((w.inputs["address"][:, 0] // WINDOW).astype(int), word(w, "value"))
    ):
        found[thread] = w.memory[row, 0]
        w.memory[row, 0] += value
    return found[:, None]


def elect(w):
    return (np.arange(THREADS) % 32 == 0).astype(np.uint64)[:, None]


def votes(w):
    warps = w.inputs["value"].reshape(-1, 32)
    return np.repeat(warps.any(axis=1), 32).astype(np.uint64)[:, None]


def nothing(w):
    return None


FORMULAS = {
    "add_f16x2": packed(lambda a, b: a + b),
    "sub_f16x2": packed(lambda a, b: a - b),
    "mul_f16x2": packed(lambda a, b: a * b),
    "fma_rn_f16x2": packed(lambda a, b, c: a * b + c),
    "fma_rn_f32": fma_f32,
    "lop3": lop3,
    "prmt_b32": prmt,
    "vabsdiff4_u32": byte_distances,
    "both_low_f16x2": both(0),
    "both_high_f16x2": both(16),
    "opaque_u32": lambda w: w.inputs["a"],
    "shfl_sync_idx": shuffle,
    "tid_x": lambda w: np.arange(THREADS, dtype=np.uint64)[:, None],
    "cvt_f32_f16": from_half(0),
    "cvt_f32_f16_low": from_half(0),
    "cvt_f32_f16_high": from_half(16),
    "cvt_rn_f16_f32": to_half,
    "cvt_rn_f16x2_f32": to_half_pair,
    "cvt_rn_f16x2_e4m3x2": from_small("e4m3"),
    "cvt_rn_f16x2_e4m3x4": from_small("e4m3", pairs=2),
    "cvt_rn_satfinite_e4m3x2_f32": to_small("e4m3"),
    "cvt_rn_satfinite_e5m2x2_f32": to_small("e5m2"),
    "bits_of_f32": lambda w: w.inputs["a"],
    "f32_of_bits": lambda w: w.inputs["a"],
    "max_f32": on_floats(np.fmax),
    "min_f32": on_floats(np.fmin),
    "shfl_sync_bfly": shuffle_across,
    "vote_any": votes,
    "rcp_rn_f32": on_floats(lambda x: 1 / x.astype(np.float64)),
    "rcp_approx_f32": on_floats(lambda x: flushed(1 / flushed(x).astype(np.float64))),
    "ex2_approx_f32": on_floats(lambda x: flushed(np.exp2(flushed(x).astype(np.float64)))),
    "st_global_b8": put_byte,
    "ldmatrix_x4": ldmatrix(False),
    "ldmatrix_x4_trans": ldmatrix(True),
    "ldmatrix_x2": ldmatrix(False, 2),
    "ldmatrix_x1": ldmatrix(False, 1),
    "stmatrix_x4": stmatrix(False),
    "stmatrix_x4_trans": stmatrix(True),
    "mma_m16n8k16_f32_f16": mma(16, half_numbers),
    "mma_m16n8k16_f32_bf16": mma(16, brain_numbers),
    "mma_m16n8k8_f32_f16": mma(8, half_numbers),
    "mma_m16n8k32_s32_s8_s8": mma_of_bytes,
    "keep_f32": lambda w: w.inputs["d"],
    "keep_u32": lambda w: w.inputs["d"],
    "keep_i32": lambda w: w.inputs["d"],
    "zero_f32": lambda w: np.zeros((THREADS, 5), np.uint64),
    "zero_i32": lambda w: np.zeros((THREADS, 3), np.uint64),
    "fma_rn_bf16x2": packed_brain(lambda a, b, c: a * b + c),
    "mul_bf16x2": packed_brain(lambda a, b: a * b),
    "sub_bf16x2": packed_brain(lambda a, b: a - b),
    "cvt_rn_bf16x2_f32": to_brain_pair,
    "cvt_f32_bf16_low": lambda w: w.inputs["a"] << np.uint64(16) & np.uint64(0xFFFFFFFF),
    "cvt_f32_bf16_high": lambda w: w.inputs["a"] & np.uint64(0xFFFF0000),
    "ld_acquire_gpu": load("memory", 1),
    "st_release_gpu": store("memory"),
    "red_relaxed_gpu_add": add_atomically,
    "red_release_gpu_add": add_atomically,
    **{
        f"ld_{space}_{kind}": load(array, words)
        for space, array in (("shared", "shared"), ("global", "memory"))
        for kind, words in (("b32", 1), ("v2_b32", 2), ("v2_f32", 2), ("v4_b32", 4), ("v4_f32", 4))
    },
    **{
        f"st_{space}_{kind}": store(array)
        for space, array in (("shared", "shared"), ("global", "memory"))
        for kind in ("b32", "v2_b32", "v2_f32", "v4_b32", "v4_f32")
    },
    # a block's own, here
    "ld_shared_cluster_v4_f32": load("shared", 4),
    "st_shared_cluster_v4_f32": store("shared"),
    "atom_add_acq_rel_gpu": old_values,
    "elect_sync": elect,
    "ld_global_f32": load("memory", 1),
    "ld_shared_b16": load_half("shared"),
    "ld_global_b16": load_half("memory"),
    "st_shared_b16": store_half("shared"),
    "st_global_b16": store_half("memory"),
    **{
        f"cp_async_16{kind}": copy
        for kind in (
            "",
            "_pred",
            "_zfill",
            "_hint",
            "_pred_hint",
            "_zfill_hint",
            "_evict_first",
            "_evict_first_pred",
            "_evict_first_zfill",
        )
    },
    **dict.fromkeys(
        (
            "bar_sync",
            "bar_arrive",
            "bar_warp_sync",
            "fence_acq_rel_gpu",
            "griddepcontrol_wait",
            "griddepcontrol_launch_dependents",
            "cp_async_commit_group",
            "cp_async_wait_all",
            "cp_async_wait_group",
        ),
        nothing,
    ),
}
