"""Quantises a whole model with each quantiser, and measures the errors of every linear layer and of
the model's logits.

Blocks are quantised in order, and so are the stages of a block: q, k, v; o; gate, up; down.
Calibration is sequential: a layer's inputs come from the previous layers after their quantisation.
(With ``sequential=False``, for comparison, all inputs come from the float model.) Errors are
measured on other text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from transformer import STAGES, Transformer, texts

import numba_marlin as nm

CALIBRATION, EVALUATION, TOKENS, BATCH = 64, 16, 128, 16
VARIANTS = {
    "rtn": {"method": "rtn"},
    "mse": {"method": "mse"},
    "gptq, no clipping": {"method": "gptq", "clip": False},
    "gptq": {"method": "gptq"},
    "gptq, calibrated on the float model": {"method": "gptq"},
    "gptq, act order": {"method": "gptq", "act_order": True},
    "gptq, act order, static groups": {"method": "gptq", "act_order": True, "static_groups": True},
}


def quantise(
    model: Transformer, tokens: np.ndarray, quantiser: Callable, sequential: bool = True
) -> dict[str, np.ndarray]:
    """Return {name: dequantised weight, float32 [inputs, outputs]}. quantiser: function (name, w,
    Hessian) -> QuantizedWeight."""
    weights = dict(model.weights)
    stream = model.embed(tokens)
    for layer in range(model.shape.layers):
        for stage in STAGES:
            names = [f"{layer}.{name}" for name in stage]
            hessian = nm.Hessian(model.weights[names[0]].shape[0])

            def listen(name, x, weight):
                if name == names[0]:  # the others of the stage have the same inputs
                    hessian.add(x)

            for batch in range(0, len(tokens), BATCH):
                model.block(
                    layer,
                    stream[batch : batch + BATCH],
                    weights if sequential else model.weights,
                    listen,
                )
            for name in names:
                weights[name] = nm.dequantize(
                    quantiser(name, model.weights[name], hessian), np.float32
                )
        stream = np.concatenate(
            [
                model.block(
                    layer, stream[batch : batch + BATCH], weights if sequential else model.weights
                )
                for batch in range(0, len(tokens), BATCH)
            ]
        )
    return weights


def layer_errors(
    model: Transformer, weights: dict[str, np.ndarray], tokens: np.ndarray
) -> dict[str, float]:
    """Return the relative output error of every layer by itself, |x (Q - W)| / |x W|, for its
    inputs x in the float model."""
    found = {}

    def listen(name, x, weight):
        found[name] = float(
            np.linalg.norm(x @ (weights[name] - weight)) / np.linalg.norm(x @ weight)
        )

    model.logits(tokens, hook=listen)
    return found


def end_to_end(
    model: Transformer, weights: dict[str, np.ndarray], tokens: np.ndarray
) -> dict[str, float]:
    """Return the Kullback-Leibler divergence (nats per token) of the next token's distribution, the
    relative error of the logits, and the share of tokens whose likeliest successor stays."""
    before, after = (
        model.logits(tokens, each).astype(np.float64) for each in (model.weights, weights)
    )
    p, q = (
        each
        - np.log(np.exp(each - each.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - each.max(-1, keepdims=True)
        for each in (before, after)
    )
    return {
        "kl": float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1))),
        "logits_error": float(np.linalg.norm(after - before) / np.linalg.norm(before)),
        "same_top": float(np.mean(before.argmax(-1) == after.argmax(-1))),
    }


def measure(
    model: Transformer, variant: str, group_size: int, symmetric: bool = True
) -> Iterator[dict]:
    """Return one row per layer, and one for the whole model."""
    shape = model.shape
    calibration, evaluation = (
        texts(shape, CALIBRATION, TOKENS, 1),
        texts(shape, EVALUATION, TOKENS, 2),
    )
    options = VARIANTS[variant]

    def quantiser(name, w, hessian):
        own = {"calibration": hessian} if options["method"] == "gptq" else {}
        return nm.quantize(w, group_size=group_size, symmetric=symmetric, **options, **own)

    start = time.process_time()
    if options["method"] == "gptq":
        weights = quantise(
            model, calibration, quantiser, sequential=not variant.endswith("float model")
        )
    else:
        weights = {
            name: nm.dequantize(quantiser(name, w, None), np.float32)
            for name, w in model.weights.items()
        }
    seconds = time.process_time() - start
    common = {"variant": variant, "bits": 4, "group_size": group_size, "symmetric": symmetric}
    for name, error in layer_errors(model, weights, evaluation).items():
        k, n = model.weights[name].shape
        yield {"kind": "layer", **common, "layer": name, "k": k, "n": n, "output_error": error}
    yield {
        "kind": "model",
        **common,
        **end_to_end(model, weights, evaluation),
        "cpu_seconds": round(seconds, 2),
    }
