"""Layers of experts for the tests of ``moe`` and ``moe_wgmma``: a launch on the PTX machine with
every trap set."""

from dataclasses import dataclass, replace

import numpy as np

from numba_marlin import compiler, reference
from numba_marlin.emulator import Machine
from numba_marlin.execution.binding import bind
from numba_marlin.execution.machine import set_up
from numba_marlin.formats import marlin
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.fp4_marlin import Fp4MarlinFormat
from numba_marlin.formats.routing import Routing
from numba_marlin.kernels.experts.moe import MOE, MoeConfig
from numba_marlin.kernels.experts.moe_wgmma import MOE_WGMMA, MoeWgmmaConfig
from numba_marlin.problems.experts import ExpertsProblem
from numba_marlin.reference.experts import activated_bounds, moe_bounds
from numba_marlin.testing.blocks import make_blocks
from numba_marlin.testing.contents import make_quantized
from numba_marlin.testing.launches import TARGET, machine_of, rows_apart

DEFINITIONS = {MoeConfig: MOE, MoeWgmmaConfig: MOE_WGMMA}


def definition_of(config):
    return DEFINITIONS[type(config)]


@dataclass(frozen=True, eq=False)
class Layer:
    """Operands of a product: x [m, k], or with ``x_of_pairs`` [m, top_k, k]."""

    config: MoeConfig | MoeWgmmaConfig
    x: np.ndarray
    experts: PackedExperts
    routing: Routing
    bias: np.ndarray | None

    def bounds(self) -> reference.Bounds:
        found = moe_bounds(
            self.x,
            self.experts,
            self.routing,
            self.bias,
            combine=self.config.combine,
            method=definition_of(self.config).method(self.config),
            order="random",
            out_dtype=self.config.dtype,
        )
        n, activation = self.experts.n, getattr(self.config, "activation", None)
        if activation is not None:
            found = activated_bounds(found, activation, self.config.dtype)
            n //= 2
        each = (found.product, found.accumulated, found.rounded)
        return reference.Bounds(*(array.reshape(-1, n) for array in each))


def scale_dtype_of(config):
    """``moe_wgmma`` has no field for it: of integers, the type of x."""
    return getattr(config, "scale_dtype", config.dtype)


def ids_of(rng, m, experts, top_k):
    return np.argsort(rng.random((m, experts)), axis=1)[:, :top_k]


def layer(config, ids, n, k, *, seed=0, integers=False) -> Layer:
    """ids: [m, top_k]. integers: small integers and scales that are powers of two, so that every
    sum is exact."""
    rng, ids = np.random.default_rng(seed), np.asarray(ids)
    m, group = len(ids), config.group_blocks
    dtype = config.dtype
    if config.block_scaled:
        kind = {1: "nvfp4", 2: "mxfp4"}[group]
        weights = [
            make_blocks(kind, k, n, seed * 1000 + expert, ordinary=True)
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
    shape = (m, config.top_k, k) if config.x_of_pairs else (m, k)
    numbers = rng.integers(-3, 4, shape) if integers else rng.standard_normal(shape)
    factors = 2.0 ** rng.integers(-2, 1, ids.shape) if integers else rng.random(ids.shape)
    bias = rng.standard_normal((config.experts, n)) if config.bias else None
    return Layer(
        config,
        round_to(numbers, dtype),
        PackedExperts.of(
            Fp4MarlinFormat().pack(each, dtype) if config.block_scaled else marlin.pack(each)
            for each in weights
        ),
        Routing.of(ids, factors, config.experts),
        None if bias is None else round_to(bias, dtype),
    )


def run(given: Layer, *, sms=3, seed=None, races=False, edit_ptx=None, a_stride=None, order=None):
    """-> c [rows, n]. order: of the pairs of each expert, if not that of tokens: a function of
    (pairs)."""
    config, routing = given.config, given.routing
    definition = definition_of(config)
    k = given.x.shape[-1]
    problem = ExpertsProblem.of(
        given.experts,
        routing,
        config.dtype,
        bias=config.bias,
        x_of_pairs=config.x_of_pairs,
        combine=config.combine,
        activation=getattr(config, "activation", None),
    )
    operands = {
        "a": rows_apart(given.x.reshape(-1, k), a_stride or k),
        "b": given.experts.arrays["qweight"],
        **{name: given.experts.arrays.get(name) for name in ("scales", "zeros", "factors")},
        "bias": given.bias,
        "pairs": routing.pairs if order is None else order(routing.pairs),
        "offsets": routing.offsets,
        "weights": routing.weights,
    }
    compiled = compiler.build(definition, config, target=TARGET, compiler="numba-cuda")
    bound = bind(
        definition,
        config,
        problem,
        operands,
        sms=sms,
        compiled=compiled,
        row_distance=a_stride or k,
    )
    text = edit_ptx(compiled.ptx) if edit_ptx else compiled.ptx
    machine: Machine = machine_of(text, races)
    for buffer in machine.memory.buffers:  # of the run before
        machine.memory.release(buffer)
    launch = set_up(bound, machine=machine)
    launch.run(seed=seed)
    return launch.results["c"]


def check(given: Layer, **options) -> np.ndarray:
    """Within its bounds -> c."""
    c = run(given, **options)
    report = reference.judged(c, given.bounds())
    assert report.ok, report
    return c
