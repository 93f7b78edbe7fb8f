"""The conformance table of stored formats, computed by converting weights: ``rows()`` for people
and tests, ``markdown()`` for the README.

The probes are weights that tell formats apart: code sizes, zero points, activation order, types of
scales, and block-scaled weights from the formats' own test cases. A conversion is exact for a probe
if the target reports no ``losses`` and reading what it wrote gives the same numbers.
``round_trips`` checks this on any number of random codes, from one format's tensors to the other's
and back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.files import STORED
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.marlin import unpack
from numba_marlin.formats.small_floats import decode
from numba_marlin.formats.stored import PLAIN, StoredFormat
from numba_marlin.formats.types import READABLE_BITS, PackedWeight, QuantizedWeight

K, N, GROUP = 128, 64, 32


@dataclass(frozen=True)
class Row:
    """One format. exact: targets that hold every probe that this format holds; sometimes: targets
    that hold some of them."""

    form: StoredFormat
    exact: tuple[str, ...]
    sometimes: tuple[str, ...]


@functools.cache
def probes(size: int = 1, seed: int = 0) -> tuple:
    """Random weights, each with size**2 times as many codes as with 1: 4096 at least."""
    k, n = K * size, N * size
    rng = np.random.default_rng(seed)
    order = np.sort(rng.permutation(k).reshape(-1, GROUP), axis=1).ravel().astype(np.int32)
    found: list = []
    for bits in READABLE_BITS:
        codes, zeros = (
            rng.integers(0, 1 << bits, (k, n), dtype=np.uint8),
            rng.integers(0, 1 << bits, (k // GROUP, n), dtype=np.uint8),
        )
        for dtype in ("float16", "bfloat16"):
            scales = rng.uniform(2.0**-20, 2.0**-18, (k // GROUP, n)).astype(float_type(dtype))
            weight = QuantizedWeight(codes, scales, None, bits, GROUP)
            found += [
                weight,
                replace(weight, zeros=zeros),
                replace(weight, permutation=order),
                replace(weight, zeros=zeros, permutation=order),
            ]
    rows, columns = 2 * k, 2 * n
    e4m3, e2m1 = (
        rng.integers(0, 127, (rows, columns), dtype=np.uint8),
        rng.integers(0, 16, (k // 2, n), dtype=np.uint8),
    )
    block = rng.integers(8, 127, (k // 32, n), dtype=np.uint8)
    for factor in (0.25, float(np.float32(0.3))):
        found += [
            BlockWeight(e2m1, "e2m1", block, "e4m3", (16, 1), factor, divides, inputs, divides)
            for divides in (False, True)
            for inputs in (None, 0.5)
        ]
    found.append(BlockWeight(e2m1, "e2m1", block[: len(block) // 2], "e8m0", (32, 1)))
    for shape in ((rows, columns), (rows, 1), (128, 128)):
        scales = rng.uniform(0.5, 2, (rows // shape[0], columns // shape[1])).astype(np.float32)
        found.append(BlockWeight(e4m3, "e4m3", scales, None, shape))
    return tuple(found)


def holds(form: StoredFormat, weight, codec=PLAIN) -> bool:
    """Whether ``form`` holds ``weight`` exactly; what it says and what it does must agree
    (AssertionError)."""
    try:
        if form.losses(weight, codec):
            return False
    except ValueError:
        return False
    back = form.read(form.write(weight, codec), codec)
    if not same_numbers(back, weight):
        raise AssertionError(f"format {form.name!r} said it would lose nothing of a {weight}")
    return True


def round_trips(source: StoredFormat, target: StoredFormat, weights: Iterable, codec=PLAIN) -> int:
    """Convert those ``weights`` that both formats hold from ``source``'s tensors to ``target``'s
    and back, and return the number of codes converted.

    AssertionError unless each weight's numbers are the same on the way and at the end, and so are
    source's tensors, byte for byte, wherever target has the same size of codes.
    """
    codes = 0
    for weight in weights:
        if not (holds(source, weight, codec) and holds(target, weight, codec)):
            continue
        first = source.write(weight, codec)
        there = target.read(target.write(source.read(first, codec), codec), codec)
        last = source.write(there, codec)
        same = same_numbers(there, weight) and same_numbers(source.read(last, codec), weight)
        if not same or (source.check(first) == source.check(last)) != _same_bytes(first, last):
            raise AssertionError(
                f"from format {source.name!r} to {target.name!r} and back: {weight} is another"
            )
        codes += weight.codes.size
    return codes


def _same_bytes(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return set(left) == set(right) and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )


def same_numbers(left, right) -> bool:
    """Whether two weights stand for the same numbers, in any representation."""
    return np.array_equal(_numbers(left), _numbers(right))


def _numbers(weight) -> np.ndarray:
    """float64 [k, n]. (``quantizers`` is above this room.)"""
    if isinstance(weight, BlockWeight):
        scales = np.repeat(
            np.repeat(weight.scale_values().astype(np.float64), weight.block[0], 0),
            weight.block[1],
            1,
        )[: weight.k, : weight.n]
        factor = (
            1.0
            if weight.global_scale is None
            else 1 / weight.global_scale
            if weight.divides
            else weight.global_scale
        )
        return decode(weight.codes, weight.grid).astype(np.float64) * scales * factor
    weight = unpack(weight) if isinstance(weight, PackedWeight) else weight
    zeros = (
        1 << (weight.bits - 1)
        if weight.zeros is None
        else np.repeat(weight.zeros.astype(np.float64), weight.rows_per_group, 0)
    )
    stored = (weight.codes - zeros) * np.repeat(
        weight.scales.astype(np.float64), weight.rows_per_group, 0
    )
    if weight.permutation is None:
        return stored
    result = np.empty_like(stored)
    result[weight.permutation] = stored
    return result


@functools.cache
def rows() -> tuple[Row, ...]:
    held = {
        name: {number for number, weight in enumerate(probes()) if holds(form, weight)}
        for name, form in STORED.items()
    }
    result = []
    for name, form in STORED.items():
        others = [other for other in STORED if other != name and held[name] & held[other]]
        exact = tuple(other for other in others if held[name] <= held[other])
        result.append(Row(form, exact, tuple(other for other in others if other not in exact)))
    return tuple(result)


def markdown() -> str:
    lines = [
        (
            "| format | tensors of a layer | bits | read | write | run | converts exactly to |"
            " where the weight allows it |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows():
        form = row.form
        tensors = ", ".join(
            [f"`{name}`" for name in form.keys] + [f"(`{name}`)" for name in form.optional]
        )
        names = [
            ", ".join(f"`{name}`" for name in each) or "-" for each in (row.exact, row.sometimes)
        ]
        name, bits = (
            f"[`{form.name}`]({form.source.partition(', ')[0]}): {form.title}",
            ", ".join(map(str, form.bits)),
        )
        lines.append(
            f"| {name} | {tensors} | {bits} | yes | yes | {form.runs or 'not yet'} | {names[0]} |"
            f" {names[1]} |"
        )
    return "\n".join(lines) + "\n"
