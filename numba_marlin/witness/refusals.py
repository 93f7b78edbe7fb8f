"""Probes that must fail: what the PTX machine reports as an error, does a GPU refuse it too?

One thread executes one access that is not aligned as it must be, or stores a box that begins before
its tensor; everything else about it is in order.
"""

from __future__ import annotations

from numba_marlin.layout.tensor_map import TensorMap
from numba_marlin.witness import draws
from numba_marlin.witness.probe import Probe, Snippets, frame
from numba_marlin.witness.waits import DATA, barriers, fill, wait

BLOCK, BYTES = 32, 2048
HALVES = TensorMap("float16", (16, 64), (128, 2), (8, 32))
LINE = TensorMap("uint32", (512,), (4,), (128,))


def _probe(label: str, act, named: TensorMap | None = None, refused: str = "Misaligned") -> Probe:
    """``act(put)``: text that thread 0 executes; %r20: the block's data in shared memory, %p0: a
    buffer of as many bytes, %r40: an mbarrier for one arrival."""
    snippets = Snippets()
    body = (
        barriers(snippets.put, 1)
        + fill(BYTES, 0, BLOCK)
        + snippets.put("fence_proxy_async_shared")
        + f"bar.sync 0;\nadd.u32 %r20, %s, {DATA}; @%q0 bra END;\n"
    )
    body += act(snippets.put) + "END:\n"
    return Probe(
        label,
        (),
        frame(body, BLOCK, 1, maps=int(named is not None)),
        lambda: {"memory": draws.words32(label, BYTES // 4)},
        {},
        1,
        BLOCK,
        1,
        shared_bytes=DATA + BYTES,
        maps=(("memory", named),) if named else (),
        uses=tuple(snippets.names),
        refused=refused,
    )


def _load(name, nbytes, *operands):
    return lambda put: (
        put("mbarrier_arrive_expect_tx", "%r40", str(nbytes))
        + put(name, *operands)
        + wait(put, "W", "%r40", "0")
    )


def _box(x: str, y: str = "1", shared: int = 0):
    return lambda put: (
        f"add.u32 %r20, %r20, {shared}; mov.s32 %r1, {x}; mov.s32 %r2, {y};\n"
        + _load(
            "cp_async_bulk_tensor_2d_g2s", HALVES.box_bytes, "%r20", "%map0", "%r1", "%r2", "%r40"
        )(put)
    )


def _store_box(x: str, y: str):
    return lambda put: (
        f"mov.s32 %r1, {x}; mov.s32 %r2, {y};\n"
        + put("cp_async_bulk_tensor_2d_s2g", "%map0", "%r1", "%r2", "%r20")
        + put("cp_async_bulk_commit_group")
        + put("cp_async_bulk_wait_group", n=0)
    )


def _bulk(there: int, here: int):
    return lambda put: (
        f"add.u64 %rd1, %p0, {there}; add.u32 %r20, %r20, {here};\n"
        + _load("cp_async_bulk_g2s", 64, "%r20", "%rd1", "64", "%r40")(put)
    )


def _asynchronous(there: int, here: int):
    return lambda put: (
        f"add.u64 %rd1, %p0, {there}; add.u32 %r20, %r20, {here};\n"
        + put("cp_async_16", "%r20", "%rd1")
        + put("cp_async_wait_all")
    )


def _vector(space: str, address: str):
    loaded = ["%r1", "%r2", "%r3", "%r4"]
    return lambda put: (
        "add.u64 %rd1, %p0, 8; add.u32 %r20, %r20, 8;\n"
        + put(f"ld_{space}_v4_b32", loaded, address)
        + put("st_global_v4_b32", "%p0", loaded)
    )


def probes() -> list[Probe]:
    return [
        _probe("a box from the middle of 16 bytes", _box("4"), HALVES),
        _probe("a box from before a row, not by 16 bytes", _box("-1"), HALVES),
        _probe(
            "a line from the middle of 16 bytes",
            lambda put: (
                "mov.s32 %r1, 2;\n"
                + _load("cp_async_bulk_tensor_1d_g2s", 512, "%r20", "%map0", "%r1", "%r40")(put)
            ),
            LINE,
        ),
        _probe("a box to the middle of 16 bytes", _store_box("4", "1"), HALVES),
        _probe("a box to the middle of 128 shared bytes", _box("8", shared=64), HALVES),
        _probe("a box to before the first column", _store_box("-8", "1"), HALVES, "OutOfBounds"),
        _probe("a box to before the first row", _store_box("8", "-1"), HALVES, "OutOfBounds"),
        _probe("a bulk copy from the middle of 16 bytes", _bulk(8, 0)),
        _probe("a bulk copy to the middle of 16 bytes", _bulk(0, 8)),
        _probe("cp.async from the middle of 16 bytes", _asynchronous(8, 0)),
        _probe("cp.async to the middle of 16 bytes", _asynchronous(0, 8)),
        _probe("a global vector from the middle of 16 bytes", _vector("global", "%rd1")),
        _probe("a shared vector from the middle of 16 bytes", _vector("shared", "%r20")),
    ]
