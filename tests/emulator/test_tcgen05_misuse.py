"""Contract under test: a tcgen05 instruction that the ISA forbids is refused, and the error names
what is wrong."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    BadDescriptor,
    BarrierMisuse,
    Deadlock,
    DivergentCollective,
    OutOfBounds,
    PendingCopyRead,
    ProxyHazard,
    TensorMemoryMisuse,
    UninitializedRead,
    UnknownInstruction,
)
from tests.emulator.ptx_cases import snippet
from tests.emulator.tcgen05_programs import (
    COMMIT,
    END_ONE,
    ISSUE,
    NVFP4,
    C,
    Case,
    broken,
    draw,
    small,
)

ALLOC = snippet("tcgen05_alloc", "%r50", columns=512)


MISUSES = {
    "never given back": (
        TensorMemoryMisuse,
        C.text().split(snippet("tcgen05_dealloc", "%base", columns=512))[0] + "GONE:",
        "columns 0 to 511 of tensor memory were never given back: no tcgen05.dealloc",
    ),
    "given back in part": (
        TensorMemoryMisuse,
        C.text().replace(
            snippet("tcgen05_dealloc", "%base", columns=512),
            snippet("tcgen05_dealloc", "%base", columns=32),
        ),
        "gives back 32 columns at lane 0, column 0, which no",
    ),
    "48 columns": (
        TensorMemoryMisuse,
        C.text().replace(ALLOC, snippet("tcgen05_alloc", "%r50", columns=48)),
        "48 columns must be a power of two from 32 to 512",
    ),
    "more than there are": (
        Deadlock,
        C.text().replace(ALLOC, ALLOC + snippet("tcgen05_alloc", "%r50", columns=32)),
        "waits for 32 columns of tensor memory for ever: the block itself holds 0-511",
    ),
    "after the permit": (
        TensorMemoryMisuse,
        C.text().replace(ALLOC, snippet("tcgen05_relinquish_alloc_permit") + ALLOC),
        "allocates after the tcgen05.relinquish_alloc_permit",
    ),
    "more than before": (
        TensorMemoryMisuse,
        C.text().replace(
            ALLOC,
            snippet("tcgen05_alloc", "%r50", columns=32)
            + snippet("tcgen05_alloc", "%r50", columns=64),
        ),
        "allocates 64 columns after the 32",
    ),
    "by half a warp": (
        DivergentCollective,
        C.text().replace("setp.eq.u32 %first, %w, 0;", "setp.lt.u32 %first, %t, 16;"),
        "tcgen05.alloc|reached without",
    ),
    "outside of what is allocated": (
        TensorMemoryMisuse,
        small(columns=32).text().replace("add.u32 %x0, %base, 12", "add.u32 %x0, %base, 30"),
        (
            "columns 30 to 33 of tensor memory are not allocated as a whole: the block holds"
            " columns 0 to 31"
        ),
    ),
    "another warp's lanes": (
        TensorMemoryMisuse,
        C.text().replace("shl.b32 %m, %w, 21", "mov.u32 %m, 0"),
        "begins in lane 0; this warp may touch lanes 32 to 63 only",
    ),
    "a load at two addresses": (
        DivergentCollective,
        C.text().replace("shl.b32 %m, %w, 21", "mov.u32 %m, %t"),
        "the address differs between lanes",
    ),
    "the accumulator in lane 32": (
        BadDescriptor,
        C.text().replace("mov.u64 %rd1,", "add.u32 %base, %base, 0x200000; mov.u64 %rd1,"),
        "the accumulator must begin in lane 0, not 32",
    ),
    "a descriptor of wgmma": (
        BadDescriptor,
        C.text().replace(f"{C.descriptors[0][0]:#x}", f"{C.descriptors[0][0] & ~(7 << 46):#x}"),
        "bits 46 to 48 must be 0b001",
    ),
    "a base offset": (
        BadDescriptor,
        C.text().replace(f"{C.descriptors[1][0]:#x}", f"{C.descriptors[1][0] | 1 << 49:#x}"),
        "a base offset is not implemented",
    ),
    "an instruction descriptor of M = 256": (
        BadDescriptor,
        C.text().replace(f"{C.idesc[0]:#x}", f"{C.idesc[0] ^ 3 << 27:#x}"),
        r"M \(bits from 27 on\) must be 1",
    ),
    "sparsity": (
        BadDescriptor,
        C.text().replace(f"{C.idesc[0]:#x}", f"{C.idesc[0] | 4:#x}"),
        "sparsity",
    ),
    "a matrix outside of shared memory": (
        OutOfBounds,
        C.text().replace(f"{C.descriptors[0][0]:#x}", f"{C.descriptors[0][0] | 0x3000:#x}"),
        "the shared memory has",
    ),
    "no proxy fence": (
        ProxyHazard,
        C.text().replace("fence.proxy.async.shared::cta;", ""),
        "no fence.proxy.async since",
    ),
    "scales that nobody copied": (
        UninitializedRead,
        C.text().replace(C.copies(), ""),
        "reads scales of A, of which nothing has written",
    ),
    "an accumulator that nobody wrote": (
        UninitializedRead,
        C.text().replace("mov.u32 %x4, 0", "mov.u32 %x4, 1"),
        "reads the accumulator",
    ),
    "a load of what nobody wrote": (
        UninitializedRead,
        C.set_up() + C.read_back(),
        "reads columns 0 to 7",
    ),
    "a negative scale": (
        BadDescriptor,
        Case(
            NVFP4,
            *draw(NVFP4, 8, 1, 8)[:2],
            np.full((128, 4), 0xB8, np.uint8),
            np.full((8, 4), 0x38, np.uint8),
        ),
        "row 0 of A is 0xb8: ue4m3 has no sign",
    ),
    "never waited for": (
        PendingCopyRead,
        C.set_up() + ISSUE,
        "the block ended, and this tcgen05.cp, never waited for, is still at work",
    ),
    "an operand changed": (
        PendingCopyRead,
        C.text().replace(END_ONE, "st.shared.b32 [s], 305419896;\n" + END_ONE),
        "an operand, changed between issue and completion",
    ),
    "a commit to no mbarrier": (
        BarrierMisuse,
        C.text().replace(snippet("mbarrier_init", "%bar", "1"), ""),
        "there is no mbarrier",
    ),
    "nobody commits": (Deadlock, C.text().replace(COMMIT, ""), "lacks 1 of 1 arrivals"),
    "an mbarrier that a commit will signal": (
        BarrierMisuse,
        C.text().replace(COMMIT, COMMIT + snippet("mbarrier_inval", "%bar")),
        "which tcgen05.commit in flight will signal",
    ),
    "two blocks": (
        UnknownInstruction,
        C.text().replace("cta_group::1", "cta_group::2"),
        "cta_group::2",
    ),
    "A in tensor memory": (
        UnknownInstruction,
        C.text().replace("[%base], %rd1, %rd2", "[%base], [%base], %rd2"),
        "A in tensor memory is not implemented",
    ),
    "another kind": (
        UnknownInstruction,
        C.text().replace("kind::mxf4nvf4", "kind::f16"),
        "only .block_scale of",
    ),
    "another copy": (
        UnknownInstruction,
        C.text().replace("32x128b.warpx4", "128x256b"),
        "128x256b is not implemented",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_named(name):
    kind, text, pattern = MISUSES[name]
    if isinstance(text, Case):
        broken(kind, None, pattern, case=text)
    else:
        broken(
            kind, text, pattern, case=small(columns=32) if "columns 0 to 31" in pattern else None
        )
