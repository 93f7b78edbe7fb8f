"""Contract under test: ``execution.arrays`` describes arrays of every library alike. Device arrays
are stand-ins: only addresses matter."""

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numba_marlin as nm
from numba_marlin.execution import arrays

SLICES = st.builds(slice, st.integers(0, 3), st.integers(4, 8), st.sampled_from((1, 2, 3)))


def device_view(address, shape, strides, device=0):
    return arrays.ArrayView(
        None, "cuda", device, address, shape, np.dtype(np.float16), strides, False
    )


@given(rows=SLICES, columns=SLICES, transpose=st.booleans())
def test_contiguity_and_extent_agree_with_numpy(rows, columns, transpose):
    base = np.zeros((8, 8), np.float16)
    array = base[rows, columns]
    array = array.T if transpose else array
    view = arrays.view("x", array)
    assert view.contiguous == array.flags.c_contiguous
    low, high = (np.lib.array_utils if hasattr(np.lib, "array_utils") else np).byte_bounds(array)
    assert view.extent() == (low, high)


@given(rows=SLICES, columns=SLICES)
def test_contiguous_copies_exactly_when_needed(rows, columns):
    base = arrays.aligned_empty((8, 8), np.float16)
    base[...] = np.arange(64).reshape(8, 8)
    array = base[rows, columns]
    result = arrays.contiguous("x", arrays.view("x", array))
    assert np.array_equal(result.host, array)
    assert result.contiguous and result.address % 16 == 0
    assert np.shares_memory(result.host, base) == (
        array.flags.c_contiguous and array.ctypes.data % 16 == 0
    )


def test_device_arrays_overlap_by_extent_on_the_same_device_only():
    a = device_view(4096, (4, 8), (16, 2))
    assert arrays.overlap(a, device_view(4096 + 63, (4, 8), (16, 2)))
    assert not arrays.overlap(a, device_view(4096 + 64, (4, 8), (16, 2)))
    assert not arrays.overlap(a, device_view(4096, (4, 8), (16, 2), device=1))
    assert arrays.overlap(a, device_view(4096 + 100, (4, 8), (-16, 2))), (
        "negative strides reach below the address"
    )


def test_a_device_array_that_cannot_be_copied_is_refused_with_its_strides():
    with pytest.raises(
        ValueError,
        match=r"x \(strides \(32, 2\), address % 16 = 0\) must be C-contiguous and 16-byte aligned",
    ):
        arrays.contiguous("x", device_view(4096, (4, 8), (32, 2)))


def test_the_cuda_array_interface_is_read(monkeypatch):
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 3)

    def viewed(**changes):
        interface = {
            "shape": (4, 8),
            "typestr": "<f2",
            "data": (4096, True),
            "version": 3,
        } | changes
        return arrays.view("x", SimpleNamespace(__cuda_array_interface__=interface))

    view = viewed()
    assert (view.device, view.address, view.shape, view.dtype, view.readonly) == (
        3,
        4096,
        (4, 8),
        np.float16,
        True,
    )
    assert view.strides == (16, 2) and view.contiguous and view.stream == 0
    assert viewed(strides=(32, 2)).contiguous is False
    assert viewed(stream=1).stream == 0, "1 is the interface's name of the legacy default stream"
    assert viewed(stream=77).stream == 77


def test_an_array_of_cupy_on_a_device_that_is_not_current_is_copied_where_it_lies_in_its_own_order(
    monkeypatch,
):
    current = [0]

    class ndarray:
        __module__ = "cupy"

        def __init__(self, device, strides):
            self.device = device
            self.__cuda_array_interface__ = {
                "shape": (4, 8),
                "typestr": "<f2",
                "data": (4096 * (1 + device), False),
                "strides": strides,
                "version": 3,
            }

        def copy(self, order):
            return ndarray(current[0], None)

    @contextlib.contextmanager
    def on(device):
        before, current[0] = current[0], device
        yield
        current[0] = before

    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            Device=on, get_current_stream=lambda device=0: SimpleNamespace(ptr=70 + device)
        )
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: address // 4096 - 1)
    view = arrays.view("x", ndarray(1, (32, 2)))
    copy = arrays.contiguous("x", view)
    assert (
        view.kind == "cupy"
        and view.stream == 71
        and (copy.device, copy.stream, copy.contiguous) == (1, 71, True)
        and current == [0]
    )


class Tensor:
    """A stand-in for torch's, on the CPU."""

    __module__ = "torch"
    device, strides = SimpleNamespace(type="cpu", index=None), (2, 1)

    def __init__(self, dtype, values=None):
        self.dtype, self.values, self.shape = f"torch.{dtype}", values, (2, 2)

    def __array__(self, *arguments, **options):
        raise AssertionError("numpy() and float() suffice")

    def detach(self):
        return self

    def numpy(self):
        if self.values is None:
            raise TypeError(f"Got unsupported ScalarType {self.dtype}")
        return self.values

    def float(self):
        return Tensor("float32", np.array([[1.5, 2], [3, 4]], np.float32))

    def element_size(self):
        return 2

    def data_ptr(self):
        return 4096

    def stride(self):
        return self.strides


def test_a_bfloat16_tensor_comes_as_float32_and_is_quantised():
    assert arrays.to_host(arrays.view("w", Tensor("bfloat16"))).dtype == np.float32
    assert nm.quantize(Tensor("bfloat16"), group_size=-1).codes.tolist() == [[12, 12], [15, 15]]


def test_a_tensor_type_that_numpy_does_not_have_is_refused_by_name():
    with pytest.raises(
        TypeError, match="a torch tensor of float8_e4m3fn must be of a type that NumPy has"
    ):
        nm.quantize(Tensor("float8_e4m3fn"))


def test_a_tensor_of_a_class_of_the_users_is_a_tensor():
    mine = type("Mine", (Tensor,), {"__module__": "mine"})("bfloat16")
    view = arrays.view("x", mine)
    assert view.kind == "torch" and view.type_name == "bfloat16"


def test_a_tensor_whose_memory_was_taken_away_is_refused():
    freed = Tensor("float16", np.zeros((2, 2), np.float16))
    freed.data_ptr = lambda: 0
    with pytest.raises(ValueError, match=r"a torch tensor of shape \(2, 2\) has no memory"):
        arrays.view("x", freed)


@pytest.mark.parametrize(
    "stream, handle",
    [
        (None, 5),
        (0, 0),
        (77, 77),
        (SimpleNamespace(cuda_stream=8), 8),
        (SimpleNamespace(ptr=9), 9),
        (SimpleNamespace(handle=SimpleNamespace(value=10)), 10),
        (SimpleNamespace(handle=SimpleNamespace(value=None)), 0),
    ],
)
def test_streams_of_every_library_give_their_handle(stream, handle):
    assert arrays.stream_handle(stream, 5) == handle


def test_a_stream_of_no_known_kind_is_a_type_error():
    with pytest.raises(TypeError, match="stream is a str"):
        arrays.stream_handle("fast", 0)
