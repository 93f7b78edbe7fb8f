"""``quantize_``: the linear layers of a model, in place."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Iterable

from torch import nn

from numba_marlin.torch.linear import Linear

log = logging.getLogger("numba_marlin")


def quantize_(
    model: nn.Module,
    method: str = "rtn",
    skip: Iterable[str] = ("lm_head",),
    *,
    hessians: dict | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options,
) -> nn.Module:
    """Replace every torch.nn.Linear of a model by a quantised ``Linear``. Returns the model.

    method, options: as of ``numba_marlin.quantize`` (bits, group_size, symmetric, format ...).
    skip: names of modules that stay, patterns of ``fnmatch`` over the whole name, or over its last
        part. A layer whose parent reads its ``weight`` itself must be among them.
    hessians: {name of a layer: Hessian}, for method="gptq": what ``numba_marlin.calibrate`` gives.
    progress: called with (layers done, all, name) after each layer.

    A weight that several modules share is quantised once. Raises ValueError, which names the layer
    and the rule, before anything of the model is changed: nothing is half swapped.
    """
    patterns = [skip] if isinstance(skip, str) else list(skip)
    places = {  # of a module that stands in several, all
        name: layer
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, nn.Linear) and not is_skipped(name, patterns)
    }
    if not places:
        raise ValueError(
            f"the model has no torch.nn.Linear beyond skip={patterns}: there is nothing to quantise"
        )
    if "" in places:
        raise ValueError(
            "the model is a torch.nn.Linear itself, which cannot be replaced in place: use"
            " numba_marlin.torch.Linear.from_linear(model)"
        )
    made: dict[nn.Linear, Linear] = {}
    first_of: dict[nn.Parameter, Linear] = {}  # by weight, which several modules may share
    for number, (name, layer) in enumerate(places.items(), 1):
        if layer not in made and layer.weight in first_of:
            made[layer] = Linear.from_packed(first_of[layer.weight].weight, layer.bias)
        elif layer not in made:
            more = {} if hessians is None else {"calibration": _hessian_of(name, hessians)}
            try:
                made[layer] = Linear.from_linear(layer, method=method, **more, **options)
            except (ValueError, TypeError) as error:
                raise type(error)(f"layer {name!r}: {error}") from error
            first_of[layer.weight] = made[layer]
        if progress is not None:
            progress(number, len(places), name)
    for name, layer in places.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made[layer])
    log.info("quantised %d linear layers (%s)", len(made), method)
    return model


def is_skipped(name: str, patterns: list[str]) -> bool:
    """Whether a pattern is of the name of a module, or of its last part."""
    last = name.rpartition(".")[2]
    return any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns for each in (name, last))


def _hessian_of(name: str, hessians: dict):
    if name not in hessians:
        raise ValueError(f"layer {name!r} has no Hessian: hessians has {len(hessians)} others")
    return hessians[name]
