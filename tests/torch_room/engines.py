"""vLLM on a CPU, as far as its model loader goes. Needs vllm: import it after ``importorskip``."""

import contextlib
import sys
from unittest import mock

import torch
import vllm.distributed.parallel_state as distributed
import vllm.platforms
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import (
    initialize_model,
    process_weights_after_loading,
)
from vllm.platforms.cpu import CpuPlatform
from vllm.utils.torch_utils import set_default_torch_dtype


@contextlib.contextmanager
def on_the_cpu(store, rank=0, world=1):
    """Whatever wheel is installed, vLLM's platform is the CPU, and this process one of its
    ranks."""
    before, here = vllm.platforms.current_platform, CpuPlatform()
    _put(before, here)
    config = VllmConfig()
    config.parallel_config.tensor_parallel_size = world
    with set_current_vllm_config(config):
        distributed.init_distributed_environment(world, rank, f"file://{store}", rank, "gloo")
        distributed.ensure_model_parallel_initialized(world, 1)
    try:
        yield
    finally:
        distributed.destroy_model_parallel()
        distributed.destroy_distributed_environment()
        _put(here, before)


def _put(old, new):
    """Wherever vLLM has imported its platform already."""
    vllm.platforms._current_platform = new
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and module.__dict__.get("current_platform") is old:
            module.current_platform = new


def engine_config(path, quantization="numba_marlin", dtype="float16"):
    """What ``vllm serve path --quantization numba_marlin`` makes of its arguments."""
    return EngineArgs(
        model=str(path),
        quantization=quantization,
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=True,
        max_model_len=32,
        compilation_config={"custom_ops": ["none"]},  # the wheel's own operators are CUDA's
    ).create_engine_config()


def logits(model, config, tokens=7):
    """Of a whole model but its attention, whose kernels a CPU lacks: in its place stands a function
    of q, k and v."""

    def attention(self, q, k, v, *args, **kwargs):
        repeat = q.shape[-1] // k.shape[-1]
        return q + k.repeat(1, repeat) * v.repeat(1, repeat)

    inputs = torch.arange(tokens)
    with (
        mock.patch.object(Attention, "forward", attention),
        torch.inference_mode(),
        set_forward_context(None, config, num_tokens=tokens),
    ):
        return model.compute_logits(model(inputs, inputs))


def loaded_model(config):
    """The steps of vLLM's ``BaseModelLoader.load_model`` that need no accelerator."""
    with set_current_vllm_config(config):
        loader, device = get_model_loader(config.load_config), torch.device("cpu")
        with set_default_torch_dtype(config.model_config.dtype), device:
            model = initialize_model(vllm_config=config)
        loader.load_weights(model, config.model_config)
        process_weights_after_loading(model, config.model_config, device)
    return model
