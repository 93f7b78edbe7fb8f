"""Contract under test: tensor copies move boxes, zero-filled outside, swizzled, counted whole; maps
may be parameters or lie in memory."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, MachineError, Misaligned, OutOfBounds, ReadOnlyWrite
from numba_marlin.layout.tensor_map import TensorMap, load_box
from tests.emulator.async_ptx import COMMIT, FENCE, SEEDS, WAIT_ALL, buffers, spin, start
from tests.emulator.ptx_cases import fails, frame, launch, snippet

SHARED = ".shared .align 1024 .b8 s[8192]; mov.u32 %r50, s;\n"
ONE = "setp.ne.u32 %q1, %t, 0; @%q1 bra END;\n"
DUMP = """mov.u32 %r10, 0; mad.lo.u32 %r11, %t, 16, %r50; mad.wide.u32 %rd9, %t, 16, %p1;
DUMP: ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r11];
st.global.v4.u32 [%rd9], {{%r1, %r2, %r3, %r4}};
add.u32 %r11, %r11, 512; add.u64 %rd9, %rd9, 512; add.u32 %r10, %r10, 512;
setp.lt.u32 %q4, %r10, {}; @%q4 bra DUMP;
"""


LOADS = {
    (1, False): "cp_async_bulk_tensor_1d_g2s",
    (1, True): "cp_async_bulk_tensor_1d_g2s_hint",
    (2, False): "cp_async_bulk_tensor_2d_g2s",
    (2, True): "cp_async_bulk_tensor_2d_g2s_hint",
    (2, "cta"): "cp_async_bulk_tensor_2d_g2s_cta",
}


def copy_in(coordinates, map_at="%p0", hint=False):
    moves = "".join(f"mov.s32 %r{20 + i}, {value};\n" for i, value in enumerate(coordinates))
    operands = ["%r50", map_at, *(f"%r{20 + i}" for i in range(len(coordinates))), "%r40"] + (
        ["%rd20"] if hint is True else []
    )
    return moves + snippet(LOADS[len(coordinates), hint], *operands)


def flat(tensor):
    return tensor.reshape(-1).view(np.uint8)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("at", [(0, 0), (8, 3), (32, 90), (-16, -5), (120, 96)])
@pytest.mark.parametrize("hint", [False, True, "cta"])
def test_a_loaded_box_is_what_the_layout_says(swizzle, at, hint):
    """x, y in PTX's order; a tensor of 100 x 130 in rows of 272 bytes; a box of 16 rows."""
    columns = (swizzle or 128) // 2
    tensor = np.zeros((100, 136), np.uint16)
    tensor[...] = np.arange(tensor.size, dtype=np.uint16).reshape(tensor.shape)
    tensor_map = TensorMap("float16", (100, 130), (272, 2), (16, columns), swizzle)
    y = np.zeros(8192, np.uint8)
    body = (
        start(1)
        + SHARED
        + "createpolicy.fractional.L2::evict_first.b64 %rd20, 1.0;\nsetp.ne.u32 %q1, %t, 0; @%q1"
        " bra WAIT0;\n"
    )
    body += (
        snippet("prefetch_tensormap", "%p0")
        + snippet("mbarrier_arrive_expect_tx", "%r40", str(tensor_map.box_bytes))
        + copy_in(at, hint=hint)
    )
    body += "WAIT0:\n" + spin("W", "%r40", "0") + DUMP.format(tensor_map.box_bytes)
    launch(body, buffers(tensor_map, tensor, y=y))
    expected = load_box(tensor_map, flat(tensor), at[::-1], 0x400)
    assert (
        np.array_equal(y[: tensor_map.box_bytes], expected) and not y[tensor_map.box_bytes :].any()
    )
    if not swizzle:  # and by plain indexing
        padded = np.zeros((164, 258), np.uint16)
        padded[32:132, 64:194] = tensor[:, :130]
        assert np.array_equal(
            y[:2048].view(np.uint16).reshape(16, columns),
            padded[32 + at[1] : 48 + at[1], 64 + at[0] : 64 + at[0] + columns],
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_one_dimension(seed):
    tensor, y = np.arange(100, dtype=np.uint32), np.zeros(128, np.uint32)
    tensor_map = TensorMap("int32", (100,), (4,), (128,))
    for hint in (False, True):
        body = (
            start(1)
            + SHARED
            + "createpolicy.fractional.L2::evict_first.b64 %rd20, 1.0;\nsetp.ne.u32 %q1, %t, 0;"
            " @%q1 bra WAIT0;\n"
        )
        body += snippet("mbarrier_arrive_expect_tx", "%r40", "512") + copy_in((60,), hint=hint)
        launch(
            body + "WAIT0:\n" + spin("W", "%r40", "0") + DUMP.format(512),
            buffers(tensor_map, tensor, y=y),
            seed=seed,
        )
        assert y.tolist() == [*range(60, 100), *[0] * 88]


def test_three_dimensions():
    tensor, y = np.arange(4 * 6 * 8, dtype=np.uint32).reshape(4, 6, 8), np.zeros(128, np.uint32)
    tensor_map = TensorMap("uint32", (4, 6, 8), (192, 32, 4), (2, 4, 8))
    copy = (
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r50],"
        " [%p0, {0, 1, 2}], [%r40];\n"
    )
    body = (
        start(1)
        + SHARED
        + "setp.ne.u32 %q1, %t, 0; @%q1 bra WAIT0;\n"
        + snippet("mbarrier_arrive_expect_tx", "%r40", "256")
        + copy
    )
    body += (
        "WAIT0:\n"
        + spin("W", "%r40", "0")
        + "setp.ge.u32 %q6, %t, 16; @%q6 bra END;"
        + DUMP.format(256)
        + "END:"
    )
    launch(body, buffers(tensor_map, tensor, y=y))
    assert np.array_equal(y[:64].reshape(2, 4, 8), tensor[2:4, 1:5])


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("at", [(0, 0), (64, 90), (128, 84)])
def test_a_stored_box_is_clipped_to_the_tensor(swizzle, at, seed):
    """What lane t wrote to its 16-byte chunk appears at the chunk's place, in rows and columns of
    the tensor and nowhere else, but for what is left of the chunk in which a row of it ends."""
    tensor = np.full((100, 136), 0xEEEE, np.uint16)
    tensor_map = TensorMap("float16", (100, 130), (272, 2), (16, 64), swizzle)
    fill = """mov.u32 %r10, 0; FILL: mad.lo.u32 %r12, %t, 16, %r10; add.u32 %r11, %r12, %r50;
    shr.u32 %r12, %r12, 4;
    shl.b32 %r13, %r12, 16; or.b32 %r12, %r12, %r13;
    st.shared.v4.u32 [%r11], {%r12, %r12, %r12, %r12};
    add.u32 %r10, %r10, 512; setp.lt.u32 %q4, %r10, 2048; @%q4 bra FILL;
    """
    body = (
        SHARED
        + fill
        + FENCE
        + "bar.sync 0;\n"
        + ONE
        + f"mov.s32 %r20, {at[0]}; mov.s32 %r21, {at[1]};\n"
    )
    body += (
        snippet("cp_async_bulk_tensor_2d_s2g", "%p0", "%r20", "%r21", "%r50")
        + COMMIT
        + WAIT_ALL
        + "END:"
    )
    launch(body, buffers(tensor_map, tensor), seed=seed)
    row, chunk = np.divmod(np.arange(128), 8)
    box = (row * 8 + (chunk ^ row % 8 if swizzle else chunk)).repeat(8).reshape(16, 64)
    padded = np.full((164, 258), 0xEEEE)
    padded[32 + at[1] : 48 + at[1], 64 + at[0] : 128 + at[0]] = box
    assert np.array_equal(tensor, padded[32:132, 64:200])


@pytest.mark.parametrize("at", [(-16, 5), (16, -5)])
def test_a_box_that_begins_before_its_tensor_cannot_be_stored(at):
    """An H200 ends the kernel with an illegal instruction, though such a box may be loaded
    (experiments/05_hardware)."""
    body = (
        SHARED
        + ONE
        + f"mov.s32 %r20, {at[0]}; mov.s32 %r21, {at[1]};\n"
        + snippet("cp_async_bulk_tensor_2d_s2g", "%p0", "%r20", "%r21", "%r50")
        + COMMIT
        + WAIT_ALL
        + "END:"
    )
    with pytest.raises(OutOfBounds, match="begins before its tensor"):
        launch(
            body,
            buffers(
                TensorMap("float16", (100, 130), (272, 2), (16, 64), 0),
                np.zeros((100, 136), np.uint16),
            ),
        )


def test_a_map_may_be_a_parameter():
    """.param .align 64 .b8 [128], addressed as LLVM does it."""
    tensor, y = np.arange(100, dtype=np.uint32), np.zeros(128, np.uint32)
    body = (
        start(1)
        + SHARED
        + "mov.b64 %rd0, m; cvta.param.u64 %rd1, %rd0;\nsetp.ne.u32 %q1, %t, 0; @%q1 bra WAIT0;\n"
    )
    body += (
        snippet("mbarrier_arrive_expect_tx", "%r40", "512")
        + copy_in((60,), map_at="%rd1")
        + "WAIT0:\n"
        + spin("W", "%r40", "0")
        + DUMP.format(512)
    )
    text = frame(body, 2).replace(".param .u64 p1)", ".param .u64 p1, .param .align 64 .b8 m[128])")
    machine = Machine(text)
    addresses = [machine.memory.buffer(array).address for array in (tensor, y)]
    machine.run(
        "k", args=[*addresses, TensorMap("uint32", (100,), (4,), (128,)).encode(addresses[0])]
    )
    assert y.tolist() == [*range(60, 100), *[0] * 88]


def broken(kind, **change):
    """The error when lane 0 loads a box of a good map, after ``change``."""
    tensor = np.zeros((100, 64), np.uint16)
    tensor_map = TensorMap("float16", (100, 64), (128, 2), (16, 64), 128)
    options = {"at": (0, 0), "prepare": "", "arrays": buffers(tensor_map, tensor), **change}
    body = (
        start(1)
        + SHARED
        + ONE
        + options["prepare"]
        + snippet("mbarrier_arrive_expect_tx", "%r40", "2048")
        + copy_in(options["at"])
        + "END:"
    )
    return str(fails(kind, body, options["arrays"]))


def test_rules_of_tensor_copies():
    tensor_map, tensor = (
        TensorMap("float16", (100, 64), (128, 2), (16, 64), 128),
        np.zeros((100, 64), np.uint16),
    )
    assert "must be a multiple of 128" in broken(Misaligned, prepare="add.u32 %r50, %r50, 64;")
    assert "multiple of 64" in broken(Misaligned, prepare="add.u64 %p0, %p0, 32;")
    assert "the shared memory has" in broken(OutOfBounds, prepare="add.u32 %r50, %r50, 6272;")
    assert "1 coordinates do not fit" in broken(MachineError, at=(0,))
    assert "no tensor map" in broken(MachineError, arrays={"map": np.zeros(16, np.uint64)})
    assert "parameter or lie in global memory" in broken(
        OutOfBounds, prepare="mov.u64 %p0, s; cvta.shared.u64 %p0, %p0;"
    )
    short = buffers(tensor_map, tensor)
    short["tensor"] = np.zeros((90, 64), np.uint16)
    assert "lie in no buffer" in broken(OutOfBounds, at=(0, 80), arrays=short)
    launch(start(1), short)


def test_the_whole_box_counts_wherever_it_lies():
    """A box wholly outside of the tensor brings its zeros and its bytes."""
    tensor, y = np.ones((10, 64), np.uint16), np.ones(2048, np.uint8)
    tensor_map = TensorMap("float16", (10, 64), (128, 2), (16, 64), 128)
    body = (
        start(1)
        + SHARED
        + "setp.ne.u32 %q1, %t, 0; @%q1 bra WAIT0;\n"
        + snippet("mbarrier_arrive_expect_tx", "%r40", "2048")
    )
    launch(
        body + copy_in((0, 10)) + "WAIT0:\n" + spin("W", "%r40", "0") + DUMP.format(2048),
        buffers(tensor_map, tensor, y=y),
    )
    assert not y.any()


def test_storing_to_a_readonly_tensor_is_refused():
    tensor_map = TensorMap("float16", (16, 64), (128, 2), (16, 64))
    body = (
        SHARED + "mov.u32 %r10, 0; F: mad.lo.u32 %r11, %t, 16, %r10; add.u32 %r11, %r11, %r50;"
        " st.shared.v4.u32 [%r11], {%t, %t, %t, %t};"
    )
    body += (
        "add.u32 %r10, %r10, 512; setp.lt.u32 %q4, %r10, 2048; @%q4 bra F;"
        + FENCE
        + "bar.sync 0;\n"
        + ONE
    )
    body += snippet("cp_async_bulk_tensor_2d_s2g", "%p0", "0", "0", "%r50") + "END:"
    fails(
        ReadOnlyWrite,
        body,
        buffers(tensor_map, np.zeros((16, 64), np.uint16)),
        readonly=("tensor",),
    )
