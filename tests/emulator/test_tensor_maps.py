"""Contract under test: kernels that change tensor maps, field by field, and copy with them."""

import numpy as np
import pytest

from numba_marlin.emulator import DivergentCollective, Machine, MachineError, UnknownInstruction
from numba_marlin.layout import tensor_map as maps
from numba_marlin.layout.tensor_map import TensorMap
from tests.emulator.async_ptx import COMMIT, FENCE, WAIT_ALL
from tests.emulator.ptx_cases import frame

START = """.shared .align 128 .b8 map[128]; .shared .align 128 .b8 s[1024]; mov.u32 %r50, s;
mov.u32 %r40, map; mad.lo.u32 %r41, %t, 4, %r40; mad.wide.u32 %rd1, %t, 4, %p0;
ld.global.u32 %r1, [%rd1]; st.shared.u32 [%r41], %r1; mad.lo.u32 %r51, %t, 4, %r50;
add.u32 %r2, %t, 100; st.shared.u32 [%r51], %r2; bar.sync 0; setp.ne.u32 %q1, %t, 0;
"""
PUBLISH = f"""bar.sync 0; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu
.sync.aligned [%p0], [%r40], 128; fence.proxy.tensormap::generic.acquire.gpu [%p0], 128; {FENCE}
@%q1 bra END;
""".replace("gpu\n.", "gpu.")


def replace(field: str, kind: str, *values, space: str = "shared::cta") -> str:
    given = ", ".join(map(str, values))
    address = "%r40" if space == "shared::cta" else "%p0"
    return f"@!%q1 tensormap.replace.tile.{field}.{space}.b1024.{kind} [{address}], {given};\n"


def run(body: str, described: TensorMap, *tensors: np.ndarray):
    """``body`` with the map of the first of ``tensors`` at %p0 and those at %p1 ..."""
    encoded = np.zeros(16, np.uint64)
    machine = Machine(frame(body, 1 + len(tensors)))
    addresses = [machine.memory.buffer(each).address for each in (encoded, *tensors)]
    encoded[:] = np.frombuffer(described.encode(addresses[1]), np.uint64)
    machine.run("k", args=addresses, block=32)
    return encoded.tobytes()


def test_a_map_becomes_that_of_another_tensor():
    """Another address, shape, stride and box, as grouped products have it; then a store by it."""
    first, second = np.zeros((8, 8), np.float32), np.zeros((6, 16), np.uint32)
    described = TensorMap("float32", (8, 8), (32, 4), (8, 8))
    body = START + replace("global_address", "b64", "%p2") + replace("global_dim", "b32", 0, 12)
    body += "mov.u32 %r3, 6;" + replace("global_dim", "b32", 1, "%r3")
    body += replace("global_stride", "b64", 0, 64) + replace("box_dim", "b32", 0, 4)
    body += replace("box_dim", "b32", 1, 2) + replace("elemtype", "b32", 2)
    body += replace("element_stride", "b32", 1, 1) + replace("fill_mode", "b32", 0) + PUBLISH
    body += """mov.u32 %r5, 4; mov.u32 %r6, 3;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%p0, {%r5, %r6}], [%r50];
    """
    encoded = run(body + COMMIT + WAIT_ALL + "END:", described, first, second)
    decoded, _ = maps.decode(encoded)
    assert decoded == TensorMap("uint32", (6, 12), (64, 4), (2, 4))
    expected = np.zeros((6, 16), np.uint32)
    expected[3:5, 4:8] = 100 + np.arange(8).reshape(2, 4)
    assert np.array_equal(second, expected) and not first.any()


def test_a_map_made_of_zeros():
    """As Triton makes the descriptors of a kernel: zeros, and then every field."""
    empty, values = np.zeros(16, np.uint64), np.arange(100, 132, dtype=np.uint32)
    tensor = np.zeros((6, 8), np.uint32)
    body = START + "@%q1 bra READY; mov.u64 %rd2, 0; mov.u32 %r3, 0;\n"
    body += "".join(f"st.shared.u64 [%r40+{8 * word}], %rd2;" for word in range(16))
    body += replace("global_address", "b64", "%p1") + replace("rank", "b32", 1)
    for dimension, (size, box) in enumerate(((8, 4), (6, 8))):
        body += replace("box_dim", "b32", dimension, box)
        body += replace("global_dim", "b32", dimension, size)
        body += replace("element_stride", "b32", dimension, 1)
    body += replace("global_stride", "b64", 0, 32) + replace("elemtype", "b32", 2)
    body += replace("interleave_layout", "b32", 0) + replace("swizzle_mode", "b32", 0)
    body += replace("fill_mode", "b32", 0) + "READY:" + PUBLISH
    body += """mov.u32 %r5, 4; mov.u32 %r6, 0;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%p0, {%r5, %r6}], [%r50];
    """
    machine = Machine(frame(body + COMMIT + WAIT_ALL + "END:", 2))
    machine.run("k", args=[machine.memory.buffer(each).address for each in (empty, tensor)])
    assert np.array_equal(tensor[:, 4:8].reshape(-1), values[:24])


def test_a_map_in_global_memory():
    described = TensorMap("float16", (8, 64), (128, 2), (8, 64))
    body = START + replace("swizzle_mode", "b32", 3, space="global")
    decoded, _ = maps.decode(run(body, described, np.zeros((8, 64), np.float16)))
    assert decoded.swizzle == 128


def test_behind_the_last_dimension_only_nothing_may_be_written():
    """CUTLASS's grouped products set sizes and strides of all five dimensions."""
    encoded = TensorMap("float16", (8, 64), (128, 2), (8, 64)).encode(64)
    for dimension in (2, 3, 4):
        assert maps.replaced(encoded, "global_dim", 1, dimension) == encoded
        assert maps.replaced(encoded, "global_stride", 0, dimension - 1) == encoded
        for field, at in (("global_dim", dimension), ("global_stride", dimension - 1)):
            with pytest.raises(ValueError, match="is none of 2 dimensions"):
                maps.replaced(encoded, field, 16, at)


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_the_rank_counts_from_zero_and_dimensions_from_the_innermost(rank):
    described = TensorMap("uint8", (4, 6, 32), (192 * 2, 64, 1), (2, 3, 16))
    encoded = maps.replaced(described.encode(64), "rank", rank - 1)
    for outer in range(3, rank):
        encoded = maps.replaced(encoded, "global_dim", 7, outer)
        encoded = maps.replaced(encoded, "global_stride", 16 * outer, outer - 1)
    decoded, address = maps.decode(encoded)
    assert address == 64 and len(decoded.shape) == rank
    assert decoded.shape == ((7,) * rank + (4, 6, 32))[-rank:] if rank > 3 else (4, 6, 32)[-rank:]
    assert decoded.box == ((1,) * rank + (2, 3, 16))[-rank:]


@pytest.mark.parametrize(
    "field, values, said",
    [
        ("rank.shared::cta.b1024.b32", "5", "rank=6 must be 1 to 5"),
        ("box_dim.shared::cta.b1024.b32", "2, 4", "none of 2 dimensions"),
        ("global_stride.shared::cta.b1024.b64", "1, 64", "none of 2 dimensions"),
        ("elemtype.shared::cta.b1024.b32", "11", "nothing that TensorMap has"),
        ("fill_mode.shared::cta.b1024.b32", "1", "nothing that TensorMap has"),
        ("element_stride.shared::cta.b1024.b32", "0, 2", "nothing that TensorMap has"),
    ],
)
def test_what_a_map_cannot_be(field, values, said):
    described = TensorMap("float32", (8, 8), (32, 4), (8, 8))
    body = f"{START}\n@!%q1 tensormap.replace.tile.{field} [%r40], {values};"
    with pytest.raises(MachineError, match=f"the tensor map: .*{said}(.|\n)*PTX line"):
        run(body, described, np.zeros((8, 8), np.float32))


def test_other_bytes_are_no_map():
    described = TensorMap("float32", (8, 8), (32, 4), (8, 8))
    body = START + "@!%q1 st.shared.u32 [%r40], 0;" + replace("rank", "b32", 0)
    with pytest.raises(MachineError, match="no tensor map of numba_marlin"):
        run(body, described, np.zeros((8, 8), np.float32))


def test_the_whole_warp_copies_a_map():
    described = TensorMap("float32", (8, 8), (32, 4), (8, 8))
    lonely = PUBLISH.replace("tensormap.cp", "@!%q1 tensormap.cp")
    with pytest.raises(DivergentCollective, match="all 32 lanes"):
        run(START + lonely + "END:", described, np.zeros((8, 8), np.float32))


@pytest.mark.parametrize(
    "statement",
    [
        "tensormap.replace.tile.rank.global.b1024.b64 [%p0], %rd1;",
        "tensormap.replace.tile.box_dim.b1024.b32.global [%p0], 0, %r1;",
        "tensormap.replace.tile.global.b1024.b32 [%p0], %r1;",
        (
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
            " [%p0], [%r0], 64;"
        ),
    ],
)
def test_what_there_is_not(statement):
    with pytest.raises(UnknownInstruction):
        Machine(frame(f"bra END; {statement} END:")).run("k", args=[0])


def test_half_of_a_map_holds_all_of_it():
    """As half of the hardware's does: CUTLASS's grouped products copy no more."""
    described = TensorMap("float16", (9, 8, 64), (1 << 39, 128, 2), (1, 8, 64), 128, 256)
    encoded = described.encode(1 << 40)
    assert len(encoded) == 128 and not any(encoded[64:])
    assert maps.decode(encoded) == (described, 1 << 40)
