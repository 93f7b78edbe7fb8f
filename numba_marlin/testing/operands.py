"""Products of two block-scaled matrices with known results, and their launches with every trap set
(``launches``).

    product = operands.small_integers(40, 64, 96, seed=1)
    prepared = operands.prepare(product, BlockScaledConfig(tile_m=128, tile_n=64))
    launches.on_machine(prepared)
    prepared.buffers["d"] == product.bounds()[0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_marlin import compiler
from numba_marlin.execution.binding import Scaling, bind, block_operands
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled, pack_codes
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.problems import BlockProblem
from numba_marlin.quantizers import dequantize
from numba_marlin.quantizers.operands import inverse_of, quantize_blocks
from numba_marlin.reference.operands import block_scaled_bounds
from numba_marlin.testing.launches import Prepared

SCALES = {"e4m3": (0x30, 0x38, 0x40), "e8m0": (126, 127, 128)}
"""Bytes of the scales 1/2, 1 and 2."""


@dataclass(frozen=True, eq=False)
class BlockProduct:
    """D = alpha * A @ B^T + beta * C + bias. a [m, k], b [n, k]: BlockScaled with scales in 128x4
    order; c [m, n]; bias: float32 [n]; global_scale: of D, if it has one."""

    a: BlockScaled
    b: BlockScaled
    alpha: float = 1.0
    beta: float = 0.0
    c: np.ndarray | None = None
    bias: np.ndarray | None = None
    global_scale: float = 1.0

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k"""
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    def bounds(self, activation: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(D, how far a correct result may be from it), float64 [m, n]."""
        return block_scaled_bounds(
            self.a,
            self.b,
            alpha=self.alpha,
            beta=self.beta,
            c=self.c,
            bias=self.bias,
            activation=activation,
        )


def c_dtype_of(config: Any) -> str | None:
    """Type of the C that a kernel's configuration adds; None if it adds none."""
    return (getattr(config, "c_dtype", None) or config.result) if config.source else None


def small_integers(
    m: int, n: int, k: int, seed: int = 0, c_dtype: str | None = None, bias: bool = False
) -> BlockProduct:
    """NVFP4 codes of small integers and scales that are small powers of two: the result is exact in
    fp16, whatever the order of the sums. c_dtype: of C, which is added if there is one."""
    rng = np.random.default_rng(seed)

    def operand(rows):
        # 0, 1, -1, 2, -2, 3; mostly 0, or sums would get too large
        codes = rng.choice(np.array([0, 0, 0, 0, 0, 0, 2, 10, 4, 12, 5], np.uint8), (rows, k))
        scales = rng.choice(np.array(SCALES["e4m3"], np.uint8), (rows, k // 16))
        return BlockScaled("nvfp4", (rows, k), pack_codes(codes, 4), scales).with_scales("128x4")

    c = rng.integers(-8, 9, (m, n)).astype(float_type(c_dtype)) if c_dtype else None
    return BlockProduct(
        operand(m),
        operand(n),
        0.5,
        2.0 if c_dtype else 0.0,
        c,
        rng.integers(-8, 9, n).astype(np.float32) if bias else None,
    )


def real_numbers(
    m: int,
    n: int,
    k: int,
    seed: int = 0,
    c_dtype: str | None = None,
    bias: bool = False,
    global_scale: float = 1.0,
) -> BlockProduct:
    """NVFP4, heavy-tailed rows of very different sizes: every code and most scales."""
    rng = np.random.default_rng(seed)
    a = quantize_blocks(
        (rng.standard_t(4, (m, k)) * np.exp2(rng.integers(-6, 3, (m, 1)))).astype(np.float32)
    ).with_scales("128x4")
    b = quantize_blocks((rng.standard_t(4, (n, k)) / np.sqrt(k)).astype(np.float32)).with_scales(
        "128x4"
    )
    c = rng.normal(size=(m, n)).astype(float_type(c_dtype)) if c_dtype else None
    return BlockProduct(
        a,
        b,
        0.75,
        -0.5 if c_dtype else 0.0,
        c,
        rng.normal(size=n).astype(np.float32) if bias else None,
        global_scale,
    )


def exact_operand(rows: int, k: int, format: str, seed: int) -> BlockScaled:
    """[rows, k] of any format, scales in row order: small codes and scales of 1/2, 1 and 2, so that
    every sum is exact in fp32, in any order."""
    form, rng = BLOCK_FORMATS[format], np.random.default_rng(seed)
    codes = (
        rng.integers(0, 16, (rows, k))
        if form.bits == 4
        else rng.choice([0x30, 0x38, 0x3C, 0x40, 0xB8, 0xC4, 0], (rows, k))
    )
    scales = rng.choice(SCALES[form.scale_grid], (rows, k // form.block)).astype(np.uint8)
    return BlockScaled(format, (rows, k), pack_codes(codes.astype(np.uint8), form.bits), scales)


def values(matrix: BlockScaled) -> np.ndarray:
    """float64 [rows, k], the global scale included."""
    return dequantize(matrix, np.float64)


def prepare(
    product: BlockProduct,
    config,
    sms: int = 3,
    target: str | None = None,
    compiled_by: str = "numba-cuda",
) -> Prepared:
    """A launch of the kernel that ``config`` belongs to. sms: multiprocessors that the grid is made
    for; target: default the kernel's own architecture."""
    kernel = kernel_of(config)
    global_scales = product.a.global_scale * product.b.global_scale
    return Prepared.of(
        bind(
            kernel,
            config,
            BlockProblem.of(config, *product.sizes),
            {**block_operands(product.a, product.b), "c": product.c, "bias": product.bias},
            sms=sms,
            compiled=compiler.build(kernel, config, target or kernel.min_arch, compiled_by),
            scaling=Scaling(
                product.alpha * global_scales, product.beta, float(inverse_of(product.global_scale))
            ),
        )
    )
