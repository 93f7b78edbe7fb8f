"""Probes of instructions that touch memory by themselves: loads, stores, cp.async, atomics,
ldmatrix, stmatrix, shuffles.

The text is made from the declared operands: a thread owns 16 bytes of shared and of global memory,
loads its operands from a record, runs the snippet, stores the results. Addresses point to other
threads' windows, at every offset inside of them that the access allows. Shared memory is dumped
afterwards, global memory is a result as it is.
"""

from __future__ import annotations

import re

import numpy as np

from numba_marlin.witness import draws
from numba_marlin.witness.probe import Probe, Result, Snippets, frame, instructions

BLOCK, GRID, WINDOW, WORDS = 256, 4096, 16, 4
REGISTER = {"u16": "b16", "u32": "b32", "i32": "b32", "u64": "b64", "f32": "f32"}
POLICY = "create_policy_evict_first"
COUNTERS = 4096  # words that red adds to, so that lanes meet
KINDS = [
    f"{kind}_{width}"
    for kind in ("ld_shared", "ld_global", "st_shared", "st_global")
    for width in ("b16", "b32", "v2_b32", "v2_f32", "v4_b32", "v4_f32")
]
NAMES = (
    *KINDS,
    "st_global_b8",
    "ld_global_f32",
    "ld_acquire_gpu",
    "st_release_gpu",
    "atom_add_acq_rel_gpu",
    "red_relaxed_gpu_add",
    "red_release_gpu_add",
    "ld_shared_cluster_v4_f32",
    "st_shared_cluster_v4_f32",
    *(
        f"cp_async_16{kind}"
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
    ),
    "ldmatrix_x1",
    "ldmatrix_x2",
    "ldmatrix_x4",
    "ldmatrix_x4_trans",
    "stmatrix_x4",
    "stmatrix_x4_trans",
    "shfl_sync_idx",
    "shfl_sync_bfly",
    "vote_any",
    "elect_sync",
    "bar_warp_sync",
    "bar_sync",
)
RARELY = 40  # of so many lanes one has a vote
NOTES = {
    "elect_sync": "which lane is elected is left open by the ISA",
    "atom_add_acq_rel_gpu": "a word a lane: the order of lanes is left open by the ISA",
    "red_relaxed_gpu_add": "sums alone are compared",
    "red_release_gpu_add": "sums alone are compared",
}


def blocks(name: str) -> int:
    """Of a grid: a million lanes; fewer where they meet at the same words."""
    return GRID // 16 if name.startswith("red_") else GRID


def access_bytes(name: str) -> int:
    """Bytes that a lane accesses at its address, which it must be a multiple of."""
    match = re.search(r"_(v\d_)?[bf](8|16|32)$", name)
    if match:
        return int((match[1] or "v1_")[1]) * int(match[2]) // 8
    return (
        4
        if name in ("ld_acquire_gpu", "st_release_gpu") or name.startswith(("atom", "red"))
        else WINDOW
    )


def offsets(name: str, operand: str) -> np.ndarray:
    """Byte offsets of every lane's address: within the block's windows in shared memory, within all
    of them in global memory."""
    size, seed, grid, lanes = (
        access_bytes(name),
        f"{name}/{operand}",
        blocks(name),
        blocks(name) * BLOCK,
    )
    if name.startswith("red_"):
        return (draws.raw(seed, lanes) % np.uint64(COUNTERS)).astype(np.uint64) * np.uint64(WINDOW)
    inside = (draws.raw(seed + "/inside", lanes) % np.uint64(WINDOW // size)) * np.uint64(size)
    if operand == "gmem" or instructions()[name].inputs[0].type == "u64":
        return draws.permutation(seed, lanes).astype(np.uint64) * np.uint64(WINDOW) + inside
    windows = np.argsort(
        draws.raw(seed, lanes).reshape(grid, BLOCK), axis=1, kind="stable"
    ).reshape(-1)
    return windows.astype(np.uint64) * np.uint64(WINDOW) + inside


def operand_bits(name: str, operand) -> np.ndarray:
    """uint64 [lanes, width] of an operand."""
    shape, seed = (blocks(name) * BLOCK, operand.width), f"{name}/{operand.name}"
    if operand.name in ("smem", "address", "gmem"):
        return offsets(name, operand.name)[:, None]
    fixed = {"mask": 0xFFFFFFFF, "id": 3, "threads": BLOCK, "policy": 0}
    if operand.name in fixed:
        return np.full(shape, fixed[operand.name], np.uint64)
    limits = {"pred": 2, "bytes": WINDOW + 1, "lane": 32, "lane_mask": 32}
    drawn = draws.raw(seed, shape[0] * operand.width).reshape(shape)
    if operand.name in limits:
        return drawn % np.uint64(limits[operand.name])
    if name == "vote_any":
        return np.where(drawn % np.uint64(RARELY), np.uint64(0), drawn & np.uint64(0xFFFFFFFF))
    if operand.type == "f32":
        return (
            draws.mixed(seed, drawn.size, draws.FLOATS, np.uint32).astype(np.uint64).reshape(shape)
        )
    return drawn & np.uint64(0xFFFF if operand.type == "u16" else 0xFFFFFFFF)


def text(name: str, snippets: Snippets) -> str:
    instruction = instructions()[name]
    given = {
        o.name: [f"%{o.name}_{i}" for i in range(o.width)]
        for o in instruction.outputs + instruction.inputs
    }
    registers = "".join(
        f".reg .{REGISTER[o.type]} {register};\n"
        for o in instruction.outputs + instruction.inputs
        for register in given[o.name]
    )
    width_in, width_out = (
        max(1, sum(o.width for o in operands))
        for operands in (instruction.inputs, instruction.outputs)
    )
    body = f"""mad.wide.u32 %rd0, %g, {8 * width_in}, %p0; \
mad.wide.u32 %rd1, %g, {8 * width_out}, %p1; mad.wide.u32 %rd2, %g, {WINDOW}, %p3; \
mad.lo.u32 %r0, %t, {WINDOW}, %s;
ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd2]; st.shared.v4.b32 [%r0], {{%r1, %r2, %r3, %r4}}; \
bar.sync 0;
"""
    place = 0
    for operand in instruction.inputs:
        for register in given[operand.name]:
            body += f"ld.global.b64 %rd3, [%rd0 + {8 * place}];\n"
            place += 1
            if operand.name == "policy":
                body += snippets.put(POLICY, register)
            elif operand.name in ("gmem", "address") and operand.type == "u64":
                body += f"add.u64 {register}, %rd3, %p2;\n"
            elif operand.name in ("smem", "address"):
                body += f"cvt.u32.u64 %r5, %rd3; add.u32 {register}, %r5, %s;\n"
                # else the machine code may be one that Hopper refuses: compiler/gates.py
                if "evict" in name or "hint" in name:
                    body += (
                        f"mov.u32 %r6, %laneid; shfl.sync.idx.b32 {register}, {register}, %r6,"
                        " 0x1f, 0xffffffff;\n"
                    )
            else:
                body += {
                    "u16": f"cvt.u16.u64 {register}, %rd3;\n",
                    "u64": f"mov.b64 {register}, %rd3;\n",
                }.get(operand.type, f"cvt.u32.u64 %r5, %rd3; mov.b32 {register}, %r5;\n")
    body += snippets.put(name, *(given[o.name] for o in instruction.outputs + instruction.inputs))
    if name.startswith("cp_async"):
        body += snippets.put("cp_async_commit_group") + (
            snippets.put("cp_async_wait_group", n=0)
            if "pred" in name
            else snippets.put("cp_async_wait_all")
        )
    body += "bar.sync 0;\n"
    for place, register in enumerate(
        register for o in instruction.outputs for register in given[o.name]
    ):
        kind = instruction.outputs[0].type
        wide = {"u16": f"cvt.u64.u16 %rd4, {register};", "u64": f"mov.b64 %rd4, {register};"}.get(
            kind, f"mov.b32 %r5, {register}; cvt.u64.u32 %rd4, %r5;"
        )
        body += f"{wide} st.global.b64 [%rd1 + {8 * place}], %rd4;\n"
    body += (
        "ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r0]; st.global.v4.b32 [%rd2], {%r1, %r2, %r3,"
        " %r4};\n"
    )
    return frame(body, BLOCK, 4, registers=registers)


def probe(name: str) -> Probe:
    instruction, snippets, lanes = instructions()[name], Snippets(), blocks(name) * BLOCK
    written = text(name, snippets)

    def buffers():
        records = [operand_bits(name, o) for o in instruction.inputs]
        width = max(1, sum(o.width for o in instruction.outputs))
        return {
            "records": (
                np.concatenate(records, axis=1) if records else np.zeros((lanes, 1), np.uint64)
            ),
            "outputs": np.zeros((lanes, width), np.uint64),
            "memory": draws.words32(f"{name}/memory", lanes * WORDS).reshape(lanes, WORDS),
            "shared": draws.words32(f"{name}/shared", lanes * WORDS).reshape(lanes, WORDS),
        }

    results = {
        "memory": Result(),
        "shared": Result(),
        **({"outputs": Result()} if instruction.outputs else {}),
    }
    return Probe(
        name,
        (name,),
        written,
        buffers,
        results,
        blocks(name),
        BLOCK,
        lanes,
        shared_bytes=BLOCK * WINDOW,
        uses=tuple(n for n in snippets.names if n != name),
        note=NOTES.get(name, ""),
    )


def probes() -> list[Probe]:
    return [probe(name) for name in NAMES if name in instructions()]
