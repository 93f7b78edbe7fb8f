"""Triton without a GPU or torch: a kernel is compiled for a target and becomes a launch of a Case.

Alignment is told to the compiler as Triton's own JIT does: pointers and integers that are multiples
of 16, integers that are 1. Written against Triton 3.9.
"""

import os
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
TARGETS = ("sm_80", "sm_90")
NAMES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "bool": "i1",
    **{
        f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
    },
}
MAP_TYPES = {
    **{"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "i32": "int32", "u32": "uint32"},
    **{"i8": "uint8", "u8": "uint8", "fp8e4nv": "uint8", "fp8e5": "uint8"},
}
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
CASES: list = []  # (name, targets, fill)


def name_of(dtype) -> str:
    return NAMES[np.dtype(dtype).name]


@dataclass(frozen=True)
class Tiles:
    """An argument: a tensor descriptor of an array, made on the host."""

    array: np.ndarray
    block: list


@dataclass
class Values:
    """Random operands of a case, the same in every run."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(34))

    def normal(self, *shape, dtype=np.float32, scale=1.0) -> np.ndarray:
        return (self.random.standard_normal(shape) * scale).astype(dtype)

    def integers(self, low, high, *shape, dtype=np.int32) -> np.ndarray:
        return self.random.integers(low, high, shape).astype(dtype)

    def of(self, dtype, *shape) -> np.ndarray:
        """Values of a type, such that sums and products stay within it."""
        dtype = np.dtype(dtype)
        if dtype.kind in "iu":
            return self.integers(-9 if dtype.kind == "i" else 0, 10, *shape, dtype=dtype)
        return self.normal(*shape, dtype=dtype)


def case(name: str, targets=TARGETS):
    """Registers a function (case, values) that fills a Case."""

    def register(function):
        CASES.append((name, targets, function))
        return function

    return register


def launch(case, kernel, grid, *args, num_warps=4, num_stages=3, num_ctas=1, **constants):
    """args: arrays, Tiles, NumPy or Python numbers, in the order of the kernel's parameters;
    constants: its constexpr parameters, by name."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, hints, given = {}, {}, iter(args)
    values = []
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        value = next(given)
        values.append(value)
        kind = kind_of(value)
        signature[name] = kind
        number = not isinstance(value, np.ndarray | Tiles)
        if kind.startswith("*") or (number and kind[0] in "iu" and value % 16 == 0):
            hints[(index,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, hints),
        target=GPUTarget("cuda", int(case.target.removeprefix("sm_")), 32),
        options={"num_warps": num_warps, "num_stages": num_stages, "num_ctas": num_ctas},
    )
    facts, words, maps = compiled.metadata, [], iter(compiled.metadata.tensordesc_meta or ())
    for value in values:
        words += arguments(case, value, next(maps) if isinstance(value, Tiles) else None)
    grid = (*grid, 1, 1)[:3] if isinstance(grid, tuple) else (grid, 1, 1)
    blocks = grid[0] * grid[1] * grid[2]
    for size in (facts.global_scratch_size, facts.profile_scratch_size):
        scratch = np.zeros(size * blocks * num_ctas, np.uint8)
        words.append(case.put(scratch, "scratch") if size else 0)
    case.launch(
        compiled.asm["ptx"],
        facts.name,
        (grid[0] * num_ctas, *grid[1:]),
        (32 * facts.num_warps, 1, 1),
        words,
        shared=facts.shared,
        cluster=(num_ctas, 1, 1) if num_ctas > 1 else None,
    )
    return compiled


def kind_of(value) -> str:
    if isinstance(value, Tiles):
        return f"tensordesc<{name_of(value.array.dtype)}[{','.join(map(str, value.block))}]>"
    if isinstance(value, np.ndarray):
        return f"*{name_of(value.dtype)}"
    if isinstance(value, float):
        return "fp32"
    return "i32" if isinstance(value, int) else name_of(value.dtype)


def arguments(case, value, facts) -> list:
    if isinstance(value, np.ndarray):
        return [case.put(value)]
    if not isinstance(value, Tiles):
        return [value if isinstance(value, int | float) else value.item()]
    from numba_marlin.layout.tensor_map import TensorMap

    array = value.array
    encoded = TensorMap(
        MAP_TYPES[name_of(array.dtype)],
        array.shape,
        array.strides,
        facts["block_size"],
        SWIZZLES[facts["swizzle"]],
    ).encode(case.put(array))
    strides = [stride // array.itemsize for stride in array.strides]
    return [encoded, *array.shape, *strides]
