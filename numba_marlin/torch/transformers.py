"""Models of transformers with our layers: a quantizer registered with it, and ``from_pretrained``.
Needs transformers: ``pip install 'numba-marlin[transformers]'``.

    import numba_marlin.torch as nmt

    model = nmt.from_pretrained("path/of/a/GPTQ/checkpoint", device_map="cuda")

``from_pretrained`` reads every format that ``load_checkpoint`` reads and kernels multiply (GPTQ, in
activation order too, AWQ, compressed-tensors, NVFP4, MXFP4), and quantises a model in float.

``AutoModelForCausalLM.from_pretrained(path, quantization_config=Config(...))`` does so too where
config.json names no method that transformers knows. Where it names one ("gptq"), transformers
insists on that one's own loader and raises; ``from_pretrained`` replaces that statement first, and
``takeover.take_over`` puts our configuration in the place of theirs.

How: before transformers loads, every module that will be packed is taken out of the model's
skeleton (``skeleton``), and transformers loads everything else, as ever (names, devices, types).
Then the layers are read from the files one after another, packed, and put in their places:
beside the model there is one layer in memory. Errors are raised before the caller gets a model.

``save_pretrained`` writes a format that others read (``Config.save_format``).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils import logging
from transformers.utils.quantization_config import QuantizationConfigMixin

import numba_marlin as nm
from numba_marlin.checkpoints import Checkpoint, CheckpointError
from numba_marlin.formats import BlockWeight
from numba_marlin.formats.files import find_stored
from numba_marlin.formats.stored import StoredFormat
from numba_marlin.torch.linear import Linear
from numba_marlin.torch.mixtures import (
    FUSED_FORM,
    AwaitedExperts,
    Layout,
    experts_of,
    float_experts,
    layout_of,
    made,
    numbers_of,
    one_by_one,
    packed_experts,
)
from numba_marlin.torch.quantize import is_skipped
from numba_marlin.torch.saving import state_and_configuration
from numba_marlin.torch.skeleton import Awaited, float_layers, packed, packed_layers, put_in

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
AT_ONCE = 8  # layers that are read from files while a GPU packs others (experiments/21_model)


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
        if isinstance(owner, (Awaited, AwaitedExperts)) and param_name.endswith(".byte"):
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
        awaited: dict[str, nn.Module] = dict(packed_experts(model, checkpoint))
        of_experts = {each for experts in awaited.values() for each in experts.tensors}
        if checkpoint.layers:
            awaited |= packed_layers(model, checkpoint, of_experts)
            self.read_from = {each.form.name for each in checkpoint.layers.values()}
        elif awaited:
            self.read_from = {FUSED_FORM}
        elif self.pre_quantized:
            raise ValueError(
                f"{checkpoint.source.path}: its config.json says that it is quantised, but it holds"
                " no quantised layer of a known format (`numba-marlin inspect` says what it holds)"
            )
        else:
            layers, experts = self._to_quantize(model)
            for name, linear, tensor in float_layers(model, layers, checkpoint):
                read = partial(self._quantized, name, partial(checkpoint.tensor, tensor), model)
                nbytes = self._packed_bytes(linear.weight.numel())
                awaited[name] = Awaited(linear, read, nbytes, [tensor])
            pack = partial(self._pack, model)
            for name, each in float_experts(model, experts, checkpoint, pack):
                each.nbytes = self._packed_bytes(sum(p.numel() for p in experts[name].parameters()))
                awaited[name] = each
        put_in(model, awaited, checkpoint)

    def _packed_bytes(self, weights: int) -> int:
        return weights * self.quantization_config.options.get("bits", 4) // 8

    def _to_quantize(self, model) -> tuple[dict[str, nn.Linear], dict[str, nn.Module]]:
        """(linear layers, experts)"""
        numbers = self.quantization_config.options.get("format")
        if (numbers or "integer") not in _USUAL:
            raise ValueError(
                f"format={numbers!r} must be None, 'nvfp4' or 'mxfp4': no kernel multiplies weights"
                " of another"
            )
        form = self._form_to_save()
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
        experts = {
            name: module
            for name, module in experts_of(model).items()
            if not is_skipped(name, self.quantization_config.skip)
        }
        hessians = self._hessians()
        for name in (*chosen, *experts):
            if hessians is not None and name not in hessians:
                raise ValueError(
                    f"layer {name!r} has no Hessian: {self.quantization_config.hessians} has"
                    f" {len(hessians)} others"
                )
        return chosen, experts

    def _hessians(self):
        file = self.quantization_config.hessians
        return None if file is None else nm.load_hessians(file)

    def _quantized(self, name: str, read: Callable, model, device: torch.device):
        hessians = self._hessians()
        more = {} if hessians is None else {"calibration": hessians[name]}
        return self._pack(model, np.ascontiguousarray(read().T), device, **more)

    def _pack(self, model, w: np.ndarray, device=torch.device("cpu"), **more):  # noqa: B008
        config = self.quantization_config
        weight = nm.quantize(w, method=config.method, **more, **config.options)
        if isinstance(weight, BlockWeight):
            # A global scale that divides in the format to save is the rounded inverse of one that
            # multiplies: the model computes with the numbers that are saved.
            weight, _ = self._form_to_save().prepare(weight)
        return packed(weight, model.dtype, device)

    def _process_model_after_weight_loading(self, model, **kwargs):
        calls: dict[str, tuple[Callable, torch.device]] = {}
        for name, each in model.named_modules():
            if isinstance(each, Awaited):
                calls[name] = partial(_linear, each.bias, each.read), each.byte.device
            elif isinstance(each, AwaitedExperts):
                calls[name] = partial(made, each, each.layout, each.read), each.byte.device
        layers, experts = ({}, {}) if self.read_from else self._to_quantize(model)
        for name, linear in layers.items():
            read = partial(self._quantized, name, partial(_numbers, model, name), model)
            calls[name] = partial(_linear, linear.bias, read), linear.weight.device
        for name, module in experts.items():
            layout, pack = layout_of(module), partial(self._pack, model)
            read = partial(one_by_one, partial(_quantized_expert, pack, module, layout), layout)
            calls[name] = partial(made, module, layout, read), module.down_proj.device
        if not calls:
            raise ValueError(
                f"{type(model).__name__} has no torch.nn.Linear beyond"
                f" skip={self.quantization_config.skip}: there is nothing to quantise"
            )
        on_gpu = all(device.type == "cuda" for _, device in calls.values())
        layers = in_turn(
            [partial(_layer, name, make, device) for name, (make, device) in calls.items()],
            AT_ONCE if on_gpu and self.read_from else 1,
        )
        for name, found in zip(logging.tqdm(calls, desc="Packing layers"), layers):
            before = model.get_submodule(name)
            model.set_submodule(name, _with_hook(found.train(before.training), before))
        return model

    # ---- saving

    def get_state_dict_and_metadata(self, model):
        """The model's tensors with ours as the format to save has them, on the host; config.json is
        written after this, and says what they are."""
        form = self._form_to_save()
        state, said = state_and_configuration(model, form, self.excepted)
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


def _linear(bias: nn.Parameter | None, read: Callable, device: torch.device) -> Linear:
    return Linear.from_packed(read(device), bias).to(device)


def _layer(name: str, make: Callable, device: torch.device) -> nn.Module:
    """What ``make`` makes. Its errors name the layer."""
    try:
        return make(device)
    except CheckpointError:  # names the layer
        raise
    except (ValueError, TypeError) as error:
        raise type(error)(f"layer {name!r}: {error}") from error


def in_turn(calls: Iterable[Callable], at_once: int) -> Iterator:
    """What the calls return, in their order; of those that are not yet asked for, at most
    ``at_once`` run or wait, each in a thread of its own (1: none before it is asked for)."""
    if at_once == 1:
        for call in calls:
            yield call()
        return
    with ThreadPoolExecutor(at_once) as pool:
        ahead: deque[Future] = deque()
        for call in calls:
            ahead.append(pool.submit(call))
            if len(ahead) == at_once:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _numbers(model: nn.Module, name: str) -> np.ndarray:
    return model.get_submodule(name).weight.detach().float().cpu().numpy()


def _quantized_expert(pack: Callable, module: nn.Module, layout: Layout, *at):
    return pack(numbers_of(module, layout, *at))


def _with_hook(made: nn.Module, before: nn.Module) -> nn.Module:
    """accelerate's hook, which brings inputs to a module's device, goes along."""
    hook = getattr(before, "_hf_hook", None)
    if hook is None:
        return made
    from accelerate.hooks import add_hook_to_module

    return add_hook_to_module(made, hook)
