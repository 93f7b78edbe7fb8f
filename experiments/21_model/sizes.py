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
    head_size: int | None = None  # default: hidden / heads

    @property
    def head(self) -> int:
        return self.head_size or self.hidden // self.heads

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


@dataclass(frozen=True)
class MixtureShape(Shape):
    """Of blocks that have a mixture of experts in place of an mlp; mlp: the width of one."""

    experts: int = 8
    top_k: int = 2  # experts of a token
    activation: str = "silu"
    kind: str = "int4"  # of experts; "int4": and of qkv and o; "mxfp4": those stay in 16 bits
    biases: bool = False  # of qkv, o, router and experts

    def linears(self) -> dict[str, tuple[int, int]]:
        """Those of attention."""
        return {name: size for name, size in super().linears().items() if name in ("qkv", "o")}

    def products(self) -> dict[str, tuple[int, int]]:
        """{product of an expert: (k, n)}"""
        return {"gate_up": (self.hidden, 2 * self.mlp), "down": (self.mlp, self.hidden)}

    @property
    def group(self) -> int:
        """Rows of an expert's weight that share a scale."""
        return {"int4": GROUP, "mxfp4": 32}[self.kind]


LLAMA_8B = Shape("8B", 32, 4096, 32, 8, 14336, 128256)
LLAMA_70B = Shape("70B", 80, 8192, 64, 8, 28672, 128256)
TINY = Shape("tiny", 2, 256, 4, 2, 512, 512)
# no embedding and no logits: a block is measured
MIXTRAL = MixtureShape("Mixtral 8x7B", 2, 4096, 32, 8, 14336, 0)
GPT_OSS = MixtureShape(
    *("gpt-oss-120b", 2, 2880, 64, 8, 2880, 0),
    head_size=64,
    experts=128,
    top_k=4,
    activation="swiglu-oai",
    kind="mxfp4",
    biases=True,
)
MIXTURES = (MIXTRAL, GPT_OSS)
TINY_MIXTURES = (
    replace(MIXTRAL, name="tiny Mixtral", hidden=256, heads=4, kv_heads=2, mlp=128),
    replace(GPT_OSS, name="tiny gpt-oss", hidden=96, heads=4, kv_heads=2, mlp=96, experts=8),
)
