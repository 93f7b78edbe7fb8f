"""Layers that multiply activations of 8 bits with weights of 4: what a kernel of W4A8 computes, in
NumPy, but for its sums, which are float32 of another order.

``Inputs`` listens to a layer's inputs x [..., k]; ``quantised_layers`` makes every layer's
``Layer``: the weight as 4 bits keep it, and ``apply(x)`` [..., k] -> [..., n].

Smoothing (Xiao et al., *SmoothQuant*, 2023): y = (x / s) (s W), where s_j is the square root of the
largest |x_j| over the largest |W_j|. Outliers of x become rows of W that are larger. A model would
fold 1 / s into the norm or the layer before; here x is divided, in float32, before it is rounded.
"""

from dataclasses import dataclass, field

import numpy as np

import numba_marlin as nm
from numba_marlin.quantizers.activations import quantize_rows

METHODS = ("rtn", "gptq")
GROUP_SIZES = (128, -1)
ACTIVATIONS = ("16 bits", "int8", "fp8")
ROWS = 4096  # that a layer's inputs keep, for Hessians of divided x


@dataclass
class Inputs:
    """What a layer was given: the largest magnitude of each channel, and the first rows."""

    largest: np.ndarray | None = None
    kept: list = field(default_factory=list)

    def add(self, x):
        rows = x.reshape(-1, x.shape[-1]).astype(np.float32)
        largest = np.abs(rows).max(axis=0)
        self.largest = largest if self.largest is None else np.maximum(self.largest, largest)
        there = sum(map(len, self.kept))
        if there < ROWS:
            self.kept.append(rows[: ROWS - there])

    @property
    def rows(self):
        return np.concatenate(self.kept)


@dataclass(frozen=True)
class Layer:
    """weight: float32 [k, n], of 4 bits, times ``divisors``' rows; activations: of ACTIVATIONS."""

    weight: np.ndarray
    divisors: np.ndarray
    activations: str

    def rounded(self, x):
        """x [m, k] float32 as the layer multiplies it: fp16, or a scale per row and 8 bits."""
        halves = (x / self.divisors).astype(np.float16)
        if self.activations == "16 bits":
            return halves.astype(np.float32)
        return quantize_rows(halves, self.activations).dequantized(np.float32)

    def apply(self, x):
        rows = x.reshape(-1, x.shape[-1])
        return (self.rounded(rows) @ self.weight).reshape(*x.shape[:-1], -1)


def divisors(inputs, weight):
    """s, float32 [k]; 1 where a channel or its weights are all zero."""
    of_w = np.abs(weight).max(axis=1)
    known = (inputs.largest > 0) & (of_w > 0)
    ratio = np.divide(inputs.largest, of_w, out=np.ones_like(of_w), where=known)
    return np.sqrt(ratio).astype(np.float32)


def quantised_layers(weights, heard, method, group_size, smooth):
    """{name: float32 [k, n] of 4 bits}, {name: divisors}. weights: {name: [k, n]}; heard: {name:
    Inputs}."""
    found, divided = {}, {}
    for name, w in weights.items():
        s = divisors(heard[name], w) if smooth else np.ones(len(w), np.float32)
        calibration = {}
        if method == "gptq":
            calibration = {"calibration": nm.Hessian(len(w)).add(heard[name].rows / s)}
        q = nm.quantize(w * s[:, None], group_size=group_size, method=method, **calibration)
        found[name], divided[name] = nm.dequantize(q, np.float32), s
    return found, divided


def variants(weights, heard):
    """(facts of a row, {name: Layer}) of every variant."""
    for method in METHODS:
        for group_size in GROUP_SIZES:
            for smooth in (False, True):
                made, divided = quantised_layers(weights, heard, method, group_size, smooth)
                for activations in ACTIVATIONS:
                    facts = {
                        "method": method,
                        "group_size": group_size,
                        "smooth": smooth,
                        "activations": activations,
                    }
                    yield (
                        facts,
                        {name: Layer(made[name], divided[name], activations) for name in made},
                    )


def output_error(layer, weight, x):
    """|apply(x) - x W| / |x W|, W and x as they were."""
    exact = x @ weight
    return float(np.linalg.norm(layer.apply(x) - exact) / np.linalg.norm(exact))
