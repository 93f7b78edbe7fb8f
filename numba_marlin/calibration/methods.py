"""``compare_methods``: the error of each layer's outputs by several methods, side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from numba_marlin.api.quantizing import quantize
from numba_marlin.quantizers.hessian import Hessian
from numba_marlin.wording import did_you_mean, html_table

METHODS = ("rtn", "mse", "gptq")


@dataclass(frozen=True)
class MethodComparison:
    """errors: layer -> method -> |x (Q - W)| / |x W| on the calibration data, as
    ``Hessian.output_error`` has it. shapes: layer -> (k, n). ``str()`` is a table."""

    errors: dict[str, dict[str, float]]
    shapes: dict[str, tuple[int, int]]

    @property
    def methods(self) -> list[str]:
        return list(next(iter(self.errors.values())))

    @property
    def means(self) -> dict[str, float]:
        """Method -> mean error of the layers."""
        return {
            method: fmean(each[method] for each in self.errors.values()) for method in self.methods
        }

    def to_dict(self) -> dict:
        return {
            "means": self.means,
            "layers": {
                name: {"k": self.shapes[name][0], "n": self.shapes[name][1], "output_error": each}
                for name, each in self.errors.items()
            },
        }

    def _header(self) -> list[str]:
        return ["layer", "k x n", *self.methods]

    def _cells(self) -> list[list[str]]:
        rows = [
            [name, "{} x {}".format(*self.shapes[name]), *map("{:.2%}".format, each.values())]
            for name, each in self.errors.items()
        ]
        mean = ["mean", "", *map("{:.2%}".format, self.means.values())]
        return [*rows, mean] if len(rows) > 1 else rows

    def __str__(self) -> str:
        lines = [self._header(), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths))
            ).rstrip()
            for line in lines
        )

    def __repr__(self) -> str:
        means = ", ".join(f"{method} {error:.2%}" for method, error in self.means.items())
        layers = f"{len(self.errors)} layer{'s' * (len(self.errors) != 1)}"
        return f"<MethodComparison of {layers}, mean output error: {means}>"

    def _repr_html_(self) -> str:
        return html_table(self._cells(), self._header())


def compare_methods(
    weights: Any,
    hessians: Mapping[str, Hessian],
    methods: Iterable[str] | Mapping[str, dict] = METHODS,
    **options,
) -> MethodComparison:
    """Quantise each layer by each method, and compare the errors of its outputs. Nothing is kept.

    weights: layer -> w [k, n], looked up once each, or a torch.nn.Module, whose linear layers that
        have a Hessian are taken.
    hessians: layer -> Hessian: ``calibrate``, ``load_hessians``, or a dict.
    methods: names of methods, or name for the table -> options of ``quantize``:
        ``{"act order": {"method": "gptq", "act_order": True}, "nvfp4": {"format": "nvfp4"}}``.
    options: of ``quantize``, for all methods: bits, group_size ...

    Returns a ``MethodComparison``. Raises KeyError for a layer without a Hessian, else what
    ``quantize`` raises, with the layer and the method.
    """
    tried = (
        dict(methods)
        if isinstance(methods, Mapping)
        else {
            name: {"method": name} for name in ([methods] if isinstance(methods, str) else methods)
        }
    )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(weights, torch.nn.Module):
        weights = _Linear(weights, list(hessians))
    if not tried or not weights:
        raise ValueError(
            f"{len(weights)} layers and {len(tried)} methods: there must be at least one of each"
        )
    errors: dict[str, dict[str, float]] = {}
    shapes = {}
    for name in weights:
        w, hessian = weights[name], hessians[name]
        shapes[name], errors[name] = tuple(w.shape), {}
        for method, own in tried.items():
            arguments = options | own
            if arguments.get("method") == "gptq":
                arguments["calibration"] = hessian
            try:
                errors[name][method] = hessian.output_error(w, quantize(w, **arguments))
            except (TypeError, ValueError) as error:
                raise type(error)(f"layer {name!r}, {method}: {error}") from error
    return MethodComparison(errors, shapes)


class _Linear(Mapping):
    """layer -> weight [k, n] of a torch model, on the host."""

    def __init__(self, model, names: list[str]):
        self.modules, self.names = dict(model.named_modules()), names
        for name in names:
            if name not in self.modules:
                near = did_you_mean(name, self.modules)
                raise KeyError(f"the model has no layer {name!r}, which has a Hessian{near}")

    def __iter__(self):
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.modules[name].weight.detach().float().cpu().numpy().T
