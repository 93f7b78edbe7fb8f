"""Tests of a packing format: every code comes back, every bit belongs to exactly one code, and
nothing else changes.

    MINE = testing.Packing(pack=my_pack, unpack=my_unpack, bits=4, k_step=8, n_step=16)
    test_my_packing = testing.packing_test(MINE)

An assertion names the wrong code or bit. ``layout_test`` tests an object with ``pack`` and
``unpack`` for whole weights (``formats.Format``): codes, scales and zero points come back bit for
bit, or, for block-scaled weights, their numbers. ``stored_test`` tests a format of files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin.formats import FORMATS, BlockWeight, QuantizedWeight
from numba_marlin.formats.files import STORED
from numba_marlin.quantizers import dequantize
from numba_marlin.testing.blocks import block_weights
from numba_marlin.testing.contents import CODE_KINDS, make_codes
from numba_marlin.testing.weights import quantized_weights, seeds


@dataclass(frozen=True)
class Packing:
    """Describes a packing to the kit."""

    #: Packs codes: uint8 [k, n], below 2**bits -> an array of integers that holds only the codes.
    pack: Callable[[np.ndarray], np.ndarray]
    #: The inverse: (packed, k, n) -> codes, uint8 [k, n].
    unpack: Callable[[np.ndarray, int, int], np.ndarray]
    #: Bits of a code.
    bits: int = 4
    #: k must be a multiple of this.
    k_step: int = 16
    #: n must be a multiple of this.
    n_step: int = 64
    #: Whether the array may hold unused bits.
    padded: bool = False

    def shapes(self, most: int = 4) -> st.SearchStrategy[tuple[int, int]]:
        """A strategy of (k, n), each up to ``most`` steps."""
        return st.tuples(
            *(st.integers(1, most).map(step.__mul__) for step in (self.k_step, self.n_step))
        )


def check_packing(packing: Packing, codes: np.ndarray, seed: int = 0) -> None:
    """AssertionError, naming the position, unless ``packing`` preserves these codes, and random
    bits, each in its own place."""
    k, n = codes.shape
    before = codes.copy()
    packed = packing.pack(codes)
    assert np.array_equal(codes, before), "pack changed the codes that it was given"
    unpacked = packing.unpack(packed, k, n)
    assert unpacked.shape == (k, n), f"unpack gives shape {unpacked.shape}, must be {(k, n)}"
    _same_codes(unpacked, codes, f"of a [{k}, {n}] weight")
    if not packing.padded:
        bits = 8 * packed.nbytes
        assert bits == k * n * packing.bits, (
            f"{k} x {n} codes of {packing.bits} bits take {bits} bits, must take"
            f" {k * n * packing.bits} (or be padded)"
        )
        _check_every_bit(packing, packed, k, n, np.random.default_rng(seed))
    _check_one_code(packing, packed, codes, np.random.default_rng([seed, 1]))


def _same_codes(found: np.ndarray, expected: np.ndarray, where: str) -> None:
    differs = np.argwhere(found != expected)
    if len(differs):
        row, column = differs[0]
        raise AssertionError(
            f"code [{row}, {column}] {where} was packed as {expected[row, column]} and comes back"
            f" as {found[row, column]} ({len(differs)} of {expected.size} differ)"
        )


def _check_every_bit(
    packing: Packing, packed: np.ndarray, k: int, n: int, random: np.random.Generator
) -> None:
    """Words -> codes -> words, on random words."""
    noise = np.frombuffer(random.bytes(packed.nbytes), dtype=packed.dtype).reshape(packed.shape)
    again = packing.pack(packing.unpack(noise, k, n))
    assert (again.dtype, again.shape) == (
        packed.dtype,
        packed.shape,
    ), f"pack gives {again.dtype} {again.shape} now, {packed.dtype} {packed.shape} before"
    lost = np.ascontiguousarray(noise).view(np.uint8).reshape(-1) ^ np.ascontiguousarray(
        again
    ).view(np.uint8).reshape(-1)
    if lost.any():
        byte = int(np.argmax(lost != 0))
        raise AssertionError(
            f"bit {int(lost[byte]).bit_length() - 1} of byte {byte} does not survive unpack and"
            " pack: it belongs to no code, or to two"
        )


def _check_one_code(
    packing: Packing, packed: np.ndarray, codes: np.ndarray, random: np.random.Generator
) -> None:
    """Changing one code must change its own bits and no others."""
    row, column = (int(random.integers(size)) for size in codes.shape)
    change = int(random.integers(1, 1 << packing.bits))
    changed = codes.copy()
    changed[row, column] ^= change
    flipped = int(
        np.unpackbits(
            np.ascontiguousarray(packing.pack(changed)).view(np.uint8)
            ^ np.ascontiguousarray(packed).view(np.uint8)
        ).sum()
    )
    assert flipped == bin(change).count("1"), (
        f"flipping {bin(change).count('1')} bits of code [{row}, {column}] flips {flipped} bits of"
        " the packed weight"
    )


USUAL_SETTINGS = {"max_examples": 100, "deadline": None, "report_multiple_bugs": False}
"""Hypothesis settings of the kit's tests; each test takes others that override them."""


def packing_test(packing: Packing, **others) -> Callable[[], None]:
    """A Hypothesis test of ``check_packing``; give it a name that begins with ``test_``, or call
    it.
    others: Hypothesis settings that override USUAL_SETTINGS."""

    @settings(**USUAL_SETTINGS | others)
    @given(packing.shapes(), st.sampled_from(CODE_KINDS), seeds())
    def test(shape, kind, seed):
        k, n = shape
        check_packing(packing, make_codes(kind, k, n, seed, packing.bits), seed)

    return test


def formats() -> st.SearchStrategy:
    """The registered layouts that kernels read."""
    return st.sampled_from([FORMATS[name] for name in sorted(FORMATS)])


def check_layout(layout, weight: QuantizedWeight | BlockWeight) -> None:
    """AssertionError unless ``layout.unpack(layout.pack(weight))`` is ``weight``, bit for bit; for
    a block-scaled weight, its numbers, and bit for bit when that result is packed again."""
    back = layout.unpack(layout.pack(weight))
    if isinstance(weight, BlockWeight):
        _check_blocks(weight, back)
        weight, back = back, layout.unpack(layout.pack(back))
        _same_codes(back.codes, weight.codes, f"of {weight.k} x {weight.n}")
        _same_codes(back.scales, weight.scales, "of the scales")
        return
    for name in ("bits", "group_size", "zeros_kind", "scale_dtype"):
        assert getattr(back, name) == getattr(weight, name), (
            f"{name} was {getattr(weight, name)!r} and comes back as {getattr(back, name)!r}"
        )
    _same_codes(back.codes, weight.codes, f"of {weight.k} x {weight.n}")
    for name in ("scales", "zeros", "permutation"):
        there, expected = getattr(back, name), getattr(weight, name)
        assert (there is None) == (expected is None), (
            f"{name}: {'gone' if there is None else 'there was none'}"
        )
        if expected is not None:
            assert there.dtype == expected.dtype and there.shape == expected.shape, (
                f"{name}: {there.dtype} {there.shape}, was {expected.dtype} {expected.shape}"
            )
            wrong = np.argwhere(
                there.reshape(-1).view(f"u{there.itemsize}")
                != expected.reshape(-1).view(f"u{there.itemsize}")
            )
            assert not len(wrong), (
                f"{name}: element {np.unravel_index(int(wrong[0, 0]), expected.shape)} of"
                f" {expected.shape} comes back as another"
            )


def _check_blocks(weight: BlockWeight, back: BlockWeight) -> None:
    for name in ("grid", "scale_grid", "block", "global_scale", "divides"):
        assert getattr(back, name) == getattr(weight, name), (
            f"{name} was {getattr(weight, name)!r} and comes back as {getattr(back, name)!r}"
        )
    expected, found = (dequantize(each, np.float64) for each in (weight, back))
    wrong = np.argwhere(found != expected)
    if len(wrong):
        row, column = wrong[0]
        raise AssertionError(
            f"W[{row}, {column}] was {expected[row, column]} and comes back as {found[row, column]}"
            f" ({len(wrong)} of {expected.size} differ)"
        )


def layout_test(layout, weights: st.SearchStrategy | None = None, **others) -> Callable[[], None]:
    """A Hypothesis test of ``check_layout``. weights: a strategy of weights that the
    layout supports; default: those of the published Marlin, or NVFP4 and MXFP4. others:
    settings."""
    usual = (
        block_weights
        if getattr(layout, "weights", QuantizedWeight) is BlockWeight
        else quantized_weights
    )

    @settings(**USUAL_SETTINGS | others)
    @given(usual() if weights is None else weights)
    def test(weight):
        check_layout(layout, weight)

    return test


def stored_formats() -> st.SearchStrategy:
    """The registered formats of files (``formats.files``)."""
    return st.sampled_from([STORED[name] for name in sorted(STORED)])


def check_stored(form, weight: QuantizedWeight) -> None:
    """AssertionError unless ``form`` (a ``formats.stored.StoredFormat``) reads back the same
    numbers that it wrote without loss."""
    back = dequantize(form.read(form.write(weight)), np.float64)
    expected = dequantize(weight, np.float64)
    assert back.shape == expected.shape, (
        f"a [{weight.k}, {weight.n}] weight comes back with shape {back.shape}"
    )
    wrong = np.argwhere(back != expected)
    if len(wrong):
        row, column = wrong[0]
        raise AssertionError(
            f"W[{row}, {column}] was {expected[row, column]} and comes back as {back[row, column]}"
            f" ({len(wrong)} of {back.size} differ)"
        )


def stored_test(
    form, weights: st.SearchStrategy[QuantizedWeight] | None = None, **others
) -> Callable[[], None]:
    """A Hypothesis test of ``check_stored``. weights: a strategy of weights that the format
    holds without loss; default: those of the published Marlin. others: settings."""

    @settings(**USUAL_SETTINGS | others)
    @given(quantized_weights() if weights is None else weights)
    def test(weight):
        check_stored(form, weight)

    return test
