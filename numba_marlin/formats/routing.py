"""Which token goes to which expert, and the lists that a kernel of a mixture of experts walks.

A *pair* is a token and one of the experts that it goes to: number ``token * top_k + slot``, slot
being the place of the expert among the token's. ``Routing.of(ids, weights, experts)`` sorts pairs
by expert, stably, so those of an expert stand in the order of tokens, and notes where each expert's
begin. On a device nothing waits, and a CUDA graph can capture it.

    routing.pairs[routing.offsets[e] : routing.offsets[e + 1]] // top_k   # the tokens of expert e

With experts on several devices (expert parallelism) ``local(first, count)`` is the routing to some
of them: pairs of other experts are in no list.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_marlin.formats import residence


@dataclass(frozen=True, eq=False)
class Routing:
    """The routing of m tokens; all arrays are NumPy's, or torch tensors on one device."""

    #: The experts of each token, int32 [m, top_k], 0 .. experts - 1; those of other devices are
    #: outside of that range.
    ids: Any
    #: What the expert's result is multiplied by, float32 [m, top_k].
    weights: Any
    #: Pairs, sorted by expert, int32 [m * top_k]; after offsets[experts] those of other devices.
    pairs: Any
    #: Where each expert's pairs begin in ``pairs``, int32 [experts + 1].
    offsets: Any
    #: Whether every pair is in an expert's list; not in a routing to some of the experts.
    complete: bool = True

    @classmethod
    def of(cls, ids: Any, weights: Any, experts: int) -> Routing:
        """ids, weights: [m, top_k] of NumPy or torch, integers and floats. TypeError or ValueError
        for wrong shapes and types; of NumPy also for an expert that does not exist, one that a
        token names twice, and weights that are not finite. (Of torch nothing is looked at, which
        would wait for a device: an expert that does not exist, padding of -1 for instance, is the
        nearest one that does, with weight 0.)
        """
        experts = _count("experts", experts)
        for name, array in (("ids", ids), ("weights", weights)):
            if not (isinstance(array, np.ndarray) or _is_tensor(array)):
                raise TypeError(f"{name} is a {type(array).__name__}, must be of NumPy or torch")
        if len(ids.shape) != 2 or 0 in tuple(ids.shape):
            raise ValueError(f"ids.shape={tuple(ids.shape)} must be (m, top_k), both at least 1")
        if tuple(weights.shape) != tuple(ids.shape):
            raise ValueError(
                f"weights.shape={tuple(weights.shape)} must be ids.shape={tuple(ids.shape)}"
            )
        if "int" not in residence.type_name(ids):
            raise TypeError(f"ids.dtype={ids.dtype} must be an integer type")
        if "float" not in residence.type_name(weights):
            raise TypeError(f"weights.dtype={weights.dtype} must be a float type")
        places = [residence.place_of(each) for each in (ids, weights)]
        if _is_tensor(ids) != _is_tensor(weights) or places[0] != places[1]:
            raise ValueError(
                f"weights is a {type(weights).__name__} on {places[1]}, must be where ids is, of"
                f" the same library: {type(ids).__name__} on {places[0]}"
            )
        if isinstance(ids, np.ndarray):
            _check_host(ids, np.asarray(weights), experts)
        return cls._sorted(ids, weights, experts)

    @classmethod
    def _sorted(cls, ids: Any, weights: Any, experts: int, complete: bool = True) -> Routing:
        if isinstance(ids, np.ndarray):
            ids = np.ascontiguousarray(ids, np.int32)
            flat = np.where((ids < 0) | (ids >= experts), experts, ids).ravel()
            pairs = np.argsort(flat, kind="stable").astype(np.int32)
            offsets = np.searchsorted(flat[pairs], np.arange(experts + 1)).astype(np.int32)
            return cls(ids, np.ascontiguousarray(weights, np.float32), pairs, offsets, complete)
        torch = sys.modules["torch"]
        there = (ids >= 0) & (ids < experts)
        if complete:
            # Every pair is in a list, whatever ids are: the sum over a token's experts reads all of
            # its rows, and a row of a pair in no list is not written.
            ids, weights = ids.clamp(0, experts - 1), torch.where(there, weights, 0)
        ids = ids.to(torch.int32).contiguous()
        flat = (ids if complete else torch.where(there, ids, experts)).reshape(-1)
        held, pairs = torch.sort(flat, stable=True)
        first = torch.arange(experts + 1, dtype=torch.int32, device=ids.device)
        offsets = torch.searchsorted(held, first, out_int32=True)
        weights = weights.to(torch.float32).contiguous()
        return cls(ids, weights, pairs.to(torch.int32), offsets, complete)

    def local(self, first: int, count: int) -> Routing:
        """The routing to experts first .. first + count - 1, which are called 0 .. count - 1 there:
        those of this device. It shares ``weights``."""
        first, count = int(first), _count("count", count)
        if first < 0 or first + count > self.experts:
            raise ValueError(
                f"experts {first} to {first + count - 1} must be among 0 to {self.experts - 1}"
            )
        return self._sorted(
            self.ids - first, self.weights, count, self.complete and count == self.experts
        )

    @property
    def m(self) -> int:
        """Tokens."""
        return int(self.ids.shape[0])

    @property
    def top_k(self) -> int:
        """Experts of a token."""
        return int(self.ids.shape[1])

    @property
    def experts(self) -> int:
        return int(self.offsets.shape[0]) - 1

    @property
    def place(self) -> str:
        """Where the arrays are: "cpu" or "cuda:N"."""
        return residence.place_of(self.ids)

    def on_host(self) -> Routing:
        """The same with NumPy arrays."""
        return Routing(
            residence.on_host(self.ids),
            residence.on_host(self.weights),
            residence.on_host(self.pairs),
            residence.on_host(self.offsets),
            self.complete,
        )

    def __repr__(self) -> str:
        return (
            f"<Routing of {self.m} tokens to {self.top_k} of {self.experts} experts each, on"
            f" {'the host' if self.place == residence.HOST else self.place}>"
        )


def _is_tensor(array: object) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(array, tensor)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise ValueError(f"{name}={value!r} must be a positive integer")
    return int(value)


def _check_host(ids: np.ndarray, weights: np.ndarray, experts: int) -> None:
    outside = np.argwhere((ids < 0) | (ids >= experts))
    if len(outside):
        token, slot = outside[0]
        raise ValueError(f"ids[{token}, {slot}]={ids[token, slot]} must be 0 to {experts - 1}")
    ordered = np.sort(ids, axis=1)
    twice = np.argwhere(ordered[:, 1:] == ordered[:, :-1])
    if len(twice):
        token, slot = twice[0]
        raise ValueError(
            f"ids[{token}] names expert {ordered[token, slot]} twice: add up its weights, and name"
            " another expert with weight 0"
        )
    wrong = np.argwhere(~np.isfinite(np.asarray(weights, np.float64)))
    if len(wrong):
        token, slot = wrong[0]
        raise ValueError(f"weights[{token}, {slot}]={weights[token, slot]} must be finite")
