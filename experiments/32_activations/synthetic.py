"""The synthetic transformer of experiment 07, whose residual stream has outliers."""

import numpy as np
import smoothing
from model import CALIBRATION, EVALUATION, TOKENS, end_to_end
from transformer import build, texts


class Replaced:
    """The model with other layers: ``end_to_end`` asks for logits with ``weights``, which are the
    model's own, or these layers."""

    def __init__(self, model):
        self.model, self.weights = model, model.weights

    def logits(self, tokens, weights):
        if weights is self.model.weights:
            return self.model.logits(tokens)
        return self.model.logits(tokens, hook=lambda name, x, weight: weights[name].apply(x))


def measure():
    """-> a row for each variant."""
    model = build()
    heard = {name: smoothing.Inputs() for name in model.names()}

    def listen(name, x, weight):
        heard[name].add(x)

    model.logits(texts(model.shape, CALIBRATION, TOKENS, 1), hook=listen)
    evaluation = texts(model.shape, EVALUATION, TOKENS, 2)
    given = {}
    model.logits(evaluation, hook=lambda name, x, weight: given.update({name: x}))
    for facts, layers in smoothing.variants(model.weights, heard):
        errors = [
            smoothing.output_error(layers[name], model.weights[name], given[name])
            for name in layers
        ]
        yield facts | {
            "model": "synthetic",
            "output_error": float(np.mean(errors)),
            **end_to_end(Replaced(model), layers, evaluation),
        }
