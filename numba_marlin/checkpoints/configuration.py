"""``quantization_config`` of a checkpoint that this package writes: tells other programs how the
layers were quantised.

Each file describes in its metadata, under FACTS, its layers and the modules that it leaves in float
("floats"), so that a resumed conversion can also describe what an earlier run wrote.
"""

from __future__ import annotations

from collections import Counter

import numba_marlin
from numba_marlin.checkpoints import skipped
from numba_marlin.formats.files import STORED

FACTS = "numba_marlin_layers"


def stated_quantization(config: dict) -> dict:
    """What config.json's contents say about quantisation, at the top or in text_config; {} if
    nothing."""
    text = config.get("text_config")
    for where in (config, text if isinstance(text, dict) else {}):
        if isinstance(where.get("quantization_config"), dict):
            return where["quantization_config"]
    return {}


def stated_format(quantization: dict) -> str | None:
    """The format that a configuration names, or None if it names none that this package knows."""
    if quantization.get("quant_method") == "awq" and quantization.get("version") == "marlin":
        return "vllm-marlin"
    for said in (
        quantization.get("checkpoint_format"),
        quantization.get("format"),
        quantization.get("quant_method"),
    ):
        if isinstance(said, str) and said in STORED:
            return said
    return None


def without_quantization(config: dict) -> dict:
    """config.json's contents without what they say about quantisation, at the top and in
    text_config."""
    rest = {key: value for key, value in config.items() if key != "quantization_config"}
    if isinstance(rest.get("text_config"), dict):
        rest["text_config"] = without_quantization(rest["text_config"])
    return rest


def quantization_of(facts: list[dict], form: str, excepted: list[str]) -> dict:
    """The configuration of files with these FACTS, of layers of format ``form``. Layers may differ;
    the most common code size and group size are reported. excepted: modules that the source's
    configuration excepts (``skipped.said``). {} if there is no layer."""
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
    names = [each["name"] for each in layers]
    floats = skipped.listed((name for file in facts for name in file["floats"]), names, excepted)
    not_converted = {"modules_to_not_convert": skipped.as_patterns(floats, names)}
    common = {"bits": bits, "group_size": group} | said
    if form in ("gptq", "gptq_v2"):
        in_block = skipped.as_modules_in_block(floats, names)
        return (
            {
                "quant_method": "gptq",
                "checkpoint_format": form,
                "sym": symmetric,
                "desc_act": permuted,
                "dynamic": skipped.as_dynamic(floats),
            }
            | ({"modules_in_block_to_quantize": in_block} if in_block else {})
            | (common | not_converted)
        )
    if form == "marlin":
        return {
            "quant_method": "gptq",
            "checkpoint_format": "marlin",
            "is_marlin_format": True,
            "sym": True,
            "desc_act": False,
            "dynamic": skipped.as_dynamic(floats),
        } | (common | not_converted)
    if form == "awq":
        return {
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
            "dynamic": skipped.as_dynamic(floats),
        } | (common | not_converted)
    if form == "vllm-marlin":
        return {
            "quant_method": "awq",
            "version": "marlin",
            "zero_point": not symmetric,
            "dynamic": skipped.as_dynamic(floats),
        } | (common | not_converted)
    if form == "modelopt-nvfp4":
        return {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": group,
            "ignore": skipped.as_wildcards(floats),
        } | said
    if form == "fp8-block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [group, group],
        } | (not_converted | said)
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
        "ignore": floats,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        },
    } | said
