"""Sizes of decoders. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

GROUP = 128  # rows of a weight that share a scale


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder. world: over how many ranks its heads and its mlp are divided."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    world: int = 1

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def on(self, world: int) -> Shape:
        """One rank's part of it."""
        return replace(self, world=world)

    @property
    def own_heads(self) -> int:
        return self.heads // self.world

    @property
    def own_kv_heads(self) -> int:
        return self.kv_heads // self.world

    def linears(self) -> dict[str, tuple[int, int]]:
        """{layer of a block: (k, n)}, of one rank"""
        width = self.own_heads * self.head
        return {
            "qkv": (self.hidden, width + 2 * self.own_kv_heads * self.head),
            "o": (width, self.hidden),
            "gate_up": (self.hidden, 2 * self.mlp // self.world),
            "down": (self.mlp // self.world, self.hidden),
        }

    def output(self) -> tuple[int, int]:
        """(k, n) of the layer of logits, of one rank"""
        return self.hidden, self.vocabulary // self.world


LLAMA_8B = Shape("8B", 32, 4096, 32, 8, 14336, 128256)
LLAMA_70B = Shape("70B", 80, 8192, 64, 8, 28672, 128256)
TINY = Shape("tiny", 2, 256, 4, 2, 512, 512)
