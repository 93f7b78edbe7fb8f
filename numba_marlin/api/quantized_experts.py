"""The x of ``moe_matmul`` in 8 bits: given quantised, or quantised first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numba_marlin.api.activations import quantize_activations
from numba_marlin.api.checks import check_same_place
from numba_marlin.api.experts_loop import flat
from numba_marlin.execution import arrays
from numba_marlin.execution.binding import activation_rows
from numba_marlin.formats import PackedBlocks
from numba_marlin.formats.activations import QuantizedActivations, check_kind
from numba_marlin.formats.experts import PackedExperts


@dataclass(frozen=True, eq=False)
class Given:
    """The x of a product. x: an array, or quantised; view: of the array that is ``a``; answer: of
    what the result is an array like; dtype: of the result."""

    x: Any
    view: arrays.ArrayView
    answer: arrays.ArrayView
    dtype: str

    @property
    def kind(self) -> str | None:
        """Of activations in 8 bits; None for 16."""
        return self.x.kind if isinstance(self.x, QuantizedActivations) else None

    @property
    def inputs(self) -> dict[str, arrays.ArrayView]:
        """{kernel parameter: view}"""
        if isinstance(self.x, QuantizedActivations):
            return _views(self.x)
        whole = len(self.view.shape) == 2
        return {"a": self.view if whole else arrays.view("x", flat(self.view.owner))}

    def on_host(self) -> Any:
        """x for the reference."""
        if not isinstance(self.x, QuantizedActivations):
            return arrays.to_host(self.view, exact=True)
        names = ("codes", "scales", *(() if self.x.offsets is None else ("offsets",)))
        views = {name: arrays.view(f"x.{name}", getattr(self.x, name)) for name in names}
        held = {name: arrays.to_host(each, exact=True) for name, each in views.items()}
        return replace(self.x, **held)


def _views(x: QuantizedActivations) -> dict[str, arrays.ArrayView]:
    labels = {"a": "x.codes", "a_scales": "x.scales"}
    return {name: arrays.view(labels[name], each) for name, each in activation_rows(x).items()}


def check_integers(experts: PackedExperts) -> None:
    """TypeError unless the experts' weights have codes that 8-bit activations can multiply."""
    if experts.kind is PackedBlocks:
        raise TypeError(
            "experts are PackedBlocks, must have integer codes for activations in 8 bits"
        )


def quantised(view: arrays.ArrayView, kind: str, stream) -> Given:
    """x, [m, k] or [m, top_k, k], with a scale for each of its rows."""
    x = view.owner if len(view.shape) == 2 else flat(view.owner)
    codes = quantize_activations(x, check_kind(kind), stream=stream)
    return Given(codes, _views(codes)["a"], view, codes.dtype)


def given_quantised(x: QuantizedActivations, kind: str | None, backend: str) -> Given:
    """ValueError for another kind than x's, and for scales per group of x, unless
    backend="reference"."""
    if kind not in (None, x.kind):
        raise ValueError(f"activations={kind!r} must be {x.kind!r}, x's, or None")
    if x.group_size is not None and backend != "reference":
        raise ValueError(
            f"group_size={x.group_size} of x must be None, a scale per row: no kernel takes scales"
            " per group yet (backend='reference' does)"
        )
    views = _views(x)
    check_same_place("x.scales", views["a_scales"], views["a"], "x.codes")
    return Given(x, views["a"], views["a"], x.dtype)
