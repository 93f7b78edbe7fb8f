"""Mixtures of experts in models of transformers: which modules they are, where their numbers are in
files, and how they are saved.

transformers 5 keeps a layer's experts in one module with two parameters of three dimensions,
``gate_up_proj`` and ``down_proj``. Files have

    per expert   a layer for each expert and matrix, "experts.3.w1": quantised in any format, or in
                 float. Names are those of transformers' own conversion (Mixtral, Qwen3-MoE,
                 DeepSeek, OLMoE ...).
    fused        gpt-oss: "experts.gate_up_proj_blocks" and "..._scales", which
                 ``numba_marlin.load_experts`` reads; or the two parameters in float.

What takes their place is ``numba_marlin.torch.Experts``, which transformers' blocks call as they
call theirs. Columns of gate and up that the model has in turns (gpt-oss) are put side by side.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter

import numba_marlin as nm
from numba_marlin.api.loading_experts import BLOCK, BLOCK_BYTES, BLOCKS, SCALES
from numba_marlin.checkpoints import Checkpoint
from numba_marlin.formats.experts import PackedExperts, side_by_side
from numba_marlin.formats.types import SUPPORTED_BITS
from numba_marlin.torch import expert_operators
from numba_marlin.torch.expert_numbers import gated
from numba_marlin.torch.experts import Experts
from numba_marlin.torch.skeleton import check_shape, read_layer, renamer

log = logging.getLogger("numba_marlin")

MATRICES = ("gate_up_proj", "down_proj")
FUSED_FORM = "mxfp4-pack-quantized"  # has the bytes of gpt-oss's blocks, an expert at a time
_NUMBER = re.compile(r"\.experts\.(\d+)\.")


@dataclass(frozen=True)
class Layout:
    """Of a module of experts. transposed: parameters are [E, k, n], not [E, n, k]. interleaved:
    columns of gate and up take turns. k, h: of x, and between the two products."""

    activation: str
    transposed: bool
    interleaved: bool
    experts: int
    k: int
    h: int

    def order(self, matrix: str) -> np.ndarray | slice:
        """Which of the module's columns are ours, one after the other."""
        if matrix == "down_proj" or not self.interleaved:
            return slice(None)
        return side_by_side(2 * self.h)

    def shape(self, matrix: str) -> tuple[int, int]:
        """[k, n] of an expert."""
        return (self.k, 2 * self.h) if matrix == "gate_up_proj" else (self.h, self.k)


def is_experts(module: nn.Module) -> bool:
    held = module._parameters
    return all(held.get(each) is not None and held[each].dim() == 3 for each in MATRICES)


def layout_of(module: nn.Module) -> Layout:
    """ValueError says what is not like any activation or layout that is known here."""
    transposed = getattr(module, "is_transposed", False)
    interleaved = not getattr(module, "is_concatenated", True)
    if getattr(module, "has_post_expert_norm", False) or not hasattr(module, "_apply_gate"):
        raise ValueError(f"{type(module).__name__} does more than two products and an activation")
    experts, first, second = module.get_parameter("down_proj").shape
    h, k = (first, second) if transposed else (second, first)
    # What it computes is asked, not how it is called: numbers beyond gpt-oss's limits are among.
    probe = torch.linspace(-9, 9, 64, dtype=torch.float32, device="cpu").repeat(2).view(2, 64)
    probe[1] = probe[1].flip(0)
    given = probe.t().reshape(1, -1) if interleaved else probe.reshape(1, -1)
    found = module._apply_gate(given)
    for activation in expert_operators.ACTIVATIONS:
        if torch.allclose(found, gated(probe.reshape(1, -1), activation), rtol=1e-5, atol=1e-5):
            return Layout(activation, transposed, interleaved, experts, k, h)
    known = ", ".join(expert_operators.ACTIVATIONS)
    raise ValueError(f"{type(module).__name__} has an activation that is none of {known}")


class AwaitedExperts(nn.Module):
    """Stands in the model for experts that are not there yet: as ``skeleton.Awaited``. Has their
    biases, under transformers' names."""

    def __init__(self, module: nn.Module, layout: Layout, read: Callable, nbytes: int, tensors):
        super().__init__()
        self.layout, self.read, self.nbytes, self.tensors = layout, read, nbytes, list(tensors)
        self.biases = [f"{each}_bias" for each in MATRICES if _has_bias(module, each)]
        for name in self.biases:
            self.register_parameter(name, module.get_parameter(name))
        byte = torch.empty(1, dtype=torch.uint8, device="meta")
        self.register_buffer("byte", byte, persistent=False)


def _has_bias(module: nn.Module, matrix: str) -> bool:
    return module._parameters.get(f"{matrix}_bias") is not None


def made(layer: nn.Module, layout: Layout, read: Callable, device: torch.device) -> Experts:
    """The layer itself. layer: has the biases; read: matrix -> PackedExperts."""
    packed, biases = [read(matrix) for matrix in MATRICES], []
    for matrix in MATRICES:
        bias = layer._parameters.get(f"{matrix}_bias")
        biases.append(None if bias is None else bias.detach()[:, layout.order(matrix)])
    found = Experts(*packed, activation=layout.activation)
    for bank, bias in zip((found.gate_up, found.down), biases):
        bank._hold_bias(bias)
    return found.to(device)


def one_by_one(read: Callable, layout: Layout, matrix: str) -> PackedExperts:
    """read: (matrix, expert) -> a packed weight."""
    return PackedExperts.of(read(matrix, expert) for expert in range(layout.experts))


# ---- where the numbers are


@dataclass
class _Parts:
    """Of a module's experts in files: {(matrix, expert, place of the part): name in the files}."""

    names: dict[tuple[str, int, int], str] = field(default_factory=dict)


def _sources(model) -> dict[str, tuple[WeightConverter, int]]:
    """{source pattern: (its converter, which of its sources)}"""
    return {
        pattern: (each, place)
        for each in get_model_conversion_mapping(model)
        if isinstance(each, WeightConverter)
        for place, pattern in enumerate(each.source_patterns)
    }


def parts_of(model, names: Mapping[str, str]) -> dict[str, _Parts]:
    """{module of experts: its parts}. names: {what files call it: that, as a tensor's name}."""
    renamed, sources, modules = renamer(model), _sources(model), dict(model.named_modules())
    found: dict[str, _Parts] = {}
    for name, tensor in names.items():
        key, pattern = renamed(tensor)
        module, _, matrix = key.rpartition(".")
        number = _NUMBER.search(name)
        if pattern is None or number is None or matrix not in MATRICES:
            continue
        if module in modules and is_experts(modules[module]):
            place = sources[pattern][1]
            found.setdefault(module, _Parts()).names[matrix, int(number[1]), place] = name
    return found


def _check_parts(module: str, layout: Layout, parts: _Parts) -> None:
    for matrix, count in (("gate_up_proj", 2), ("down_proj", 1)):
        check_shape(module, *layout.shape(matrix))
        for expert in range(layout.experts):
            for place in range(count):
                if (matrix, expert, place) not in parts.names:
                    there = next(iter(parts.names.values()))
                    raise ValueError(
                        f"layer {module!r}: of expert {expert}, part {place} of {matrix} is"
                        f" missing, must be in the files as {there!r} is"
                    )


def packed_experts(model, checkpoint: Checkpoint) -> Iterator[tuple[str, AwaitedExperts]]:
    """The quantised experts of a checkpoint that are modules of this model. ValueError, which names
    the layer and the rule, for those that cannot be."""
    layers = {name: f"{name}.weight" for name in checkpoint.layers}
    modules = dict(model.named_modules())
    for name, parts in parts_of(model, layers).items():
        layout = _layout(name, modules[name])
        _check_parts(name, layout, parts)
        for (matrix, _, _), layer in parts.names.items():
            geometry, (k, n) = checkpoint.layers[layer].geometry, layout.shape(matrix)
            wanted = (k, n // 2 if matrix == "gate_up_proj" else n)
            if (geometry.k, geometry.n) != wanted:
                raise ValueError(
                    f"layer {layer!r}: [k, n] is {[geometry.k, geometry.n]} in the checkpoint,"
                    f" must be the model's {list(wanted)}"
                )
            if geometry.bits not in SUPPORTED_BITS:
                raise ValueError(
                    f"layer {layer!r} has {geometry.bits} bits, must have {SUPPORTED_BITS}"
                )
        names = [
            each
            for layer in parts.names.values()
            for each in checkpoint.layers[layer].tensors.values()
        ]
        read = partial(one_by_one, partial(_read_parts, checkpoint, parts, model.dtype), layout)
        yield name, _awaited(modules[name], layout, read, checkpoint, names)
    yield from _fused(model, checkpoint, modules)


def _read_parts(checkpoint, parts: _Parts, dtype, matrix: str, expert: int):
    places = range(2 if matrix == "gate_up_proj" else 1)
    host = torch.device("cpu")
    layers = [parts.names[matrix, expert, place] for place in places]
    found = [read_layer(checkpoint, layer, dtype, host) for layer in layers]
    for layer, each in zip(layers, found):
        if each.permutation is not None:
            raise ValueError(
                f"{layer!r} is in activation order, which experts in one buffer cannot have"
            )
    return found[0] if len(found) == 1 else nm.concat(found)


def _fused(model, checkpoint, modules) -> Iterator[tuple[str, AwaitedExperts]]:
    """gpt-oss's."""
    renamed, blocks = renamer(model), {}
    for name in checkpoint.others:
        for matrix in MATRICES:
            if name.endswith(f".{matrix}{BLOCKS}"):
                module = renamed(name)[0].rpartition(".")[0]
                if module in modules and is_experts(modules[module]):
                    blocks.setdefault(module, {})[matrix] = name.removesuffix(BLOCKS)
    for name, held in blocks.items():
        layout, names = _layout(name, modules[name]), []
        for matrix in MATRICES:
            if matrix not in held:
                raise ValueError(f"layer {name!r}: {matrix}{BLOCKS} is missing, must be there too")
            k, n = layout.shape(matrix)
            check_shape(name, k, n)
            wanted = {BLOCKS: (layout.experts, n, k // BLOCK, BLOCK_BYTES)}
            wanted[SCALES] = wanted[BLOCKS][:3]
            for kind, shape in wanted.items():
                tensor = held[matrix] + kind
                entry = checkpoint.source.entries.get(tensor)
                if entry is None or tuple(entry.shape) != shape or entry.dtype.name != "uint8":
                    said = "missing" if entry is None else f"{entry.dtype.name} {entry.shape}"
                    raise ValueError(f"layer {name!r}: {tensor!r} is {said}, must be uint8 {shape}")
                names.append(tensor)
        read = partial(_read_fused, checkpoint, held, layout, model.dtype)
        yield name, _awaited(modules[name], layout, read, checkpoint, names)


def _read_fused(checkpoint, held, layout: Layout, dtype, matrix: str) -> PackedExperts:
    return nm.load_experts(
        checkpoint,
        held[matrix],
        dtype="bfloat16" if dtype == torch.bfloat16 else "float16",
        interleaved=layout.interleaved and matrix == "gate_up_proj",
    )


def float_experts(
    model, chosen: Mapping[str, nn.Module], checkpoint: Checkpoint, quantised: Callable
) -> Iterator[tuple[str, AwaitedExperts]]:
    """Those of the chosen modules whose numbers are in the files, in float. quantised: (numbers
    [k, n]) -> a packed weight."""
    by_parts = parts_of(model, {name: name for name in checkpoint.others})
    renamed = renamer(model)
    fused = {renamed(name)[0]: name for name in checkpoint.others}
    for name, module in chosen.items():
        layout = _layout(name, module)
        tensors = [fused.get(f"{name}.{matrix}") for matrix in MATRICES]
        if name in by_parts:
            _check_parts(name, layout, by_parts[name])
            tensors = list(by_parts[name].names.values())
            read = partial(_float_parts, checkpoint, by_parts[name])
        elif all(tensors):
            read = partial(_float_fused, checkpoint, dict(zip(MATRICES, tensors)), layout)
        else:
            continue
        for matrix in MATRICES:
            check_shape(name, *layout.shape(matrix))
        for each in tensors:
            code = checkpoint.source.entries[each].code
            if not code.endswith(("F16", "F32", "F64")):
                raise ValueError(f"layer {name!r}: {each!r} is {code}, must be floats")
        packed = partial(one_by_one, lambda *at, read=read: quantised(read(*at)), layout)
        yield name, _awaited(module, layout, packed, checkpoint, tensors)


def _float_parts(checkpoint, parts: _Parts, matrix: str, expert: int) -> np.ndarray:
    places = range(2 if matrix == "gate_up_proj" else 1)
    found = [checkpoint.tensor(parts.names[matrix, expert, place]) for place in places]
    return np.ascontiguousarray(np.concatenate(found).T)


def _float_fused(checkpoint, tensors, layout: Layout, matrix: str, expert: int) -> np.ndarray:
    w = checkpoint.tensor(tensors[matrix])[expert]
    return np.ascontiguousarray((w if layout.transposed else w.T)[:, layout.order(matrix)])


def numbers_of(module: nn.Module, layout: Layout, matrix: str, expert: int) -> np.ndarray:
    """Of a model that is loaded."""
    w = module.get_parameter(matrix)[expert].detach().float().cpu().numpy()
    return np.ascontiguousarray((w if layout.transposed else w.T)[:, layout.order(matrix)])


def experts_of(model) -> dict[str, nn.Module]:
    """{name: module} of those whose numbers can be packed; of others the log says why not."""
    found = {}
    for name, module in model.named_modules():
        if not is_experts(module):
            continue
        try:
            layout_of(module)
        except ValueError as error:
            log.warning("%s stays in float: %s", name, error)
        else:
            found[name] = module
    return found


def _layout(name: str, module: nn.Module) -> Layout:
    try:
        return layout_of(module)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error


def _awaited(module, layout, read, checkpoint: Checkpoint, names: Sequence[str]):
    nbytes = sum(checkpoint.source.entries[each].nbytes for each in names)
    return AwaitedExperts(module, layout, read, nbytes, names)
