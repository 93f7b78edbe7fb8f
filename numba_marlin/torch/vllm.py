"""A plugin of vLLM: our kernels for the linear layers of a checkpoint that it serves. **No server
has run it yet**: its contract is tested against vLLM's own classes, on a CPU.

    vllm serve path/of/a/GPTQ/checkpoint --quantization numba_marlin

Installing the package is enough: vLLM finds ``register`` by the entry point
``vllm.general_plugins``. Without ``--quantization numba_marlin`` nothing changes.

Read are directories of GPTQ (in activation order too, which vLLM itself has given up, and with zero
points), AWQ and compressed-tensors' pack-quantized, of 4 and 8 bits (``checkpoints.scheme``).
Nothing is dequantised to 16 bits. Tensor parallelism is vLLM's: it cuts and fuses the stored
tensors, and each rank packs its share (``checkpoints.shares``). Row-parallel layers in activation
order gather x from all ranks first, as ``parallel.RowParallelLinear`` does; every rank loads the
whole of them, on the host, before they are cut.

Batch-invariant results, the same bits for a row whatever else is in the batch: with vLLM's
``VLLM_BATCH_INVARIANT=1``, or ``"batch_invariant": true`` in ``quantization_config``. That is of
these layers; attention, norms and sums over ranks are vLLM's, and only the variable reaches them.

Refused by name: quantised experts, embeddings and output heads. Left to vLLM: layers in float,
attention and its cache. Not offered: LoRA adapters on packed layers, new weights while it serves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm import envs
from vllm.distributed import tensor_model_parallel_all_gather
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.utils import WeightsMapper
from vllm.model_executor.parameter import (
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    PackedColumnParameter,
    PackedvLLMParameter,
)

import numba_marlin as nm
from numba_marlin.checkpoints.scheme import METHODS, Scheme, Schemes
from numba_marlin.checkpoints.shares import UNKNOWN, Held, Share
from numba_marlin.formats.floats import float_type
from numba_marlin.torch.linear import Linear

METHOD = "numba_marlin"  # what --quantization names
_PLACES = {"q": 0, "k": 1, "v": 2}  # of a fused layer's parts, by the name that vLLM calls them


def register() -> None:
    """Make METHOD known to vLLM; called in each of its processes, any number of times."""
    register_quantization_config(METHOD)(Config)
    register_weight_loader_v2_supported_method(LinearMethod)


class Config(QuantizationConfig):
    """What a checkpoint's ``quantization_config`` says. batch_invariant: each row of a layer's
    result has the same bits whatever the other rows are."""

    def __init__(self, stated: dict[str, Any]):
        super().__init__()
        self.stated = stated
        self.schemes = Schemes(stated)
        asked = stated.get("batch_invariant", False)
        if not isinstance(asked, bool):
            raise ValueError(
                f"quantization_config: batch_invariant={asked!r} must be true or false"
            )
        self.batch_invariant = asked or bool(envs.VLLM_BATCH_INVARIANT)

    def __repr__(self) -> str:
        mode = ", batch-invariant" if self.batch_invariant else ""
        return f"<numba_marlin of {self.schemes.method}{mode}>"

    @classmethod
    def get_name(cls) -> str:
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return ["quantize_config.json", "quant_config.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Config:
        return cls(config)

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg, user_quant, hf_config=None) -> str | None:
        """Take a checkpoint of another method, but only if the user names this one."""
        if user_quant != METHOD or hf_quant_cfg is None:
            return None
        return METHOD if hf_quant_cfg.get("quant_method") in METHODS else None

    @staticmethod
    def get_checkpoint_weight_mapper() -> WeightsMapper:
        return WeightsMapper()  # vLLM's own drops every g_idx

    def maybe_update_config(self, model_name: str, hf_config=None, revision=None) -> None:
        """Where the files are at hand, what their headers say of each layer counts."""
        directory = Path(model_name)
        if directory.is_dir() and any(directory.glob("*.safetensors")):
            self.schemes = Schemes(self.stated, nm.load_checkpoint(directory))

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        def renamed(name: str) -> str | None:
            return next(iter(hf_to_vllm_mapper.apply_list([name])), None)

        self.schemes.rename(renamed)

    def get_quant_method(self, layer: nn.Module, prefix: str):
        if isinstance(layer, LinearBase):
            scheme = self.schemes.of_fused(prefix, self._parts(prefix))
            return UnquantizedLinearMethod() if scheme is None else LinearMethod(self, scheme)
        if isinstance(layer, RoutedExperts) and self.schemes.any_within(prefix):
            raise ValueError(
                f"layer {prefix!r}: its experts are quantised, and numba_marlin has no product of"
                " routed experts: serve it without --quantization numba_marlin"
            )
        if isinstance(layer, VocabParallelEmbedding) and self._is_quantised_table(prefix):
            raise ValueError(
                f"layer {prefix!r} is quantised, and numba_marlin reads embeddings and output heads"
                " in float only: serve it without --quantization numba_marlin"
            )
        return None

    def _parts(self, prefix: str) -> list[str]:
        """The layers of the files that a layer of the model is made of."""
        parent, dot, last = prefix.rpartition(".")
        return [parent + dot + each for each in self.packed_modules_mapping.get(last, [last])]

    def _is_quantised_table(self, prefix: str) -> bool:
        if self.schemes.found is None:
            return bool(self.stated.get("lm_head", False))
        return self.schemes.of(prefix) is not None


class LinearMethod(LinearMethodBase):
    """What vLLM calls for one quantised linear layer."""

    # The stored tensors stay on the host, from which packing uploads their words.
    requires_device_loading = False

    def __init__(self, config: Config, scheme: Scheme):
        self.config, self.scheme = config, scheme

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        """Empty tensors of this rank's share as they are stored, on the host. ValueError, which
        names the layer, the value and the rule, before any of them is made."""
        world = input_size // input_size_per_partition
        self.share = share = Share(
            layer.prefix,
            self.scheme,
            input_size,
            tuple(output_partition_sizes),
            layer.tp_rank if world > 1 else 0,
            world,
        )
        self.device = torch.empty(0).device  # vLLM makes the model within ``with device:``
        loader = extra_weight_attrs["weight_loader"]
        activations = str(params_dtype).removeprefix("torch.")
        self.tensors = share.held(activations)
        for name, held in self.tensors.items():
            layer.register_parameter(name, _parameter(held, loader))
        if self.scheme.index is not None:
            index = torch.full(
                (len(share.parts), share.k), UNKNOWN, dtype=torch.int32, device="cpu"
            )
            layer.register_parameter(self.scheme.index, _loaded_by(index, _load_index))
        if self.scheme.form == "pack-quantized":  # known already
            shape = torch.empty(2, dtype=torch.int64, device="cpu")
            layer.register_parameter("weight_shape", _loaded_by(shape, _ignore))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Pack what was loaded, on the device of the model, and drop the stored tensors. ValueError
        for impossible values, which names the layer and leaves it as it is."""
        if hasattr(layer, "packed"):
            return
        stored = {name: _numpy(getattr(layer, name)) for name in self.tensors}
        index = self.scheme.index
        read = self.share.read(stored, None if index is None else _numpy(getattr(layer, index)))
        parts = nn.ModuleList()
        columns = None
        for each in read:
            part, of_x = self._packed(each)
            parts.append(part)
            columns = of_x if columns is None else columns
        for name in (*self.tensors, index, "weight_shape"):
            if name is not None and hasattr(layer, name):
                delattr(layer, name)
        layer.packed = parts
        layer.register_buffer("columns", columns, persistent=False)

    def _packed(self, stored) -> tuple[_Part, Tensor | None]:
        """The product of one weight, and the columns of the gathered x that it multiplies; None if
        they are this rank's."""
        share = self.share
        try:
            if not share.whole:
                place = self.device if self.device.type == "cuda" else None
                return self._part(nm.pack(stored, place=place)), None
            part, columns = nm.shard(
                nm.pack(stored), share.rank, share.world, "k", return_columns=True
            )
        except ValueError as error:
            raise ValueError(f"layer {share.name!r}: {error}") from error
        gathered = stored.permutation is not None
        made = self._part(part)
        return made, torch.from_numpy(columns).to(self.device) if gathered else None

    def _part(self, weight) -> _Part:
        part = _Part.from_packed(weight).to(self.device)
        part.batch_invariant = self.config.batch_invariant
        return part

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., k of the rank] -> [..., n of the rank]"""
        if layer.columns is not None:
            x = tensor_model_parallel_all_gather(x).index_select(-1, layer.columns)
        if len(layer.packed) == 1:
            return layer.packed[0](x, bias)
        sizes = [part.out_features for part in layer.packed]
        biases = [None] * len(sizes) if bias is None else bias.split(sizes)
        return torch.cat([part(x, each) for part, each in zip(layer.packed, biases)], dim=-1)


class _Part(Linear):
    """A packed weight whose bias stays with vLLM's layer."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._product(x, bias)


def _parameter(held: Held, loader) -> nn.Parameter:
    """The parameter of vLLM whose loaders cut a tensor as ``held`` says. Scales that are never
    loaded are no numbers, which packing refuses."""
    dtype = getattr(torch, held.dtype)
    if held.packed is None:
        data = torch.full(held.shape, float("nan"), dtype=dtype, device="cpu")
    else:
        data = torch.zeros(held.shape, dtype=dtype, device="cpu")
    options: dict[str, Any] = {
        "data": data,
        "weight_loader": loader,
        "output_dim": held.columns,
    }
    if held.packed is not None:
        options |= {"packed_dim": held.packed, "packed_factor": held.per_word}
    if held.rows is None:
        kind = ChannelQuantScaleParameter if held.packed is None else PackedColumnParameter
        return kind(**options)
    kind = GroupQuantScaleParameter if held.packed is None else PackedvLLMParameter
    return kind(input_dim=held.rows, **options)


def _loaded_by(data: Tensor, loader) -> nn.Parameter:
    """A parameter that is loaded by a function of its own."""
    parameter = nn.Parameter(data, requires_grad=False)
    parameter.weight_loader = loader
    return parameter


def _load_index(parameter: nn.Parameter, loaded: Tensor, part=None) -> None:
    """A row of [parts, k] for each of the layers that the file's tensor is of. part: as vLLM names
    it, "q", 1 or (0, 1); None: all of them, fused in the file."""
    if loaded.shape != parameter.shape[1:]:
        raise ValueError(
            f"g_idx has shape {tuple(loaded.shape)}, must have {tuple(parameter.shape[1:])}"
        )
    if part is None:
        parameter.data[:] = loaded
    for each in part if isinstance(part, tuple) else () if part is None else (part,):
        parameter.data[_PLACES.get(each, each)] = loaded


def _ignore(parameter: nn.Parameter, loaded: Tensor, part=None) -> None:
    pass


def _numpy(parameter: nn.Parameter) -> np.ndarray:
    tensor = parameter.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(float_type("bfloat16"))
    return tensor.numpy()
