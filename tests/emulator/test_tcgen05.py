"""Contract under test: tcgen05 multiplies what its descriptors and its tensor memory name, when its
commit is waited for, and whoever misuses it is told why."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    BadDescriptor,
    BarrierMisuse,
    Deadlock,
    DivergentCollective,
    Machine,
    OutOfBounds,
    PendingCopyRead,
    ProxyHazard,
    Race,
    RegisterHazard,
    Schedule,
    TensorMemoryHazard,
    TensorMemoryMisuse,
    UninitializedRead,
    UnknownInstruction,
)
from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.emulator.tensor import block_scales as block_scaled
from numba_marlin.formats import small_floats
from numba_marlin.layout import block_scales, tcgen05, wgmma
from numba_marlin.layout.tcgen05 import KINDS, InstructionDescriptor
from tests.emulator.ptx_cases import HEADER, frame, snippet

START = SHARED_BASE + -SHARED_BASE % 1024
MULTIPLY = {
    "mxf4nvf4": "tcgen05_mma_mxf4nvf4_4x",
    "mxf4": "tcgen05_mma_mxf4_2x",
    "mxf8f6f4": "tcgen05_mma_mxf8f6f4_1x",
}
NVFP4, MXFP4, MXFP8 = KINDS["mxf4nvf4", "4X"], KINDS["mxf4", "2X"], KINDS["mxf8f6f4", "1X"]
ELEMENTS = {NVFP4: "e2m1", MXFP4: "e2m1", MXFP8: "e4m3"}
SCALES = {NVFP4: "e4m3", MXFP4: "e8m0", MXFP8: "e8m0"}


def scale_blocks(scales):
    """[rows, count] bytes -> blocks of 512 bytes: [blocks of 128 rows, blocks of 4 scales, 512]."""
    return block_scales.to_tiles(scales).reshape(
        *block_scales.tiles(*scales.shape), block_scales.TILE_BYTES
    )


def packed(codes, bits):
    return codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4


class Case:
    """A product of one block of 128 threads: operands in shared memory, and the parts of its text,
    for tests to put together or to break."""

    def __init__(self, kind, a, b, sfa, sfb, swizzle=128, negate=(False, False), columns=512):
        self.kind, self.n, self.columns = kind, b.shape[0], columns
        self.steps = a.shape[1] // kind.depth
        parts, self.descriptors, at = [], [], START
        for codes in (a, b):
            tile, found = wgmma.store_tile(
                np.ascontiguousarray(packed(codes, kind.bits)).view(np.uint16), swizzle
            )
            self.descriptors.append(
                [
                    tcgen05.encode(
                        wgmma.Descriptor(d.address + at, d.stride_bytes, d.leading_bytes, d.swizzle)
                    )
                    for d in found
                ]
            )
            parts.append(np.pad(tile, (0, -tile.size % 1024)))
            at += parts[-1].size
        self.scales = []
        for scales in (sfa, sfb):
            blocks = scale_blocks(scales)
            self.scales.append(
                [
                    [at + 512 * (r * blocks.shape[1] + c) for r in range(blocks.shape[0])]
                    for c in range(blocks.shape[1])
                ]
            )
            parts.append(blocks.reshape(-1))
            at += blocks.size
        image = np.concatenate(parts)
        self.image = np.pad(image, (0, -image.size % 2048))
        self.idesc = [
            InstructionDescriptor(
                self.n,
                ELEMENTS[kind],
                ELEMENTS[kind],
                SCALES[kind],
                *[step * kind.vectors % 4] * 2,
                *negate,
            ).encode(kind)
            for step in range(self.steps)
        ]
        self.out = np.full((128, self.n), np.nan, np.float32)

    def set_up(self, fence="fence.proxy.async.shared::cta;"):
        text = f""".shared .align 1024 .b8 s[{self.image.size}]; .shared .align 8 .b64 bar;
.shared .align 4 .b32 where;
.reg .f32 %d<256>; .reg .b32 %w, %m, %base, %bar, %x<8>; .reg .pred %first, %one;
mov.u32 %r60, s; mov.u32 %r61, %t; mov.u32 %bar, bar; shr.u32 %w, %t, 5; setp.eq.u32 %first, %w, 0;
setp.eq.u32 %one, %t, 0;
FILL: mad.lo.u32 %r62, %r61, 16, %r60; mad.wide.u32 %rd60, %r61, 16, %p0;
ld.global.v4.u32 {{%r56, %r57, %r58, %r59}}, [%rd60];
st.shared.v4.u32 [%r62], {{%r56, %r57, %r58, %r59}};
add.u32 %r61, %r61, 128; setp.lt.u32 %q15, %r61, {self.image.size // 16}; @%q15 bra FILL;
{fence}
@!%one bra MADE;
{snippet("mbarrier_init", "%bar", "1")} {snippet("fence_mbarrier_init")}
MADE: mov.u32 %r50, where; @!%first bra ALLOCATED;
{snippet("tcgen05_alloc", "%r50", columns=self.columns)}
ALLOCATED: bar.sync 0; ld.shared.b32 %base, [where];
"""
        return text

    def copies(self):
        """Of all scales, those of a step behind the accumulator's columns and those of other steps;
        by the thread that executes it."""
        text, column = "", self.n
        for of_matrix in self.scales:
            for blocks in of_matrix:
                for block in blocks:
                    text += (
                        f"add.u32 %x0, %base, {column}; mov.u64 %rd0,"
                        f" {tcgen05.scale_descriptor(block):#x};\n"
                        + snippet("tcgen05_cp_32x128b_warpx4", "%x0", "%rd0")
                    )
                    column += 4
        return text

    def product(self, step, adds=None):
        block = step * self.kind.vectors // 4
        per_a, per_b = len(self.scales[0][0]) * 4, len(self.scales[1][0]) * 4
        sfa = self.n + block * per_a
        sfb = self.n + len(self.scales[0]) * per_a + block * per_b
        text = (
            f"mov.u64 %rd1, {self.descriptors[0][step]:#x}; mov.u64 %rd2,"
            f" {self.descriptors[1][step]:#x}; mov.u32 %x1, {self.idesc[step]:#x};\n"
        )
        text += (
            f"add.u32 %x2, %base, {sfa}; add.u32 %x3, %base, {sfb}; mov.u32 %x4,"
            f" {int(step > 0 if adds is None else adds)};\n"
        )
        return text + snippet(
            MULTIPLY[self.kind.name], "%base", "%rd1", "%rd2", "%x1", "%x2", "%x3", "%x4"
        )

    def products(self):
        return "".join(self.product(step) for step in range(self.steps))

    def read_back(self, sync="", after=None):
        after = snippet("tcgen05_fence_after_thread_sync") if after is None else after
        text = sync + after + "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m;\n"
        for start in range(0, self.n, 8):
            text += f"add.u32 %x6, %x5, {start};\n" + snippet(
                "tcgen05_ld_32x32b_f32", tuple(f"%d{start + i}" for i in range(8)), "%x6", n=8
            )
        text += snippet("tcgen05_wait_ld") + f"mad.wide.u32 %rd3, %t, {4 * self.n}, %p1;\n"
        return text + "".join(f"st.global.f32 [%rd3 + {4 * i}], %d{i};\n" for i in range(self.n))

    def finish(self, columns=None):
        free = snippet("tcgen05_dealloc", "%base", columns=columns or self.columns) + snippet(
            "tcgen05_relinquish_alloc_permit"
        )
        return (
            snippet("tcgen05_fence_before_thread_sync")
            + "bar.sync 0; @!%first bra GONE;\n"
            + free
            + "GONE: mov.u32 %r49, 0;\n"
        )

    def text(self):
        return (
            self.set_up()
            + ONLY_ONE
            + self.copies()
            + self.products()
            + COMMIT
            + END_ONE
            + self.read_back(WAIT)
            + self.finish()
        )

    def run(self, text=None, **options):
        races = options.pop("races", False)
        machine = Machine(
            frame(text or self.text(), 2).replace(HEADER, HEADER.replace("sm_90a", "sm_100a")),
            races=races,
        )
        args = [
            machine.memory.buffer(array, name).address
            for name, array in (("image", self.image), ("out", self.out))
        ]
        machine.run("k", block=128, args=args, **options)
        return self.out


ONLY_ONE, END_ONE = "@!%one bra ISSUED;\n", "ISSUED:\n"
COMMIT = snippet("tcgen05_commit", "%bar")
WAIT = (
    "WAIT: "
    + snippet("mbarrier_try_wait_parity", "%r48", "%bar", "0")
    + "setp.eq.u32 %q0, %r48, 0; @%q0 bra WAIT;\n"
)


def draw(kind, n, steps, seed, exact=True):
    rng, depth = np.random.default_rng(seed), kind.depth * steps
    codes = {
        4: lambda shape: rng.integers(0, 16, shape),
        8: lambda shape: rng.integers(0x30, 0x50, shape) | rng.integers(0, 2, shape) << 7,
    }[kind.bits]
    a, b = (codes((rows, depth)).astype(np.uint8) for rows in (128, n))
    ones = {"e4m3": [0x30, 0x38, 0x40], "e8m0": [126, 127, 128]}[SCALES[kind]]
    every = {"e4m3": range(0, 0x7F), "e8m0": range(100, 150)}[SCALES[kind]]
    sfa, sfb = (
        rng.choice(ones if exact else every, (rows, kind.vectors * steps)).astype(np.uint8)
        for rows in (128, n)
    )
    return a, b, sfa, sfb


def reference(kind, a, b, sfa, sfb):
    """float64, of every element times its scale."""
    left, right = (
        small_floats.decode(codes, ELEMENTS[kind]).astype(np.float64)
        * np.repeat(
            small_floats.decode(scales, SCALES[kind]).astype(np.float64), kind.block, axis=1
        )
        for codes, scales in ((a, sfa), (b, sfb))
    )
    return left, right


@pytest.mark.parametrize(
    "kind, n, steps, swizzle",
    [
        (NVFP4, 128, 4, 128),
        (NVFP4, 8, 1, 32),
        (NVFP4, 200, 2, 64),
        (NVFP4, 256, 1, 0),
        (MXFP4, 64, 3, 128),
        (MXFP4, 136, 4, 32),
        (MXFP8, 24, 5, 128),
        (MXFP8, 128, 2, 64),
    ],
)
def test_products_are_exact_where_sums_are(kind, n, steps, swizzle):
    operands = draw(kind, n, steps, seed=n + steps)
    left, right = reference(kind, *operands)
    assert np.array_equal(Case(kind, *operands, swizzle=swizzle).run(), left @ right.T)


@pytest.mark.parametrize("kind", [NVFP4, MXFP4, MXFP8], ids=lambda kind: kind.name)
def test_scales_of_every_size_stay_within_fp32_rounding(kind):
    operands = draw(kind, 32, 2, seed=3, exact=False)
    left, right = reference(kind, *operands)
    got, blocks = Case(kind, *operands).run().astype(np.float64), kind.vectors * 2
    sizes = np.abs(left) @ np.abs(right).T
    assert (np.abs(got - left @ right.T) <= blocks * 2.0**-24 * sizes).all() and (
        got != left @ right.T
    ).any()


def test_the_sum_is_the_documented_one():
    """Blocks one after the other in order of k, each rounded to nearest even in fp32."""
    a, b, sfa, sfb = draw(NVFP4, 16, 2, seed=9, exact=False)
    left, right = reference(NVFP4, a, b, sfa, sfb)
    total = np.zeros((128, 16), np.float32)
    for block in range(8):
        part = slice(16 * block, 16 * block + 16)
        total = (
            total.astype(np.longdouble) + (left[:, part] @ right[:, part].T).astype(np.longdouble)
        ).astype(np.float32)
    assert np.array_equal(Case(NVFP4, a, b, sfa, sfb).run(), total)


def test_signs_of_the_descriptor_negate():
    operands = draw(NVFP4, 16, 1, seed=4)
    left, right = reference(NVFP4, *operands)
    for negate, sign in (((True, False), -1), ((False, True), -1), ((True, True), 1)):
        assert np.array_equal(Case(NVFP4, *operands, negate=negate).run(), sign * (left @ right.T))


def test_nan_scales_reach_their_rows_and_columns_only():
    a, b, sfa, sfb = draw(NVFP4, 16, 1, seed=5)
    sfa[77, 2] = 0x7F
    got = Case(NVFP4, a, b, sfa, sfb).run()
    assert np.isnan(got[77]).all() and np.isfinite(np.delete(got, 77, axis=0)).all()


@pytest.mark.parametrize("kind", ["e2m1", "e4m3", "e8m0"])
def test_codes_are_worth_what_the_formats_say(kind):
    assert np.array_equal(
        block_scaled.VALUES[kind].astype(np.float32), small_floats.table(kind), equal_nan=True
    )


SCHEDULES = [None, *range(6), Schedule(7, copies="early"), Schedule(8, order="reverse")]


@pytest.mark.parametrize("seed", SCHEDULES, ids=str)
def test_any_schedule_gives_the_same_bits(seed):
    operands = draw(NVFP4, 24, 4, seed=6, exact=False)
    assert np.array_equal(
        Case(NVFP4, *operands).run(seed=seed, races=True), Case(NVFP4, *operands).run()
    )


def test_what_was_stored_is_loaded_and_added_to():
    case = Case(NVFP4, *draw(NVFP4, 8, 1, seed=7))
    left, right = reference(NVFP4, *draw(NVFP4, 8, 1, seed=7))
    store = (
        "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m; cvt.rn.f32.u32 %d9, %t;\n"
        + snippet("tcgen05_st_32x32b_f32", "%x5", ("%d9",) * 8, n=8)
        + snippet("tcgen05_wait_st")
    )
    store += (
        snippet("tcgen05_fence_before_thread_sync")
        + "bar.sync 0;\n"
        + snippet("tcgen05_fence_after_thread_sync")
    )
    got = case.run(
        case.set_up()
        + store
        + ONLY_ONE
        + case.copies()
        + case.product(0, adds=True)
        + COMMIT
        + END_ONE
        + case.read_back(WAIT)
        + case.finish()
    )
    assert np.array_equal(got, left @ right.T + np.arange(128)[:, None])


def broken(kind, text, pattern, case=None, **options):
    case = case or small()
    with pytest.raises(kind, match=f"(?s){pattern}") as caught:
        case.run(text, **options)
    return caught.value


def small(**options):
    return Case(NVFP4, *draw(NVFP4, 8, 1, seed=8), **options)


BEFORE, AFTER = (
    snippet("tcgen05_fence_before_thread_sync"),
    snippet("tcgen05_fence_after_thread_sync"),
)
C = small()
ISSUE = ONLY_ONE + C.copies() + C.products() + COMMIT + END_ONE
AGAIN = (
    "bar.sync 0;\n@!%one bra AGAIN;\n"
    + AFTER
    + C.product(0)
    + COMMIT
    + "AGAIN: bar.sync 0;\n"
    + WAIT.replace("WAIT", "TWICE").replace(", 0;\n", ", 1;\n", 1).replace("%bar], 0", "%bar], 1")
)
HAZARDS = {
    "a load before the wait": (
        C.set_up() + ISSUE + "bar.sync 0;" + C.read_back(),
        "tcgen05.mma at PTX line .* may still be writing: nobody has waited for an mbarrier",
    ),
    "a load without the fence": (
        C.set_up() + ISSUE + C.read_back(WAIT, after=""),
        "tcgen05.mma at .* has written: no tcgen05.fence::after_thread_sync by this thread since",
    ),
    "a copy over scales in use": (
        C.set_up() + ONLY_ONE + C.copies() + C.products() + C.copies() + END_ONE,
        "tcgen05.mma at .* may still be reading",
    ),
    "a copy over a copy": (
        C.set_up() + ONLY_ONE + C.copies() + C.copies() + END_ONE,
        "tcgen05.cp at .* may still be writing",
    ),
    "another accumulator at the same place": (
        C.set_up()
        + ONLY_ONE
        + C.copies()
        + C.products()
        + C.product(0).replace(f"{C.idesc[0]:#x}", f"{InstructionDescriptor(16).encode(NVFP4):#x}")
        + END_ONE,
        "may still be writing",
    ),
    "a product over a load not waited for": (
        C.set_up() + ISSUE + C.read_back(WAIT).split(snippet("tcgen05_wait_ld"))[0] + AGAIN,
        r"tcgen05.ld at .* of warp 0 may still be reading: no tcgen05.wait::ld",
    ),
    "a product over a load not announced": (
        C.set_up() + ISSUE + C.read_back(WAIT) + AGAIN,
        "of warp 0 was reading: no tcgen05.fence::before_thread_sync by it since",
    ),
    "a product that does not look": (
        C.set_up() + ISSUE + C.read_back(WAIT) + BEFORE + AGAIN.replace(AFTER, ""),
        "of warp 0 was reading: no tcgen05.fence::after_thread_sync by this thread since",
    ),
    "columns given back in use": (
        C.set_up() + ISSUE + C.finish(),
        "tcgen05.mma at .* may still be writing|tcgen05.cp at",
    ),
    "a store not waited for": (
        C.set_up()
        + "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m; mov.f32 %d9, 0f00000000;"
        + snippet("tcgen05_st_32x32b_f32", "%x5", ("%d9",) * 8, n=8)
        + C.read_back(),
        "tcgen05.st at .* of warp 0 may still be writing: no tcgen05.wait::st",
    ),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_tensor_memory_is_guarded(name):
    text, pattern = HAZARDS[name]
    broken(TensorMemoryHazard, text, pattern)


def test_registers_are_there_when_the_load_has_been_waited_for():
    text = C.set_up() + ISSUE + C.read_back(WAIT).replace(snippet("tcgen05_wait_ld"), "")
    assert "the tcgen05.ld at PTX line" in str(
        broken(RegisterHazard, text, "%d0 is filled by .*: no tcgen05.wait::ld by the warp since")
    )
    twice = C.read_back(WAIT).split(snippet("tcgen05_wait_ld"))[0]
    broken(
        RegisterHazard,
        C.set_up() + ISSUE + twice + twice.replace("WAIT", "MORE"),
        "%d0 is filled by",
    )


def test_a_second_product_after_all_fences_is_right():
    case = small()
    left, right = reference(NVFP4, *draw(NVFP4, 8, 1, seed=8))
    text = (
        case.set_up()
        + ISSUE
        + case.read_back(WAIT)
        + BEFORE
        + AGAIN
        + case.read_back()
        + case.finish()
    )
    assert np.array_equal(case.run(text), left @ right.T)


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


def test_scales_must_be_the_same_for_all_four_warps():
    """As if they had been stored for the lanes of one warp only, and others for another."""
    store = (
        "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m; add.u32 %x5, %x5, 8; cvt.rn.f32.u32 %d9, %w;"
        " @!%first bra S1; mov.f32 %d9, 0f00000000;\nS1:\n"
    )
    store += (
        snippet("tcgen05_st_32x32b_f32", "%x5", ("%d9",) * 8, n=8)
        + snippet("tcgen05_wait_st")
        + BEFORE
        + "bar.sync 0;\n"
        + AFTER
    )
    broken(
        BadDescriptor,
        C.text().replace(ONLY_ONE + C.copies(), store + ONLY_ONE),
        "scales of A differ between the four times 32 lanes",
    )


def test_overwriting_operands_by_a_copy_is_told_at_once():
    load = (
        "mov.u32 %x7, s; "
        + snippet("mbarrier_arrive_expect_tx", "%bar", "16")
        + snippet("cp_async_bulk_g2s", "%x7", "%p0", "16", "%bar")
    )
    text = (
        C.text()
        .replace(snippet("mbarrier_init", "%bar", "1"), snippet("mbarrier_init", "%bar", "2"))
        .replace(COMMIT, COMMIT + load)
    )
    broken(
        PendingCopyRead,
        text,
        r"overwrites s.byte 0.*, which the tcgen05.mma at PTX line .* may still be reading",
    )


def test_a_race_with_an_operand_names_the_commit():
    """Read by a product, written by a thread that has not waited for its commit."""
    text = C.text().replace(
        END_ONE,
        END_ONE
        + "setp.eq.u32 %q1, %t, 32; @%q1 ld.shared.b32 %r1, [s]; @%q1 st.shared.b32 [s], %r1;\n",
        1,
    )
    assert (
        broken(Race, text, "is not ordered after a read of it.*tcgen05.mma", races=True).kind
        == "missing-commit-wait"
    )
