"""One of two processes of ``test_vllm``: a row-parallel layer in activation order, x gathered and
results summed over the ranks by vLLM's own collectives. ``python -m``, with the rank, the store and
a directory of one GPTQ layer; prints the error of the whole layer's result on this rank."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.linear import RowParallelLinear

import numba_marlin as nm
import numba_marlin.torch.vllm as plugin
from tests.torch_room import engines
from tests.torch_room.layers import product, tensor


def main(rank: int, store: str, directory: str) -> None:
    stated = json.loads((Path(directory) / "config.json").read_text())["quantization_config"]
    config, (name, q) = plugin.Config.from_config(stated), *nm.load_checkpoint(directory).items()
    with engines.on_the_cpu(store, rank, 2), set_current_vllm_config(VllmConfig()):
        layer = RowParallelLinear(
            *q.shape, params_dtype=torch.float16, quant_config=config, prefix=name
        )
        for key, loaded in load_file(Path(directory) / "model.safetensors").items():
            parameter = getattr(layer, key.rpartition(".")[2])
            parameter.weight_loader(parameter, loaded)
        layer.bias.data.fill_(1)
        layer.quant_method.process_weights_after_loading(layer)
        x = tensor(5, q.k).double()
        y, _ = layer(x.chunk(2, -1)[rank])
        print(float((y - product(x, q, bias=layer.bias)).abs().max()))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
