"""Layers of experts for the kernels that multiply them: exact ones, and random ones with their
bounds. Launched with every trap set by ``prepare``.

    given = layer(config, ids, n, k, integers=True)
    prepared = prepare(given, sms=3)  # for ``launches.on_machine``
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_marlin import compiler, reference
from numba_marlin.execution.binding import bind, experts_operands, routing_operands
from numba_marlin.formats import marlin
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.fp4_marlin import Fp4MarlinFormat
from numba_marlin.formats.routing import Routing
from numba_marlin.formats.small_floats import encode
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.problems import ExpertsProblem
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference.experts import activated_bounds, kernel_rows, moe_bounds
from numba_marlin.testing.blocks import make_blocks
from numba_marlin.testing.contents import make_quantized
from numba_marlin.testing.launches import TARGET, Prepared, bytes_apart, rows_apart


@dataclass(frozen=True, eq=False)
class Layer:
    """Operands of a launch: x [m, k], or with ``x_of_pairs`` [m, top_k, k]; of a kernel for
    activations in 8 bits quantised, [m, k] or [m top_k, k]."""

    #: Of a kernel for experts.
    config: Any
    x: np.ndarray | QuantizedActivations
    experts: PackedExperts
    routing: Routing
    bias: np.ndarray | None

    @property
    def result(self) -> str:
        """The type of the rows that the launch leaves."""
        return "float32" if self.config.combine else self.config.dtype

    def bounds(self) -> reference.Bounds:
        """Of the rows that the launch leaves."""
        found = moe_bounds(
            self.x,
            self.experts,
            self.routing,
            self.bias,
            method=kernel_of(self.config).method(self.config),
            order="random",
            out_dtype=self.result,
        )
        n = self.experts.n
        if self.config.gated:
            found = activated_bounds(found, self.config.activation, self.config.dtype)
            n //= 2
        return _as_rows(found, n)

    def expected(self) -> np.ndarray:
        """The rows that the launch leaves, of a layer whose sums are exact: bit for bit. With an
        activation: of what is activated."""
        if isinstance(self.x, QuantizedActivations):
            rows = kernel_rows(self.x, self.experts, self.routing, self.bias)
            return rows if self.config.combine else round_to(rows, self.config.dtype)
        return round_to(self.bounds().product, self.result)

    def bounds_of_sums(self) -> reference.Bounds:
        """Of the sums over each token's experts, which a pass behind the launch makes of them."""
        method = kernel_of(self.config).method(self.config)
        options = {"method": method, "order": "random", "out_dtype": self.config.dtype}
        operands = (self.x, self.experts, self.routing, self.bias)
        return _as_rows(moe_bounds(*operands, combine=True, **options), self.experts.n)


def _as_rows(found: reference.Bounds, n: int) -> reference.Bounds:
    each = (found.product, found.accumulated, found.rounded)
    return reference.Bounds(*(array.reshape(-1, n) for array in each))


def scale_dtype_of(config) -> str:
    """A configuration without a field for it has scales of x's type."""
    return getattr(config, "scale_dtype", config.dtype)


def kind_of_x(config) -> str | None:
    """Of activations in 8 bits; None of a kernel for 16."""
    return getattr(config, "activations", None)


def in_8_bits(x: np.ndarray, kind: str, rng=None) -> QuantizedActivations:
    """x [rows, k] quantised. rng: x are small integers, which stay codes, and rows get scales of
    their own, powers of two."""
    if rng is None:
        return quantize_rows(x, kind)
    scales = (2.0 ** rng.integers(-2, 2, len(x))).astype(np.float32)
    codes = x.astype(np.int8) if kind == "int8" else encode(x.astype(np.float32), "e4m3")
    return QuantizedActivations.of_codes(kind, codes, scales, None, x.dtype.name)


def ids_of(rng, m, experts, top_k):
    return np.argsort(rng.random((m, experts)), axis=1)[:, :top_k]


def layer(config, ids, n: int, k: int, *, seed: int = 0, integers: bool = False) -> Layer:
    """ids: [m, top_k]. integers: small integers and scales that are powers of two, so that every
    sum is exact; not of FP4. x has 8 bits where the config says of which kind."""
    rng, ids = np.random.default_rng(seed), np.asarray(ids)
    m, group = len(ids), config.group_blocks
    dtype = config.dtype
    if config.block_scaled:
        kind = {1: "nvfp4", 2: "mxfp4"}[group]
        packed: list[Any] = [
            Fp4MarlinFormat().pack(
                make_blocks(kind, k, n, seed * 1000 + expert, ordinary=True), dtype
            )
            for expert in range(config.experts)
        ]
    else:
        weights = [
            make_quantized(
                "uniform",
                "ordinary",
                k,
                n,
                group if group == -1 else 16 * group,
                seed * 1000 + expert,
                bits=config.bits,
                zeros_kind=config.zeros,
                scale_dtype=scale_dtype_of(config),
            )
            for expert in range(config.experts)
        ]
        if integers:
            powers = [2.0 ** rng.integers(-1, 2, each.scales.shape) for each in weights]
            weights = [
                replace(each, scales=round_to(scales, scale_dtype_of(config)))
                for each, scales in zip(weights, powers)
            ]
        packed = [marlin.pack(each) for each in weights]
    shape = (m, config.top_k, k) if config.x_of_pairs else (m, k)
    numbers = rng.integers(-3, 4, shape) if integers else rng.standard_normal(shape)
    factors = 2.0 ** rng.integers(-2, 1, ids.shape) if integers else rng.random(ids.shape)
    bias = None
    if config.bias:
        shape = (config.experts, n)
        bias = rng.integers(-3, 4, shape) if integers else rng.standard_normal(shape)
    x, of_x = round_to(numbers, dtype), kind_of_x(config)
    return Layer(
        config,
        x if of_x is None else in_8_bits(x.reshape(-1, k), of_x, rng if integers else None),
        PackedExperts.of(packed),
        Routing.of(ids, factors, config.experts),
        None if bias is None else round_to(bias, dtype),
    )


def problem_of(given: Layer) -> ExpertsProblem:
    config = given.config
    return ExpertsProblem.of_experts(
        given.experts,
        given.routing,
        config.dtype,
        bias=config.bias,
        x_of_pairs=config.x_of_pairs,
        combine=config.combine,
        activation=config.activation,
        activations=kind_of_x(config),
    )


def prepare(given: Layer, *, sms: int = 3, a_stride: int | None = None, pairs=None) -> Prepared:
    """A launch of the layer's product. pairs: the routing's in another order; a_stride: elements
    from a row of x to the next, default k."""
    config, routing = given.config, given.routing
    kernel, k = kernel_of(config), given.x.shape[-1]
    lists = routing_operands(routing)
    x = given.x
    if isinstance(x, QuantizedActivations):
        of_x = {"a": bytes_apart(x.codes, a_stride or k), "a_scales": x.scales}
    else:
        of_x = {"a": rows_apart(x.reshape(-1, k), a_stride or k)}
    operands = {
        **of_x,
        "bias": given.bias,
        **experts_operands(given.experts),
        **(lists if pairs is None else lists | {"pairs": pairs}),
    }
    return Prepared.of(
        bind(
            kernel,
            config,
            problem_of(given),
            operands,
            sms=sms,
            compiled=compiler.build(kernel, config, target=TARGET, compiler="numba-cuda"),
            row_distance=a_stride or k,
        )
    )
