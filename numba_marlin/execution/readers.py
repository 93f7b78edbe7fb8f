"""How ``repeat`` reads the arrays of each library, through the cheapest attributes.

``again`` is the fast path of ``matmul``, whose steps all add to the latency of each call: it looks
up the call, checks the arguments besides x, and launches. ``block_scaled_matmul``, which has more
arrays, uses the single steps: ``seen`` (what must equal the earlier call), ``stream``, ``address``,
``result``.
"""

from __future__ import annotations

import functools

from numba_marlin.execution import driver
from numba_marlin.formats.floats import float_type


class Torch:
    """torch.Tensor on a CUDA device."""

    def __init__(self, torch):
        self.current_device, self.current_stream = (
            torch._C._cuda_getDevice,
            torch._C._cuda_getCurrentRawStream,
        )
        self.capturing = torch.cuda.is_current_stream_capturing
        self.records_gradients = torch.is_grad_enabled
        self.type_named = functools.partial(getattr, torch)

    def seen(self, x) -> tuple:
        return x.shape, x.stride(), x.dtype, x.get_device(), self.loses_gradient(x)

    def loses_gradient(self, x) -> bool:
        """Whether the product, which has no gradient, must be refused."""
        return x.requires_grad and self.records_gradients()

    def key(self, x, choice: tuple, stream: int) -> tuple:
        return x.shape, x.stride(), x.dtype, x.get_device(), stream, choice

    def address(self, x) -> int:
        return x.data_ptr()

    def stream(self, x) -> int:
        return self.current_stream(x.get_device())

    def may_be_captured(self, x, call) -> bool:
        return self.capturing() if self.current_device() == x.get_device() else call.captured()

    def result(self, x, shape: tuple, type_name: str):
        return x.new_empty(shape, dtype=self.type_named(type_name))

    def again(self, calls: dict, x, out, bias, choice: tuple, stream: int | None):
        device = x.get_device()
        call = calls.get(
            (
                x.shape,
                x.stride(),
                x.dtype,
                device,
                self.current_stream(device) if stream is None else stream,
                choice,
            )
        )
        if call is None or not x.is_cuda or self.loses_gradient(x):
            return None
        if call.scratch and (
            self.capturing()
            if stream is None and self.current_device() == device
            else call.captured()
        ):
            return None
        if bias is not None and (
            not isinstance(bias, type(x))
            or bias.shape != call.shape[1:]
            or not bias.is_contiguous()
            or bias.dtype is not x.dtype
            or bias.device != x.device
            or self.loses_gradient(bias)
        ):
            return None
        if out is None:
            out = x.new_empty(call.shape)
        elif (
            type(out) is not type(x)
            or out.shape != call.shape
            or out.stride() != call.c_strides
            or out.dtype is not x.dtype
            or out.device != x.device
            or self.loses_gradient(out)
        ):
            return None
        return call.launch(
            x.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(), out
        )


class Cupy:
    """cupy.ndarray."""

    def __init__(self, cupy):
        self.empty, self.current_stream = cupy.ndarray, cupy.cuda.get_current_stream
        self.current_device, self.is_capturing = (
            cupy.cuda.runtime.getDevice,
            cupy.cuda.runtime.streamIsCapturing,
        )

    def seen(self, x) -> tuple:
        return x.shape, x.strides, x.dtype, x.data.device_id

    def key(self, x, choice: tuple, stream: int) -> tuple:
        return *self.seen(x), stream, choice

    def address(self, x) -> int:
        return x.data.ptr

    def stream(self, x) -> int | None:
        here = self.current_device() == x.data.device_id
        return self.current_stream().ptr if here else None

    def may_be_captured(self, x, call) -> bool:
        stream = call.bound.stream
        return stream not in driver.LEGACY_STREAMS and self.is_capturing(stream)

    def result(self, x, shape: tuple, type_name: str):
        return self.empty(shape, float_type(type_name))

    def again(self, calls: dict, x, out, bias, choice: tuple, stream: int | None):
        a, dtype = x.data, x.dtype
        device = a.device_id
        if stream is None:
            stream = self.current_stream().ptr
        call = calls.get((x.shape, x.strides, dtype, device, stream, choice))
        if (
            call is None
            or self.current_device() != device
            or (call.scratch and stream not in driver.LEGACY_STREAMS and self.is_capturing(stream))
        ):
            return None
        if bias is not None and (
            not isinstance(bias, type(x))
            or bias.shape != call.shape[1:]
            or not bias.flags.c_contiguous
            or bias.dtype != dtype
            or bias.data.device_id != device
        ):
            return None
        if out is None:
            out = self.empty(call.shape, dtype)
        elif (
            type(out) is not type(x)
            or out.shape != call.shape
            or out.strides != call.c_strides
            or out.dtype != dtype
            or out.data.device_id != device
        ):
            return None
        return call.launch(a.ptr, 0 if bias is None else bias.data.ptr, out.data.ptr, out)


class Numba:
    """numba.cuda's device arrays on the default stream. Allocating one takes several times as long
    as
    the rest of the call: pass ``out``."""

    def __init__(self, numba):
        self.empty, self.current_context = numba.cuda.device_array, numba.cuda.current_context

    def seen(self, x) -> tuple:
        return x.shape, x.strides, x.dtype, x.gpu_data.context.device.id

    def key(self, x, choice: tuple, stream: int) -> tuple | None:
        return (*self.seen(x), stream, choice) if x.stream == 0 else None

    def address(self, x) -> int:
        return x.device_ctypes_pointer.value

    def stream(self, x) -> int | None:
        here = self.current_context().device.id == x.gpu_data.context.device.id
        return 0 if here and x.stream == 0 else None

    def may_be_captured(self, x, call) -> bool:
        return False  # the legacy default stream

    def result(self, x, shape: tuple, type_name: str):
        return self.empty(shape, float_type(type_name))

    def again(self, calls: dict, x, out, bias, choice: tuple, stream: int | None):
        if x.stream != 0 or bias is not None:
            return None
        device = x.gpu_data.context.device.id
        call = calls.get((x.shape, x.strides, x.dtype, device, stream or 0, choice))
        if call is None or (stream and call.scratch and call.captured()):
            return None
        if out is None:
            if self.current_context().device.id != device:
                return None
            out = self.empty(call.shape, x.dtype)
        elif (
            type(out) is not type(x)
            or out.shape != call.shape
            or out.strides != call.c_strides
            or out.dtype != x.dtype
            or out.gpu_data.context.device.id != device
        ):
            return None
        return call.launch(x.device_ctypes_pointer.value, 0, out.device_ctypes_pointer.value, out)


# exact types only: a subclass may behave differently
READERS = {"torch.Tensor": Torch, "cupy.ndarray": Cupy, "numba.DeviceNDArray": Numba}
