"""The state of a model with our layers as a stored format has it: what ``save_pretrained`` writes.

Experts of a mixture become a layer for each expert and matrix, under the names that files of the
model have ("experts.3.w1"), or gpt-oss's blocks, where the model's files have experts in one
tensor; those hold MXFP4 alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

import numba_marlin as nm
from numba_marlin.checkpoints import skipped
from numba_marlin.checkpoints.configuration import quantization_of
from numba_marlin.checkpoints.job import layer_tensors
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.experts import in_turns
from numba_marlin.formats.files import find_stored
from numba_marlin.formats.stored import StoredFormat
from numba_marlin.torch import operators
from numba_marlin.torch.experts import Experts
from numba_marlin.torch.linear import Linear
from numba_marlin.torch.mixtures import FUSED_FORM, MATRICES

_CODES = {"F8_E4M3": torch.float8_e4m3fn}  # types of ``StoredFormat.codes_of``
_FUSED_METHOD = "mxfp4"  # quant_method of gpt-oss's files


def state_and_configuration(
    model: nn.Module, form: StoredFormat, excepted: list[str]
) -> tuple[dict[str, Tensor], dict]:
    """(the model's tensors, ours in this format and on the host; ``quantization_config``).
    ValueError, which names the layer, for one that the format cannot hold."""
    layers = {name: each for name, each in model.named_modules() if isinstance(each, Linear)}
    experts = {name: each for name, each in model.named_modules() if isinstance(each, Experts)}
    banks = {f"{name}.{bank}" for name in experts for bank in ("gate_up", "down")}
    state = {
        key: value
        for key, value in model.state_dict().items()
        if key.rpartition(".")[0] not in banks
        and (key.rpartition(".")[0] not in layers or key.endswith(".bias"))
    }
    floats = {
        key.removesuffix(".weight")
        for key, value in state.items()
        if skipped.is_left_in_float(key, value.shape, str(value.dtype).removeprefix("torch."))
    }
    back = _renamer_back(model)
    floats |= {back(f"{name}.weight").removesuffix(".weight") for name in floats}
    leaves = _leaves(model)
    fused = [name for name, each in experts.items() if _names_of(leaves, name) is None]
    if fused:
        _check_fused(fused[0], layers, len(fused) < len(experts), form)
    weights: dict[str, PackedWeight | PackedBlocks] = {
        name: each.weight for name, each in layers.items()
    }
    facts = []
    for name, weight in weights.items():
        facts.append(_add(state, form, name, weight))
    for name, each in experts.items():
        if fused:
            state.update(_blocks(name, each))
            continue
        for part, weight in _parts(name, each, _names_of(leaves, name)):
            fact = _add(state, form, part, weight)
            facts.append(fact | {"name": back(f"{part}.weight").removesuffix(".weight")})
    if fused:
        listed = skipped.listed(sorted(floats), fused, excepted)
        said = {"quant_method": _FUSED_METHOD, "modules_to_not_convert": listed}
    else:
        said = quantization_of([{"layers": facts, "floats": sorted(floats)}], form.name, excepted)
    return state, said


def _add(state: dict[str, Tensor], form: StoredFormat, name: str, weight) -> dict:
    """-> what ``quantization_of`` wants to know of the layer."""
    tensors, fact = layer_tensors(form, name, weight)
    for last, array in tensors.items():
        tensor = operators.tensor_over(array)
        if last in form.codes_of and tensor.dtype == torch.uint8:
            tensor = tensor.view(_CODES[form.codes_of[last]])
        state[f"{name}.{last}"] = tensor
    return fact


def _renamer_back(model):
    """name of a tensor in the model -> in files."""
    conversions = [
        each.reverse_transform()
        for each in reversed(get_model_conversion_mapping(model, add_legacy=False))
        if isinstance(each, WeightRenaming)
    ]
    return lambda name: rename_source_key(name, conversions, [], reverse=True)[0]


# ---- experts, a layer each


def _leaves(model) -> dict[str, list[str]]:
    """{end of a parameter's name, "experts.gate_up_proj": last parts of its layers' names in files,
    in order}"""
    return {
        each.target_patterns[0].lstrip("."): [
            pattern.rpartition("*.")[2].removesuffix(".weight") for pattern in each.source_patterns
        ]
        for each in get_model_conversion_mapping(model)
        if isinstance(each, WeightConverter)
        and len(each.target_patterns) == 1
        and all("*." in pattern for pattern in each.source_patterns)
    }


def _names_of(leaves: Mapping[str, list[str]], name: str) -> dict[str, list[str]] | None:
    found = {}
    for matrix, count in zip(MATRICES, (2, 1)):
        ends = [end for end in leaves if f"{name}.{matrix}".endswith(end)]
        if not ends or len(leaves[ends[0]]) != count:
            return None
        found[matrix] = leaves[ends[0]]
    return found


def _parts(
    name: str, experts: Experts, names: dict[str, list[str]] | None
) -> Iterator[tuple[str, PackedWeight | PackedBlocks]]:
    assert names is not None
    for matrix, bank in zip(MATRICES, (experts.gate_up, experts.down)):
        if bank.bias is not None:
            raise ValueError(f"layer {name!r}: experts' biases have no place in these files")
        for expert, weight in enumerate(bank.weight.to("cpu")):
            leaves = names[matrix]
            for place, leaf in enumerate(leaves):
                part = nm.shard(weight, place, len(leaves), "n") if len(leaves) > 1 else weight
                yield f"{name}.{expert}.{leaf}", part


# ---- gpt-oss


def _check_fused(name: str, layers: Mapping, mixed: bool, form: StoredFormat) -> None:
    if form.name != FUSED_FORM:
        raise ValueError(
            f"layer {name!r}: the model's files have experts in one tensor, which holds"
            f" {FUSED_FORM!r} alone, not {form.name!r}: quantise with format='mxfp4'"
        )
    if layers or mixed:
        other = next(iter(layers), "another mixture")
        raise ValueError(
            f"layer {other!r} is quantised too, which files with experts in one tensor"
            f" ({name!r}) cannot say: leave all but experts in float,"
            " Config(skip=('*_proj', 'lm_head'))"
        )


def _blocks(name: str, experts: Experts) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for matrix, bank in zip(MATRICES, (experts.gate_up, experts.down)):
        order = in_turns(bank.out_features) if matrix == MATRICES[0] else slice(None)
        found = [_block(name, weight, order) for weight in bank.weight.to("cpu")]
        for kind, arrays in zip(("blocks", "scales"), zip(*found)):
            state[f"{name}.{matrix}_{kind}"] = torch.from_numpy(np.stack(arrays))
        if bank.bias is not None:
            state[f"{name}.{matrix}_bias"] = bank.bias.detach()[:, order]
    return state


def _block(name: str, weight, order) -> tuple[np.ndarray, np.ndarray]:
    tensors, _ = layer_tensors(find_stored(FUSED_FORM), name, weight)
    codes, scales = tensors["weight_packed"][order], tensors["weight_scale"][order]
    return codes.reshape(*scales.shape, -1), scales
