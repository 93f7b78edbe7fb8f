"""How each linear layer of a quantised checkpoint is stored, for an engine that makes its layers
before their tensors arrive (``shares``).

A configuration (``quantization_config`` of config.json) states it, and where the files are at hand
their headers decide: which layers are quantised, in which format, code size and group size, and by
``g_idx`` itself whether a layer is in activation order. Read are GPTQ (``checkpoint_format`` "gptq"
and "gptq_v2"), AWQ ("gemm") and compressed-tensors' pack-quantized, of codes of 4 and 8 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from numba_marlin.checkpoints import skipped
from numba_marlin.checkpoints.checkpoint import Checkpoint, Layer
from numba_marlin.formats import changes
from numba_marlin.formats.files import STORED
from numba_marlin.formats.types import SUPPORTED_BITS

METHODS = ("gptq", "awq", "compressed-tensors")
FORMATS = ("gptq", "gptq_v2", "awq", "pack-quantized")
_INDEX = {"gptq": "g_idx", "gptq_v2": "g_idx", "pack-quantized": "weight_g_idx"}
_ORDERS = ("group", "dynamic")  # values of compressed-tensors' actorder that need a g_idx
_REGEX = "re:"


@dataclass(frozen=True)
class Scheme:
    """How one layer is stored.

    form: a name of FORMATS. bits: of a code. group: rows that share a scale, -1 for all. zeros:
    whether zero points are stored. index: the name of the tensor with the group of every row, None
    if there is none. ordered: whether that is an activation order. scale_dtype, k: "float16" or
    "bfloat16", and the rows of the layer; None where the files are not at hand.
    """

    form: str
    bits: int
    group: int
    zeros: bool = True
    index: str | None = None
    ordered: bool = False
    scale_dtype: str | None = None
    k: int | None = None

    @property
    def said(self) -> str:
        group = "a scale per column" if self.group == -1 else f"groups of {self.group}"
        zeros = "zero points" if self.zeros else "no zero points"
        return f"{self.form} of {self.bits} bits, {group}, {zeros}"


class Schemes:
    """The schemes of a model's layers.

    stated: ``quantization_config``. checkpoint: the files, if they are at hand. ValueError, which
    names the value and the rule, for a configuration of another method or of what is not read here.
    Plain data, which can be pickled: the checkpoint is not kept.
    """

    def __init__(self, stated: Mapping, checkpoint: Checkpoint | None = None):
        method = stated.get("quant_method") or _by_fields(stated)
        if method not in METHODS:
            raise ValueError(f"quant_method={method!r} must be one of {', '.join(METHODS)}")
        self.method = method
        self._rules = _READERS[method](stated)
        self._excepted = skipped.said(stated)
        self.found: dict[str, Scheme] | None = None  # by the files, where they are at hand
        if checkpoint is not None:
            self.found = {
                name: self._by_header(checkpoint, layer)
                for name, layer in checkpoint.layers.items()
            }

    def rename(self, renamed: Callable[[str], str | None]) -> None:
        """Names of modules in the files become those of the engine's model."""
        if self.found is not None:
            names = {renamed(name): each for name, each in self.found.items()}
            self.found = {name: each for name, each in names.items() if name is not None}
        kept = [each if each.startswith(_REGEX) else renamed(each) for each in self._excepted]
        self._excepted = [each for each in kept if each is not None]

    def of(self, name: str) -> Scheme | None:
        """The scheme of a linear layer; None if it is left in float."""
        if self.found is not None:
            return self.found.get(name)
        return None if self._is_excepted(name) else self._stated(name)

    def of_fused(self, name: str, parts: Iterable[str]) -> Scheme | None:
        """The scheme of a layer that the engine makes of several, side by side. ValueError unless
        they are stored alike; in their activation orders they may differ."""
        names = list(parts)
        if self.found is not None and name in self.found:
            return self.found[name]  # fused in the files too
        each = {part: self.of(part) for part in names}
        first = each[names[0]]
        for part, other in each.items():
            if _comparable(other) != _comparable(first):
                raise ValueError(
                    f"layer {name!r} is {', '.join(names)} in one, which must be stored alike:"
                    f" {names[0]} is {_said(first)}, {part} is {_said(other)}"
                )
        if first is None:
            return None
        schemes = [scheme for scheme in each.values() if scheme is not None]
        return replace(
            first,
            index=next((scheme.index for scheme in schemes if scheme.index), None),
            ordered=any(scheme.ordered for scheme in schemes),
        )

    def any_within(self, prefix: str) -> bool:
        """Whether a layer below a module is quantised, as far as is known."""
        if self.found is None:
            return not self._is_excepted(prefix)
        return any(name == prefix or name.startswith(f"{prefix}.") for name in self.found)

    def _is_excepted(self, name: str) -> bool:
        return any(
            re.match(each[len(_REGEX) :], name) is not None
            if each.startswith(_REGEX)
            else f".{each}." in f".{name}."
            for each in self._excepted
        )

    def _stated(self, name: str) -> Scheme | None:
        return next((scheme for matches, scheme in self._rules if matches(name)), None)

    def _by_header(self, checkpoint: Checkpoint, layer: Layer) -> Scheme:
        form, geometry = layer.form.name, layer.geometry
        if form not in FORMATS:
            raise ValueError(
                f"layer {layer.name!r}: format {form!r} must be one of {', '.join(FORMATS)}"
            )
        _check_bits(geometry.bits, f"layer {layer.name!r}")
        index = _INDEX.get(form)
        if index not in layer.tensors:
            index = None
        ordered = False
        if index is not None:
            groups = checkpoint.source.array(layer.tensors[index])
            try:
                # compressed-tensors writes -1 for "none"
                known = not (groups == -1).all()
                ordered = known and changes.order_of_groups(groups, geometry.groups) is not None
            except ValueError as error:
                raise ValueError(f"layer {layer.name!r}: {error}") from error
        return Scheme(
            form,
            geometry.bits,
            geometry.group,
            form != "pack-quantized" or "weight_zero_point" in geometry.extras,
            index,
            ordered,
            geometry.scale_dtype,
            geometry.k,
        )


def _by_fields(stated: Mapping) -> str | None:
    """The method of a quantize_config.json or quant_config.json, which do not name it."""
    return "gptq" if "desc_act" in stated else "awq" if "w_bit" in stated else None


def _comparable(scheme: Scheme | None) -> Scheme | None:
    return None if scheme is None else replace(scheme, index=None, ordered=False)


def _said(scheme: Scheme | None) -> str:
    if scheme is None:
        return "in float"
    return f"{scheme.said}, scales {scheme.scale_dtype}" if scheme.scale_dtype else scheme.said


Rule = tuple[Callable[[str], bool], Scheme]  # for names that match; the first one holds


@dataclass(frozen=True)
class _Named:
    """Matches names by a regular expression from their start; "" all."""

    regex: str

    def __call__(self, name: str) -> bool:
        return re.match(self.regex, name) is not None


def _check_bits(bits: object, where: str) -> int:
    if isinstance(bits, bool) or bits not in SUPPORTED_BITS:
        known = " or ".join(map(str, SUPPORTED_BITS))
        raise ValueError(
            f"{where}: codes of {bits!r} bits must have {known}: `numba-marlin convert --to"
            " pack-quantized` widens those of 2 and 3"
        )
    return int(bits)


def _check_group(group: object, where: str) -> int:
    if isinstance(group, bool) or not isinstance(group, int) or not (group == -1 or group > 0):
        raise ValueError(f"{where}: group_size={group!r} must be a positive number, or -1")
    return group


def _one_of(stated: Mapping, *names: str):
    for name in names:
        if name in stated:
            return stated[name]
    raise ValueError(f"quantization_config has no {' or '.join(names)}")


def _gptq(stated: Mapping) -> list[Rule]:
    where = "quantization_config"
    form = stated.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise ValueError(f"{where}: checkpoint_format={form!r} must be 'gptq' or 'gptq_v2'")
    usual = {
        "bits": _one_of(stated, "bits"),
        "group_size": _one_of(stated, "group_size"),
        "desc_act": bool(stated.get("desc_act", False)),
    }
    rules: list[Rule] = []
    dynamic = stated.get("dynamic") or {}
    for pattern, change in [*dynamic.items(), ("", {})]:
        if pattern.startswith("-:"):
            continue  # ``skipped.said`` has it
        said = usual | {key: change[key] for key in usual if key in change}
        at = f"{where}: dynamic[{pattern!r}]" if pattern else where
        group = _check_group(said["group_size"], at)
        scheme = Scheme(
            form,
            _check_bits(said["bits"], at),
            group,
            index=_INDEX[form],
            ordered=bool(said["desc_act"]) and group != -1,
        )
        rules.append((_Named(pattern.removeprefix("+:")), scheme))
    return rules


def _awq(stated: Mapping) -> list[Rule]:
    where = "quantization_config"
    version = str(stated.get("version") or "gemm").lower()
    if version != "gemm":
        raise ValueError(f"{where}: version={stated['version']!r} must be 'gemm'")
    bits = _one_of(stated, "bits", "w_bit")
    if bits not in STORED["awq"].bits:
        raise ValueError(f"{where}: codes of {bits!r} bits must have 4 in AWQ")
    group = _check_group(_one_of(stated, "group_size", "q_group_size"), where)
    return [(_Named(""), Scheme("awq", bits, group))]


def _compressed_tensors(stated: Mapping) -> list[Rule]:
    where = "quantization_config"
    for key in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        if stated.get(key):
            raise ValueError(f"{where}: {key} must be empty: only weights are read here")
    by_name: list[Rule] = []
    by_class: list[Rule] = []
    for title, group in (stated.get("config_groups") or {}).items():
        at, weights = f"{where}: config_groups[{title!r}]", group.get("weights") or {}
        form = group.get("format") or stated.get("format")
        if form != "pack-quantized" or weights.get("type", "int") != "int":
            raise ValueError(
                f"{at}: format={form!r} of type={weights.get('type')!r} must be 'pack-quantized'"
                " of 'int'"
            )
        if group.get("input_activations") or group.get("output_activations"):
            raise ValueError(f"{at}: activations must not be quantised: weights alone are here")
        strategy = weights.get("strategy")
        if strategy not in ("channel", "group"):
            raise ValueError(f"{at}: strategy={strategy!r} must be 'channel' or 'group'")
        size = -1 if strategy == "channel" else _check_group(weights.get("group_size"), at)
        ordered = weights.get("actorder") in _ORDERS and size != -1
        scheme = Scheme(
            form,
            _check_bits(weights.get("num_bits"), at),
            size,
            not weights.get("symmetric", True),
            _INDEX[form] if ordered else None,
            ordered,
        )
        for target in group.get("targets") or ():
            if target.startswith(_REGEX):
                by_name.append((_Named(target[len(_REGEX) :]), scheme))
            elif "." in target:
                by_name.append((_Named(f"{re.escape(target)}$"), scheme))
            elif target == "Linear":
                by_class.append((_Named(""), scheme))
            else:
                raise ValueError(
                    f"{at}: target {target!r} must be 'Linear', the name of a module, or 're:...'"
                )
    if not by_name and not by_class:
        raise ValueError(f"{where}: config_groups must have at least one group with targets")
    return by_name + by_class


_READERS: dict[str, Callable[[Mapping], list[Rule]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
}
