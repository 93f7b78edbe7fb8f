"""Block-scaled floats in files: NVFP4 as ModelOpt and as compressed-tensors write it, MXFP4, FP8.
All are [n, k], as torch.nn.Linear has it.

    modelopt-nvfp4         weight uint8 [n, k/2], weight_scale e4m3 [n, k/16], weight_scale_2
                           float32 [], which multiplies; input_scale
    nvfp4-pack-quantized   weight_packed, weight_scale likewise, weight_global_scale float32 [1],
                           which divides; input_global_scale
    mxfp4-pack-quantized   weight_packed uint8 [n, k/2], weight_scale uint8 [n, k/32]: codes of e8m0
    fp8                    weight e4m3 [n, k], weight_scale [1], [n, 1] or [ceil(n/128),
                           ceil(k/128)]: per tensor, channel or block; input_scale
    fp8-block              weight e4m3 [n, k], weight_scale_inv [ceil(n/128), ceil(k/128)], which
                           multiplies, despite its name

The low nibble of a byte holds the input with the even number. Sources, read for facts only:
vLLM's ``modelopt.py``, ``fp8.py`` and ``compressed_tensors_w4a4_nvfp4.py`` (which takes 1 /
weight_global_scale), compressed-tensors' ``nvfp4`` and ``mxfp4`` compressors, DeepSeek-V3's README.

A scale that multiplies in one format and divides in another converts exactly only if its reciprocal
is a float32; otherwise the conversion reports a loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from numba_marlin.formats.block_weight import SCALE_TYPES, BlockWeight
from numba_marlin.formats.stored import (
    PLAIN,
    FormatError,
    Geometry,
    Outline,
    StoredFormat,
    TensorSpec,
    count,
    matrix,
    register_stored,
)
from numba_marlin.formats.streams import Stream

FP8_BLOCK = 128
_SMALL = {"e4m3": ("float8_e4m3fn", "uint8"), "e8m0": ("uint8", "float8_e8m0fnu")}


def _reciprocal(value: float) -> tuple[float, bool]:
    """(1 / value in float32, whether that is exact)"""
    with np.errstate(over="ignore", under="ignore"):
        result = np.float32(1) / np.float32(value)
    return float(result), bool(np.isfinite(result)) and float(result) * float(value) == 1.0


def _turned(
    value: float | None, divides: bool, wanted: bool, what: str
) -> tuple[float | None, tuple[str, ...]]:
    """Convert a factor to one that divides (``wanted``) or multiplies, with what that loses."""
    if value is None or divides == wanted:
        return value, ()
    result, exact = _reciprocal(value)
    if not np.isfinite(result) or result == 0:
        raise ValueError(f"{what} {value!r} has no reciprocal in float32")
    return result, (
        () if exact else (f"{what} would be stored as its reciprocal, rounded to float32",)
    )


def _number(array: np.ndarray) -> float:
    return float(np.asarray(array).reshape(-1)[0])


def _codes(array: np.ndarray) -> np.ndarray:
    """The codes (uint8) of an array of 8-bit floats."""
    return np.asarray(array).view(np.uint8)


def _scalar(
    name: str, dtypes: tuple[str, ...] = ("float32",), shape: tuple[int, ...] = (1,)
) -> dict[str, TensorSpec]:
    return {name: TensorSpec(dtypes, shape, also=tuple({(), (1,), (1, 1)} - {shape}))}


@dataclass(frozen=True)
class Fp4Format(StoredFormat):
    """A format of e2m1 codes with one scale per block of ``rows`` rows. codes, scales, factor,
    inputs: names of its tensors, "" for a tensor that the format does not have."""

    codes: str = "weight_packed"
    scales: str = "weight_scale"
    factor: str = ""
    inputs: str = ""
    divides: bool = False
    scale_grid: str = "e4m3"
    rows: int = 16
    factor_shape: tuple[int, ...] = (1,)

    def claims(self, tensors) -> bool:
        return self.codes != "weight" or tensors["weight"].dtype.name == "uint8"

    def geometry(self, tensors) -> Geometry:
        n, half = matrix(self.codes, tensors[self.codes])
        return Geometry(
            2 * half,
            n,
            4,
            self.rows,
            scale_dtype=self.scale_grid,
            extras=frozenset(tensors) & {self.inputs},
        )

    def specs(self, geometry: Geometry) -> dict[str, TensorSpec]:
        k, n = geometry.k, geometry.n
        count(self.codes, k, self.rows, "inputs of a block")
        packing = Stream("k", "n", "uint8")
        specs = {
            self.codes: TensorSpec(("uint8",), packing.shape(k, n, 4), packing, (k, n)),
            self.scales: TensorSpec(_SMALL[self.scale_grid], (n, k // self.rows)),
        }
        specs |= _scalar(self.factor, shape=self.factor_shape) if self.factor else {}
        return specs | (
            _scalar(self.inputs, shape=self.factor_shape) if self.inputs in geometry.extras else {}
        )

    def outline(self, tensors, geometry, codec=PLAIN) -> Outline:
        return Outline(geometry.k, geometry.n, 4, self.rows, None, "e5m3", "e2m1")

    def decode(self, tensors, geometry, codec) -> BlockWeight:
        codes = codec.unpack(self.specs(geometry)[self.codes].packing, tensors[self.codes], 4)
        scales = np.ascontiguousarray(_codes(tensors[self.scales]).T)
        factor = _number(tensors[self.factor]) if self.factor else None
        inputs = _number(tensors[self.inputs]) if self.inputs in tensors else None
        return BlockWeight(
            codes,
            "e2m1",
            scales,
            self.scale_grid,
            (self.rows, 1),
            factor,
            self.divides,
            inputs,
            self.divides,
        )

    def prepare(self, weight: BlockWeight):
        if (weight.grid, weight.scale_grid, weight.block) != (
            "e2m1",
            self.scale_grid,
            (self.rows, 1),
        ):
            raise ValueError(
                f"format {self.name!r} holds e2m1 with {self.scale_grid} scales for {self.rows}"
                f" inputs, not {weight.grid} with {weight.scale_grid or weight.scales.dtype.name}"
                f" scales for blocks of {weight.block}: quantise anew"
            )
        if weight.global_scale is not None and not self.factor:
            raise ValueError(f"format {self.name!r} has no global scale: quantise anew")
        factor, losses = _turned(
            1.0 if weight.global_scale is None and self.factor else weight.global_scale,
            weight.divides,
            self.divides,
            "the global scale",
        )
        inputs, more = _turned(
            weight.input_scale, weight.input_divides, self.divides, "the scale of activations"
        )
        if inputs is not None and not self.inputs:
            inputs, more = (
                None,
                (f"the scale of activations {weight.input_scale!r} would be dropped",),
            )
        prepared = replace(
            weight,
            global_scale=factor,
            divides=self.divides,
            input_scale=inputs,
            input_divides=self.divides,
        )
        self.specs(Geometry(weight.k, weight.n, 4, self.rows))
        return prepared, losses + more

    def encode(self, weight, codec) -> dict[str, np.ndarray]:
        specs = self.specs(Geometry(weight.k, weight.n, 4, self.rows))
        tensors = {
            self.codes: codec.pack(specs[self.codes].packing, weight.codes, 4),
            self.scales: np.ascontiguousarray(weight.scales.T),
        }
        if self.factor:
            tensors[self.factor] = np.full(self.factor_shape, weight.global_scale, np.float32)
        if weight.input_scale is not None:
            tensors[self.inputs] = np.full(self.factor_shape, weight.input_scale, np.float32)
        return tensors


@dataclass(frozen=True)
class Fp8Format(StoredFormat):
    """A format of e4m3 codes. scales: name of the tensor of scales; only_blocks: whether scales per
    tensor and per channel are excluded."""

    scales: str = "weight_scale"
    only_blocks: bool = False

    def claims(self, tensors) -> bool:
        return tensors["weight"].dtype.name == "float8_e4m3fn"

    def geometry(self, tensors) -> Geometry:
        n, k = matrix("weight", tensors["weight"])
        shape = tuple(tensors[self.scales].shape)
        extras = frozenset(tensors) & {"input_scale"}
        if shape == self._blocks(k, n) and (self.only_blocks or shape not in ((1, 1), (n, 1))):
            block = FP8_BLOCK, FP8_BLOCK
        elif not self.only_blocks and shape in ((), (1,), (1, 1)):
            block = -1, -1
        elif not self.only_blocks and shape in ((n,), (n, 1)):
            block = -1, 1
        else:
            allowed = f"{self._blocks(k, n)} (blocks of {FP8_BLOCK})" + (
                "" if self.only_blocks else f", (1,) or {(n, 1)}"
            )
            raise FormatError(f"{self.scales}: shape {shape} must be {allowed}")
        return Geometry(k, n, 8, *block, scale_dtype=tensors[self.scales].dtype.name, extras=extras)

    def _blocks(self, k: int, n: int) -> tuple[int, int]:
        return -(-n // FP8_BLOCK), -(-k // FP8_BLOCK)

    def specs(self, geometry: Geometry) -> dict[str, TensorSpec]:
        k, n = geometry.k, geometry.n
        packing = Stream("k", "n", "uint8")
        kind = geometry.group, geometry.columns
        scales = {
            (-1, -1): _scalar(self.scales, SCALE_TYPES),
            (-1, 1): {self.scales: TensorSpec(SCALE_TYPES, (n, 1), also=((n,),))},
            (FP8_BLOCK, FP8_BLOCK): {self.scales: TensorSpec(SCALE_TYPES, self._blocks(k, n))},
        }
        codes = {"weight": TensorSpec(_SMALL["e4m3"], (n, k), packing, (k, n))}
        return (
            codes
            | scales[kind]
            | (_scalar("input_scale") if "input_scale" in geometry.extras else {})
        )

    def outline(self, tensors, geometry, codec=PLAIN) -> Outline:
        raise ValueError("no kernel multiplies weights of 8-bit floats: quantise them anew")

    def decode(self, tensors, geometry, codec) -> BlockWeight:
        k, n = geometry.k, geometry.n
        codes = codec.unpack(self.specs(geometry)["weight"].packing, _codes(tensors["weight"]), 8)
        scales = np.asarray(tensors[self.scales])
        scales = np.ascontiguousarray(scales.T if geometry.group != -1 else scales.reshape(1, -1))
        block = (
            (min(FP8_BLOCK, k), min(FP8_BLOCK, n))
            if geometry.group != -1
            else (k, n if geometry.columns == -1 else 1)
        )
        inputs = _number(tensors["input_scale"]) if "input_scale" in tensors else None
        return BlockWeight(codes, "e4m3", scales, None, block, input_scale=inputs)

    def prepare(self, weight: BlockWeight):
        k, n = weight.k, weight.n
        blocks = min(FP8_BLOCK, k), min(FP8_BLOCK, n)
        if (
            weight.grid != "e4m3"
            or weight.scale_grid is not None
            or weight.global_scale is not None
        ):
            raise ValueError(
                f"format {self.name!r} holds e4m3 with scales of 16 or 32 bits, not {weight.grid}:"
                " quantise anew"
            )
        # a scale per tensor is stored as equal scales per block
        if self.only_blocks and weight.block == (k, n):
            weight = replace(
                weight,
                scales=np.full(self._blocks(k, n)[::-1], weight.scales[0, 0], weight.scales.dtype),
                block=blocks,
            )
        if weight.block != blocks and (self.only_blocks or weight.block not in ((k, n), (k, 1))):
            raise ValueError(
                f"format {self.name!r} has no place for scales of blocks of {weight.block[0]} x"
                f" {weight.block[1]}: quantise anew"
            )
        inputs, losses = _turned(
            weight.input_scale, weight.input_divides, False, "the scale of activations"
        )
        return replace(weight, input_scale=inputs, input_divides=False), losses

    def encode(self, weight, codec) -> dict[str, np.ndarray]:
        scales = weight.scales
        if weight.block == (weight.k, weight.n) and not self.only_blocks:
            scales = scales.reshape(1)
        tensors = {
            "weight": codec.pack(Stream("k", "n", "uint8"), weight.codes, 8),
            self.scales: np.ascontiguousarray(scales.T),
        }
        return tensors | (
            {}
            if weight.input_scale is None
            else {"input_scale": np.full(1, weight.input_scale, np.float32)}
        )


_INPUT, _INPUTS = frozenset({"input_scale"}), frozenset({"input_global_scale"})
_E4M3 = {"weight_scale": "F8_E4M3"}
MODELOPT_NVFP4 = register_stored(
    Fp4Format(
        "modelopt-nvfp4",
        "ModelOpt NVFP4",
        "https://github.com/NVIDIA/TensorRT-Model-Optimizer, modelopt/torch/export",
        ("weight", "weight_scale", "weight_scale_2"),
        ("input_scale",),
        holds="BlockWeight",
        numbers="nvfp4",
        runs="FP4",
        codes_of=_E4M3,
        codes="weight",
        factor="weight_scale_2",
        inputs="input_scale",
        factor_shape=(),
        test_geometries=(
            Geometry(32, 8, 4, 16, scale_dtype="e4m3"),
            Geometry(64, 6, 4, 16, scale_dtype="e4m3", extras=_INPUT),
        ),
    )
)
NVFP4 = register_stored(
    Fp4Format(
        "nvfp4-pack-quantized",
        "compressed-tensors NVFP4",
        "https://github.com/vllm-project/compressed-tensors, compressors/nvfp4",
        ("weight_packed", "weight_scale", "weight_global_scale"),
        ("input_global_scale",),
        holds="BlockWeight",
        numbers="nvfp4",
        runs="FP4",
        codes_of=_E4M3,
        factor="weight_global_scale",
        inputs="input_global_scale",
        divides=True,
        test_geometries=(
            Geometry(32, 8, 4, 16, scale_dtype="e4m3"),
            Geometry(64, 6, 4, 16, scale_dtype="e4m3", extras=_INPUTS),
        ),
    )
)
MXFP4 = register_stored(
    Fp4Format(
        "mxfp4-pack-quantized",
        "compressed-tensors MXFP4",
        "https://github.com/vllm-project/compressed-tensors, compressors/mxfp4",
        ("weight_packed", "weight_scale"),
        holds="BlockWeight",
        numbers="mxfp4",
        runs="FP4",
        scale_grid="e8m0",
        rows=32,
        test_geometries=(
            Geometry(32, 8, 4, 32, scale_dtype="e8m0"),
            Geometry(96, 5, 4, 32, scale_dtype="e8m0"),
        ),
    )
)
FP8 = register_stored(
    Fp8Format(
        "fp8",
        "FP8 e4m3 (tensor, channel, block)",
        "https://github.com/vllm-project/vllm, quantization/fp8.py",
        ("weight", "weight_scale"),
        ("input_scale",),
        bits=(8,),
        holds="BlockWeight",
        numbers="",
        codes_of={"weight": "F8_E4M3"},
        test_geometries=(
            Geometry(32, 8, 8, -1, -1, "float32", _INPUT),
            Geometry(12, 20, 8, -1, 1, "bfloat16"),
            Geometry(256, 192, 8, FP8_BLOCK, FP8_BLOCK, "float32"),
        ),
    )
)
FP8_BLOCKS = register_stored(
    Fp8Format(
        "fp8-block",
        "FP8 e4m3 (block, DeepSeek)",
        "https://huggingface.co/deepseek-ai/DeepSeek-V3, README_WEIGHTS.md",
        ("weight", "weight_scale_inv"),
        ("input_scale",),
        bits=(8,),
        holds="BlockWeight",
        numbers="",
        codes_of={"weight": "F8_E4M3"},
        scales="weight_scale_inv",
        only_blocks=True,
        test_geometries=(
            Geometry(256, 192, 8, FP8_BLOCK, FP8_BLOCK, "float32"),
            Geometry(32, 8, 8, FP8_BLOCK, FP8_BLOCK, "float32", _INPUT),
        ),
    )
)
