"""Names of models and shapes -> weights of layers [k, n], as inference servers fuse them: q, k and
v are one matrix, gate and up another. Pure.

``resolve("llama-3-8b,ideal,8192x28672")`` -> tuple of ``Layer``: names of models, of sets ("table":
the shapes that the project's goals are stated for; "ideal"; "ragged": k and n that no tile divides)
or k x n. "llama-3-70b/tp8" is what each of 8 GPUs has in tensor parallelism: 1/8 of the columns of
qkv and gate_up, of the rows of o and down. The same k and n under two names are one layer. An
unknown name is a ValueError that lists all. Model sizes are those of the published configurations
(config.json of each model).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from numba_marlin.wording import did_you_mean


@dataclass(frozen=True)
class Layer:
    """A weight [k, n]: k inputs, n outputs."""

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class Model:
    """A dense transformer: ``head_size`` elements each of ``heads`` query heads and ``kv_heads``
    key and value heads."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int = 128

    def layers(self, name: str, parallel: int = 1) -> tuple[Layer, ...]:
        """``parallel``: GPUs that share each layer; ValueError if they cannot share it evenly."""
        for what in ("heads", "kv_heads", "intermediate"):
            if parallel < 1 or getattr(self, what) % parallel:
                raise ValueError(
                    f"shape {name!r}: {parallel} GPUs do not divide {what}={getattr(self, what)}"
                )
        attention = self.heads * self.head_size // parallel
        inner = self.intermediate // parallel
        keys_and_values = 2 * self.kv_heads * self.head_size // parallel
        return (
            Layer(f"{name} qkv", attention + keys_and_values, self.hidden),
            Layer(f"{name} o", self.hidden, attention),
            Layer(f"{name} gate_up", 2 * inner, self.hidden),
            Layer(f"{name} down", self.hidden, inner),
        )


MODELS = {
    "llama-2-7b": Model(4096, 11008, 32, 32),
    "llama-2-13b": Model(5120, 13824, 40, 40),
    "llama-2-70b": Model(8192, 28672, 64, 8),
    "llama-3-8b": Model(4096, 14336, 32, 8),
    "llama-3-70b": Model(8192, 28672, 64, 8),
    "llama-3-405b": Model(16384, 53248, 128, 8),
    "llama-3.2-1b": Model(2048, 8192, 32, 8, 64),
    "llama-3.2-3b": Model(3072, 8192, 24, 8),
    "mistral-7b": Model(4096, 14336, 32, 8),
    "mistral-nemo-12b": Model(5120, 14336, 32, 8),
    "mistral-small-24b": Model(5120, 32768, 32, 8),
    "mistral-large-123b": Model(12288, 28672, 96, 8),
    "qwen-2.5-7b": Model(3584, 18944, 28, 4),
    "qwen-2.5-14b": Model(5120, 13824, 40, 8),
    "qwen-2.5-32b": Model(5120, 27648, 40, 8),
    "qwen-2.5-72b": Model(8192, 29568, 64, 8),
    "qwen-3-8b": Model(4096, 12288, 32, 8),
    "qwen-3-14b": Model(5120, 17408, 40, 8),
    "qwen-3-32b": Model(5120, 25600, 64, 8),
    "gemma-2-9b": Model(3584, 14336, 16, 8, 256),
    "gemma-2-27b": Model(4608, 36864, 32, 16),
    "phi-4-14b": Model(5120, 17920, 40, 10),
}


def _plain(*sizes: tuple[int, int]) -> tuple[Layer, ...]:
    return tuple(Layer(f"{k}x{n}", n, k) for k, n in sizes)


SETS = {
    "ideal": (Layer("ideal", 33792, 135168),),
    "table": (
        Layer("ideal", 33792, 135168),
        *_plain((28672, 8192), (8192, 57344), (8192, 8192), (4096, 4096)),
    ),
    # attention is latent: q and kv are compressed (q_a, kv_a), then spread over the heads (q_b)
    "deepseek-v3": (
        Layer("deepseek-v3 q_a", 1536, 7168),
        Layer("deepseek-v3 q_b", 24576, 1536),
        Layer("deepseek-v3 kv_a", 576, 7168),
        Layer("deepseek-v3 o", 7168, 16384),
        Layer("deepseek-v3 shared gate_up", 4096, 7168),
        Layer("deepseek-v3 shared down", 7168, 2048),
    ),
    "ragged": _plain((10944, 2048), (2048, 7392), (7168, 576), (7168, 2112)),
}
_SIZES = re.compile(r"(\d+)x(\d+)")


def names() -> tuple[str, ...]:
    return (*SETS, *MODELS)


def resolve(text: str) -> tuple[Layer, ...]:
    """The layers of comma-separated names, in order, each (k, n) once; ValueError for an unknown
    name or none at all."""
    found: dict[tuple[int, int], Layer] = {}
    for name in (each.strip().lower() for each in text.split(",") if each.strip()):
        sizes = _SIZES.fullmatch(name)
        whole, _, parallel = name.partition("/tp")
        if sizes:
            layers = _plain((int(sizes[1]), int(sizes[2])))
        elif name in SETS:
            layers = SETS[name]
        elif whole in MODELS and (parallel.isdecimal() or whole == name):
            layers = MODELS[whole].layers(name, int(parallel or 1))
        else:
            raise ValueError(
                f"shape {name!r} must be KxN, MODEL/tpN or one of {', '.join(names())}"
                f"{did_you_mean(name, names())}"
            )
        for layer in layers:
            found.setdefault((layer.k, layer.n), layer)
    if not found:
        raise ValueError(f"shapes={text!r} names none; try one of {', '.join(names())}")
    return tuple(found.values())
