"""``calibrate(model, batches)``: runs a torch model and listens to the inputs of its linear layers.

Layers that are called with the same tensor, as q, k and v of an attention are, share one Hessian:
who is called with the tensor of another layer's first call joins it, and who is later called with
another tensor than the others, or is not called where they are, goes its own way with a copy.
Inputs that some of the layers have not had yet are kept until they have, so what is added is
always what each layer had.

Inputs are brought to the host and multiplied there (``quantizers.hessian``). Memory: 8 k^2 bytes
for each shared input of all layers together (Llama 2 7B: 41 GiB), or, with ``spill``, pages
of files that the system may write out; besides that the model, and the inputs of the layers that
are just being called.
"""

from __future__ import annotations

import fnmatch
import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_marlin.calibration.store import Hessians, in_memory
from numba_marlin.quantizers.hessian import Hessian
from numba_marlin.wording import did_you_mean


class NeverCalled(ValueError):
    """No batch reached some of the layers. ``hessians``: those of the others."""

    def __init__(self, layers: list[str], batches: int, hessians: Hessians):
        self.layers, self.hessians = layers, hessians
        count = f"{batches} batch{'es' * (batches != 1)}"
        rest = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        super().__init__(
            f"layer {layers[0]!r}{rest}: called with no inputs in {count}, must be with some for a"
            " Hessian: give batches that reach it, or name the layers with layers=[...] (this"
            f" error's .hessians are those of the {len(hessians)} others)"
        )


def calibrate(
    model: Any,
    batches: Iterable,
    layers: Iterable[str] | None = None,
    *,
    spill: str | os.PathLike[str] | None = None,
) -> Hessians:
    """Run a torch model on some batches -> ``Hessians``: the name of every ``torch.nn.Linear`` ->
    the Hessian of its inputs.

    model: a torch.nn.Module, all of it on one device. It runs without gradients and in evaluation
        mode, and is left as it was.
    batches: what the model is called with, one after the other, read once: a tensor, a tuple or
        list of arguments, or a dict of keyword arguments. Tensors are brought to the model's
        device. Every row of a layer's inputs counts, also those of padding: leave it out.
    layers: names of layers, with * and ?, as ``model.named_modules()`` has them; default: all.
    spill: a directory for the sums, where memory does not hold them (8 k^2 bytes for each input).

    Raises NeverCalled, a ValueError, for layers that no batch reached; TypeError or ValueError for
    another model or other batches, and for inputs that are not finite, naming batch, layer and
    value.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, must be a torch.nn.Module")
    if hasattr(model, "_orig_mod"):  # its hooks would be traced
        raise TypeError(
            "model is compiled by torch.compile, must be the model itself: model._orig_mod"
        )
    if isinstance(batches, (Mapping, str, torch.Tensor)) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches is a {type(batches).__name__}, must be an iterable of batches: [batch] for"
            " one"
        )
    chosen = _chosen(model, torch.nn.Linear, layers)
    device = _device(model)
    heard = _Heard(spill)
    number = 0
    # inference mode would hide whether a tensor has changed since another layer had it
    with _listening(model, chosen, heard), torch.inference_mode(False), torch.no_grad():
        for batch in batches:
            heard.batch = f"batches[{number}]"
            _call(model, batch, device, heard.batch)
            heard.end_of_call()
            number += 1
    if not number:
        raise ValueError("batches holds no batch, must hold at least one")
    found = in_memory({name: heard.of[name].hessian for name in chosen if heard.has(name)})
    missing = [name for name in chosen if name not in found]
    if missing:
        raise NeverCalled(missing, number, found)
    return found


def _chosen(model, kind: type, layers: Iterable[str] | None) -> dict[str, Any]:
    """Name -> module of the linear layers to listen to."""
    linear = {name: each for name, each in model.named_modules() if isinstance(each, kind)}
    if not linear:
        raise ValueError(f"model is a {type(model).__name__} without any torch.nn.Linear")
    if layers is None:
        return linear
    chosen: dict[str, Any] = {}
    for pattern in [layers] if isinstance(layers, str) else layers:
        names = [name for name in linear if fnmatch.fnmatchcase(name, pattern)]
        if not names:
            near = did_you_mean(pattern, linear)
            raise ValueError(f"layers: {pattern!r} is no torch.nn.Linear of the model{near}")
        chosen |= {name: linear[name] for name in names}
    if not chosen:
        raise ValueError("layers holds no name, must hold one or more; None stands for all")
    return chosen


def _device(model):
    """The device of all parameters; None for a model without any."""
    first: dict[str, tuple[str, Any]] = {}
    for name, each in model.named_parameters():
        first.setdefault(str(each.device), (name, each.device))
    if len(first) > 1:
        places = " and ".join(f"{name!r} on {place}" for place, (name, _) in first.items())
        raise ValueError(
            f"model has parameters on {len(first)} devices, {places}: must be on one: model.to(...)"
        )
    if "meta" in first:
        raise ValueError(
            f"model has parameters without values: {first['meta'][0]!r} is on meta, must be on a"
            " device: load the weights"
        )
    return next((device for _, device in first.values()), None)


def _call(model, batch, device, what: str) -> None:
    if isinstance(batch, Mapping):
        model(**{name: _moved(each, device) for name, each in batch.items()})
    elif isinstance(batch, (tuple, list)):
        model(*(_moved(each, device) for each in batch))
    elif hasattr(batch, "device") and hasattr(batch, "to"):
        model(_moved(batch, device))
    else:
        raise TypeError(
            f"{what} is a {type(batch).__name__}, must be a tensor, a tuple of arguments or a dict"
            " of keyword arguments"
        )


def _moved(value, device):
    if device is not None and hasattr(value, "device") and hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(each, device) for each in value)
    return value


@contextmanager
def _listening(model, chosen: Mapping[str, Any], heard: _Heard) -> Iterator[None]:
    training = {each: each.training for each in model.modules()}

    def hook(name: str):
        return lambda module, args, kwargs: heard.hear(
            name, args[0] if args else kwargs["input"], module.in_features
        )

    handles = [
        each.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, each in chosen.items()
    ]
    try:
        model.eval()
        yield
    finally:
        for handle in handles:
            handle.remove()
        for each, mode in training.items():
            each.training = mode


class _Input:
    """A tensor as it is now. It is not kept alive."""

    def __init__(self, x: Any):
        self.tensor, self.version = weakref.ref(x), x._version

    def is_still(self, x: Any) -> bool:
        tensor = self.tensor()
        return tensor is not None and tensor is x and self.version == tensor._version


@dataclass(eq=False)
class _Group:
    """Layers that have had the same inputs so far. first: their only input, while they have had one
    only. waiting: the layers that have not had ``pending`` yet, whose ``values`` are not added
    before they have."""

    layers: set[str]
    hessian: Hessian
    first: _Input | None
    pending: _Input | None = None
    values: Any = None
    waiting: set[str] = field(default_factory=set)


class _Heard:
    """What the hooks have heard: ``of``, layer -> its group."""

    def __init__(self, spill):
        self.spill, self.batch = spill, ""
        self.of: dict[str, _Group] = {}
        self.young: list[_Group] = []  # with one input, which may still come to others

    def has(self, name: str) -> bool:
        return name in self.of and self.of[name].hessian.rows > 0

    def hear(self, name: str, x, k: int) -> None:
        """x: the input [..., k] that the layer is called with."""
        group = self.of.get(name)
        if group is None:
            self.of[name] = self._joined(name, x, k)
            return
        if group.pending is not None and not (name in group.waiting and group.pending.is_still(x)):
            self._part(group)
            group = self.of[name]
        if group.pending is None:
            group.first, group.waiting = None, set(group.layers)
            if len(group.layers) > 1:
                group.pending, group.values = _Input(x), self._values(x, keep=True)
            else:
                group.values = self._values(x)
        group.waiting.discard(name)
        if not group.waiting:
            self._add(name, group)

    def end_of_call(self) -> None:
        """The model has returned: who has not had an input by now does not get it."""
        for group in {id(each): each for each in self.of.values()}.values():
            if group.pending is not None:
                self._part(group)
        self.young = []

    def _joined(self, name: str, x, k: int) -> _Group:
        """The group of a layer that is called for the first time."""
        for group in self.young:
            if group.first is not None and group.first.is_still(x):
                group.layers.add(name)
                return group
        group = _Group({name}, Hessian(k, self.spill), _Input(x), values=self._values(x))
        self._add(name, group)
        self.young.append(group)
        return group

    def _part(self, group: _Group) -> None:
        """Those that have had ``pending`` leave the others."""
        left = group.layers - group.waiting
        new = _Group(left, group.hessian.copy(), None, values=group.values)
        self._add(min(left), new)
        group.layers, group.pending, group.values = set(group.waiting), None, None
        self.of |= dict.fromkeys(left, new)

    def _add(self, name: str, group: _Group) -> None:
        try:
            group.hessian.add(group.values)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.batch}: layer {name!r}: {error}") from error
        group.pending = group.values = None

    @staticmethod
    def _values(x, keep: bool = False) -> np.ndarray:
        """[..., k] on the host; keep: though the tensor may change."""
        torch = sys.modules["torch"]
        x = x.detach()
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        values = x.cpu().numpy()
        return values.copy() if keep else values
