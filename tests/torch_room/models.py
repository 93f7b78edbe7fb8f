"""Small models of transformers, directories of them, and what their logits must be. Needs torch and
transformers: import it after ``importorskip``."""

from dataclasses import replace

import numpy as np
import torch
import transformers
from torch import nn

import numba_marlin as nm

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
GROUP = {"group_size": 32}
NVFP4 = {"format": "nvfp4", "global_scale": 2.0**-15}  # its inverse is a float32 too
MXFP4 = {"format": "mxfp4"}
TOKENS = torch.arange(20)[None]


def of_type(model, dtype):
    """As transformers loads it: buffers, such as the rotations' frequencies, stay as they are."""
    for each in model.parameters():
        each.data = each.data.to(dtype)
    return model.eval()


def llama(dtype=torch.float16, **more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**(SIZES | HEADS | more))
    return of_type(transformers.LlamaForCausalLM(config), dtype)


def qwen(**more):
    """Biases of q, k and v, which are not 0; the embedding is the head too."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**SIZES, **HEADS, tie_word_embeddings=True, **more)
    model = of_type(transformers.Qwen2ForCausalLM(config), torch.float16)
    for name, each in model.named_parameters():
        if name.endswith(".bias"):
            each.data.normal_()
    return model


MIXTURE = SIZES | HEADS | {"num_experts_per_tok": 2}


def mixtral(**more):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**(MIXTURE | {"num_local_experts": 4} | more))
    return of_type(transformers.MixtralForCausalLM(config), torch.float16)


def qwen3_moe():
    torch.manual_seed(0)
    sizes = {"head_dim": 16, "moe_intermediate_size": 64, "num_experts": 4}
    config = transformers.Qwen3MoeConfig(**MIXTURE, **sizes, norm_topk_prob=True)
    return of_type(transformers.Qwen3MoeForCausalLM(config), torch.float16)


def gpt_oss():
    """Biases of experts, which are not 0; columns of gate and up take turns."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**MIXTURE, head_dim=16, num_local_experts=4)
    model = of_type(transformers.GptOssForCausalLM(config), torch.bfloat16)
    for name, each in model.named_parameters():
        if ".experts." in name:
            each.data.normal_(0, 0.2)
    return model


def quantised(model, ends=("_proj",), **options):
    """{name of a layer: its weight, quantised}"""
    return {
        name: nm.quantize(each.weight.detach().float().t().contiguous().numpy(), **options)
        for name, each in model.named_modules()
        if name.endswith(ends)
    }


def permuted(weights):
    """The weights with their rows in another order, as GPTQ in activation order leaves them."""
    rng = np.random.default_rng(0)
    return {
        name: replace(each, permutation=rng.permutation(each.k).astype(np.int32))
        for name, each in weights.items()
    }


def stored(path, model, weights, form="gptq", **options):
    """The directory of a model of which ``weights`` are quantised."""
    others = {
        name: each.detach().float().numpy().astype("float16")
        for name, each in model.state_dict().items()
        if name.removesuffix(".weight") not in weights
        and not (name == "lm_head.weight" and model.config.tie_word_embeddings)
    }
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return nm.save_checkpoint(path, weights, form, others=others, config=config, **options)


class Dequantised(nn.Module):
    """A linear layer with a weight's numbers, which rounds once."""

    def __init__(self, weight, bias):
        super().__init__()
        self.w = torch.from_numpy(nm.dequantize(weight, "float64"))
        self.b = 0 if bias is None else bias.detach().double()

    def forward(self, x):
        return (x.double() @ self.w + self.b).to(x.dtype)


def logits(model, tokens=TOKENS):
    with torch.no_grad():
        return model(tokens).logits


def expected(model, weights):
    """The logits of a float model with the numbers of ``weights`` in the place of its own."""
    for name, weight in weights.items():
        bias = model.get_submodule(name).bias
        model.set_submodule(name, Dequantised(weight, bias))
    return logits(model)


def assert_near(found, wanted):
    """Each layer differs by one rounding at most; the last bit of some numbers."""
    error = (found.double() - wanted.double()).norm() / wanted.double().norm()
    assert error < 2 * torch.finfo(found.dtype).eps
