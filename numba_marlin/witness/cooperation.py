"""Probes of threads that wait for each other: mbarriers, named barriers, clusters; and of what has
no value but an order (clocks).

``QUIET`` are instructions with no value to compare: they order, hint or wait. One kernel executes
those that any thread may execute, and says that it came through; the register hand-over of
``setmaxnreg`` is for the kernels that use it.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.layout.tensor_map import TensorMap
from numba_marlin.witness import draws
from numba_marlin.witness.probe import Probe, Result, Snippets, frame
from numba_marlin.witness.waits import DATA, barriers, dump, fill, status, wait

ARRIVALS, RANKS, BLOCK, BYTES = 24, 4, 128, 2048
QUIET = {
    "fence_acq_rel_gpu": "orders",
    "fence_acq_rel_cluster": "orders",
    "fence_proxy_async_global": "orders",
    "fence_proxy_async_shared": "orders",
    "fence_mbarrier_init": "orders",
    "griddepcontrol_wait": "waits",
    "griddepcontrol_launch_dependents": "lets others begin",
    "cp_async_bulk_prefetch": "a hint",
    "prefetch_tensormap": "a hint",
    "create_policy_evict_first": "the policy's bits mean nothing outside of the GPU",
    "create_policy_evict_last": "the policy's bits mean nothing outside of the GPU",
    "wgmma_fence": "orders",
    "wgmma_commit_group": "closes a group",
    "wgmma_wait_group": "waits",
    "wgmma_wait_group_f32": "waits",
    "wgmma_wait_group_i32": "waits",
    "cp_async_commit_group": "closes a group",
    "cp_async_wait_group": "waits",
    "cp_async_wait_all": "waits",
    "cp_async_mbarrier_arrive_noinc": "arrives when copies have landed",
    "setmaxnreg_inc": "registers change hands",
    "setmaxnreg_dec": "registers change hands",
    "bar_warp_sync": "waits",
    "bar_sync": "waits",
    "bar_arrive": "does not wait",
    "cluster_arrive": "does not wait",
    "cluster_wait": "waits",
    "mbarrier_inval": "ends an mbarrier",
    "tcgen05_relinquish_alloc_permit": "lets others begin",
    "tcgen05_wait_ld": "waits",
    "tcgen05_fence_before_thread_sync": "orders",
    "tcgen05_fence_after_thread_sync": "orders",
    "cp_async_bulk_tensor_2d_g2s_cta": "does what cp_async_bulk_tensor_2d_g2s does",
    "ex2_approx_f32": "approximate: the ISA bounds its error only",
    "rcp_approx_f32": "approximate: the ISA bounds its error only",
}


def phases() -> Probe:
    """A thread arrives at a barrier again and again, barriers being for 1 to 7 arrivals; after each
    arrival both waits are asked for both parities."""
    snippets = Snippets()
    put = snippets.put
    body = (
        "mov.u32 %r40, %s; rem.u32 %r0, %c, 7; add.u32 %r0, %r0, 1; mov.u32 %r1, 0; setp.ne.u32"
        " %q0, %t, 0; @%q0 bra END;\n"
    )
    body += (
        put("mbarrier_init", "%r40", "%r0")
        + put("fence_mbarrier_init")
        + f"mul.wide.u32 %rd0, %c, {8 * ARRIVALS}; add.u64 %rd0, %rd0, %p0;\nAGAIN: mov.u32 %r2,"
        " 0;\n"
    )
    for number, name in enumerate(("mbarrier_test_wait_parity", "mbarrier_try_wait_parity")):
        for parity in (0, 1):
            body += (
                put(name, "%r3", "%r40", str(parity))
                + f"shl.b32 %r3, %r3, {2 * number + parity}; or.b32 %r2, %r2, %r3;\n"
            )
    body += "st.global.b32 [%rd0], %r2; add.u64 %rd0, %rd0, 4;\n" + put("mbarrier_arrive", "%r40")
    body += (
        f"add.u32 %r1, %r1, 1; setp.eq.u32 %q1, %r1, {ARRIVALS}; @!%q1 bra SAME;\n"
        + put("mbarrier_inval", "%r40")
        + "add.u32 %r0, %r0, 2;\n"
        + put("mbarrier_init", "%r40", "%r0")
    )
    body += (
        put("fence_mbarrier_init")
        + f"SAME: setp.lt.u32 %q2, %r1, {2 * ARRIVALS}; @%q2 bra AGAIN;\nEND:"
    )
    covers = (
        "mbarrier_init",
        "mbarrier_arrive",
        "mbarrier_test_wait_parity",
        "mbarrier_try_wait_parity",
        "mbarrier_inval",
    )
    return Probe(
        "mbarrier phases",
        covers,
        frame(body, 32, 1),
        lambda: {"seen": np.zeros((14, 2 * ARRIVALS), np.uint32)},
        {"seen": Result()},
        14,
        32,
        14 * 2 * ARRIVALS,
        shared_bytes=DATA,
        uses=("fence_mbarrier_init",),
    )


def named_barriers() -> Probe:
    """Warp 0 writes and arrives at barrier 5, warp 1 waits there, multiplies and arrives at 6, warp
    0 waits there and reads; ten rounds; two more warps pass by."""
    snippets = Snippets()
    put = snippets.put
    body = f"""shr.u32 %r0, %t, 5; and.b32 %r1, %t, 31; mad.lo.u32 %r2, %r1, 4, %s; \
add.u32 %r3, %g, 17; mov.u32 %r4, 0; mov.u32 %r8, 5; mov.u32 %r9, 6; mov.u32 %r10, 64;
setp.eq.u32 %q1, %r0, 1; setp.gt.u32 %q2, %r0, 1; @%q2 bra END; @%q1 bra SECOND;
FIRST: st.shared.b32 [%r2], %r3; {put("bar_arrive", "%r8", "%r10")} \
{put("bar_sync", "%r9", "%r10")} xor.b32 %r5, %r1, 31; mad.lo.u32 %r5, %r5, 4, %s; \
ld.shared.b32 %r6, [%r5+128]; add.u32 %r3, %r6, %r4;
add.u32 %r4, %r4, 1; setp.lt.u32 %q3, %r4, 10; @%q3 bra FIRST; bra END;
SECOND: {put("bar_sync", "%r8", "%r10")} xor.b32 %r5, %r1, 21; mad.lo.u32 %r5, %r5, 4, %s; \
ld.shared.b32 %r3, [%r5]; mad.lo.u32 %r3, %r3, 3, %r1; st.shared.b32 [%r2+128], %r3; \
{put("bar_arrive", "%r9", "%r10")}
add.u32 %r4, %r4, 1; setp.lt.u32 %q3, %r4, 10; @%q3 bra SECOND;
END: mad.wide.u32 %rd0, %g, 4, %p0; st.global.b32 [%rd0], %r3;
"""
    return Probe(
        "named barriers",
        ("bar_arrive", "bar_sync"),
        frame(body, BLOCK, 1),
        lambda: {"out": np.zeros(64 * BLOCK, np.uint32)},
        {"out": Result()},
        64,
        BLOCK,
        64 * 64,
        shared_bytes=DATA,
    )


def cluster() -> Probe:
    """Blocks of four: names, addresses of the others' memory, loads and stores there, arrivals at
    rank 0's barrier."""
    snippets = Snippets()
    put = snippets.put
    sync = put("cluster_arrive") + put("cluster_wait")
    body = (
        barriers(put, RANKS * BLOCK) + put("cluster_ctarank", "%r0") + fill(BYTES, 0, BLOCK) + sync
    )
    body += (
        f"mad.lo.u32 %r1, %t, 16, %s; add.u32 %r1, %r1, {DATA}; add.u32 %r2, %r0, 1; and.b32 %r2,"
        " %r2, 3;\n" + put("mapa_shared", "%r3", "%r1", "%r2")
    )
    body += put("ld_shared_cluster_v4_f32", ["%f0", "%f1", "%f2", "%f3"], "%r3") + sync
    body += (
        "add.u32 %r2, %r0, 2; and.b32 %r2, %r2, 3;\n"
        + put("mapa_shared", "%r4", "%r1", "%r2")
        + put("st_shared_cluster_v4_f32", "%r4", ["%f3", "%f1", "%f0", "%f2"])
    )
    body += (
        put("fence_acq_rel_cluster")
        + "mov.u32 %r5, 0;\n"
        + put("mapa_shared", "%r6", "%r40", "%r5")
        + put("mbarrier_arrive_cluster", "%r6")
    )
    body += (
        "setp.ne.u32 %q1, %r0, 0; @%q1 bra MEET;\n"
        + wait(put, "W", "%r40", "0")
        + "MEET:\n"
        + sync
        + dump(BYTES, 1, BLOCK)
        + status(2)
    )
    body += "mad.wide.u32 %rd0, %g, 4, %p3; st.global.b32 [%rd0], %r0;\n" + sync
    blocks = 8 * RANKS

    def buffers():
        drawn = draws.mixed("cluster", blocks * BYTES // 4, draws.FLOATS, np.uint32).reshape(
            blocks, -1
        )
        return {
            "shared": drawn,
            "out": np.zeros_like(drawn),
            "gave_up": np.zeros(blocks * BLOCK, np.uint32),
            "ranks": np.zeros(blocks * BLOCK, np.uint32),
        }

    covers = (
        "cluster_ctarank",
        "cluster_arrive",
        "cluster_wait",
        "mapa_shared",
        "ld_shared_cluster_v4_f32",
        "st_shared_cluster_v4_f32",
        "mbarrier_arrive_cluster",
    )
    return Probe(
        "cluster",
        covers,
        frame(body, BLOCK, 4, cluster=RANKS),
        buffers,
        {"out": Result(), "gave_up": Result(), "ranks": Result()},
        blocks,
        BLOCK,
        blocks * BLOCK,
        shared_bytes=DATA + BYTES,
        cluster=RANKS,
        uses=("fence_acq_rel_cluster",),
    )


def multicast(tensor: bool) -> Probe:
    """Rank 1 of four loads for the ranks of a mask, every mask being met; the others keep what they
    had."""
    snippets = Snippets()
    put, blocks = snippets.put, 15 * RANKS
    named = TensorMap("uint32", (16, 64), (256, 4), (8, 32), 128)
    nbytes = named.box_bytes
    sync = put("cluster_arrive") + put("cluster_wait")
    body = (
        barriers(put, 1)
        + put("cluster_ctarank", "%r0")
        + fill(BYTES, 1, BLOCK)
        + put("fence_proxy_async_shared")
    )
    body += (
        "shr.u32 %r1, %c, 2; add.u32 %r1, %r1, 1; shr.u32 %r2, %r1, %r0; and.b32 %r2, %r2, 1;"
        f" setp.eq.u32 %q1, %r2, 0; add.u32 %r3, %s, {DATA}; or.pred %q2, %q0, %q1; @%q2 bra"
        " EXPECTED;\n"
    )
    body += (
        put("mbarrier_arrive_expect_tx", "%r40", str(nbytes))
        + "EXPECTED:\n"
        + sync
        + "setp.ne.u32 %q3, %r0, 1; or.pred %q3, %q3, %q0; @%q3 bra ISSUED; cvt.u16.u32 %h0, %r1;"
        " mov.u32 %r5, 32; mov.u32 %r6, 5;\n"
    )
    if tensor:
        body += put(
            "cp_async_bulk_tensor_2d_g2s_multicast", "%r3", "%map0", "%r5", "%r6", "%r40", "%h0"
        )
    else:
        body += put("cp_async_bulk_g2s_multicast", "%r3", "%p0", str(nbytes), "%r40", "%h0")
    body += (
        "ISSUED: @%q1 bra READ;\n"
        + wait(put, "W", "%r40", "0")
        + "READ:\n"
        + dump(BYTES, 2, BLOCK)
        + status(3)
        + sync
    )

    def buffers():
        shared = draws.words32(f"multicast{tensor}/shared", blocks * BYTES // 4).reshape(blocks, -1)
        return {
            "source": draws.words32(f"multicast{tensor}", 16 * 64),
            "shared": shared,
            "out": np.zeros_like(shared),
            "gave_up": np.zeros(blocks * BLOCK, np.uint32),
        }

    name = "cp_async_bulk_tensor_2d_g2s_multicast" if tensor else "cp_async_bulk_g2s_multicast"
    return Probe(
        name,
        (name,),
        frame(body, BLOCK, 4, maps=int(tensor), cluster=RANKS),
        buffers,
        {"out": Result(), "gave_up": Result()},
        blocks,
        BLOCK,
        blocks,
        shared_bytes=DATA + BYTES,
        cluster=RANKS,
        maps=(("source", named),) if tensor else (),
        uses=("mbarrier_arrive_expect_tx",),
    )


def quiet() -> Probe:
    """Executes what has no value, and compares what clocks promise: they do not go back, and a
    multiprocessor's number is below their count."""
    snippets = Snippets()
    put = snippets.put
    body = put("clock64", "%rd0") + put("globaltimer", "%rd1")
    for name in (
        "griddepcontrol_wait",
        "griddepcontrol_launch_dependents",
        "fence_acq_rel_gpu",
        "fence_acq_rel_cluster",
        "fence_proxy_async_global",
        "fence_proxy_async_shared",
    ):
        body += put(name)
    body += (
        put("create_policy_evict_first", "%rd2")
        + put("create_policy_evict_last", "%rd3")
        + put("cp_async_bulk_prefetch", "%p0", "16")
        + put("smid", "%r0")
    )
    body += (
        put("clock64", "%rd4")
        + put("globaltimer", "%rd5")
        + "mov.u32 %r1, %nsmid; setp.lt.u32 %q0, %r0, %r1; setp.ge.u64 %q1, %rd4, %rd0; setp.ge.u64"
        " %q2, %rd5, %rd1;\n"
    )
    body += (
        "selp.u32 %r2, 1, 0, %q0; selp.u32 %r3, 2, 0, %q1; selp.u32 %r4, 4, 0, %q2; or.b32 %r2,"
        " %r2, %r3; or.b32 %r2, %r2, %r4; mad.wide.u32 %rd6, %g, 4, %p0; st.global.b32 [%rd6],"
        " %r2;\n"
    )
    covers = ("clock64", "globaltimer", "smid")
    return Probe(
        "clocks and orders",
        covers,
        frame(body, 128, 1),
        lambda: {"promises": np.zeros(128 * 128, np.uint32)},
        {"promises": Result()},
        128,
        128,
        128 * 128,
        uses=tuple(name for name in snippets.names if name not in covers),
        note=(
            "their values are the hardware's own; that they do not go back, and smid < nsmid, is"
            " compared"
        ),
    )


def probes() -> list[Probe]:
    return [phases(), named_barriers(), cluster(), multicast(False), multicast(True), quiet()]
