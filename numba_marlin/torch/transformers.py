"""Models of transformers with our layers: a quantizer registered with it, and ``from_pretrained``.
Needs transformers: ``pip install 'numba-marlin[transformers]'``.

    import numba_marlin.torch as nmt

    model = nmt.from_pretrained("path/of/a/GPTQ/checkpoint", device_map="cuda")

``from_pretrained`` reads every format that ``load_checkpoint`` reads and kernels multiply (GPTQ, in
activation order too, AWQ, compressed-tensors, NVFP4, MXFP4), and quantises a model in float.

``AutoModelForCausalLM.from_pretrained(path, quantization_config=Config(...))`` does so too where
config.json names no method that transformers knows. Where it names one ("gptq"), transformers
insists on that one's own loader and raises; ``from_pretrained`` replaces that statement first.

How: before transformers loads, every module that will be packed is taken out of the model's
skeleton, ``Awaited`` stands there, and transformers loads everything else, as ever (names, devices,
types). Then the layers are read from the files one after another, packed, and put in their places:
beside the model there is one layer in memory. Errors are raised before the caller gets a model.

``save_pretrained`` writes a format that others read (``Config.save_format``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils import logging
from transformers.utils.quantization_config import QuantizationConfigMixin

import numba_marlin as nm
from numba_marlin.checkpoints import Checkpoint, CheckpointError, skipped
from numba_marlin.checkpoints.configuration import quantization_of
from numba_marlin.checkpoints.job import layer_tensors
from numba_marlin.formats import BlockWeight, PackedWeight, QuantizedWeight
from numba_marlin.formats.changes import widen
from numba_marlin.formats.files import find_stored
from numba_marlin.formats.stored import StoredFormat
from numba_marlin.formats.types import SUPPORTED_BITS
from numba_marlin.torch import operators
from numba_marlin.torch.linear import Linear
from numba_marlin.torch.quantize import is_skipped

METHOD = "numba_marlin"  # quant_method, by which transformers finds the quantizer
_OF_THE_HUB = (
    "cache_dir",
    "code_revision",
    "force_download",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
)
# What is saved of a model in float that was quantised to these numbers, where nobody says.
_USUAL = {
    "integer": "pack-quantized",
    "nvfp4": "nvfp4-pack-quantized",
    "mxfp4": "mxfp4-pack-quantized",
}
_CODES = {"F8_E4M3": torch.float8_e4m3fn}  # types of ``StoredFormat.codes_of``


@register_quantization_config(METHOD)
class Config(QuantizationConfigMixin):
    """How to quantise a model in float, and what to save. For a checkpoint that is quantised
    already only ``save_format`` counts.

    method, options: as of ``numba_marlin.quantize`` (bits, group_size, symmetric, format ...).
    skip: names of modules that stay in float, as of ``quantize_``. Modules that share their weight
        with an embedding stay in any case.
    hessians: a file of ``numba_marlin.save_hessians``, for method="gptq".
    save_format: a name of ``formats.files.STORED``; default: the format that the layers were read
        from, else compressed-tensors'. ValueError for another.
    """

    def __init__(
        self,
        method: str = "rtn",
        skip: Iterable[str] = ("lm_head",),
        *,
        hessians: str | Path | None = None,
        save_format: str | None = None,
        **options,
    ):
        options.pop("quant_method", None)  # of ``to_dict``
        if save_format is not None:
            find_stored(save_format)
        self.quant_method = METHOD
        self.method = method
        self.skip = [skip] if isinstance(skip, str) else list(skip)
        self.hessians = None if hessians is None else str(hessians)
        self.save_format = save_format
        self.options = options

    def to_dict(self) -> dict:
        said = super().to_dict()
        return said | said.pop("options")


def from_pretrained(
    path: str | Path,
    quantization_config: Config | None = None,
    *,
    auto_class=AutoModelForCausalLM,
    **options,
):
    """``auto_class.from_pretrained(path, **options)`` with our layers in the model.

    path: a directory or a name on the Hub, of a quantised checkpoint of any method or of a model in
        float, which is quantised while it is loaded.
    auto_class: anything of transformers with ``from_pretrained``.
    options: device_map, dtype, revision ... as transformers has them.

    Raises CheckpointError or ValueError, which name layer, value and rule, for files that break
    their specification and layers that cannot be packed.
    """
    quantization = Config() if quantization_config is None else quantization_config
    if not isinstance(quantization, Config):
        kind = type(quantization).__name__
        raise TypeError(f"quantization_config is a {kind}, must be a numba_marlin.torch.Config")
    hub = {name: options[name] for name in _OF_THE_HUB if name in options}
    config = AutoConfig.from_pretrained(path, **hub)
    text = config.get_text_config(decoder=True)
    if not any(getattr(each, "quantization_config", None) for each in (config, text)):
        return auto_class.from_pretrained(path, quantization_config=quantization, **options)
    if text is not config and hasattr(text, "quantization_config"):
        del text.quantization_config
    config.quantization_config = quantization.to_dict()
    return auto_class.from_pretrained(path, config=config, **options)


class Awaited(nn.Module):
    """Stands in the model for a linear layer whose weight is not there yet: has its bias, which
    transformers loads, and a byte of which transformers says on which device it shall be."""

    def __init__(self, linear: nn.Linear, read: Callable, nbytes: int):
        super().__init__()
        self.bias, self.read, self.nbytes = linear.bias, read, nbytes
        byte = torch.empty(1, dtype=torch.uint8, device="meta")
        self.register_buffer("byte", byte, persistent=False)


@register_quantizer(METHOD)
class Quantizer(HfQuantizer):
    """What transformers calls while it loads or saves a model."""

    quantization_config: Config

    def __init__(self, quantization_config: Config, **kwargs):
        super().__init__(quantization_config, **kwargs)
        self.excepted: list[str] = []  # modules that the checkpoint's configuration excepts
        self.read_from: set[str] = set()  # names of the formats that layers were read from

    # ---- what transformers asks

    @property
    def is_trainable(self) -> bool:
        return True  # gradients flow through the frozen layers, to adapters

    @property
    def is_compileable(self) -> bool:
        return True

    def is_serializable(self) -> bool:
        return True

    def validate_environment(self, device_map=None, **kwargs) -> None:
        places = set(map(str, device_map.values())) if isinstance(device_map, dict) else set()
        if "disk" in places or ("cpu" in places and len(places) > 1):
            raise ValueError(
                f"device_map has {', '.join(sorted(places))}: a packed layer is multiplied where it"
                " is, so the map must have no 'disk', and 'cpu' only alone; name GPUs, or"
                " device_map='cpu'"
            )

    def param_element_size(self, model, param_name, param) -> float:
        """Bytes, for device_map="auto". Of an ``Awaited``'s byte: those of its layer."""
        owner = model.get_submodule(param_name.rpartition(".")[0])
        if isinstance(owner, Awaited) and param_name.endswith(".byte"):
            return owner.nbytes
        return super().param_element_size(model, param_name, param)

    # ---- loading

    def _process_model_before_weight_loading(self, model, checkpoint_files=None, **kwargs):
        files = [Path(each) for each in checkpoint_files or ()]
        if files and all(each.suffix == ".safetensors" for each in files):
            source = files[0] if len(files) == 1 else files[0].parent
            self._await_layers(model, nm.load_checkpoint(source))
        elif self.pre_quantized:
            found = files[0].name if files else "none"
            raise ValueError(f"quantised layers are read from .safetensors files; there is {found}")

    def _await_layers(self, model, checkpoint: Checkpoint) -> None:
        self.excepted = checkpoint.source.excepted
        if self.pre_quantized and not checkpoint.layers:
            raise ValueError(
                f"{checkpoint.source.path}: its config.json says that it is quantised, but it holds"
                " no quantised layer of a known format (`numba-marlin inspect` says what it holds)"
            )
        renamed = _renamer(model)
        biases = {renamed(name)[0] for name in checkpoint.others if name.endswith(".bias")}
        awaited = dict(
            self._packed_layers(model, checkpoint, renamed)
            if checkpoint.layers
            else self._float_layers(model, checkpoint, renamed)
        )
        for name, each in awaited.items():
            if checkpoint.layers and each.bias is not None and f"{name}.bias" not in biases:
                raise ValueError(f"layer {name!r}: the model's has a bias, the checkpoint has none")
        for name, each in awaited.items():
            # a head that is quantised shares nothing with the embedding, whatever config.json says
            if model.all_tied_weights_keys.pop(f"{name}.weight", None) is not None:
                model.config.tie_word_embeddings = False
            model.set_submodule(name, each)
        ours = [name for layer in checkpoint.layers.values() for name in layer.tensors.values()]
        if not checkpoint.layers:
            ours = [name for name in checkpoint.others if renamed(name)[0] in _weights_of(awaited)]
        renamed = _renamer(model)
        keys = "|".join(re.escape(renamed(name)[0]) for name in ours)
        before = model._keys_to_ignore_on_load_unexpected or ()
        model._keys_to_ignore_on_load_unexpected = {*before, f"^({keys})$"}

    def _packed_layers(self, model, checkpoint, renamed) -> Iterator[tuple[str, Awaited]]:
        """The quantised layers of a checkpoint that are modules of this model."""
        modules, found = dict(model.named_modules()), False
        for layer, described in checkpoint.layers.items():
            key, converted = renamed(f"{layer}.weight")
            name = key.removesuffix(".weight")
            if converted is None and name not in modules:
                continue  # of a larger model; transformers lists its tensors
            if converted is not None or not isinstance(modules[name], nn.Linear):
                kind = "part of another parameter" if converted else type(modules[name]).__name__
                raise ValueError(
                    f"layer {layer!r}: in the model {name!r} is {kind}, must be Linear"
                )
            linear, geometry = modules[name], described.geometry
            shape = linear.in_features, linear.out_features
            if (geometry.k, geometry.n) != shape:
                raise ValueError(
                    f"layer {layer!r}: [k, n] is {[geometry.k, geometry.n]} in the checkpoint,"
                    f" must be the model's {list(shape)}"
                )
            _check_shape(layer, *shape)
            try:
                checkpoint.outline(layer)
            except CheckpointError:
                raise
            except ValueError as error:
                raise ValueError(f"layer {layer!r}: {error}") from error
            found = True
            self.read_from.add(described.form.name)
            nbytes = sum(
                checkpoint.source.entries[each].nbytes for each in described.tensors.values()
            )
            yield name, Awaited(linear, partial(_packed, checkpoint, layer, model.dtype), nbytes)
        if not found:
            raise ValueError(
                f"{checkpoint.source.path}: none of its {len(checkpoint)} quantised layers"
                f" ({next(iter(checkpoint))!r} ...) is a layer of {type(model).__name__}"
            )

    def _float_layers(self, model, checkpoint, renamed) -> Iterator[tuple[str, Awaited]]:
        """The linear layers to quantise whose weights are tensors of the files. (Weights that
        transformers puts together or splits are quantised once they are loaded.)"""
        stored = {}
        for name in checkpoint.others:
            key, converted = renamed(name)
            if converted is None:
                stored[key] = name
        chosen = self._to_quantize(model)
        for name, linear in chosen.items():
            _check_shape(name, linear.in_features, linear.out_features)
            if (tensor := stored.get(f"{name}.weight")) is not None:
                entry, shape = checkpoint.source.entries[tensor], tuple(linear.weight.shape)
                if entry.shape != shape or not entry.code.endswith(("F16", "F32", "F64")):
                    raise ValueError(
                        f"layer {name!r}: {tensor!r} is {entry.dtype.name} {entry.shape}, must be"
                        f" floats of 16 bits or more, {shape}"
                    )
                read = partial(
                    self._quantized, name, partial(checkpoint.tensor, tensor), model.dtype
                )
                nbytes = (
                    linear.weight.numel() * self.quantization_config.options.get("bits", 4) // 8
                )
                yield name, Awaited(linear, read, nbytes)

    def _to_quantize(self, model) -> dict[str, nn.Linear]:
        numbers, form = self.quantization_config.options.get("format"), self._form_to_save()
        if form.numbers != (numbers or "integer"):
            raise ValueError(
                f"save_format={form.name!r} holds no numbers of format={numbers!r}, to which the"
                " model is quantised"
            )
        chosen = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
            and not is_skipped(name, self.quantization_config.skip)
            and f"{name}.weight" not in model.all_tied_weights_keys
        }
        hessians = self._hessians()
        for name in chosen:
            if hessians is not None and name not in hessians:
                raise ValueError(
                    f"layer {name!r} has no Hessian: {self.quantization_config.hessians} has"
                    f" {len(hessians)} others"
                )
        return chosen

    def _hessians(self):
        file = self.quantization_config.hessians
        return None if file is None else nm.load_hessians(file)

    def _quantized(self, name: str, read: Callable, dtype: torch.dtype):
        config, hessians = self.quantization_config, self._hessians()
        more = {} if hessians is None else {"calibration": hessians[name]}
        w = np.ascontiguousarray(read().T)
        weight = nm.quantize(w, method=config.method, **more, **config.options)
        if isinstance(weight, BlockWeight):
            # A global scale that divides in the format to save is the rounded inverse of one that
            # multiplies: the model computes with the numbers that are saved.
            weight, _ = self._form_to_save().prepare(weight)
        return _pack(weight, dtype)

    def _process_model_after_weight_loading(self, model, **kwargs):
        waiting = {
            name: (each.read, each.byte.device)
            for name, each in model.named_modules()
            if isinstance(each, Awaited)
        }
        for name, linear in {} if self.read_from else self._to_quantize(model).items():
            numbers = partial(_numbers, model, name)
            read = partial(self._quantized, name, numbers, model.dtype)
            waiting[name] = read, linear.weight.device
        if not waiting:
            raise ValueError(
                f"{type(model).__name__} has no torch.nn.Linear beyond"
                f" skip={self.quantization_config.skip}: there is nothing to quantise"
            )
        for name, (read, device) in logging.tqdm(waiting.items(), desc="Packing layers"):
            before = model.get_submodule(name)
            try:
                made = Linear.from_packed(read(), before.bias).to(device)
            except CheckpointError:  # names the layer
                raise
            except (ValueError, TypeError) as error:
                raise type(error)(f"layer {name!r}: {error}") from error
            model.set_submodule(name, _with_hook(made.train(before.training), before))
        return model

    # ---- saving

    def get_state_dict_and_metadata(self, model):
        """The model's tensors with ours as the format to save has them, on the host; config.json is
        written after this, and says what they are."""
        layers = {name: each for name, each in model.named_modules() if isinstance(each, Linear)}
        state = {
            key: value
            for key, value in model.state_dict().items()
            if key.rpartition(".")[0] not in layers or key.endswith(".bias")
        }
        floats = [
            key.removesuffix(".weight")
            for key, value in state.items()
            if skipped.is_left_in_float(key, value.shape, str(value.dtype).removeprefix("torch."))
        ]
        form, facts = self._form_to_save(), []
        for name, layer in layers.items():
            tensors, fact = layer_tensors(form, name, layer.weight)
            facts.append(fact)
            for last, array in tensors.items():
                tensor = operators.tensor_over(array)
                if last in form.codes_of and tensor.dtype == torch.uint8:
                    tensor = tensor.view(_CODES[form.codes_of[last]])
                state[f"{name}.{last}"] = tensor
        said = quantization_of(
            [{"layers": facts, "floats": sorted(floats)}], form.name, self.excepted
        )
        model.config.quantization_config = said
        return state, {
            "producer": f"numba_marlin {nm.__version__}",
            "quantization_config": json.dumps(said),
        }

    def _form_to_save(self) -> StoredFormat:
        config = self.quantization_config
        if config.save_format is not None:
            return find_stored(config.save_format)
        if len(self.read_from) > 1:
            raise ValueError(
                f"layers were read from the formats {', '.join(sorted(self.read_from))}: name the"
                " one to save, Config(save_format=...)"
            )
        numbers = config.options.get("format") or "integer"
        return find_stored(next(iter(self.read_from), _USUAL.get(numbers)))


def _renamer(model) -> Callable[[str], tuple[str, str | None]]:
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


def _weights_of(names: Iterable[str]) -> set[str]:
    return {f"{name}.weight" for name in names}


def _check_shape(name: str, k: int, n: int) -> None:
    if k % 16 or n % 8:
        raise ValueError(
            f"layer {name!r}: [k, n] is {[k, n]}, must be multiples of 16 and 8: leave it in float"
            " (skip)"
        )


def _packed(checkpoint: Checkpoint, layer: str, dtype: torch.dtype):
    weight = checkpoint[layer]
    if isinstance(weight, QuantizedWeight) and weight.bits not in SUPPORTED_BITS:
        weight = widen(weight, min(SUPPORTED_BITS))
    return weight if isinstance(weight, PackedWeight) else _pack(weight, dtype)


def _pack(weight, dtype: torch.dtype):
    if isinstance(weight, BlockWeight):
        return nm.pack(weight, dtype="bfloat16" if dtype == torch.bfloat16 else "float16")
    return nm.pack(weight)


def _numbers(model: nn.Module, name: str) -> np.ndarray:
    return model.get_submodule(name).weight.detach().float().cpu().numpy()


def _with_hook(made: nn.Module, before: nn.Module) -> nn.Module:
    """accelerate's hook, which brings inputs to a module's device, goes along."""
    hook = getattr(before, "_hf_hook", None)
    if hook is None:
        return made
    from accelerate.hooks import add_hook_to_module

    return add_hook_to_module(made, hook)
