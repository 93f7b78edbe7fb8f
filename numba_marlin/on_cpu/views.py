"""Arrays that a launch copies to the device and back, in place of cuda.core's StridedMemoryView,
which asks a driver about every pointer."""

from __future__ import annotations

from dataclasses import dataclass
from warnings import warn

import numpy as np


@dataclass(frozen=True)
class ArrayView:
    """What numba-cuda reads of a strided memory view. ``owner`` keeps the memory."""

    ptr: int
    shape: tuple[int, ...]
    dtype: np.dtype
    size: int
    _layout: object
    owner: object


def make_host_view(devicearray):
    """In place of devicearray._make_strided_memory_view."""

    def host_view(obj, *, stream_ptr):
        array = np.asanyarray(obj)
        return ArrayView(
            array.ctypes.data, array.shape, array.dtype, array.size, layout(devicearray, array), obj
        )

    return host_view


def make_device_view(devicearray, cuda, config, warning: type):
    """In place of devicearray._to_strided_memory_view: (view, was it copied from the host?).
    ``cuda``: the package that it belongs to, with its ``config`` and its kind of ``warning``."""

    def device_view(obj, stream=0, copy=True, user_explicit=False):
        if devicearray._driver.is_device_memory(obj):
            return obj._strided_memory_view_shim, False
        if hasattr(obj, "__cuda_array_interface__"):
            array = cuda.as_cuda_array(obj)
            return array._strided_memory_view_shim, False
        array = np.asanyarray(obj)
        if not array.flags.forc:  # numba-cuda would copy as many bytes as a dense array has
            raise ValueError(devicearray.errmsg_contiguous_buffer)
        copied = devicearray.DeviceNDArray(array.shape, array.strides, array.dtype)
        if copy:
            implicit = type(obj) is np.ndarray and not user_explicit
            if (
                implicit
                and config.CUDA_WARN_ON_IMPLICIT_COPY
                and not config.DISABLE_PERFORMANCE_WARNINGS
            ):
                text = "Host array used in CUDA kernel will incur copy overhead to/from device."
                warn(warning(text), stacklevel=2)
            if array.nbytes:
                devicearray._driver.driver.cuMemcpyHtoD(
                    copied.device_ctypes_pointer.value, array.ctypes.data, array.nbytes
                )
        view = copied._strided_memory_view_shim
        return ArrayView(
            view.ptr or 0, view.shape, view.dtype, view.size, view._layout, copied
        ), True

    return device_view


def layout(devicearray, array: np.ndarray):
    return devicearray._StridedLayoutShim(
        strides_in_bytes=array.strides,
        is_contiguous_c=array.flags.c_contiguous,
        is_contiguous_f=array.flags.f_contiguous,
        is_contiguous_any=array.flags.forc,
    )
