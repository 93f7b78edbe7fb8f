"""The sentence-embedding model of experiment 20, which was trained."""

import embedding
import likeness
import numpy as np
import smoothing
import texts
import torch

CALIBRATION, EVALUATED = 512, 256


class Rounded(torch.nn.Module):
    """A linear layer by a ``smoothing.Layer``."""

    def __init__(self, layer, bias):
        super().__init__()
        self.layer, self.bias = layer, bias

    def forward(self, x):
        return torch.from_numpy(self.layer.apply(x.numpy())) + self.bias


def names_of(model):
    return [
        name.removesuffix(".weight")
        for name, each in model.named_parameters()
        if each.dim() == 2 and name.startswith("encoder.layer.")
    ]


def replace(model, layers):
    """Put the layers in the place of the model's."""
    for name, each in layers.items():
        parent, _, last = name.rpartition(".")
        bias = model.get_submodule(name).bias
        setattr(model.get_submodule(parent), last, Rounded(each, bias))


def hear(model, names, source, sentences):
    """{name: Inputs} of the model on the sentences, one by one, as padding would count."""
    heard = {name: smoothing.Inputs() for name in names}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: heard[name].add(given[0].numpy())
        )
        for name in names
    ]
    for each in sentences:
        embedding.embed(model, source, [each])
    for each in hooks:
        each.remove()
    return heard


def measure():
    """-> a row for each variant."""
    source, drawn = embedding.directory(), texts.draw(CALIBRATION)
    model = embedding.float_model(source)
    names = names_of(model)
    weights = {name: model.get_submodule(name).weight.detach().numpy().T for name in names}
    evaluated = drawn["reference"][:EVALUATED]
    heard = hear(model, names, source, drawn["calibration"])
    given = hear(model, names, source, evaluated[:32])
    wanted = embedding.embed(model, source, evaluated)
    for facts, layers in smoothing.variants(weights, heard):
        errors = [
            smoothing.output_error(layers[name], weights[name], given[name].rows) for name in names
        ]
        other = embedding.float_model(source)
        replace(other, layers)
        found = likeness.compared(embedding.embed(other, source, evaluated), wanted)
        yield facts | {"model": "sentences", "output_error": float(np.mean(errors)), **found}
