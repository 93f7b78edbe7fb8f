"""Products of block-scaled matrices: the problem, the kernels that multiply both operands so, and
which configuration one gets. Nothing here is a choice for quantised weights.

``BlockProblem`` says what is multiplied, ``candidate`` how a kernel would do it on a device;
``choose`` picks Hopper's kernel for few rows where it is faster, else the tiles of the other whose
waves end first.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace

from numba_marlin.formats.operands import BLOCK_FORMATS, find_block_format
from numba_marlin.hardware.devices import SPECIFICATIONS, Device, runs_machine_code
from numba_marlin.hardware.limits import GRID_BLOCKS
from numba_marlin.heuristics.candidates import Candidate
from numba_marlin.heuristics.problem import LARGEST_DIMENSION
from numba_marlin.kernels import registry
from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.nvfp4.block_decode.config import ACTIVATIONS as FEW_ROWS_ACTIVATIONS
from numba_marlin.kernels.nvfp4.block_decode.config import COLUMNS, BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_decode.config import RESULT_BYTES as FEW_ROWS_RESULTS
from numba_marlin.kernels.nvfp4.block_mma.config import SCALES_OF_A_STEP
from numba_marlin.kernels.nvfp4.block_scaled.config import RESULTS, BlockScaledConfig
from numba_marlin.kernels.nvfp4.tcgen05.config import FORMATS

# (tile_m, tile_n): time of a tile relative to that of the first, and its rings. Measured on an H200
# at 8192 x 8192 x 8192 (experiments/11_block_scaled, measure --quick).
TILES = {(256, 128): (1.0, 4, 3), (128, 128): (0.69, 4, 4), (128, 64): (0.59, 4, 4)}
# (k_warps, split): time of a block with all of k, split times as many of which a multiprocessor has
# one after the other or at once, and what comes on top of it, with 8 tokens and with more: both
# relative to a block with all of k of the first. Fitted to an H200's times at k = 8192 and ten n
# from 1024 to 57344 (experiments/11_block_scaled, measure --arrangements, says how well).
ARRANGEMENTS = {
    (4, 1): ((0.1, 0.1), 1.0),
    (4, 2): ((0.1, 0.1), 1.15),
    (2, 2): ((0.2, 0.2), 1.0),
    (2, 4): ((0.43, 0.3), 1.0),
    (2, 8): ((0.4, 0.25), 1.2),
}
# rows of A up to which Hopper's kernel for few of them is the faster one, measured there too
FEW_ROWS = 64
KERNELS = ("block_scaled", "block_decode", "tcgen05", "block_mma")
EPILOGUE = ("result", "source", "bias", "activation", "rounding")
K_STEP, N_STEP = 32, 8
MOST_ROWS_OF_BLOCKS = GRID_BLOCKS[1]
# rows of A, and columns where the configuration does not say, of a tile of Blackwell's kernels
TILE = 128


@dataclass(frozen=True)
class BlockProblem:
    """``D = activation(A @ B^T + C + bias)``, A [m, k] and B [n, k] of a block-scaled ``format``, D
    of type ``result``, [m, n], or [m, n/2] if gated; source: whether there is a C. Only Hopper's
    kernels, ``block_scaled`` and ``block_decode``, have the last three. ValueError for sizes that
    no kernel takes.
    """

    m: int
    n: int
    k: int
    format: str = "nvfp4"
    result: str = "float16"
    source: bool = False
    bias: bool = False
    activation: str | None = None

    def __post_init__(self) -> None:
        find_block_format(self.format)
        for name in ("m", "n", "k"):
            if not 0 < getattr(self, name) <= LARGEST_DIMENSION:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be positive and fit in 32 bits"
                )
        step = column_step(self.result, self.activation)
        if self.k % K_STEP:
            raise ValueError(
                f"k={self.k} must be a multiple of {K_STEP} for block-scaled operands:"
                f" {nearest(self.k, K_STEP)}"
            )
        if self.n % step:
            why = (
                f" for result={self.result!r}{' and a gate' if self.gated else ''}"
                if step > N_STEP
                else " for block-scaled operands"
            )
            raise ValueError(
                f"n={self.n} must be a multiple of {step}{why}: {nearest(self.n, step)}"
            )

    @classmethod
    def of(cls, config, m: int, n: int, k: int) -> BlockProblem:
        """What a configuration of one of KERNELS multiplies."""
        return cls(
            m,
            n,
            k,
            **{
                each.name: getattr(config, each.name)
                for each in fields(cls)[3:]
                if hasattr(config, each.name)
            },
        )

    @property
    def gated(self) -> bool:
        return self.activation == "gated_silu"

    @property
    def bits(self) -> int:
        """Of a code."""
        return BLOCK_FORMATS[self.format].bits

    @property
    def group_size(self) -> int:
        """Elements along k that share a scale."""
        return BLOCK_FORMATS[self.format].block

    @property
    def columns(self) -> int:
        """Of D."""
        return self.n // 2 if self.gated else self.n

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def operand_bytes(self, rows: int) -> int:
        """Of ``rows`` rows of A or B with their scales, without what completes tiles of them."""
        return rows * self.k * self.bits // 8 + rows * self.k // self.group_size

    @property
    def result_bytes(self) -> int:
        if self.result in BLOCK_FORMATS:
            form = BLOCK_FORMATS[self.result]
            return self.m * self.columns * form.bits // 8 + self.m * self.columns // form.block
        return self.m * self.columns * (4 if self.result == "float32" else 2)

    @property
    def least_bytes(self) -> int:
        """Bytes of the problem when each is moved once."""
        return (
            self.operand_bytes(self.m)
            + self.operand_bytes(self.n)
            + 2 * self.m * self.n * self.source
            + 4 * self.n * self.bias
            + self.result_bytes
        )

    def to_dict(self) -> dict:
        """The fields, and what follows from them: bits of a code, which are e2m1 or 8-bit floats,
        and how many share a scale."""
        form = BLOCK_FORMATS[self.format]
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "bits": form.bits,
            "codes": form.element,
            "group_size": form.block,
        }


def column_step(result: str, activation: str | None) -> int:
    """What n is a multiple of: blocks of a block-scaled result are whole, and a gate takes two
    columns for one."""
    return (BLOCK_FORMATS[result].block if result in BLOCK_FORMATS else N_STEP) * (
        2 if activation == "gated_silu" else 1
    )


def formats_of(kernel: str) -> tuple[str, ...]:
    """Of the operands that a kernel multiplies."""
    return {
        "block_scaled": ("nvfp4",),
        "block_decode": ("nvfp4",),
        "tcgen05": tuple(FORMATS),
        "block_mma": tuple(SCALES_OF_A_STEP),
    }[kernel]


def nearest(size: int, step: int) -> str:
    """The multiples of ``step`` beside ``size``, in words."""
    return " or ".join(str(each * step) for each in (size // step, -(-size // step)) if each)


def find_block_kernel(name: str) -> KernelDefinition:
    """ValueError lists KERNELS."""
    if name not in KERNELS:
        raise ValueError(f"kernel={name!r} must be one of {', '.join(KERNELS)}")
    return registry.find_kernel(name)


def block_kernel_of(config) -> KernelDefinition:
    """The kernel of a configuration's type."""
    return _kernel_of_type(type(config))


@functools.lru_cache
def _kernel_of_type(config_type: type) -> KernelDefinition:
    return next(
        kernel
        for kernel in map(find_block_kernel, KERNELS)
        if issubclass(config_type, kernel.config_type)
    )


def devices_for(kernel: str) -> tuple[Device, ...]:
    """Devices of the table whose machine code the kernel's is, the first to look at first."""
    able = [
        each
        for each in SPECIFICATIONS
        if runs_machine_code(find_block_kernel(kernel).min_arch, each.compute_capability)
    ]
    return tuple(sorted(able, key=lambda each: -(each.bandwidth_bytes or 0)))


def check_device(kernel: str, device: Device) -> None:
    """ValueError, naming those that do, unless ``device`` has the kernel's instructions."""
    needs = find_block_kernel(kernel).min_arch
    if not runs_machine_code(needs, device.compute_capability):
        raise ValueError(
            f"kernel {kernel!r} is made of instructions of {needs} alone, and {device.name} is"
            f" {device.arch}: choose {' or '.join(each.name for each in devices_for(kernel))}"
        )


def choose(m: int, n: int, sms: int, **epilogue) -> BlockScaledConfig | BlockDecodeConfig:
    """``epilogue``: the fields of the configuration that the product decides: result, source, bias,
    activation, rounding."""
    few = (
        m <= FEW_ROWS
        and epilogue.get("result", "float16") in FEW_ROWS_RESULTS
        and epilogue.get("activation") in FEW_ROWS_ACTIVATIONS
    )
    return choose_few_rows(m, n, sms, **epilogue) if few else choose_tiles(m, n, sms, **epilogue)


def choose_few_rows(
    m: int, n: int, sms: int, rounding: str = "floor", **epilogue
) -> BlockDecodeConfig:
    """The arrangement in which the fullest multiprocessor ends first. (``rounding``: of no result
    that this kernel has.)"""
    tokens = next((each for each in (8, 16) if m <= each), 32)
    blocks = -(-n // COLUMNS) * -(-m // tokens)

    def ends(arrangement: tuple[int, int]) -> float:
        fixed, slope = ARRANGEMENTS[arrangement]
        return fixed[tokens > 8] + slope * -(-blocks * arrangement[1] // sms) / arrangement[1]

    k_warps, split = min(ARRANGEMENTS, key=ends)
    return BlockDecodeConfig(tokens, k_warps, split, stages=k_warps, **epilogue)


def choose_tiles(m: int, n: int, sms: int, **epilogue) -> BlockScaledConfig:
    """The tiles of ``block_scaled`` whose waves end first."""

    def waves_end(tile: tuple[int, int]) -> float:
        tiles = -(-m // tile[0]) * -(-n // tile[1])
        return -(-tiles // sms) * TILES[tile][0]

    stored_in_halves = (
        RESULTS.get(epilogue.get("result", "float16")) == "halves"
        and epilogue.get("activation") == "gated_silu"
    )
    tile_m, tile_n = min(
        (tile for tile in TILES if tile[1] == 128 or not stored_in_halves), key=waves_end
    )
    _, stages, expanded_stages = TILES[tile_m, tile_n]
    return BlockScaledConfig(tile_m, tile_n, stages, expanded_stages, group_m=8, **epilogue)


def configuration(kernel: str, m: int, n: int, sms: int, **changes):
    """The configuration of ``kernel`` with fields changed; ValueError names those there are."""
    config_type = find_block_kernel(kernel).config_type
    known = [each.name for each in fields(config_type)]
    for name, value in changes.items():
        if name not in known:
            raise ValueError(
                f"{name}={value!r} is no field of {kernel}'s configuration, which has"
                f" {', '.join(known)}"
            )
    if kernel == "block_decode" and "k_warps" in changes:  # the ring must fit them
        changes = {"stages": max(2, changes["k_warps"] // 2)} | changes
    chooser = {"block_scaled": choose_tiles, "block_decode": choose_few_rows}.get(kernel)
    if chooser is None:
        return config_type(**changes)
    return replace(
        chooser(m, n, sms, **{name: value for name, value in changes.items() if name in EPILOGUE}),
        **changes,
    )


def candidate(problem: BlockProblem, device: Device, kernel: str, config=None) -> Candidate:
    """``problem`` by ``kernel`` on a device of so many multiprocessors. Its instructions are asked
    for by ``check_device``: the PTX machine has those of all."""
    definition = find_block_kernel(kernel)
    config = config or configuration(kernel, problem.m, problem.n, device.sms)
    if BlockProblem.of(config, problem.m, problem.n, problem.k) != problem:
        raise ValueError(f"config={config} does not multiply {problem}")
    tile_m, tile_n = getattr(config, "tile_m", TILE), getattr(config, "tile_n", TILE)
    grid = tuple(definition.grid(config, problem.m, problem.n, problem.k, device.sms))
    if grid[1] > MOST_ROWS_OF_BLOCKS:
        raise ValueError(
            f"m={problem.m}: grid {grid} of kernel {kernel!r} with tokens={config.tokens} is beyond"
            f" CUDA's limit of {MOST_ROWS_OF_BLOCKS} along y"
        )
    across = {"m": -(-problem.m // tile_m), "n": -(-problem.n // tile_n)}
    tiles, blocks = math.prod(across.values()), math.prod(grid)
    share = (
        "a block each"
        if tiles == blocks
        else (
            f"{blocks // tiles} blocks, a cluster, share the k of each"
            if blocks > tiles
            else f"{blocks} blocks, one a multiprocessor, take one after the other"
        )
    )
    figures = {
        "blocks": blocks,
        "tiles": across,
        "waves": round(tiles / device.sms, 3),
        "least_bytes": problem.least_bytes,
    }
    if device.bandwidth_bytes:
        figures["memory_us"] = round(problem.least_bytes / device.bandwidth_bytes * 1e6, 3)
    return Candidate(
        kernel,
        config,
        grid,
        definition.threads(config),
        definition.shared_bytes(config),
        (f"{tiles} tile{'s' * (tiles > 1)} of {tile_m} x {tile_n}: {share}",),
        figures,
    )
