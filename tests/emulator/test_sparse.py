"""Contract under test: mma.sp and wgmma.mma_async.sp multiply what is stored of A at the places
that its metadata name, for every shape, type and selector; what the ISA leaves undefined is
refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from numba_marlin.compiler.assemble import assemble
from numba_marlin.compiler.errors import AssemblyError
from numba_marlin.compiler.tools import find_tools
from numba_marlin.counts import instructions as counted
from numba_marlin.emulator import (
    BadMetadata,
    Machine,
    MachineError,
    Race,
    RegisterHazard,
    UnknownInstruction,
)
from numba_marlin.emulator.instructions import root_of
from numba_marlin.emulator.tensor import sparsity
from numba_marlin.emulator.tensor.tensor_sums import ADDERS, add_products
from numba_marlin.emulator.text.parser import parse
from numba_marlin.hardware.targets import target_named
from numba_marlin.layout.sparsity import Metadata
from tests.emulator import ptx_cases
from tests.emulator import sparse_programs as programs
from tests.emulator.ptx_cases import HEADER, frame
from tests.emulator.sparse_programs import ASCENDING, BITS, CHUNK, PAIRS, WORDS

RANDOM = np.random.default_rng(23)
# (types of A and B, type of C and D, k)
PRODUCTS = [
    *[("f16.f16", d, k) for d in ("f32", "f16") for k in (16, 32)],
    *[("bf16.bf16", "f32", k) for k in (16, 32)],
    *[("tf32.tf32", "f32", k) for k in (8, 16)],
    *[(pair, "f32", 64) for pair in ("e4m3.e4m3", "e4m3.e5m2", "e5m2.e4m3", "e5m2.e5m2")],
    *[(pair, "s32", k) for pair in ("s8.s8", "s8.u8", "u8.s8", "u8.u8") for k in (32, 64)],
    *[(pair, "s32", k) for pair in ("s4.s4", "s4.u4", "u4.s4", "u4.u4") for k in (64, 128)],
]
DTYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
SPARSE = ("sp", "sp::ordered_metadata")


def opcode_of(pair, d, k, sparse="sp"):
    return f"mma.{sparse}.sync.aligned.m16n8k{k}.row.col.{d}.{pair}.{d}"


def drawn_codes(bits, rows, k, ordered=False):
    """Metadata, [rows, chunks], in which every value occurs."""
    codes = WORDS if bits == 32 else ASCENDING if ordered else PAIRS
    count = rows * k // CHUNK[bits]
    return RANDOM.permutation(np.resize(codes, count)).reshape(rows, -1)


@pytest.mark.parametrize("pair, d, k", PRODUCTS)
def test_every_shape_type_and_selector(pair, d, k):
    left, right = pair.split(".")
    bits = BITS[left]
    for sparse in SPARSE:
        for selector in range(programs.selectors(bits, k)):
            codes = drawn_codes(bits, 16, k, sparse != "sp")
            a, a_bytes = programs.draw(left, (16, k // 2), RANDOM)
            b, b_bytes = programs.draw(right, (8, k), RANDOM)
            c = RANDOM.integers(-99, 99, (16, 8)).astype(DTYPES[d])
            words = programs.metadata(codes, bits, k, selector, RANDOM)
            found = programs.mma(
                opcode_of(pair, d, k, sparse), a_bytes, b_bytes, c, words, selector
            )
            expected = c + programs.expanded(a, codes, bits) @ b.T
            assert (found == expected).all(), (sparse, selector)


def test_sums_wrap_or_stop():
    a, b = np.full((16, 16), 127, np.uint8), np.full((8, 32), 127, np.uint8)
    c, words = np.full((16, 8), 2**31 - 1, np.int32), np.full(32, 0x44444444, np.uint32)
    for word, expected in (("", 16 * 127 * 127 - 1 - 2**31), ("satfinite.", 2**31 - 1)):
        opcode = f"mma.sp.sync.aligned.m16n8k32.row.col.{word}s32.s8.s8.s32"
        assert (programs.mma(opcode, a, b, c, words, 1) == expected).all()


@pytest.mark.parametrize("kind, k", [("f16", 32), ("bf16", 16), ("tf32", 16)])
def test_an_addition_has_as_many_stored_terms(kind, k):
    """Random numbers, every bit: of 16 products of k = 32 one addition, as an H200 has it."""
    bits = BITS[kind]
    a, b = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((16, k // 2), (8, k)))
    if kind == "f16":
        a, b = (each.astype(np.float16).view(np.uint16) for each in (a, b))
    else:
        a, b = (each.view(np.uint32) for each in (a, b))
        if kind == "bf16":
            a, b = ((each >> 16).astype(np.uint16) for each in (a, b))
    c = RANDOM.standard_normal((16, 8)).astype(np.float32)
    codes = drawn_codes(bits, 16, k)
    words = programs.metadata(codes, bits, k, 0, RANDOM)
    found = programs.mma(
        opcode_of(f"{kind}.{kind}", "f32", k), a.view(np.uint8), b.view(np.uint8), c, words, 0
    )
    factors = np.concatenate([programs.expanded(a, codes, bits), b])[None]
    adder = replace(ADDERS["sm_90"], terms=32)
    assert np.array_equal(found, add_products(kind, factors, 16, c[None], adder)[0])


@pytest.mark.parametrize("pair", ["f16.f16", "e4m3.e5m2"])
def test_what_no_stored_element_meets_leaves_no_trace(pair):
    """Infinities in B at places 2 and 3 of each chunk; row 5 has a stored zero there."""
    kind, other = pair.split(".")
    bits, k = BITS[kind], 32 if kind == "f16" else 64
    a, a_bytes = programs.draw(kind, (16, k // 2), RANDOM)
    b, b_bytes = programs.draw(other, (8, k), RANDOM)
    infinity, word = (0x7C00, np.uint16) if kind == "f16" else (0x7C, np.uint8)
    b_bytes.view(word)[:, 2::4] = infinity
    a_bytes.view(word)[5] = 0
    b[:, 2::4] = 0
    codes = np.full((16, k // 4), 0b0100)
    codes[5] = 0b1001
    words = programs.metadata(codes, bits, k, 0, RANDOM)
    c = np.zeros((16, 8), np.float32)
    found = programs.mma(opcode_of(pair, "f32", k), a_bytes, b_bytes, c, words, 0)
    assert np.isnan(found[5]).all()
    rest = np.arange(16) != 5
    assert (found[rest] == (programs.expanded(a, codes, bits) @ b.T)[rest]).all()


@pytest.mark.parametrize("sparse", SPARSE)
@pytest.mark.parametrize("pair, d, k", [("f16.f16", "f32", 16), ("tf32.tf32", "f32", 8)])
def test_undefined_metadata_are_refused(pair, d, k, sparse):
    bits = BITS[pair.split(".")[0]]
    defined = WORDS if bits == 32 else PAIRS if sparse == "sp" else ASCENDING
    a, b = np.zeros((16, k // 2 * bits // 8), np.uint8), np.zeros((8, k * bits // 8), np.uint8)
    for code in range(16):
        codes = np.full((16, 4), 0b0100)
        codes[11, 2] = code
        words = programs.metadata(codes, bits, k, 2, RANDOM)
        case = opcode_of(pair, d, k, sparse), a, b, np.zeros((16, 8), np.float32), words, 2
        if code in defined:
            programs.mma(*case)
            continue
        with pytest.raises(BadMetadata, match=f"metadata 0b{code:04b} of row 11, chunk 2") as told:
            programs.mma(*case)
        assert told.value.lanes == (14,)


@pytest.mark.parametrize(
    "opcode, selector, reason",
    [
        (opcode_of("f16.f16", "f32", 32), 2, "selector 2 must be one of"),
        (opcode_of("s8.s8", "s32", 64), 1, "selector 1 must be one of"),
        (opcode_of("f16.f16", "f32", 8), 0, "these types"),
        (opcode_of("bf16.bf16", "f16", 32), 0, "these types"),
        (opcode_of("e4m3.e4m3", "f16", 64), 0, "these types"),
        (opcode_of("s8.s4", "s32", 64), 0, "these types"),
        (opcode_of("f16.f16", "satfinite.f32", 32), 0, "satfinite"),
        (
            "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32",
            0,
            "sm_120a, are not implemented",
        ),
    ],
)
def test_what_does_not_exist_is_refused(opcode, selector, reason):
    body = programs.mma_program(opcode, {"a": 4, "b": 4, "c": 4, "e": 1}, selector)
    with pytest.raises(UnknownInstruction, match=reason):
        Machine(frame(body, 4)).run("k", args=[0] * 4, block=32)


WIDE = [
    ("f32", "f16.f16"),
    ("f16", "f16.f16"),
    ("f32", "bf16.bf16"),
    ("f32", "tf32.tf32"),
    ("f32", "e4m3.e5m2"),
    ("s32", "s8.u8"),
]


def wide_case(d, pair, columns=16):
    left, right = pair.split(".")
    k = 512 // BITS[left]
    a, a_bytes = programs.draw(left, (64, k // 2), RANDOM)
    b, b_bytes = programs.draw(right, (columns, k), RANDOM)
    codes = drawn_codes(BITS[left], 64, k)
    c = RANDOM.integers(-99, 99, (64, columns)).astype(DTYPES[d])
    expected = c + programs.expanded(a, codes, BITS[left]) @ b.T
    return (f"{d}.{pair}", a_bytes, b_bytes, c, codes), expected


@pytest.mark.parametrize("in_registers", [True, False])
@pytest.mark.parametrize("d, pair", WIDE)
def test_warpgroups(d, pair, in_registers):
    for selector in range(2 if BITS[pair.split(".")[0]] >= 16 else 1):
        for swizzle in (0, 64, 128):
            case, expected = wide_case(d, pair)
            found = programs.wgmma_sp(
                *case, swizzle=swizzle, in_registers=in_registers, selector=selector
            )
            assert (found == expected).all(), (selector, swizzle)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_warpgroups_with_b_the_other_way_round(swizzle):
    case, expected = wide_case("f32", "f16.f16", 24)
    assert (programs.wgmma_sp(*case, swizzle=swizzle, turned=1) == expected).all()


def test_where_b_lies_is_refused_if_the_isa_does_not_say():
    case, _ = wide_case("f32", "f16.f16")
    with pytest.raises(MachineError, match="a swizzle of 32 is not implemented"):
        programs.wgmma_sp(*case, swizzle=32)


def test_warpgroups_meet_infinities_by_metadata_only():
    case, expected = wide_case("f32", "f16.f16")
    case[2].view(np.float16)[:, 3::4] = np.inf
    case[-1][:] = 0b0100
    expected = programs.wgmma_sp(*case)
    case[2].view(np.float16)[:, 3::4] = 0
    assert np.isfinite(expected).all() and (programs.wgmma_sp(*case) == expected).all()


def test_metadata_of_a_warpgroup_belong_to_the_product_until_it_is_waited_for():
    case, expected = wide_case("f32", "f16.f16")
    with pytest.raises(RegisterHazard, match="%e is read by the wgmma"):
        programs.wgmma_sp(*case, behind="mov.b32 %e, 0;\n")
    with pytest.raises(RegisterHazard, match="%e was written"):
        programs.wgmma_sp(*case, before="add.u32 %e, %e, 0;\n")
    wrong = case[-1].copy()
    wrong[37, 5] = 0b1010
    with pytest.raises(BadMetadata, match="metadata 0b1010 of row 37, chunk 5") as told:
        programs.wgmma_sp(*case[:-1], wrong)
    assert told.value.warp == 2


def test_all_that_a_warpgroup_reads_of_b_is_watched(monkeypatch):
    """Rows of 128 bytes, of which 64 are B's: a store of what is there already is a race at byte
    48, and none at byte 80."""
    monkeypatch.setattr(ptx_cases, "Machine", partial(Machine, races=True))
    case, expected = wide_case("f32", "f16.f16")
    store = (
        "setp.eq.u32 %q14, %t, 0; @%q14 ld.shared.u32 %r50, [s+{0}];"
        " @%q14 st.shared.u32 [s+{0}], %r50;\n"
    )
    assert (programs.wgmma_sp(*case, behind=store.format(80)) == expected).all()
    with pytest.raises(Race, match="missing-wgmma-wait: this write of s.byte 48"):
        programs.wgmma_sp(*case, behind=store.format(48))


def test_counts_are_those_of_what_is_stored():
    """Half the operations of the dense shape; B has 64 bytes of k a column."""
    body = programs.wgmma_program(2048, "f32.f16.f16", 8, 32, (None, 0), "0, 1, 1, 1, 0")
    body += programs.mma_program(
        opcode_of("f16.f16", "f32", 32), {"a": 4, "b": 4, "c": 4, "e": 1}, 0
    ).replace("%x", "%y")
    kernel = parse(frame(body, 4), root_of).kernels["k"]
    wide, small = (
        next(ins for ins in kernel.instructions if ins.root == root)
        for root in ("wgmma.mma_async", "mma")
    )
    assert counted.flops_of(wide) == 64 * 8 * 32 // 4
    assert counted.flops_of(small) == 16 * 8 * 32
    assert counted.operand_bytes_of(wide) == 8 * 64 / 4


def test_metadata_and_their_places_are_one_to_one():
    for bits, k in programs.FIGURES:
        named = Metadata(bits, k)
        for selector in range(named.selectors):
            lane, shift = named.places(selector)
            assert len(set(zip(lane.flat, shift.flat))) == lane.size == 16 * named.chunks
        with pytest.raises(ValueError, match=f"selector={named.selectors} must be one of"):
            named.places(named.selectors)


def test_expanding_is_what_the_chunk_says():
    """f16: cells 3 and 1 of the first chunk, in this order."""
    stored = np.array([[7, 9]], np.uint16).view(np.uint8)
    dense = sparsity.expand(stored, np.array([[0b0111]])).view(np.uint16)
    assert dense.tolist() == [[0, 9, 0, 7]]


def mma_texts(targets_eight_bit_floats):
    """(opcode, widths of its operands, its last selector) of all."""
    for pair, d, k in PRODUCTS:
        if pair[0] != "e" or targets_eight_bit_floats:
            bits = BITS[pair.split(".")[0]]
            words = k * bits // 64
            widths = {"a": words // 2, "b": words // 2, "c": 2 if d == "f16" else 4, "e": 1}
            for sparse in SPARSE:
                yield opcode_of(pair, d, k, sparse), widths, programs.selectors(bits, k) - 1


def module(target, bodies):
    texts = [
        frame(body, 4).replace(HEADER, "").replace("k(", f"k{i}(") for i, body in enumerate(bodies)
    ]
    return f".version 8.5\n.target {target}\n.address_size 64\n" + "".join(texts)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_ptxas_takes_every_instruction(target):
    if not find_tools("ptxas"):
        pytest.skip("there is no ptxas")
    bodies = [programs.mma_program(*each) for each in mma_texts(target != "sm_80")]
    for d, pair in WIDE if target == "sm_90a" else ():
        bits = BITS[pair.split(".")[0]]
        more = "0, 1" if d == "s32" else "0, 1, 1, 1" + ", 0" * (bits == 16)
        case = f"{d}.{pair}", 16, 512 // bits, (None, 0), more
        bodies.append(programs.wgmma_program(2048, *case))
    assert assemble(module(target, bodies), target_named(target))[0]


def test_ptxas_has_no_other_selectors():
    if not find_tools("ptxas"):
        pytest.skip("there is no ptxas")
    shapes = {
        opcode.split(".row")[0] + str(widths): (opcode, widths, last + 1)
        for opcode, widths, last in mma_texts(True)
    }
    for case in shapes.values():
        with pytest.raises(AssemblyError, match="expected to be"):
            assemble(module("sm_89", [programs.mma_program(*case)]), target_named("sm_89"))
