"""``quantization_config`` of a checkpoint that this package writes: tells other programs how the
layers were quantised.

Each file describes its layers in its metadata, under FACTS, so that a resumed conversion can also
describe the layers that an earlier run wrote.
"""

from __future__ import annotations

from collections import Counter

import numba_marlin

FACTS = "numba_marlin_layers"


def quantization_of(facts: list[dict], form: str) -> dict:
    """The configuration of files with these FACTS, of layers of format ``form``. Layers may differ;
    the most common code size and group size are reported. {} if there is no layer."""
    layers = [each for file in facts for each in file["layers"]]
    if not layers:
        return {}
    kinds = Counter((each["bits"], each["group"]) for each in layers)
    (bits, group), _ = kinds.most_common(1)[0]
    symmetric, permuted = (
        all(each["symmetric"] for each in layers),
        any(each["permuted"] for each in layers),
    )
    said = {"quantized_by": f"numba_marlin {numba_marlin.__version__}"} | (
        {"mixed": True} if len(kinds) > 1 else {}
    )
    common = {"bits": bits, "group_size": group} | said
    if form in ("gptq", "gptq_v2"):
        return {
            "quant_method": "gptq",
            "checkpoint_format": form,
            "sym": symmetric,
            "desc_act": permuted,
        } | common
    if form == "marlin":
        return {
            "quant_method": "gptq",
            "checkpoint_format": "marlin",
            "is_marlin_format": True,
            "sym": True,
            "desc_act": False,
        } | common
    if form == "awq":
        return {"quant_method": "awq", "version": "gemm", "zero_point": True} | common
    if form == "vllm-marlin":
        return {"quant_method": "awq", "version": "marlin", "zero_point": not symmetric} | common
    if form == "modelopt-nvfp4":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": group} | said
    if form == "fp8-block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [group, group],
        } | said
    ignored = sorted(
        name.removesuffix(".weight")
        for file in facts
        for name in file["others"]
        if name.endswith("head.weight")
    )
    weights: dict = {
        "num_bits": bits,
        "type": "int" if form == "pack-quantized" else "float",
        "symmetric": symmetric,
        "dynamic": False,
    }
    if form == "fp8":
        form, strategy = (
            "float-quantized",
            {(-1, -1): "tensor", (-1, 1): "channel"}.get((group, layers[0]["columns"]), "block"),
        )
        weights |= {"strategy": strategy} | (
            {"block_structure": [group, group]} if strategy == "block" else {}
        )
    else:
        weights["strategy"] = (
            "channel"
            if group == -1
            else "tensor_group"
            if form == "nvfp4-pack-quantized"
            else "group"
        )
        weights |= {} if group == -1 else {"group_size": group}
    if permuted:
        weights["actorder"] = "group"
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ignored,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        },
    } | said
