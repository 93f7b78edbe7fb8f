"""A model of transformers before its weights are loaded, and the layers in it that are read from
the files here: which they are, and what stands in their places meanwhile.

The names of tensors in the files and in the model differ by transformers' own rules, which are
applied here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

import numba_marlin as nm
from numba_marlin.checkpoints import Checkpoint, CheckpointError
from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight, QuantizedWeight
from numba_marlin.formats.changes import widen
from numba_marlin.formats.stored import StoredWeight
from numba_marlin.formats.types import SUPPORTED_BITS


class Awaited(nn.Module):
    """Stands in the model for a linear layer whose weight is not there yet. Has its bias, which
    transformers loads, and a byte, which transformers puts on the device of the layer.

    read: makes the packed weight, of the device where it shall be. nbytes: about its size. tensors:
    their names in the files, which transformers must leave alone.
    """

    def __init__(self, linear: nn.Linear, read: Callable, nbytes: int, tensors: list[str]):
        super().__init__()
        self.bias, self.read, self.nbytes, self.tensors = linear.bias, read, nbytes, tensors
        self.biases = [] if linear.bias is None else ["bias"]
        byte = torch.empty(1, dtype=torch.uint8, device="meta")
        self.register_buffer("byte", byte, persistent=False)


def packed_layers(
    model, checkpoint: Checkpoint, but: Container[str] = ()
) -> Iterator[tuple[str, Awaited]]:
    """The quantised layers of a checkpoint that are modules of this model. but: tensors of layers
    that are a mixture's experts. ValueError, which names the layer and the rule, for one that
    cannot be its module."""
    modules, renamed, found = dict(model.named_modules()), renamer(model), False
    for layer, described in checkpoint.layers.items():
        if all(each in but for each in described.tensors.values()):
            found = True
            continue
        key, converted = renamed(f"{layer}.weight")
        name = key.removesuffix(".weight")
        if converted is None and name not in modules:
            continue  # of a larger model; transformers lists its tensors
        if converted is not None or not isinstance(modules[name], nn.Linear):
            kind = "part of another parameter" if converted else type(modules[name]).__name__
            raise ValueError(f"layer {layer!r}: in the model {name!r} is {kind}, must be Linear")
        linear, geometry = modules[name], described.geometry
        shape = linear.in_features, linear.out_features
        if (geometry.k, geometry.n) != shape:
            raise ValueError(
                f"layer {layer!r}: [k, n] is {[geometry.k, geometry.n]} in the checkpoint,"
                f" must be the model's {list(shape)}"
            )
        check_shape(layer, *shape)
        try:
            checkpoint.outline(layer)
        except CheckpointError:  # names the layer
            raise
        except ValueError as error:
            raise ValueError(f"layer {layer!r}: {error}") from error
        found, tensors = True, list(described.tensors.values())
        nbytes = sum(checkpoint.source.entries[each].nbytes for each in tensors)
        read = partial(read_layer, checkpoint, layer, model.dtype)
        yield name, Awaited(linear, read, nbytes, tensors)
    if not found:
        raise ValueError(
            f"{checkpoint.source.path}: none of its {len(checkpoint)} quantised layers"
            f" ({next(iter(checkpoint))!r} ...) is a layer of {type(model).__name__}"
        )


def float_layers(
    model, chosen: Mapping[str, nn.Linear], checkpoint: Checkpoint
) -> Iterator[tuple[str, nn.Linear, str]]:
    """(name, module, the tensor in the files that is its weight) of the chosen modules. Left out
    are those whose weights transformers puts together or splits. ValueError for a layer that cannot
    be packed and for a tensor that is not its weight."""
    renamed, stored = renamer(model), {}
    for name in checkpoint.others:
        key, converted = renamed(name)
        if converted is None:
            stored[key] = name
    for name, linear in chosen.items():
        check_shape(name, linear.in_features, linear.out_features)
        tensor = stored.get(f"{name}.weight")
        if tensor is None:
            continue
        entry, shape = checkpoint.source.entries[tensor], tuple(linear.weight.shape)
        if entry.shape != shape or not entry.code.endswith(("F16", "F32", "F64")):
            raise ValueError(
                f"layer {name!r}: {tensor!r} is {entry.dtype.name} {entry.shape}, must be floats of"
                f" 16 bits or more, {shape}"
            )
        yield name, linear, tensor


def put_in(model, awaited: Mapping[str, nn.Module], checkpoint: Checkpoint) -> None:
    """Let them stand in the model, and tell transformers to leave their tensors alone. ValueError
    for a bias that the files lack, before anything is changed."""
    renamed = renamer(model)
    biases = {renamed(name)[0] for name in checkpoint.others if name.endswith("bias")}
    for name, each in awaited.items():
        for bias in each.biases:
            if f"{name}.{bias}" not in biases:
                raise ValueError(
                    f"layer {name!r}: the model's has a {bias}, the checkpoint has none"
                )
    for name, each in awaited.items():
        # a head that is quantised shares nothing with the embedding, whatever config.json says
        if model.all_tied_weights_keys.pop(f"{name}.weight", None) is not None:
            model.config.tie_word_embeddings = False
        model.set_submodule(name, each)
    renamed = renamer(model)
    keys = [re.escape(renamed(name)[0]) for each in awaited.values() for name in each.tensors]
    before = model._keys_to_ignore_on_load_unexpected or ()
    model._keys_to_ignore_on_load_unexpected = {*before, f"^({'|'.join(keys)})$"}


def read_layer(
    checkpoint: Checkpoint, layer: str, dtype: torch.dtype, device: torch.device
) -> PackedWeight | PackedBlocks:
    """For a GPU the words of the file go there as they are, and a kernel packs them."""
    has_kernel = checkpoint.layers[layer].geometry.bits in SUPPORTED_BITS
    on_gpu = device.type == "cuda" and has_kernel
    weight = checkpoint.stored(layer) if on_gpu else checkpoint[layer]
    if isinstance(weight, QuantizedWeight) and weight.bits not in SUPPORTED_BITS:
        weight = widen(weight, min(SUPPORTED_BITS))
    return weight if isinstance(weight, PackedWeight) else packed(weight, dtype, device)


def packed(
    weight: QuantizedWeight | BlockWeight | StoredWeight, dtype: torch.dtype, device: torch.device
) -> PackedWeight | PackedBlocks:
    """``nm.pack`` for activations of a type of torch, on a GPU if that is where it shall be."""
    place = device if device.type == "cuda" else None
    if isinstance(weight, BlockWeight):
        name = "bfloat16" if dtype == torch.bfloat16 else "float16"
        return nm.pack(weight, dtype=name, place=place)
    return nm.pack(weight, place=place)


def check_shape(name: str, k: int, n: int) -> None:
    if k % 16 or n % 8:
        raise ValueError(
            f"layer {name!r}: [k, n] is {[k, n]}, must be multiples of 16 and 8: leave it in float"
            " (skip)"
        )


def renamer(model) -> Callable[[str], tuple[str, str | None]]:
    """name of a tensor in the files -> (its name in the model, what transformers converts it by:
    None if it is one tensor there too). As ``convert_and_load_state_dict_in_model`` finds it."""
    skeleton = model.state_dict()
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]

    def renamed(name: str) -> tuple[str, str | None]:
        prefix = model.base_model_prefix
        found = rename_source_key(name, renamings, converters, prefix, skeleton)
        if found[0] not in skeleton and name in skeleton:
            return rename_source_key(name, [], [], prefix, skeleton)
        return found

    return renamed
