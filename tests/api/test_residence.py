"""Contract under test: a packed weight's arrays live where the user put them, no product makes a
copy of one that is there, and new numbers can be written into old memory."""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.execution.gpu import kept_copies
from numba_marlin.formats import residence

W = np.random.default_rng(0).standard_normal((64, 72), np.float32)
X = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float16)


def packed(kind="int4", seed=0):
    w = np.random.default_rng(seed).standard_normal((64, 72), np.float32)
    if kind == "nvfp4":
        return nm.pack(nm.quantize(w, format="nvfp4"))
    return nm.pack(nm.quantize(w, group_size=32, symmetric=kind == "int4"))


class Elsewhere:
    """An array that claims to be on a device."""

    def __init__(self, array, device=1, strides=None):
        self.array, self.device = np.ascontiguousarray(array), device
        self.shape, self.dtype = array.shape, array.dtype
        self.__cuda_array_interface__ = {
            "typestr": array.dtype.str,
            "shape": array.shape,
            "strides": strides,
            "data": (self.array.ctypes.data, False),
            "version": 3,
        }

    def to_host(self):
        return self.array


def moved(p, device=1, **instead):
    found = {name: Elsewhere(array, device) for name, array in residence.arrays_of(p).items()}
    return replace(p, **(found | instead))


@pytest.mark.parametrize("kind", ("int4", "zeros", "nvfp4"))
def test_arrays_elsewhere_are_held_as_they_are(kind):
    p = packed(kind)
    q = moved(p)
    assert (p.place, q.place) == ("cpu", "cuda:1")
    assert q.nbytes == p.nbytes and q.shape == p.shape
    assert "on cuda:1" in repr(q) and "on the host" in repr(p)
    assert p.to("cpu") is p and q.to("cuda:1") is q
    back = q.to("cpu")
    for name, array in residence.arrays_of(p).items():
        assert np.array_equal(getattr(back, name), array), name
    assert np.array_equal(nm.unpack(q).codes, nm.unpack(p).codes)
    assert np.array_equal(nm.dequantize(q), nm.dequantize(p))


@pytest.mark.parametrize("kind", ("int4", "nvfp4"))
@pytest.mark.parametrize(
    "backend", ("reference", pytest.param("emulator", marks=pytest.mark.thorough))
)
def test_backends_on_the_host_copy_what_they_read(kind, backend):
    p = packed(kind)
    assert np.array_equal(nm.matmul(X, moved(p), backend), nm.matmul(X, p, backend))


def test_a_saved_weight_may_be_anywhere(tmp_path):
    p = packed()
    for name, weight in (("a", p), ("b", moved(p))):
        nm.save_checkpoint(tmp_path / f"{name}.safetensors", {"layer": weight}, format="gptq")
    a, b = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "ab")
    assert a == b


@pytest.mark.parametrize(
    "change, error, message",
    [
        (
            lambda p: moved(p, scales=p.scales),
            ValueError,
            "scales is on cpu, must be where",
        ),
        (
            lambda p: moved(p, scales=Elsewhere(p.scales, 0)),
            ValueError,
            "scales is on cuda:0, must be where qweight is: cuda:1",
        ),
        (
            lambda p: moved(p, qweight=Elsewhere(p.qweight, strides=(4, 64))),
            ValueError,
            "qweight is a Elsewhere that must be contiguous",
        ),
        (
            lambda p: moved(p, qweight=Elsewhere(p.qweight.astype(np.int64))),
            TypeError,
            "qweight.dtype=int64 must be int32",
        ),
        (lambda p: moved(p, qweight=Elsewhere(p.qweight[1:])), ValueError, "qweight.shape"),
        (lambda p: replace(p, qweight=[1]), TypeError, "qweight is a list"),
        (lambda p: p.to("gpu"), ValueError, "place='gpu' must be 'cpu', 'cuda' or 'cuda:N'"),
        (lambda p: p.to("cuda:x"), ValueError, "place='cuda:x' must be"),
        (lambda p: p.to(True), ValueError, "place=True must be"),
        (lambda p: p.to("cpu", "cupy"), ValueError, "library='cupy' on the host must be"),
    ],
)
def test_what_cannot_be_held_is_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        change(packed())


def test_places_are_spelled_in_one_way():
    for given, place in (("cuda", "cuda:0"), ("cuda:3", "cuda:3"), (2, "cuda:2"), ("cpu", "cpu")):
        assert residence.place_named(given) == place


# ---- new numbers in old memory


@pytest.mark.parametrize("kind", ("int4", "zeros", "nvfp4"))
def test_overwritten_memory_has_the_new_numbers(kind):
    p, q = packed(kind), packed(kind, seed=7)
    arrays = residence.arrays_of(p)
    p.overwrite(q)
    assert all(getattr(p, name) is array for name, array in arrays.items())
    assert np.array_equal(nm.dequantize(p), nm.dequantize(q))
    assert np.array_equal(nm.matmul(X, p, "reference"), nm.matmul(X, q, "reference"))


def ordered(seed=0, order=0):
    q = nm.unpack(packed(seed=seed))
    permutation = np.random.default_rng(order).permutation(64).astype(np.int32)
    return nm.pack(replace(q, permutation=permutation))


def test_copies_of_a_weight_in_activation_order_are_its_own():
    """``matmul`` multiplies such a weight by way of ``sorted_rows``, which has the copies."""
    p, held = ordered(), kept_copies
    held(p.sorted_rows)[0] = {"b": np.array(p.qweight), "scales": np.array(p.scales)}
    assert p.copies == {"cuda:0": p.nbytes}
    other = ordered(seed=7)
    copy = held(p.sorted_rows)[0]["b"]
    p.overwrite(other)
    assert np.array_equal(copy, other.qweight) and np.array_equal(p.qweight, other.qweight)
    with pytest.raises(ValueError, match="activation orders .* must be equal"):
        p.overwrite(ordered(order=1))
    p.drop_copies()
    assert p.copies == {}


def test_a_weight_of_another_kind_changes_nothing():
    p = packed()
    before = p.qweight.copy()
    wrong = {
        "has zeros, the other does not": packed("zeros"),
        "n=80 of the other weight must be 72": nm.pack(nm.quantize(np.ones((64, 80)))),
        "group_size=-1": nm.pack(nm.quantize(W, group_size=-1)),
        "scales.dtype": None,
    }
    pytest.importorskip("ml_dtypes")
    from ml_dtypes import bfloat16

    wrong["scales.dtype"] = replace(p, scales=p.scales.astype(bfloat16))
    for message, other in wrong.items():
        with pytest.raises(ValueError, match=message):
            p.overwrite(other)
    with pytest.raises(TypeError, match="must be a PackedWeight"):
        p.overwrite(packed("nvfp4"))
    assert np.array_equal(p.qweight, before)


def test_memory_that_must_not_change_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    wide = nm.pack(nm.quantize(np.ones((64, 128)), group_size=32))
    nm.save_checkpoint(path, {"layer": wide}, format="vllm-marlin")
    with pytest.raises(ValueError, match="qweight is read-only"):
        nm.load_checkpoint(path)["layer"].overwrite(wide)


# ---- torch


@pytest.mark.parametrize("kind", ("int4", "nvfp4"))
def test_tensors_on_the_cpu_are_arrays_too(kind):
    torch = pytest.importorskip("torch")
    p = packed(kind)
    q = p.to("cpu", "torch")
    assert isinstance(q.qweight, torch.Tensor) and q.place == "cpu"
    assert q.qweight.data_ptr() == p.qweight.ctypes.data
    assert np.array_equal(nm.matmul(X, q, "emulator"), nm.matmul(X, p, "emulator"))
    assert np.array_equal(nm.unpack(q).codes, nm.unpack(p).codes)


# ---- on a GPU


@pytest.fixture
def gpu(run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: run it with --run-on cuda")


@pytest.mark.parametrize("library", ("own", "torch", "cupy"))
@pytest.mark.parametrize("kind", ("int4", "zeros", "nvfp4"))
def test_a_weight_on_a_gpu_is_read_where_it_is(gpu, kind, library):
    if library != "own":
        pytest.importorskip(library)
    p = packed(kind)
    q = p.to("cuda", library)
    assert q.place == "cuda:0" and q.copies == {} and p.copies == {}
    for _ in range(2):
        assert np.array_equal(nm.matmul(X, q), nm.matmul(X, p))
    assert q.copies == {} and p.copies == {"cuda:0": p.nbytes}
    p.drop_copies()
    assert p.copies == {}
    assert np.array_equal(nm.matmul(X, p), nm.matmul(X, q)) and p.copies
    back = q.to("cpu")
    assert all(np.array_equal(getattr(back, n), a) for n, a in residence.arrays_of(p).items())


@pytest.mark.parametrize("kind", ("int4", "zeros", "nvfp4"))
def test_overwriting_reaches_a_captured_graph(gpu, kind):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).cuda()
    for p in (packed(kind), packed(kind).to("cuda", "torch")):
        other = packed(kind, seed=9)
        nm.matmul(x, p)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = nm.matmul(x, p)
        graph.replay()
        assert torch.equal(y, nm.matmul(x, packed(kind)))
        p.overwrite(other)
        graph.replay()
        assert torch.equal(y, nm.matmul(x, other))


@pytest.mark.parametrize(
    "shape, strides, lies_so",
    [
        ((4, 2), None, True),
        ((4, 2), (8, 4), True),
        ((4, 2), (16, 8), False),  # every second column
        ((4, 2), (4, 16), False),  # column by column
        ((2, 4), (4, 8), False),
        ((4, 1), (4, 99), True),  # where there is one, its stride says nothing
        ((1, 4), (99, 4), True),
        ((), (), True),
    ],
)
def test_strides_say_whether_elements_lie_row_by_row(shape, strides, lies_so):
    array = Elsewhere(np.zeros(shape, np.int32), strides=strides)
    assert residence.contiguous(array) == lies_so


def test_overwriting_reaches_a_graph_of_a_weight_in_activation_order(gpu):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).cuda()
    for p in (ordered(), ordered().to("cuda", "torch")):
        nm.matmul(x, p)
        graph = torch.cuda.CUDAGraph()
        order = torch.from_numpy(np.array(ordered().permutation)).cuda()
        with torch.cuda.graph(graph):
            y = nm.matmul(torch.index_select(x, 1, order), p.sorted_rows)
        p.overwrite(ordered(seed=9))
        graph.replay()
        assert torch.equal(y, nm.matmul(x, ordered(seed=9)))
