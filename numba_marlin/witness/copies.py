"""Probes of bulk and tensor copies, every swizzle and clipped boxes among them, each block with a
size, offset or box of its own."""

from __future__ import annotations

import numpy as np

from numba_marlin.layout.tensor_map import CHUNK_BYTES, TensorMap
from numba_marlin.witness import draws
from numba_marlin.witness.probe import Probe, Result, Snippets, frame
from numba_marlin.witness.waits import DATA, barriers, dump, fill, status, wait

BLOCK, GRID, BYTES = 128, 256, 4096
POLICY = {"_hint": "create_policy_evict_last", "": None}


def _probe(name, put_names, text, buffers, results, covers, **more):
    return Probe(
        name,
        covers,
        text,
        buffers,
        {key: Result() for key in results},
        more.pop("grid", GRID),
        BLOCK,
        more.pop("lanes", GRID),
        shared_bytes=DATA + BYTES,
        uses=tuple(each for each in put_names if each not in covers),
        **more,
    )


def plan(seed: str, step: int) -> np.ndarray:
    """uint32 [GRID, 4]: offset in global memory, offset in shared memory, bytes, 0; all multiples
    of ``step``, all sizes."""
    sizes = step * (1 + np.arange(GRID) % (BYTES // step))
    there, here = (draws.raw(f"{seed}/{x}", GRID) for x in ("there", "here"))
    offset = (here % ((BYTES - sizes) // step + 1).astype(np.uint64)).astype(np.int64) * step
    return np.stack(
        [(there % np.uint64(512)).astype(np.int64) * step, offset, sizes, np.zeros(GRID, np.int64)],
        axis=1,
    ).astype(np.uint32)


PLAN = "mad.wide.u32 %rd0, %c, 16, %p0; ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%rd0];\n"


def load(hint: str, apart: bool) -> Probe:
    """cp.async.bulk to shared memory; apart: its bytes are announced without an arrival, which
    follows."""
    snippets = Snippets()
    put, name = snippets.put, f"cp_async_bulk_g2s{hint}"
    body = (
        barriers(put, 1)
        + fill(BYTES, 3, BLOCK)
        + put("fence_proxy_async_shared")
        + "bar.sync 0;\n"
        + PLAN
    )
    body += (
        "cvt.u64.u32 %rd1, %r0; add.u64 %rd1, %rd1, %p1; add.u32 %r1, %r1, %s; "
        + f"add.u32 %r1, %r1, {DATA}; @%q0 bra ISSUED;\n"
    )
    body += put("cp_async_bulk_prefetch", "%rd1", "%r2")
    body += (
        put("mbarrier_expect_tx", "%r40", "%r2") + put("mbarrier_arrive", "%r40")
        if apart
        else put("mbarrier_arrive_expect_tx", "%r40", "%r2")
    )
    policy = put("create_policy_evict_last", "%rd2") if hint else ""
    body += (
        policy + put(name, "%r1", "%rd1", "%r2", "%r40", *(("%rd2",) if hint else ())) + "ISSUED:\n"
    )
    body += wait(
        put, "W", "%r40", "0", "mbarrier_test_wait_parity" if apart else "mbarrier_try_wait_parity"
    ).replace("10000", "10000000" if apart else "10000")
    body += dump(BYTES, 2, BLOCK) + status(4)
    seed = name + str(apart)

    def buffers():
        return {
            "plan": plan(seed, 16),
            "source": draws.words32(seed + "/source", 4096),
            "out": np.zeros((GRID, BYTES // 4), np.uint32),
            "shared": draws.words32(seed + "/shared", GRID * BYTES // 4).reshape(GRID, -1),
            "gave_up": np.zeros(GRID * BLOCK, np.uint32),
        }

    covers = (
        (name, "mbarrier_expect_tx", "mbarrier_test_wait_parity")
        if apart
        else (name, "mbarrier_arrive_expect_tx")
    )
    return _probe(
        name + (" announced apart" if apart else ""),
        snippets.names,
        frame(body, BLOCK, 5),
        buffers,
        ("out", "gave_up"),
        covers,
    )


def store(read: bool) -> Probe:
    """cp.async.bulk to global memory; read: the wait is for its reading alone, the end of the grid
    does the rest."""
    snippets = Snippets()
    put = snippets.put
    body = (
        "setp.ne.u32 %q0, %t, 0;\n"
        + fill(BYTES, 1, BLOCK)
        + put("fence_proxy_async_shared")
        + "bar.sync 0;\n"
        + PLAN
    )
    body += (
        f"mul.wide.u32 %rd1, %c, {BYTES}; add.u64 %rd1, %rd1, %p2; cvt.u64.u32 %rd2, %r1; add.u64"
        f" %rd1, %rd1, %rd2; add.u32 %r1, %r1, %s; add.u32 %r1, %r1, {DATA}; @%q0 bra END;\n"
    )
    body += put("cp_async_bulk_s2g", "%rd1", "%r1", "%r2") + put("cp_async_bulk_commit_group")
    body += (
        put("cp_async_bulk_wait_group_read" if read else "cp_async_bulk_wait_group", n=0)
        + "END: bar.sync 0;\n"
    )
    seed = f"s2g{read}"

    def buffers():
        return {
            "plan": plan(seed, 16),
            "shared": draws.words32(seed + "/shared", GRID * BYTES // 4).reshape(GRID, -1),
            "out": draws.words32(seed + "/out", GRID * BYTES // 4).reshape(GRID, -1),
        }

    waited = "cp_async_bulk_wait_group_read" if read else "cp_async_bulk_wait_group"
    return _probe(
        f"cp_async_bulk_s2g {'read' if read else 'complete'}",
        snippets.names,
        frame(body, BLOCK, 3),
        buffers,
        ("out",),
        ("cp_async_bulk_s2g", "cp_async_bulk_commit_group", waited),
    )


# bytes of a row of the tensor; it has fewer elements than that, so that both ends clip
ROWS, WIDE = 96, 320


def tensor_map(dtype: str, swizzle: int, margin: int = 16) -> TensorMap:
    """margin: bytes of a row, a multiple of 8, that with one element more are not the tensor's."""
    size = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "uint32": 4}[dtype]
    return TensorMap(
        dtype,
        (ROWS - 3, (WIDE - margin) // size - 1),
        (WIDE, size),
        (16, (swizzle or 64) // size),
        swizzle,
    )


def boxes(seed: str, named: TensorMap) -> np.ndarray:
    """int32 [GRID, 2]: x, y of every block's box; beyond every edge too, x in steps of 16 bytes."""
    drawn, step = draws.raw(seed, 2 * GRID).reshape(GRID, 2), CHUNK_BYTES // named.element_bytes
    low = np.array([-(named.box[1] // step) - 1, -named.box[0] - 2])
    span = np.array(
        [(named.shape[1] + named.box[1]) // step + 3, named.shape[0] + named.box[0] + 4]
    )
    return ((low + (drawn % span.astype(np.uint64)).astype(np.int64)) * (step, 1)).astype(np.int32)


BOX = (
    "mad.wide.u32 %rd0, %c, 8, %p0; ld.global.v2.b32 {%r0, %r1}, [%rd0]; "
    + f"add.u32 %r2, %s, {DATA};\n"
)


def load_box(hint: str, dtype: str, swizzle: int) -> Probe:
    snippets, named = Snippets(), tensor_map(dtype, swizzle)
    put, name, nbytes = snippets.put, f"cp_async_bulk_tensor_2d_g2s{hint}", named.box_bytes
    body = (
        barriers(put, 1)
        + fill(BYTES, 3, BLOCK)
        + put("fence_proxy_async_shared")
        + "bar.sync 0;\n"
        + BOX
        + "@%q0 bra ISSUED;\n"
        + put("prefetch_tensormap", "%map0")
    )
    body += put("mbarrier_arrive_expect_tx", "%r40", str(nbytes)) + (
        put("create_policy_evict_first", "%rd2") if hint else ""
    )
    body += (
        put(name, "%r2", "%map0", "%r0", "%r1", "%r40", *(("%rd2",) if hint else ()))
        + "ISSUED:\n"
        + wait(put, "W", "%r40", "0")
        + dump(BYTES, 2, BLOCK)
        + status(4)
    )
    label = f"{name} {dtype} swizzle {swizzle}"

    def buffers():
        return {
            "at": boxes(label, named),
            "tensor": draws.words32(label, ROWS * WIDE // 4),
            "out": np.zeros((GRID, BYTES // 4), np.uint32),
            "shared": draws.words32(label + "/shared", GRID * BYTES // 4).reshape(GRID, -1),
            "gave_up": np.zeros(GRID * BLOCK, np.uint32),
        }

    return _probe(
        label,
        snippets.names,
        frame(body, BLOCK, 5, maps=1),
        buffers,
        ("out", "gave_up"),
        (name,),
        maps=(("tensor", named),),
    )


def load_line(hint: str) -> Probe:
    """One dimension."""
    snippets, named = Snippets(), TensorMap("uint32", (1000,), (4,), (128,))
    put, name = snippets.put, f"cp_async_bulk_tensor_1d_g2s{hint}"
    body = (
        barriers(put, 1)
        + fill(BYTES, 3, BLOCK)
        + put("fence_proxy_async_shared")
        + "bar.sync 0;\n"
        + BOX
        + "@%q0 bra ISSUED;\n"
    )
    body += put("mbarrier_arrive_expect_tx", "%r40", "512") + (
        put("create_policy_evict_last", "%rd2") if hint else ""
    )
    body += (
        put(name, "%r2", "%map0", "%r0", "%r40", *(("%rd2",) if hint else ()))
        + "ISSUED:\n"
        + wait(put, "W", "%r40", "0")
        + dump(BYTES, 2, BLOCK)
        + status(4)
    )

    def buffers():
        at = 4 * (
            (draws.raw(name, 2 * GRID) % np.uint64(300)).astype(np.int32).reshape(GRID, 2) - 35
        )
        return {
            "at": at,
            "tensor": draws.words32(name + "/x", 1024),
            "out": np.zeros((GRID, BYTES // 4), np.uint32),
            "shared": draws.words32(name + "/shared", GRID * BYTES // 4).reshape(GRID, -1),
            "gave_up": np.zeros(GRID * BLOCK, np.uint32),
        }

    return _probe(
        name,
        snippets.names,
        frame(body, BLOCK, 5, maps=1),
        buffers,
        ("out", "gave_up"),
        (name,),
        maps=(("tensor", named),),
    )


STORES = {
    "inside": (False, 16),
    "over the far edges": (True, 16),
    "over the far edges, rows that end in the first half of 16 bytes": (True, 24),
}
"""Whether the boxes hang over the far edges, and how much shorter the tensor's rows are; over the
near edges none can be stored (``refusals``)."""


def store_box(dtype: str, swizzle: int, where: str) -> Probe:
    """Boxes that tile the tensor."""
    over, margin = STORES[where]
    snippets, named = Snippets(), tensor_map(dtype, swizzle, margin)
    put, name, (high, wide) = snippets.put, "cp_async_bulk_tensor_2d_s2g", named.box
    across, down = (size // box + over for size, box in zip(named.shape[::-1], (wide, high)))
    body = (
        "setp.ne.u32 %q0, %t, 0;\n"
        + fill(BYTES, 1, BLOCK)
        + put("fence_proxy_async_shared")
        + "bar.sync 0;\n"
        + BOX
        + "@%q0 bra END;\n"
    )
    body += (
        put(name, "%map0", "%r0", "%r1", "%r2")
        + put("cp_async_bulk_commit_group")
        + put("cp_async_bulk_wait_group", n=0)
        + "END: bar.sync 0;\n"
    )
    label = f"{name} {dtype} swizzle {swizzle} {where}"

    def buffers():
        y, x = np.divmod(np.arange(across * down), across)
        at = np.stack([x * wide, y * high], axis=1).astype(np.int32)
        return {
            "at": at,
            "shared": (
                draws.words32(label + "/shared", at.shape[0] * BYTES // 4).reshape(at.shape[0], -1)
            ),
            "tensor": draws.words32(label, ROWS * WIDE // 4),
        }

    return _probe(
        label,
        snippets.names,
        frame(body, BLOCK, 3, maps=1),
        buffers,
        ("tensor",),
        (name,),
        maps=(("tensor", named),),
        grid=across * down,
        lanes=across * down,
    )


def probes() -> list[Probe]:
    found = [
        load("", False),
        load("_hint", False),
        load("", True),
        store(False),
        store(True),
        load_line(""),
        load_line("_hint"),
    ]
    kinds = [
        (dtype, swizzle) for swizzle in (0, 32, 64, 128) for dtype in ("float16", "float32")
    ] + [("uint8", 128), ("bfloat16", 64)]
    return (
        found
        + [load_box("", *kind) for kind in kinds]
        + [load_box("_hint", "float16", 128)]
        + [store_box(*kind, where) for kind in kinds for where in STORES]
    )
