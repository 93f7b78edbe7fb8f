"""Kernels with one mistake each, and what the machine must say about it.

A mistake is an edit of a compiled kernel's PTX: a guard that is gone, or one that guards a little
too little. ``kind``: of the MachineError, WRONG where no rule is broken and only the result is
wrong. ``word``: what the message must name besides.
"""

import dis
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.testing.trials import SMALLS, Small
from tests.kernels.edits import both, change

WRONG = "wrong result"


@dataclass(frozen=True)
class Broken:
    what: str
    small: Small
    edit: Callable[[str], str]
    kind: str
    word: str = ""


BAR, WARP_BAR, CLUSTER_FENCE = (
    r"bar\.sync[^;]*;",
    r"bar\.warp\.sync[^;]*;",
    r"fence\.acq_rel\.cluster;",
)
TRY_WAIT = r"(mbarrier\.try_wait\S+ complete, \[%\w+\]), (%\w+);"
OTHER_PHASE = r"{ .reg .b32 other; xor.b32 other, \2, 1; \1, other; }"
NO_WAIT = "setp.eq.u32 complete, 0, 0;"


def _wait(ready):
    while not ready():
        pass


# Of a wait: one in its loop, and one before it where Python compiles the condition twice
POLLS = sum(each.opname.startswith("CALL") for each in dis.get_instructions(_wait))


def polls(which, by):
    """All polls of a wait."""
    if POLLS == 1:
        return change(TRY_WAIT, by, which)
    # what is changed is not found again: from the end, the other one then stands in its place
    second = 2 * which + 1
    return both(change(TRY_WAIT, by, second), change(TRY_WAIT, by, second - (which >= 0)))


def rotated_swizzle(ptx):
    """ldmatrix looks for chunk c of row r where that of row r + 1 would be."""
    xor = r"xor\.b32\s+(%\w+), (%\w+), (%\w+);(?=[^{}]*?ldmatrix)"
    return change(
        xor,
        r"{ .reg .b32 row; add.u32 row, \3, 1; and.b32 row, row, 7; xor.b32 \1, \2, row; }",
        None,
    )(ptx)


def shared_scales(ptx):
    """As published: two tiles of 64 that share a group of 128 share a slot of scales, which the
    second does not fetch."""
    first = SHARED_SLOTS.config.shared_bytes - 4 * SHARED_SLOTS.config.s_stage_bytes
    for odd in (first + 512, first + 1536):
        own = [match[1] for match in re.finditer(rf"add\.s32\s+(%\w+), %\w+, {odd};", ptx)]
        for register in own:
            ptx = re.sub(rf"cp\.async\.cg\.shared\.global \[{register}\][^;]*;", "", ptx)
        ptx = re.sub(rf"(add\.s32\s+%\w+, %\w+), {odd};", rf"\1, {odd - 512};", ptx)
    return ptx


SHARED_SLOTS = Small(AMPERE, AmpereConfig(1, 16, 4, 8, 4), (4, 256, 768, 128), 1)
tiled, buffered, ampere, slices, decode, wgmma, pairs = (
    SMALLS[name]
    for name in (
        "tiled",
        "buffered",
        "ampere",
        "ampere, whole slices",
        "decode",
        "wgmma",
        "wgmma, pairs of blocks",
    )
)

EVERY = (
    # waits
    Broken(
        "no wait for the copies of a tile",
        ampere,
        change(r"cp\.async\.wait_group\s+2;"),
        "pending-copy-read",
        "cp.async",
    ),
    Broken(
        "a wait for one group too few",
        ampere,
        change(r"cp\.async\.wait_group\s+2;", "cp.async.wait_group 3;", None),
        "pending-copy-read",
        "cp.async",
    ),
    Broken(
        "a double buffer read without a wait for its copies",
        buffered,
        change(r"cp\.async\.wait_group\s+1;"),
        "pending-copy-read",
        "cp.async",
    ),
    Broken(
        "a double buffer whose wait lets two groups be in flight",
        buffered,
        change(r"cp\.async\.wait_group\s+1;", "cp.async.wait_group 2;"),
        "pending-copy-read",
        "cp.async",
    ),
    Broken(
        "a double buffer whose first copies are no group of their own",
        buffered,
        change(r"cp\.async\.commit_group;"),
        "pending-copy-read",
    ),
    Broken(
        "no commit of a tile's copies",
        ampere,
        change(r"cp\.async\.commit_group;", "", 1),
        "pending-copy-read",
    ),
    Broken(
        "no wait for a full stage", decode, polls(1, NO_WAIT), "pending-copy-read", "cp.async.bulk"
    ),
    Broken(
        "a stage filled again without a wait for its readers",
        wgmma,
        polls(1, NO_WAIT),
        "missing-copy-wait",
        "cp.async.bulk",
    ),
    Broken(
        "a stage given back before its products are done",
        wgmma,
        change(r"wgmma\.wait_group\S+ 1;"),
        "missing-wgmma-wait",
    ),
    Broken(
        "a result overwritten while it is stored",
        replace(wgmma, sms=1),
        change(r"cp\.async\.bulk\.wait_group\.read[^;]*;"),
        "missing-read-wait",
        "stmatrix",
    ),
    Broken(
        "a block that ends while its last store reads",
        wgmma,
        change(r"cp\.async\.bulk\.wait_group\.read[^;]*;", "", -1),
        "pending-copy-read",
        "the block ended",
    ),
    Broken(
        "a block that ends while others read its sums",
        pairs,
        polls(-1, NO_WAIT),
        "missing-wait-for-others",
        "ld.shared::cluster",
    ),
    # barriers
    Broken(
        "no barrier between the stores of a tile and the loads",
        tiled,
        change(BAR),
        "missing-barrier",
    ),
    Broken(
        "no barrier between the loads of a tile and the next one's stores",
        tiled,
        change(BAR, "", 1),
        "missing-barrier",
    ),
    Broken(
        "no barrier between a wait for copies and the others' reads",
        buffered,
        change(BAR),
        "missing-barrier",
        "ldmatrix",
    ),
    Broken(
        "no barrier before copies overwrite a stage of the double buffer",
        buffered,
        change(BAR, "", 1),
        "missing-barrier",
        "cp.async",
    ),
    Broken("no barrier between the uses of a tile", ampere, change(BAR, "", 2), "missing-barrier"),
    Broken(
        "no barrier before a result's shared memory is copied over",
        slices,
        change(BAR, "", -1),
        "missing-barrier",
        "cp.async",
    ),
    Broken(
        "no barrier after the mbarriers were made",
        decode,
        change(BAR),
        "missing-barrier",
        "mbarrier.init",
    ),
    Broken(
        "no barrier between rows of consumers",
        pairs,
        change(BAR, "", 1),
        "uninitialized-read",
        "which nothing has written",
    ),
    Broken(
        "one lane gives a stage back before the others have read it",
        decode,
        change(WARP_BAR),
        "missing-barrier",
        "lane 1, PTX",
    ),
    Broken(
        "a result stored before all lanes have written it",
        wgmma,
        change(WARP_BAR, "", -1),
        "missing-warp-sync",
    ),
    Broken(
        "sums announced to the cluster before all lanes have written them",
        pairs,
        change(WARP_BAR),
        "missing-cluster-barrier",
    ),
    Broken(
        "no wait for the cluster at the start",
        pairs,
        change(r"barrier\.cluster\.wait[^;]*;"),
        "missing-cluster-barrier",
        "mbarrier.init",
    ),
    Broken(
        "x copied before the kernel before is complete",
        decode,
        change(r"griddepcontrol\.wait;", "", 0),
        "missing-grid-wait",
        "griddepcontrol.wait",
    ),
    Broken(
        "results stored before the kernel before is complete",
        decode,
        change(r"griddepcontrol\.wait;", "", 1),
        "missing-grid-wait",
        "griddepcontrol.wait",
    ),
    Broken(
        "a tile of x copied before the kernel before is complete",
        wgmma,
        change(r"griddepcontrol\.wait;", "", 1),
        "missing-grid-wait",
        "cp.async.bulk.tensor",
    ),
    # fences
    Broken(
        "no fence between a result's stores and its bulk store",
        wgmma,
        change(r"fence\.proxy\.async[^;]*;"),
        "proxy-hazard",
        "fence.proxy.async",
    ),
    Broken(
        "no fence behind the initialisation of the mbarriers",
        decode,
        change(r"fence\.mbarrier_init[^;]*;"),
        "proxy-hazard",
        "fence.mbarrier_init",
    ),
    Broken(
        "no fence behind the wait for the cluster's sums",
        pairs,
        change(CLUSTER_FENCE, "", 2),
        "missing-acquire",
    ),
    Broken(
        "a fence for the block where the cluster is meant",
        pairs,
        change(CLUSTER_FENCE, "fence.acq_rel.cta;", 2),
        "missing-acquire",
    ),
    # phases
    Broken(
        "the consumers wait for the other phase",
        decode,
        polls(1, OTHER_PHASE),
        "pending-copy-read",
        "cp.async.bulk",
    ),
    Broken(
        "the producer waits for the other phase",
        decode,
        polls(0, OTHER_PHASE),
        "deadlock",
        "mbarrier",
    ),
    Broken(
        "a stage is never given back",
        wgmma,
        change(r"mbarrier\.arrive\.shared::cta[^;]*;"),
        "deadlock",
        "mbarrier",
    ),
    # registers
    Broken(
        "accumulators used while products add to them",
        wgmma,
        change(r"wgmma\.wait_group\S+ 0;"),
        "register-hazard",
        "still in flight",
    ),
    Broken(
        "weights written to registers behind the tensor cores' back",
        wgmma,
        change(r"wgmma\.fence\S+;", "", 1),
        "register-hazard",
    ),
    Broken("a fragment of the step before", ampere, change(r"ldmatrix[^;]*;", "", 2), WRONG),
    # addresses
    Broken("a swizzle off by one row", ampere, rotated_swizzle, WRONG),
    Broken(
        "a copy past the weights",
        ampere,
        # however a compiler puts the address together
        change(
            r"(cp\.async\.cg\S+cache_hint \[%\w+\]), \[(%\w+)\](, [^;]*;)",
            r"{ .reg .b64 far; add.s64 far, \2, 0x40000000; \1, [far]\3 }",
        ),
        "out-of-bounds",
    ),
    # locks
    Broken(
        "a lock released before all have stored their sums",
        ampere,
        change(BAR, "", 8),
        "missing-release",
        "partials",
    ),
    Broken(
        "a lock released without release",
        ampere,
        change(r"red\.release", "red.relaxed"),
        "missing-release",
        "partials",
    ),
    Broken(
        "a lock released for the block only",
        ampere,
        change(r"red\.release\.gpu", "red.release.cta"),
        "narrow-scope",
        "locks",
    ),
    Broken(
        "a lock taken without acquire",
        ampere,
        change(r"ld\.acquire", "ld.relaxed", None),
        "missing-acquire",
        "partials",
    ),
    Broken(
        "a lock that is never released",
        ampere,
        change(r"red\.release\.gpu[^;]*;"),
        "deadlock",
        "block",
    ),
    Broken(
        "a counter without acquire or release",
        wgmma,
        change(r"atom\.acq_rel", "atom.relaxed"),
        "missing-release",
    ),
    # what was published
    Broken(
        "two stages share a slot of scales",
        SHARED_SLOTS,
        shared_scales,
        "missing-barrier",
        "cp.async",
    ),
)
