"""Packed weights on devices: uploads, the copies that products make of weights on the host, and new
numbers in old memory. ``formats.residence`` has the methods of a weight that end here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from numba_marlin.execution import arrays, driver, gpu, repeat
from numba_marlin.formats.residence import HOST, arrays_of, on_host

LIBRARIES = ("torch", "cupy", "own")


def uploader(place: str, library: str | None = None) -> Callable[[np.ndarray], Any]:
    """What brings a NumPy array to the place, "cpu" or "cuda:N". library: as in ``Residence.to``;
    on the host it is torch."""
    if place == HOST:
        return tensor_of
    ordinal, library = ordinal_of(place), _library(library)
    driver.primary_context(ordinal)  # its errors are clearer than those of the libraries
    if library == "own":
        return functools.partial(driver.DeviceArray.from_host, device=ordinal)
    if library == "torch":
        return lambda array: tensor_of(array).cuda(ordinal)
    return functools.partial(_to_cupy, ordinal=ordinal)


def _library(name: str | None) -> str:
    """The one of LIBRARIES that makes arrays on a device."""
    if name is None:
        return next((each for each in LIBRARIES[:-1] if each in sys.modules), "own")
    if name not in LIBRARIES:
        raise ValueError(f"library={name!r} must be one of {', '.join(LIBRARIES)}")
    return name


def ordinal_of(place: str) -> int:
    """Of "cuda:N": N."""
    return int(place.partition(":")[2])


def empty(shape: tuple[int, ...], dtype: str, ordinal: int, library: str | None = None) -> Any:
    """A new array on a device. library: as in ``Residence.to``."""
    library = _library(library)
    driver.primary_context(ordinal)
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=f"cuda:{ordinal}")
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(ordinal):
            return cupy.empty(shape, dtype)
    return driver.DeviceArray(shape, dtype, ordinal)


def tensor_of(array: np.ndarray):
    """A torch tensor over the same memory; a copy of a read-only array (a checkpoint's), which
    torch cannot say of a tensor. bfloat16 is ml_dtypes' here and torch's there."""
    import torch

    source = array if array.flags.writeable else array.copy()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(source.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(source)


def _to_cupy(array: np.ndarray, ordinal: int):
    import cupy

    with cupy.cuda.Device(ordinal):
        return cupy.asarray(array)


def copies(weight: Any) -> dict[str, int]:
    """{"cuda:N": bytes} of the copies that ``gpu.kept_on_device`` keeps."""
    found: dict[str, int] = {}
    for owner in _owners(weight):
        for ordinal, held in sorted(gpu.kept_copies(owner).items()):
            place, nbytes = f"cuda:{ordinal}", sum(each.nbytes for each in held.values())
            found[place] = found.get(place, 0) + nbytes
    return found


def drop_copies(weight: Any) -> None:
    for owner in _owners(weight):
        repeat.forget(owner)
        gpu.kept_copies(owner).clear()


def _owners(weight: Any) -> list:
    """The objects that products keep copies for: the weight, and what ``matmul`` multiplies in its
    place if it has an activation order."""
    ordered = vars(weight).get("sorted_rows")
    return [weight] if ordered in (None, weight) else [weight, ordered]


def overwrite(weight: Any, other: Any) -> None:
    """Write ``other``'s numbers into the memory of ``weight`` and into its device copies."""
    if type(other) is not type(weight):
        raise TypeError(
            f"the other weight is a {type(other).__name__}, must be a {type(weight).__name__}"
        )
    for name in ("layout", "k", "n", "bits", "group_size", "scale_grid", "dtype"):
        mine, others = getattr(weight, name, None), getattr(other, name, None)
        if mine != others:
            raise ValueError(f"{name}={others!r} of the other weight must be {mine!r}, this one's")
    mine, others = arrays_of(weight), arrays_of(other)
    if mine.keys() != others.keys():
        differ = ", ".join(sorted(mine.keys() ^ others.keys()))
        raise ValueError(f"one weight has {differ}, the other does not: they must be alike")
    views = {name: arrays.view(name, array) for name, array in mine.items()}
    for name, view in views.items():
        if view.readonly:
            raise ValueError(
                f"{name} is read-only, as a checkpoint's arrays are: write to a copy of the weight"
            )
        there = arrays.view(name, others[name]).type_name
        if there != view.type_name:
            raise ValueError(f"{name}.dtype={there} must be {view.type_name}, this weight's")
    values = {name: np.ascontiguousarray(on_host(array)) for name, array in others.items()}
    order = mine.get("permutation")
    if isinstance(order, np.ndarray) and not np.array_equal(order, values["permutation"]):
        raise ValueError(
            "the activation orders (permutation) must be equal: a captured graph has a copy of this"
            " weight's; put it on the device with p.to(...) before the capture"
        )
    for name, view in views.items():
        arrays.assign(view, values[name])
    for owner in _owners(weight):
        for held in gpu.kept_copies(owner).values():
            for name, copy in held.items():
                field = "qweight" if name == "b" else name
                arrays.assign(arrays.view(name, copy), values[field])
    # the other's factors are those of its global scale, which kernels do not read
    for name in ("global_scale", "divides", "input_scale", "input_divides"):
        if hasattr(weight, name):
            object.__setattr__(weight, name, getattr(other, name))
