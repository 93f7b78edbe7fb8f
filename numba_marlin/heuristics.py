"""Which kernel, in which configuration, on which grid, and why. Pure: numbers in, ranked candidates out; no CUDA, no GPU.

In:  a ``Problem`` (m, n, k, group_size) and a ``Device`` (``devices.py``).
Out: ``rank`` -> tuple of ``Candidate``, best first: the faithful kernel in the original's two tile shapes, with as many m16
     blocks as m needs, four at most; then the two simpler rungs of the ladder. Which shape leads depends on whether wide
     tiles alone keep every SM busy: if not, slices are shared between blocks, and the deep, narrow tile shares between fewer
     and hands on half as much. (The original decides by m alone: deep up to m = 16, wide above. On an H200, 8192 x 8192, m = 64:
     28.8 us deep, 34.0 wide; 8192 x 57344, m = 1: 91.7 deep, 83.5 wide.) A configuration that needs more shared memory than
     the device has is left out.
``explain`` wraps the same in an ``Explanation`` whose ``str()`` is for people and whose ``to_dict()`` is for programs.

Every figure in ``Candidate.figures`` follows from the shapes and the device's numbers: it is modelled, nothing was timed.
Impossible problems are ValueErrors that name the value and the rule.
"""

from __future__ import annotations

import importlib
import textwrap
from dataclasses import asdict, dataclass, field, fields, replace

from numba_marlin import devices
from numba_marlin.devices import Device
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.marlin import check_problem, packed_columns
from numba_marlin.formats.types import ZEROS_KINDS, check_bits, check_group_size
from numba_marlin.kernels.definition import KernelDefinition, ceil_div
from numba_marlin.layout.stripes import iterations_per_block

LADDER = ("naive", "tiled", "ampere")  # the rungs, simplest first; each is a module of kernels/
RESERVED_BYTES = 1024  # shared memory that CUDA keeps for itself in each block
LARGEST_DIMENSION = 2**31 - 1  # kernels take m, n and k as int32
DEEP, WIDE = (8, 8), (16, 4)  # the original's tile shapes: (columns, depth) in units of 16
TILE_SHAPES = (DEEP, WIDE)
TILES_FOR_TWO = 100  # tiles a block must have left for a second block on each SM to pay for the slices it shares
M_BLOCKS = 4  # most m16 blocks of a tile: above, accumulators no longer fit in registers


@dataclass(frozen=True)
class Problem:
    """``C[m, n] = A[m, k] @ W[k, n]`` with one scale per ``group_size`` rows of a column (-1: one per column).

    dtype: of activations, result and bias. bits: of a code. zeros: the kind of zero points, None for symmetric weights. bias: whether
    one row of n numbers is added.
    """

    m: int
    n: int
    k: int
    group_size: int = 128
    dtype: str = "float16"
    bits: int = 4
    zeros: str | None = None
    scale_dtype: str = "float16"
    bias: bool = False

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r} must be an int")
            if not 0 < value <= LARGEST_DIMENSION:
                raise ValueError(f"{name}={value} must be positive and fit in 32 bits")
        object.__setattr__(self, "group_size", check_group_size(self.group_size, self.k))
        check_problem(self.k, self.n, self.group_size)
        check_bits(self.bits)
        for name, allowed in (("dtype", HALF_TYPES), ("scale_dtype", HALF_TYPES), ("zeros", ZEROS_KINDS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {allowed}")

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else self.k // self.group_size

    @property
    def least_bytes(self) -> int:
        """Bytes of the problem when each is moved once: 16-bit A, W with scales and zero points as it is packed, bias, 16-bit C."""
        m, n, k, columns = self.m, self.n, self.k, packed_columns(self.n)
        zeros = {None: 0, "integer": self.bits, "float16": 16}[self.zeros]
        weight = columns * k * self.bits // 8 + self.groups * columns * (16 + zeros) // 8
        return 2 * m * k + weight + 2 * n * self.bias + 2 * m * n

    @property
    def has_zeros(self) -> bool:
        return self.zeros is not None

    @classmethod
    def of(cls, m: int, weight, dtype: str = "float16", bias: bool = False) -> Problem:
        """The problem of m rows of ``dtype`` times ``weight``, a QuantizedWeight or a PackedWeight."""
        return cls(m, weight.n, weight.k, weight.group_size, dtype, weight.bits, weight.zeros_kind, weight.scale_dtype, bias)


@dataclass(frozen=True)
class Candidate:
    """One way to run a problem. ``grid`` in blocks (x, y, z), ``shared_bytes`` of dynamic shared memory a block."""

    kernel: str
    config: object
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    reasons: tuple[str, ...]
    figures: dict = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict:
        return {
            "kernel": self.kernel, "config": asdict(self.config), "grid": list(self.grid), "threads": self.threads,
            "shared_bytes": self.shared_bytes, "reasons": list(self.reasons), "modelled": dict(self.figures),
        }


def find_kernel(name: str) -> KernelDefinition:
    """The kernel called ``name``; ValueError lists the ladder."""
    if name not in LADDER:
        raise ValueError(f"kernel={name!r} must be one of {', '.join(LADDER)}")
    return importlib.import_module(f"numba_marlin.kernels.{name}").KERNEL


def _ampere_config(problem: Problem, tile_shape: tuple[int, int], device: Device):
    """The original's configuration for a tile shape; where two blocks fit on an SM and have enough to do, those, with a deeper pipeline:
    more copies in flight (H200, m = 1: 135168 x 33792 655 us instead of 741, 8192 x 57344 73.4 instead of 82.6)."""
    n_blocks, k_blocks = tile_shape
    config = find_kernel("ampere").config_type(
        thread_m_blocks=min(M_BLOCKS, ceil_div(problem.m, 16)),
        thread_n_blocks=n_blocks,
        thread_k_blocks=k_blocks,
        group_blocks=-1 if problem.group_size == -1 else problem.group_size // 16,
        ragged=bool(problem.k % (16 * k_blocks) or problem.n % (16 * n_blocks)),
    )
    tiles = ceil_div(problem.k, 16 * k_blocks) * ceil_div(problem.n, 16 * n_blocks)
    if config.thread_m_blocks > 1 or tiles < TILES_FOR_TWO * 2 * device.sms:
        return config
    pair = replace(config, stages=6, blocks_per_sm=2)
    fits = 2 * (pair.shared_bytes + RESERVED_BYTES) <= device.shared_bytes_per_block + RESERVED_BYTES
    return pair if fits else config


def wide_slices(problem: Problem) -> int:
    """Column slices of the wide tile, over all row tiles: as many blocks can work without sharing one."""
    return ceil_div(problem.n, 16 * WIDE[0]) * ceil_div(problem.m, 16 * M_BLOCKS)


def wide_leads(problem: Problem, sms: int) -> bool:
    """Whether wide tiles alone keep the device busy: at least three quarters of it."""
    return 4 * wide_slices(problem) >= 3 * sms


def default_config(kernel: str, problem: Problem, device: Device):
    """The configuration of ``kernel`` that leads for ``problem`` on ``device``."""
    if kernel == "ampere":
        return _ampere_config(problem, WIDE if wide_leads(problem, device.sms) else DEEP, device)
    config_type = find_kernel(kernel).config_type
    return config_type(**{each.name: getattr(problem, each.name) for each in fields(config_type)})


def check_takes(kernel: str, problem: Problem) -> None:
    """ValueError, naming the kernels that can, unless ``kernel`` takes problems of this kind."""
    refusals = find_kernel(kernel).takes.refusals(problem)
    if refusals:
        able = [name for name in LADDER if not find_kernel(name).takes.refusals(problem)]
        raise ValueError(f"kernel {kernel!r} does not take {'; nor '.join(refusals)}; kernels that do: {', '.join(able) or 'none'}")


def check_config(kernel: str, config: object, problem: Problem) -> None:
    """TypeError or ValueError unless ``config`` is one of ``kernel``'s and was made for ``problem``'s groups and tails."""
    config_type = find_kernel(kernel).config_type
    if not isinstance(config, config_type):
        raise TypeError(f"config is a {type(config).__name__}, kernel {kernel!r} needs a {config_type.__name__}")
    if kernel != "ampere":
        for name in (each.name for each in fields(config)):
            if getattr(config, name) != getattr(problem, name):
                owner = "the activations'" if name == "dtype" else "the problem's" if name == "bias" else "the weight's"
                raise ValueError(f"config.{name}={getattr(config, name)} must be {owner} {name}={getattr(problem, name)}")
        return
    group_blocks = -1 if problem.group_size == -1 else problem.group_size // 16
    if config.group_blocks != group_blocks:
        raise ValueError(
            f"config.group_blocks={config.group_blocks} must be {group_blocks} for group_size={problem.group_size}"
        )
    tile_n, tile_k = 16 * config.thread_n_blocks, 16 * config.thread_k_blocks
    if not config.ragged and (problem.n % tile_n or problem.k % tile_k):
        raise ValueError(
            f"config.ragged=False needs n={problem.n} to be a multiple of {tile_n} and k={problem.k} of {tile_k}"
        )


def _ampere_reasons(problem: Problem, config, sms: int) -> tuple[str, ...]:
    m, n, k = problem.m, problem.n, problem.k
    tile_m, tile_n, tile_k = 16 * config.thread_m_blocks, 16 * config.thread_n_blocks, 16 * config.thread_k_blocks
    wide = config.thread_n_blocks == WIDE[0]
    slices, wide_first = wide_slices(problem), wide_leads(problem, sms)
    if wide_first:
        rule = f"wide tiles make {slices:,} slices, enough for {sms} SMs: few are shared, and A is read less often"
    else:
        rule = f"wide tiles make only {slices} slice{'s' * (slices > 1)} for {sms} SMs, so blocks share slices: with deep tiles, fewer share one"
    reasons = [f"tile k{tile_k} x n{tile_n}: " + (rule if wide == wide_first else f"the other shape, to compare with: {rule}")]
    if wide != (m > 16):
        reasons.append(f"the original would take the other shape for m={m}: it goes by m alone")
    if m <= 16 * M_BLOCKS:
        reasons.append(f"m={m} fits a tile of {tile_m} rows: every weight is read once")
    else:
        reasons.append(f"m={m} takes {ceil_div(m, tile_m)} passes of {tile_m} rows: weights are read that often, mostly from L2")
    if config.blocks_per_sm > 1:
        reasons.append(f"{config.blocks_per_sm} blocks an SM and {config.stages} stages: more copies in flight, and every block still has many tiles")
    tails = [f"{name}={size} % {tile}" for name, size, tile in (("n", n, tile_n), ("k", k, tile_k)) if size % tile]
    if tails:
        reasons.append(f"a tail is left by {' and '.join(tails)}: the kernel with bounds checks")
    return tuple(reasons)


_LADDER_REASONS = {
    "tiled": ("tensor cores and shared memory, no pipeline: the rung below, to compare with",),
    "naive": ("a thread an output: the simplest rung, to compare with",),
}


def figures(problem: Problem, kernel: str, config, grid: tuple[int, int, int], device: Device) -> dict:
    """What follows from the shapes: blocks, waves, tiles and the time that memory alone would take."""
    blocks = grid[0] * grid[1] * grid[2]
    result = {"blocks": blocks, "waves": round(blocks / device.sms, 3), "least_bytes": problem.least_bytes}
    if kernel == "ampere":
        tiles = {
            "k": ceil_div(problem.k, 16 * config.thread_k_blocks),
            "n": ceil_div(problem.n, 16 * config.thread_n_blocks),
            "m": ceil_div(problem.m, 16 * config.thread_m_blocks),
        }
        count = tiles["k"] * tiles["n"] * tiles["m"]
        per_block = iterations_per_block(tiles["k"], tiles["n"], tiles["m"], blocks)
        result |= {"tiles": tiles, "tiles_per_block": per_block, "busy": round(count / (per_block * device.sms), 3)}
    if device.bandwidth_bytes:
        result["memory_us"] = round(problem.least_bytes / device.bandwidth_bytes * 1e6, 3)
    return result


def candidate(problem: Problem, device: Device, kernel: str, config=None) -> Candidate:
    """``problem`` on ``kernel`` with ``config`` (default: ``default_config``); ValueError if the device cannot hold it."""
    definition = find_kernel(kernel)
    check_takes(kernel, problem)
    chosen = default_config(kernel, problem, device) if config is None else config
    check_config(kernel, chosen, problem)
    shared_bytes = definition.shared_bytes(chosen)
    if shared_bytes > device.shared_bytes_per_block:
        raise ValueError(
            f"kernel {kernel!r} needs shared_bytes={shared_bytes} a block, {device.name} has {device.shared_bytes_per_block}"
        )
    grid = tuple(definition.grid(chosen, problem.m, problem.n, problem.k, device.sms))
    if grid[1] > 65535 or grid[2] > 65535 or grid[0] > LARGEST_DIMENSION:
        raise ValueError(f"m={problem.m}: grid {grid} of kernel {kernel!r} is beyond CUDA's limit (2**31 - 1, 65535, 65535)")
    reasons = _ampere_reasons(problem, chosen, device.sms) if kernel == "ampere" else _LADDER_REASONS.get(kernel, (definition.summary,))
    return Candidate(
        kernel=kernel, config=chosen, grid=grid, threads=definition.threads(chosen), shared_bytes=shared_bytes,
        reasons=reasons, figures=figures(problem, kernel, chosen, grid, device),
    )


def rank(problem: Problem, device: Device) -> tuple[Candidate, ...]:
    """All candidates that fit ``device``, best first; ValueError, with what is wrong with each, if there is none."""
    tried, first = [], None
    if not find_kernel("ampere").takes.refusals(problem):
        first = default_config("ampere", problem, device)
        tried = [("ampere", first)]
        tried += [("ampere", _ampere_config(problem, shape, device)) for shape in TILE_SHAPES]
    tried += [(name, None) for name in reversed(LADDER) if name != "ampere"]
    result, refusals = [], []
    for position, (kernel, config) in enumerate(tried):
        if config is not None and config == first and position:
            continue
        try:
            result.append(candidate(problem, device, kernel, config))
        except ValueError as error:  # does not fit: not a candidate here
            refusals.append(str(error))
    if not result:
        raise ValueError(f"no kernel runs m={problem.m}, n={problem.n}, k={problem.k} on {device.name}: {'; '.join(refusals)}")
    return tuple(result)


@dataclass(frozen=True)
class Explanation:
    """What would run for a problem on a device, and why. ``candidates[0]`` is the choice."""

    problem: Problem
    device: Device
    candidates: tuple[Candidate, ...]

    @property
    def choice(self) -> Candidate:
        return self.candidates[0]

    def to_dict(self) -> dict:
        return {
            "problem": asdict(self.problem) | {"least_bytes": self.problem.least_bytes},
            "device": self.device.to_dict(),
            "candidates": [each.to_dict() for each in self.candidates],
        }

    def __str__(self) -> str:
        p, d = self.problem, self.device
        groups = "one scale per column" if p.group_size == -1 else f"groups of {p.group_size}"
        groups += "".join(f", {text}" for text, there in ((f"zero points ({p.zeros})", p.has_zeros), ("a bias", p.bias)) if there)
        groups += "" if (p.dtype, p.scale_dtype) == ("float16", "float16") else f"; {p.dtype}, scales {p.scale_dtype}"
        lines = [
            f"C[{p.m}, {p.n}] = A[{p.m}, {p.k}] @ W[{p.k}, {p.n}], {p.bits}-bit weights, {groups}",
            f"device: {d.name}, {d.sms} SMs, {d.arch}, {d.shared_bytes_per_block // 1024} KiB shared memory a block ({d.source})",
            f"moves at least {p.least_bytes:,} bytes" + (f", in {p.least_bytes / d.bandwidth_bytes * 1e6:.3g} us if nothing else took time" if d.bandwidth_bytes else "") + " (modelled)",
        ]
        for position, each in enumerate(self.candidates, start=1):
            lines += ["", *_lines(each, position)]
        return "\n".join(lines)


def _lines(each: Candidate, position: int) -> list[str]:
    config = ", ".join(f"{name}={value}" for name, value in asdict(each.config).items())
    f = each.figures
    work = f"blocks {f['blocks']}, waves {f['waves']:g}"
    if "tiles" in f:
        tiles = f["tiles"]
        work += f"; tiles {tiles['k']} (k) x {tiles['n']} (n) x {tiles['m']} (m), {f['tiles_per_block']} a block, SMs {f['busy']:.0%} busy"
    lines = [
        f"{position}. {each.kernel}  grid {' x '.join(map(str, each.grid))}, {each.threads} threads, {each.shared_bytes / 1024:g} KiB shared",
        *textwrap.wrap(config, 100, initial_indent="   ", subsequent_indent="   "),
        *(f"   - {reason}" for reason in each.reasons),
        f"   modelled: {work}",
    ]
    return lines


def explain(m: int, n: int, k: int, group_size: int = 128, device: str | Device = "H200", **types) -> Explanation:
    """What would run for ``C[m, n] = A[m, k] @ W[k, n]`` on ``device``: a name (``devices.names()``) or a ``Device``.

    types: dtype, bits, zeros, scale_dtype and bias of the ``Problem``.
    """
    problem = Problem(m, n, k, group_size, **types)
    where = devices.device(device) if isinstance(device, str) else device
    if not isinstance(where, Device):
        raise TypeError(f"device is a {type(where).__name__}, must be a name or a Device")
    return Explanation(problem, where, rank(problem, where))
