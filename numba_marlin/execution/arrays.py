"""A common view of arrays of every library, and the few operations on them.

``view(name, array)`` -> ``ArrayView``. Kinds: ``numpy``, ``torch``, ``cupy``, ``numba``, and
``cuda`` (any other object with ``__cuda_array_interface__``). A torch tensor on the CPU and any CPU
array that supports DLPack become NumPy views of the same memory. Anything else is a TypeError that
names the argument and the conversion.

``contiguous(view, alignment)`` copies if strides or address require it; ``rows`` copies only if a
kernel that takes the stride of rows could not read them. ValueError for a kind that cannot copy on
the device. ``empty_like(view, shape)`` allocates the same kind and type on the same device.
``overlap(a, b)``: whether they share memory; ``overlaps_itself(view)``: whether its elements do.

bfloat16: a torch tensor's dtype is the name; on the host its elements are those of ml_dtypes
(``formats.floats``), imported when asked for.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_marlin.formats.floats import float_type
from numba_marlin.formats.residence import on_host

LIBRARIES = ("torch", "cupy", "numba")
LEGACY_STREAM = 0
# torch's and NumPy's
_SHARED_DTYPES = {
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "complex128",
}
_STREAM_OF_INTERFACE = {None: LEGACY_STREAM, 1: LEGACY_STREAM}  # 1: the legacy default stream


@functools.lru_cache(maxsize=64)
def _name(dtype: np.dtype) -> str:
    """NumPy's name of the type; with its byte order if that is not native (">f2"). Cached, because
    NumPy takes 2 us to compute it."""
    return dtype.name if dtype.isnative else dtype.str


@dataclass(frozen=True, eq=False)
class ArrayView:
    """An array as kernels see it. ``strides`` in bytes; ``device`` is None on the host; ``owner``
    keeps the memory alive.

    ``stream``: the raw handle of the stream that the array's library would use now.
    """

    owner: object
    kind: str
    device: int | None
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype | str
    strides: tuple[int, ...]
    readonly: bool
    stream: int = LEGACY_STREAM

    @property
    def on_host(self) -> bool:
        return self.device is None

    @property
    def type_name(self) -> str:
        """The type's name; a plain name means native byte order, the only one that kernels read."""
        return self.dtype if isinstance(self.dtype, str) else _name(self.dtype)

    @property
    def itemsize(self) -> int:
        return self.owner.element_size() if isinstance(self.dtype, str) else self.dtype.itemsize

    @property
    def host(self) -> np.ndarray:
        """The NumPy array over the same memory; only on the host."""
        if isinstance(self.owner, np.ndarray):
            return self.owner
        if self.dtype == "bfloat16":
            return (
                self.owner.detach()
                .view(sys.modules["torch"].int16)
                .numpy()
                .view(float_type("bfloat16"))
            )
        return self.owner.detach().numpy()

    @property
    def contiguous(self) -> bool:
        expected = self.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def extent(self) -> tuple[int, int]:
        """First and one past the last byte that any element touches."""
        spans = [(size - 1) * stride for size, stride in zip(self.shape, self.strides)]
        low = self.address + sum(span for span in spans if span < 0)
        return low, self.address + sum(span for span in spans if span > 0) + self.itemsize


def _library(array: object) -> str:
    """The one of LIBRARIES that defines the array's class or a base of it; else the module that
    defines the class."""
    homes = [each.__module__.partition(".")[0] for each in type(array).__mro__]
    return next((home for home in homes if home in LIBRARIES), homes[0])


def _view_numpy(array: np.ndarray, kind: str = "numpy", owner: object = None) -> ArrayView:
    return ArrayView(
        owner=array if owner is None else owner,
        kind=kind,
        device=None,
        address=array.ctypes.data,
        shape=array.shape,
        dtype=array.dtype,
        strides=array.strides,
        readonly=not array.flags.writeable,
    )


def _view_torch(tensor) -> ArrayView:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.device.type not in ("cuda", "cpu"):
        raise TypeError(f"a torch tensor on {tensor.device} must be on the CPU or a CUDA device")
    host = (
        tensor.detach().numpy() if tensor.device.type == "cpu" and dtype in _SHARED_DTYPES else None
    )
    if math.prod(tensor.shape) and not tensor.data_ptr():
        raise ValueError(
            f"a torch tensor of shape {tuple(tensor.shape)} has no memory: its storage was resized"
            " or given up"
        )
    if host is not None:
        return _view_numpy(host, "torch", tensor)
    device = tensor.device.index if tensor.device.type == "cuda" else None
    itemsize = tensor.element_size()
    return ArrayView(
        owner=tensor,
        kind="torch",
        device=device,
        address=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        dtype=np.dtype(dtype) if dtype in _SHARED_DTYPES else dtype,
        strides=tuple(stride * itemsize for stride in tensor.stride()),
        readonly=False,
        stream=(
            0
            if device is None
            else sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
        ),
    )


def _device_of_pointer(address: int) -> int:
    from numba_marlin.execution import driver

    attribute = driver.bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(driver.call("cuPointerGetAttribute", attribute, address))


def _view_cuda(array, kind: str) -> ArrayView:
    interface = array.__cuda_array_interface__
    address, readonly = interface["data"]
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    device = _device_of_pointer(address) if address else 0
    declared = interface.get("stream")
    stream = _STREAM_OF_INTERFACE.get(declared, declared)
    if kind == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream(device).ptr
    return ArrayView(
        owner=array,
        kind=kind,
        device=device,
        address=address,
        shape=shape,
        dtype=dtype,
        strides=tuple(strides),
        readonly=readonly,
        stream=stream,
    )


def view(name: str, array: object) -> ArrayView:
    """The ArrayView of ``array``. ``name``: the argument's name, for messages."""
    if isinstance(array, np.ndarray):
        return _view_numpy(array)
    library = _library(array)
    if library == "torch" and hasattr(array, "data_ptr"):
        return _view_torch(array)
    if hasattr(array, "__cuda_array_interface__"):
        return _view_cuda(array, library if library in ("cupy", "numba") else "cuda")
    if hasattr(array, "__dlpack__"):
        try:
            return _view_numpy(np.from_dlpack(array))
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise TypeError(
                f"{name} is a {type(array).__name__} whose DLPack export NumPy cannot read"
                f" ({error}); pass torch.from_dlpack(...) or cupy.from_dlpack(...) of it"
            ) from error
    raise TypeError(
        f"{name} is a {type(array).__name__}, must be an array of NumPy, CuPy, torch or Numba, or"
        " support __cuda_array_interface__ or DLPack"
    )


def aligned_empty(shape: tuple[int, ...], dtype, alignment: int = 16) -> np.ndarray:
    """A C-contiguous NumPy array whose address is a multiple of ``alignment``."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def contiguous(name: str, array: ArrayView, alignment: int = 16) -> ArrayView:
    """``array`` itself if it is C-contiguous and aligned, else a copy of the same kind."""
    if array.contiguous and array.address % alignment == 0:
        return array
    if array.on_host:
        copy = aligned_empty(array.shape, float_type(array.dtype), alignment)
        copy[...] = array.host
        return _view_numpy(copy)
    if array.kind == "torch":
        return _view_torch(
            array.owner.detach().clone(memory_format=sys.modules["torch"].contiguous_format)
        )
    if array.kind == "cupy":
        with sys.modules["cupy"].cuda.Device(array.device):
            return _view_cuda(array.owner.copy(order="C"), "cupy")
    raise ValueError(
        f"{name} (strides {array.strides}, address % {alignment} = {array.address % alignment})"
        f" must be C-contiguous and {alignment}-byte aligned: a {type(array.owner).__name__} cannot"
        " be copied here"
    )


def rows(name: str, array: ArrayView, alignment: int = 16) -> ArrayView:
    """The matrix itself if its rows are contiguous, aligned and disjoint, with any stride; else a
    C-contiguous copy."""
    (count, length), (row_stride, stride) = array.shape, array.strides
    alone = count == 1 or (row_stride % alignment == 0 and row_stride >= length * array.itemsize)
    if alone and (length == 1 or stride == array.itemsize) and array.address % alignment == 0:
        return array
    return contiguous(name, array, alignment)


def take_columns(name: str, array: ArrayView, columns: Any) -> object:
    """A new matrix of the same library, type and place: column i is column ``columns[i]``. columns:
    integers, of NumPy, or of array's library where array is."""
    if array.kind == "torch":
        index = columns.copy() if isinstance(columns, np.ndarray) else columns  # may be read-only
        index = sys.modules["torch"].as_tensor(index, device=array.owner.device)
        return array.owner.detach().index_select(1, index)
    if array.kind == "cupy":
        with sys.modules["cupy"].cuda.Device(array.device):
            return array.owner.take(sys.modules["cupy"].asarray(columns), axis=1)
    if array.on_host:
        return array.host[:, on_host(columns)]
    raise ValueError(
        f"{name} is a {type(array.owner).__name__}, whose columns cannot be permuted here as this"
        " weight needs it: pass a torch or CuPy array"
    )


def row_distance(array: ArrayView) -> int:
    """Stride between the rows of a matrix, in elements."""
    return array.shape[1] if array.shape[0] == 1 else array.strides[0] // array.itemsize


def empty_like(array: ArrayView, shape: tuple[int, ...], dtype: str | None = None) -> object:
    """A new array of ``shape``, of the same library and on the same device as ``array``. dtype:
    name of its type; default: that of ``array``."""
    if array.kind == "torch":
        return (
            array.owner.new_empty(shape)
            if dtype is None
            else array.owner.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))
        )
    if dtype is not None:
        array = replace(array, dtype=float_type(dtype))
    if array.kind == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(array.device):
            return cupy.empty(shape, dtype=array.dtype)
    if array.kind == "numba":
        cuda = sys.modules["numba"].cuda
        with cuda.gpus[array.device]:
            return cuda.device_array(shape, dtype=array.dtype)
    if array.kind == "cuda":
        from numba_marlin.execution.driver import DeviceArray

        return DeviceArray(shape, array.dtype, array.device)
    return aligned_empty(shape, array.dtype)


def overlap(a: ArrayView, b: ArrayView) -> bool:
    """Whether the two share memory. Exact on the host where that is cheap; on a device the extents
    decide."""
    (a_low, a_high), (b_low, b_high) = a.extent(), b.extent()
    if a.device != b.device or a_high <= b_low or b_high <= a_low:
        return False
    if a.on_host:
        try:
            return np.shares_memory(a.host, b.host, max_work=10_000)
        except getattr(np, "exceptions", np).TooHardError:  # np.exceptions came with NumPy 1.25
            return True
    return True


def overlaps_itself(array: ArrayView) -> bool:
    """Whether elements may share memory: whether a stride ends within what smaller ones span."""
    reach = array.itemsize
    for stride, size in sorted((abs(s), size) for s, size in zip(array.strides, array.shape)):
        if size > 1 and stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def to_host(array: ArrayView, exact: bool = False) -> np.ndarray:
    """The elements as a NumPy array: the same memory on the host, a copy (of all work on its
    stream) from a device.

    torch's bfloat16 becomes float32, or with ``exact`` the bfloat16 of ml_dtypes. TypeError for
    other types that NumPy does not have.
    """
    if array.type_name == "bfloat16" and isinstance(array.dtype, str):
        if exact:
            words = to_host(_view_torch(array.owner.detach().view(sys.modules["torch"].int16)))
            return words.view(float_type("bfloat16"))
        array = _view_torch(array.owner.detach().float())
    if isinstance(array.dtype, str):
        raise TypeError(
            f"a torch tensor of {array.dtype} must be of a type that NumPy has:"
            f" {', '.join(sorted(_SHARED_DTYPES))}"
        )
    if array.on_host:
        return array.host
    from numba_marlin.execution import driver

    array = contiguous("array", array, 1)
    result = np.empty(array.shape, array.dtype)
    driver.synchronize(array.device, array.stream)
    with driver.on_device(array.device):
        driver.call("cuMemcpyDtoH", result.ctypes.data, array.address, result.nbytes)
    return result


def assign(array: ArrayView, values: np.ndarray) -> None:
    """Write ``values`` (same shape and dtype) into ``array``, wherever it is; a device array must
    be contiguous."""
    if array.on_host:
        array.host[...] = values
        return
    from numba_marlin.execution import driver

    values = np.ascontiguousarray(values)  # of the same type, bit for bit
    driver.synchronize(array.device, array.stream)
    with driver.on_device(array.device):
        driver.call("cuMemcpyHtoD", array.address, values.ctypes.data, values.nbytes)
        driver.call("cuStreamSynchronize", driver.bindings().CUstream(LEGACY_STREAM))


def stream_handle(stream: object, default: int) -> int:
    """The raw handle of ``stream``: an int, or a stream of torch, CuPy, Numba or cuda.core; None
    gives ``default``."""
    if stream is None:
        return default
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise ValueError(f"stream={stream} must not be negative: it is a raw handle")
        return stream
    for attribute in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, attribute, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)
    raise TypeError(
        f"stream is a {type(stream).__name__}, must be a raw handle or a stream of torch, CuPy,"
        " Numba or cuda.core"
    )
