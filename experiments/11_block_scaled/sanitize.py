"""The kernels of two NVFP4 operands under compute-sanitizer: see ``experiments/sanitizer.py``;
experiments/02_hopper/README.md says what the tools can see of kernels like it.

python experiments/11_block_scaled/sanitize.py all       # on a GPU
python experiments/11_block_scaled/sanitize.py report    # tables into README.md
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import beside
import sanitizer

from numba_marlin import compiler
from numba_marlin.execution import driver, gpu
from numba_marlin.execution.binding import OPERAND, Scaling, bind, block_operands
from numba_marlin.execution.machine import host_arrays
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.problems import BlockProblem
from numba_marlin.quantizers.operands import quantize_blocks
from numba_marlin.reference.operands import block_scaled_bounds

hopper = beside.script("02_hopper/sanitize.py")
SMALL = {"tile_m": 128, "tile_n": 64, "stages": 2, "expanded_stages": 2}
CONFIGS = (
    BlockScaledConfig(**SMALL, source=True, bias=True),
    BlockScaledConfig(stages=3, expanded_stages=4),
    BlockScaledConfig(**SMALL, result="float32", bias=True, activation="gelu"),
    BlockScaledConfig(**SMALL, result="nvfp4"),
    BlockScaledConfig(**SMALL, result="mxfp8-e4m3", activation="gated_silu"),
)
FEW_ROWS = (
    BlockDecodeConfig(stages=2, source=True, bias=True),
    BlockDecodeConfig(tokens=16, k_warps=2, split=2, stages=2, result="float32", activation="silu"),
    BlockDecodeConfig(tokens=32, split=4, stages=2),
)


@dataclass(frozen=True)
class BlockCase:
    """What ``sanitizer`` asks of a ``problems.Case``, and the buffers of the launch."""

    config: BlockScaledConfig | BlockDecodeConfig
    m: int
    n: int
    k: int
    sms: int = 3

    @property
    def definition(self):
        return kernel_of(self.config)

    @property
    def kernel(self):
        return self.definition.name

    @property
    def label(self):
        extras = "".join(
            f" {name}" for name in ("source", "bias") if getattr(self.config, name)
        ) + (f" {self.config.activation}" if self.config.activation else "")
        return (
            f"{self.kernel} {self.config.tile_m}x{self.config.tile_n} m{self.m} n{self.n} k{self.k}"
            f" {self.config.result}{extras}"
        )

    @property
    def grid(self):
        return self.definition.grid(self.config, self.m, self.n, self.k, self.sms)

    def build(self, compiled_by, target):
        return compiler.build(self.definition, self.config, target=target, compiler=compiled_by)

    def given(self):
        """-> (what the kernel reads by name, the reference's arguments)"""
        rng = np.random.default_rng((self.m, self.n, self.k))
        a, b = (
            quantize_blocks(rng.standard_normal((rows, self.k)).astype(np.float32)).with_scales(
                "128x4"
            )
            for rows in (self.m, self.n)
        )
        c = rng.standard_normal((self.m, self.n)).astype(np.float16) if self.config.source else None
        bias = rng.standard_normal(self.n).astype(np.float32) if self.config.bias else None
        found = {**block_operands(a, b), "c": c, "bias": bias}
        scaling = Scaling(a.global_scale * b.global_scale, 0.5 if c is not None else 0.0)
        return (
            found,
            scaling,
            (
                a,
                b,
                {
                    "beta": scaling.beta,
                    "c": c,
                    "bias": bias,
                    "activation": self.config.activation,
                },
            ),
        )

    def bound(self, compiled):
        """-> (the launch but for addresses, the reference's arguments)"""
        found, scaling, reference = self.given()
        problem = BlockProblem.of(self.config, self.m, self.n, self.k)
        return (
            bind(
                self.definition,
                self.config,
                problem,
                found,
                sms=self.sms,
                compiled=compiled,
                grid=self.grid,
                scaling=scaling,
            ),
            reference,
        )


def run_case(case, compiled, plant=None):
    """Launch once; ValueError for a wrong result of float type (tests compare the others)."""
    binding, (a, b, options) = case.bound(compiled)
    held = host_arrays(binding)
    arrays = {name: driver.DeviceArray.from_host(held[name]) for name in binding.written}
    for name in binding.with_role(OPERAND):
        array = held[name]
        short, missing = bool(plant and plant.short == name), bool(plant and plant.missing == name)
        arrays[name] = (
            driver.DeviceArray((array.shape[0] - short, *array.shape[1:]), array.dtype)
            if short or missing
            else driver.DeviceArray.from_host(array)
        )
        if short:
            arrays[name].fill_words(0)
    addresses = {name: array.address for name, array in arrays.items()}
    gpu.loaded(binding, 0)(binding.grid, gpu.arguments(binding, addresses, 0))
    driver.synchronize(0)
    if plant:
        return True
    if "locks" in arrays and arrays["locks"].to_host().any():
        raise SystemExit(f"{case.label}: the counter is not zero")
    d = arrays["d"].to_host()
    if d.dtype == np.uint8:
        return True
    expected, error = block_scaled_bounds(a, b, **options)
    wrong = ~(
        np.abs(d.astype(np.float64) - expected)
        <= error + 2.0**-10 * (np.abs(expected) + error) + 2.0**-24
    )
    return not wrong.any()


def cases():
    for config in CONFIGS:
        step = 128 if config.gated else 32
        yield from (
            BlockCase(config, m, n, k)
            for m, n, k in ((130, 2 * step, 160), (config.tile_m + 3, 5 * step, 416))
        )
    for config in FEW_ROWS:
        yield from (
            BlockCase(config, m, n, k) for m, n, k in ((3, 64, 160), (config.tile_m + 3, 136, 1440))
        )


def plants():
    case = BlockCase(CONFIGS[0], 130, 128, 160)
    yield sanitizer.Plant("memcheck", "bias one number too short (loads)", case, short="bias")
    yield sanitizer.Plant("initcheck", "bias never copied (loads)", case, missing="bias")
    yield sanitizer.Plant(
        "initcheck", "codes never copied (tensor copies)", case, missing="b", must=False
    )
    yield sanitizer.Plant(
        "racecheck",
        "nobody waits for copies, nor for each other",
        BlockCase(CONFIGS[0], 100, 64, 128),
        edit=hopper.without_waiting_for_copies,
        must=False,
    )
    yield sanitizer.Plant(
        "synccheck", "odd threads skip a barrier", case, edit=hopper.half_a_barrier
    )


CASES = tuple(cases())
SUITE = sanitizer.Suite(
    Path(__file__).resolve(),
    CASES,
    tuple(plants()),
    hopper.by_configuration(CASES),
    ("numba-cuda",),
    hopper.SUITE.more,
    run_case,
)

if __name__ == "__main__":
    sys.exit(sanitizer.main(SUITE))
