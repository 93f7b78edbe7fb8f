"""Where the arrays of a packed weight live.

NumPy arrays, or arrays of another library on the host or a device: torch's, CuPy's, Numba's, or
this package's own ``execution.driver.DeviceArray``. This room reads only what all of them have
(type, shape, strides, bytes, device). What needs a device (``to`` one, copies on one) is asked of
``execution.residence`` by name, because nothing here may import it.

A *place* is "cpu" or "cuda:N".
"""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from numba_marlin.formats.floats import float_type

HOST = "cpu"
ARRAYS = ("qweight", "scales", "zeros", "factors", "permutation")
"""The fields of a packed weight that may be arrays."""


def is_array(value: object) -> bool:
    """Whether ``value`` is an array of one of the libraries."""
    return isinstance(value, np.ndarray) or _is_tensor(value) or _interface(value) is not None


def _is_tensor(value: object) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def _interface(value: object) -> dict | None:
    """The CUDA array interface; None for what has none."""
    return None if _is_tensor(value) else getattr(value, "__cuda_array_interface__", None)


def type_name(array: Any) -> str:
    """The name of the element type: "int32", "bfloat16"; with its byte order if that is not native
    (">i4")."""
    if _is_tensor(array):
        return str(array.dtype).removeprefix("torch.")
    return array.dtype.name if array.dtype.isnative else array.dtype.str


def place_of(array: Any) -> str:
    """ "cpu", or "cuda:N" for an array on a device."""
    if _is_tensor(array):
        return HOST if array.device.type == HOST else str(array.device)
    if isinstance(array, np.ndarray):
        return HOST
    device = getattr(array, "device", None)
    number = getattr(device, "id", device)  # CuPy has an object, this package a number
    if not isinstance(number, int):
        number = array.gpu_data.context.device.id  # Numba's
    return f"cuda:{number}"


def contiguous(array: Any) -> bool:
    """Whether elements lie one after the other, row by row."""
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous
    if _is_tensor(array):
        return array.is_contiguous()
    strides = array.__cuda_array_interface__.get("strides")
    if strides is None:
        return True
    expected = np.dtype(array.__cuda_array_interface__["typestr"]).itemsize
    for size, stride in zip(reversed(tuple(array.shape)), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def byte_size(array: Any) -> int:
    itemsize = 2 if type_name(array) == "bfloat16" else np.dtype(type_name(array)).itemsize
    return math.prod(array.shape) * itemsize


def on_host(array: Any) -> np.ndarray:
    """The elements as a NumPy array: the same memory if it is on the host, else a copy. torch's
    bfloat16 becomes that of ml_dtypes."""
    if isinstance(array, np.ndarray):
        return array
    if _is_tensor(array):
        tensor = array.detach().cpu()
        if type_name(array) == "bfloat16":
            return tensor.view(sys.modules["torch"].int16).numpy().view(float_type("bfloat16"))
        return tensor.numpy()
    for copy in ("to_host", "copy_to_host", "get"):  # this package's, Numba's, CuPy's
        if hasattr(array, copy):
            return getattr(array, copy)()
    raise TypeError(f"a {type(array).__name__} cannot be copied to the host")


def arrays_of(weight: Any, *but: str) -> dict[str, Any]:
    """{field: array} of a packed weight, without those that it has not, and the fields ``but``."""
    found = {name: getattr(weight, name, None) for name in ARRAYS if name not in but}
    return {name: array for name, array in found.items() if array is not None}


def place_of_weight(weight: Any) -> str:
    """The place of a packed weight's arrays. ValueError if they are in several: all that a kernel
    reads must be on one device."""
    places = {name: place_of(array) for name, array in arrays_of(weight).items()}
    first = places["qweight"]
    for name, place in places.items():
        if place != first:
            raise ValueError(f"{name} is on {place}, must be where qweight is: {first}")
    return first


def to(weight: Any, place: object, library: str | None = None) -> Any:
    """The weight with all arrays at ``place``; itself if they are there already."""
    place_of_weight(weight)  # raises if they are in several
    held = arrays_of(weight)
    found = moved(held, place, library)
    return weight if found is held else replace(weight, **found)


def moved(held: dict[str, Any], place: object, library: str | None = None) -> dict[str, Any]:
    """{field: array} of one place, at another; ``held`` itself if they are there already."""
    wanted = place_named(place)
    if wanted == HOST and library != "torch":
        if library is not None:
            raise ValueError(f"library={library!r} on the host must be 'torch', or None for NumPy")
        found = {name: on_host(array) for name, array in held.items()}
        return held if all(found[name] is array for name, array in held.items()) else found
    if library is None and place_of(held["qweight"]) == wanted:
        return held
    put = _execution().uploader(wanted, library)
    return {name: put(on_host(array)) for name, array in held.items()}


def place_named(place: object) -> str:
    """ "cpu" or "cuda:N" from "cpu", "cuda", "cuda:N", a number or a torch device. ValueError for
    anything else."""
    text = f"cuda:{place}" if isinstance(place, int) and place is not True else str(place)
    kind, _, number = text.partition(":")
    if kind == HOST and number in ("", "0"):
        return HOST
    if kind == "cuda" and (number.isdecimal() or text == "cuda"):
        return f"cuda:{int(number or 0)}"
    raise ValueError(f"place={place!r} must be 'cpu', 'cuda' or 'cuda:N'")


def copies(weight: Any) -> dict[str, int]:
    """{"cuda:N": bytes} of the device copies that products made of a weight on the host."""
    return _execution().copies(weight)


def drop_copies(weight: Any) -> None:
    _execution().drop_copies(weight)


def overwrite(weight: Any, other: Any) -> None:
    _execution().overwrite(weight, other)


def _execution():
    return importlib.import_module("numba_marlin.execution.residence")


class Residence:
    """What packed weights of every layout can do with their memory."""

    @property
    def place(self) -> str:
        """Where the arrays are: "cpu" or "cuda:N"."""
        return place_of_weight(self)

    def to(self, place: object, library: str | None = None):
        """The same weight with its arrays at ``place``; itself if they are there already.

        place: "cpu" (NumPy arrays), "cuda", "cuda:1", or a torch device. library: whose arrays to
            make: "torch" (also on the CPU), "cupy", or "own" (which have
            ``__cuda_array_interface__``); None: torch's or CuPy's on a device if the program has
            imported it, else own.

        Raises ValueError for an unknown place or library, CapabilityMissing without the device.
        """
        return to(self, place, library)

    @property
    def copies(self) -> dict[str, int]:
        """{"cuda:N": bytes} of the device copies that ``matmul`` keeps of a weight on the host. A
        weight that ``to`` has put on a device has none: kernels read its own arrays."""
        return copies(self)

    def drop_copies(self) -> None:
        """Free the device copies; the next product makes a new one. A CUDA graph that captured a
        product with this weight must not run again."""
        drop_copies(self)

    def overwrite(self, other) -> None:
        """Write the numbers of ``other`` into the memory of this weight, and into its device
        copies: a captured CUDA graph goes on with the new ones. ``other``: a weight of the same
        kind, sizes and types, anywhere. Waits for work on the current stream of the arrays'
        library, and until the numbers are there.

        Raises TypeError or ValueError, naming the difference, before anything is written; also for
        arrays that are read-only (a checkpoint's, mapped from a file)."""
        overwrite(self, other)
