"""A small decoder-only transformer in NumPy, with hooks on its linear layers. Its weights are
random: synthetic, but shaped like trained ones where that matters to a quantiser.

Properties of language models that matter to a quantiser, and how they are generated here:

- inputs of a layer are strongly correlated: embeddings and the layers' outputs have falling spectra
  (power laws);
- a few channels of the residual stream are far larger than the others, in every token: those
  columns of embeddings, and of what is added to them, are scaled up, and the gains of RMSNorm are
  log-normal;
- weights are heavier-tailed than a normal distribution;
- tokens are not uniform: Zipf's law, each drawn near the one before.

It cannot show whether the text of a *trained* model gets worse. It can show how the errors of
layers add up, and which quantiser leaves smaller ones.

The model has RMSNorm, rotary positions, causal attention and a gated MLP (SiLU); the embeddings are
not tied. Everything is in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Hook = Callable[[str, np.ndarray, np.ndarray], np.ndarray | None]
STAGES = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""Linear layers of a block, by what they have to wait for: those of a stage have the same
inputs."""


@dataclass(frozen=True)
class Shape:
    layers: int = 4
    width: int = 256
    heads: int = 4
    hidden: int = 768
    vocabulary: int = 512
    outliers: int = 6

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, eq=False)
class Transformer:
    """weights: {name, such as "0.q": [inputs, outputs]}; gains: {name: [width]}."""

    shape: Shape
    embedding: np.ndarray
    head: np.ndarray
    weights: dict[str, np.ndarray]
    gains: dict[str, np.ndarray] = field(repr=False)

    def names(self) -> list[str]:
        return [
            f"{layer}.{name}"
            for layer in range(self.shape.layers)
            for stage in STAGES
            for name in stage
        ]

    def embed(self, tokens: np.ndarray) -> np.ndarray:
        return self.embedding[tokens]

    def linear(
        self, name: str, x: np.ndarray, weights: dict[str, np.ndarray], hook: Hook | None
    ) -> np.ndarray:
        """Return x @ weights[name]. A hook receives (name, x, weight) and may return another
        result."""
        given = None if hook is None else hook(name, x, weights[name])
        return x @ weights[name] if given is None else given

    def block(
        self,
        layer: int,
        stream: np.ndarray,
        weights: dict[str, np.ndarray],
        hook: Hook | None = None,
    ) -> np.ndarray:
        """The residual stream [sequences, tokens, width] after one block."""

        def linear(name, x):
            return self.linear(f"{layer}.{name}", x, weights, hook)

        x = rms_norm(stream, self.gains[f"{layer}.attention"])
        q, k, v = (self._heads(linear(name, x)) for name in ("q", "k", "v"))
        mixed = attend(rotate(q), rotate(k), v)
        stream = stream + linear("o", mixed.transpose(0, 2, 1, 3).reshape(stream.shape))
        x = rms_norm(stream, self.gains[f"{layer}.mlp"])
        gate = linear("gate", x)
        return stream + linear("down", gate / (1 + np.exp(-gate)) * linear("up", x))

    def _heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], self.shape.heads, self.shape.head_width).transpose(
            0, 2, 1, 3
        )

    def logits(
        self,
        tokens: np.ndarray,
        weights: dict[str, np.ndarray] | None = None,
        hook: Hook | None = None,
    ) -> np.ndarray:
        """[sequences, tokens, vocabulary]. weights: other ones in the place of the model's."""
        stream = self.embed(tokens)
        for layer in range(self.shape.layers):
            stream = self.block(layer, stream, self.weights if weights is None else weights, hook)
        return rms_norm(stream, self.gains["head"]) @ self.head


def rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 1e-5) * gain


def rotate(x: np.ndarray) -> np.ndarray:
    """Rotary positions, [sequences, heads, tokens, head width]."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[-2])[:, None] * (10000.0 ** -(np.arange(half) / half))[None]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(np.float32(q.shape[-1]))
    scores += np.triu(np.full(scores.shape[-2:], -np.inf, dtype=np.float32), 1)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True) @ v


def build(shape: Shape = Shape(), seed: int = 0) -> Transformer:
    random = np.random.default_rng(seed)
    large = random.choice(shape.width, shape.outliers, replace=False)

    def matrix(inputs: int, outputs: int, decay: float, gain: float = 1.0) -> np.ndarray:
        """Heavy-tailed, with singular values that fall as a power law."""
        spectrum = np.arange(1, min(inputs, outputs) + 1) ** -decay
        left, right = (
            np.linalg.qr(random.standard_normal((size, len(spectrum))))[0]
            for size in (inputs, outputs)
        )
        smooth = (
            left * (spectrum * np.sqrt(inputs * outputs / np.sum(np.square(spectrum)))) @ right.T
        )
        tails = random.standard_t(4, (inputs, outputs)) / np.sqrt(2)
        return (gain * (0.7 * smooth + 0.7 * tails) / np.sqrt(inputs)).astype(np.float32)

    def gains() -> np.ndarray:
        return np.exp(0.4 * random.standard_normal(shape.width)).astype(np.float32)

    embedding = (
        np.sqrt(shape.width)
        * matrix(shape.vocabulary, shape.width, 0.6)
        * np.sqrt(shape.vocabulary / shape.width)
    )
    embedding[:, large] = 6 * (
        random.choice([-1, 1], len(large))
        + 0.7 * random.standard_normal((shape.vocabulary, len(large)))
    )
    weights, norms = {}, {"head": gains()}
    for layer in range(shape.layers):
        for name, inputs, outputs, decay in (
            ("q", shape.width, shape.width, 0.5),
            ("k", shape.width, shape.width, 0.5),
            ("v", shape.width, shape.width, 0.4),
            ("o", shape.width, shape.width, 0.4),
            ("gate", shape.width, shape.hidden, 0.4),
            ("up", shape.width, shape.hidden, 0.4),
            ("down", shape.hidden, shape.width, 0.4),
        ):
            weights[f"{layer}.{name}"] = matrix(inputs, outputs, decay)
        for name in ("o", "down"):  # what is added to the large channels is large too,
            weights[f"{layer}.{name}"][:, large] *= 3
        # and who reads them has learned to weigh them less
        for name in ("q", "k", "v", "gate", "up"):
            weights[f"{layer}.{name}"][large] *= 0.3
        norms[f"{layer}.attention"], norms[f"{layer}.mlp"] = gains(), gains()
    return Transformer(
        shape,
        embedding.astype(np.float32),
        matrix(shape.width, shape.vocabulary, 0.4, 1.5),
        weights,
        norms,
    )


def texts(shape: Shape, sequences: int, tokens: int, seed: int) -> np.ndarray:
    """Tokens [sequences, tokens]: Zipf's law, and half of them near the one before."""
    random = np.random.default_rng(seed)
    common = np.minimum(random.zipf(1.3, (sequences, tokens)) - 1, shape.vocabulary - 1)
    result = common.copy()
    for place in range(1, tokens):
        near = (result[:, place - 1] * 7 + random.integers(0, 4, sequences)) % shape.vocabulary
        result[:, place] = np.where(random.random(sequences) < 0.5, near, common[:, place])
    return result
