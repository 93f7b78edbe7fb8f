"""The modules that a checkpoint leaves in float, and the list of them in a configuration.

Loaders make every linear module of a model a quantised one, except those that the configuration
lists. One that is missing from the list is looked for under the names of a quantised layer, is not
found, and keeps the random numbers it was made with. Hence every module with a float matrix is
listed, whatever its name, and what the source's configuration said is kept.

Notations: compressed-tensors (``ignore``) has names and "re:" with a regular expression; GPTQ, AWQ
and FP8 (``modules_to_not_convert``) have regular expressions, of which transformers also takes a
plain name for a prefix and for a suffix; ``dynamic`` has "-:" with a regular
expression (vLLM reads it for GPTQ, GPTQModel for AWQ too, and neither the other list); ModelOpt
(``ignore``, ``exclude_modules``) has names with "*". transformers hands GPTQ to optimum, which
knows none of these: it takes every linear module of the blocks, or those that
``modules_in_block_to_quantize`` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_LISTS = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
# An output head that shares the embedding's weight is a linear module without a tensor.
_TIED_HEADS = ("lm_head", "embed_out", "proj_out", "cls.predictions.decoder", "lm_head.decoder")
_REGEX = "re:"
# "model.layers.12.", of which the first group is the stack that the block is in
_IN_BLOCK = re.compile(r"([\w.]*?\.)\d+\.")


def is_left_in_float(name: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a tensor of this name, shape and type is the matrix of a module left in float. (A
    vector is a norm's, which nobody quantises.)"""
    return name.endswith(".weight") and len(shape) >= 2 and dtype in _FLOATS


def said(quantization: Mapping) -> list[str]:
    """The modules that a configuration excepts, in compressed-tensors' notation."""
    method = quantization.get("quant_method")
    found: list[str] = []
    for key in _LISTS:
        value = quantization.get(key)
        for each in value if isinstance(value, list) else []:
            if isinstance(each, str):
                found.append(_to_common(each, method))
    dynamic = quantization.get("dynamic")
    for each in dynamic if isinstance(dynamic, dict) else {}:
        if each.startswith("-:"):
            found.append(_name_or_regex(each[2:]))
    return list(dict.fromkeys(found))


def listed(floats: Iterable[str], layers: Iterable[str], already: Iterable[str]) -> list[str]:
    """All that a configuration must except, in compressed-tensors' notation, sorted: ``floats``,
    the modules with a float matrix; heads that have no tensor of their own, unless they are
    ``layers``, the quantised ones; ``already``, what ``said`` found."""
    quantised = set(layers)
    heads = (each for each in _TIED_HEADS if each not in quantised)
    return sorted({*floats, *heads, *already} - quantised)


def as_patterns(common: Iterable[str], layers: Iterable[str]) -> list[str]:
    """The list as ``modules_to_not_convert``. A name that transformers would take for a prefix or
    suffix of a quantised layer's is bound to the whole name."""
    quantised = list(layers)
    patterns = []
    for each in common:
        if each.startswith(_REGEX):
            patterns.append(each[len(_REGEX) :])
        elif any(layer.startswith(each) or layer.endswith(each) for layer in quantised):
            patterns.append(_whole(each))
        else:
            patterns.append(each)
    return patterns


def as_dynamic(common: Iterable[str]) -> dict[str, dict]:
    """The list as ``dynamic``."""
    return {
        "-:" + (each[len(_REGEX) :] if each.startswith(_REGEX) else _whole(each)): {}
        for each in common
    }


def as_modules_in_block(common: Iterable[str], layers: Iterable[str]) -> list[list[str]]:
    """The quantised layers as ``modules_in_block_to_quantize``: ends of their names, after the
    block's number where that is enough to tell them from the list's. [] if nothing of the list lies
    in a block of the stacks that they are in: without a statement, all that does is quantised."""
    quantised = sorted(layers)
    stacks = {found[1] for each in quantised if (found := _IN_BLOCK.match(each))}
    beside = [each for each in common if (found := _IN_BLOCK.match(each)) and found[1] in stacks]
    if not beside:
        return []
    ends = tuple(sorted({_IN_BLOCK.sub("", each) for each in quantised}))
    return [quantised if any(each.endswith(ends) for each in beside) else list(ends)]


def as_wildcards(common: Iterable[str]) -> list[str]:
    """The list as ModelOpt has it. Regular expressions that are no wildcards are left out: what has
    a tensor is there by its name."""
    names = (
        re.sub(r"\\(.)", r"\1", each[len(_REGEX) :].removeprefix("^").removesuffix("$")).replace(
            ".*", "*"
        )
        if each.startswith(_REGEX)
        else each
        for each in common
    )
    return sorted({each for each in names if re.fullmatch(r"[\w.*/-]+", each)})


def _to_common(entry: str, method: object) -> str:
    if entry.startswith(_REGEX) or re.fullmatch(r"[\w./-]*", entry):
        return entry
    if method == "modelopt":
        return _REGEX + ".*".join(re.escape(part) for part in entry.split("*")) + "$"
    return entry if method == "compressed-tensors" else _name_or_regex(entry)


def _name_or_regex(regex: str) -> str:
    """A regular expression that ``as_patterns`` or ``as_dynamic`` made of a name is that name."""
    name = re.sub(r"\\(.)", r"\1", regex[1:-1])
    return name if regex == _whole(name) else _REGEX + regex


def _whole(name: str) -> str:
    return f"^{re.escape(name)}$"
