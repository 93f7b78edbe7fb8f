"""Contract under test: the kernel that quantises activations gives the bytes of
``quantizers.activations``, for every type and shape, and touches nothing else: on the PTX machine
with every trap set and races looked for, or on a GPU between guard bands (``--run-on cuda``)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin.compiler import COMPILERS
from numba_marlin.execution import quantizing
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.small_floats import decode
from numba_marlin.kernels import registry
from numba_marlin.kernels.quantize_activations import QUANTIZE, WITH_OFFSETS, RowTypes
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.testing import launches
from tests.kernels.harness import cases, on_gpu, target_of


def run(x, kind, group_size, run_on, compiler=COMPILERS[0]):
    """(codes as stored, scales, bits of the offsets or None) that the kernel writes."""
    config = RowTypes(kind, x.dtype.name, group_size)
    prepared = launches.Prepared.of(
        quantizing.binding(config, *x.shape, target_of(run_on), x, compiler)
    )
    if run_on == "cuda":
        found = on_gpu(prepared).launched().collect()
    else:
        launches.on_machine(prepared, races=True)
        found = prepared.buffers
    offsets = found["offsets"].view(np.uint16) if "offsets" in found else None
    return found["codes"].view(np.uint8), found["scales"], offsets


def check(x, kind, group_size, run_on="machine", compiler=COMPILERS[0]):
    codes, scales, offsets = run(x, kind, group_size, run_on, compiler)
    wanted = quantize_rows(x, kind, group_size)
    assert np.array_equal(scales.reshape(wanted.scales.shape), wanted.scales)
    assert np.array_equal(codes, wanted.codes.view(np.uint8))
    assert (offsets is None) == (wanted.offsets is None)
    if offsets is not None:
        # memory was poisoned: of groups that are not too
        assert np.array_equal(offsets, wanted.offsets.view(np.uint16).reshape(offsets.shape))


def rows(seed, m, k, dtype, scale=1.0):
    x = np.random.default_rng(seed).standard_normal((m, k)) * scale
    x[0, : k // 2] = 0
    return x.astype(float_type(dtype))


# more words of codes than threads, and fewer; groups
@pytest.mark.parametrize(
    "kind, dtype, m, k, group_size",
    cases(
        (
            (kind, dtype, *shape)
            for kind in ("int8", "fp8")
            for dtype in ("float16", "bfloat16")
            for shape in ((3, 1040, None), (2, 16, None), (2, 384, 128))
        ),
        lambda kind, dtype, m, k, group_size: (
            (kind, dtype) == ("int8", "float16") and group_size is None
        ),
    ),
)
def test_bytes_equal_the_specification(kind, dtype, m, k, group_size, run_on):
    check(rows(1, m, k, dtype), kind, group_size, run_on)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((1e-6, 1e-4, 1.0, 500.0)))
def test_any_numbers(seed, scale):
    """Ties, subnormal scales and saturation come by themselves: numbers have few bits."""
    check(rows(seed, 2, 96, "float16", scale), "int8", None)


def test_ties_go_to_even(run_on):
    """x / scale of 0.5, 1.5, 2.5 ...: the scale is 1, so that quotients are exact."""
    x = np.zeros((1, 256), np.float16)
    x[0, 0], x[0, 1:200] = 127, np.arange(199) / 2 - 50
    _, scales, _ = run(x, "int8", None, run_on)
    assert scales == 1
    check(x, "int8", None, run_on)


@pytest.mark.parametrize("kind", ("int8", "fp8"))
def test_a_row_that_is_not_finite_has_a_scale_of_nan_and_no_codes(kind, run_on):
    dtype = {"int8": "float16", "fp8": "bfloat16"}[kind]
    x = rows(2, 5, 64, dtype)
    x[1, 3], x[2, 60], x[3] = np.nan, -np.inf, 0
    codes, scales, offsets = run(x, kind, None, run_on)
    assert np.isnan(scales[1:3]).all() and scales[3] == 0
    assert not codes[1:4].any()
    good = quantize_rows(x[[0, 4]], kind)
    assert np.array_equal(scales[[0, 4], 0], good.scales)
    assert np.array_equal(codes[[0, 4]], good.codes.view(np.uint8))
    if kind == "fp8":
        offsets = offsets.reshape(5, 2, -1)
        assert not offsets[1:4].any()
        assert np.array_equal(offsets[[0, 4]], good.offsets.view(np.uint16))


# of offsets: a warp that is not full and a group that is not, of one unit; more units than threads,
# where some warps have a turn more, and more than 64 groups
@pytest.mark.parametrize(
    "dtype, m, k",
    cases(
        (
            (dtype, *shape)
            for dtype in ("float16", "bfloat16")
            for shape in ((2, 16), (2, 144), (3, 1040), (2, 8208), (265, 2576), (1, 16656))
        ),
        lambda dtype, m, k: (
            (dtype, k)
            in {("float16", 8208), ("bfloat16", 16), ("bfloat16", 144), ("float16", 16656)}
        ),
    ),
)
def test_offsets_of_all_groups_are_written(dtype, m, k, run_on):
    check(rows(5, m, k, dtype), "fp8", None, run_on)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((1e-6, 1e-4, 1.0, 500.0)), st.booleans())
def test_any_numbers_have_the_same_offsets(seed, scale, positive):
    """Of one sign they are large, else small: then zeros and what cancels come by themselves."""
    x = rows(seed, 2, 160, "float16", scale)
    check(np.abs(x) if positive else x, "fp8", None)


@pytest.mark.parametrize(
    "dtype, more, parts", (("float16", 2**16, [2.0**9 + 0.5]), ("bfloat16", 0, [2.0**9, 2.0**-14]))
)
def test_the_terms_of_an_offset_are_added_before_they_are_rounded(dtype, more, parts, run_on):
    """2**27 + more + 9, in units of 2**-18: float32 has 2**27 + more + 16, but 2**27 + more if 7 O,
    which is odd, was rounded first; that is half way between two of float16, and the even one is
    below. Random numbers hardly ever have such sums: these are codes."""
    codes = np.unique(decode(np.arange(0x7F, dtype=np.uint8), "e4m3")).astype(np.float64)
    x = np.zeros((1, 128), float_type(dtype))
    for first, left in ((0, -(9551867 + more / 8) / 512), (1, (36 * 229376 + 7) / 512)):
        sign, left, column = np.sign(left), abs(left), first
        while left:
            term = codes[codes <= left].max()
            x[0, column], left, column = sign * term, left - term, column + 2
    _, scales, offsets = run(x, "fp8", None, run_on)
    assert scales == 1
    assert np.array_equal(offsets[:, 0].view(float_type(dtype)).astype(float), parts)


def test_no_bit_of_a_large_sum_is_lost(run_on):
    """The smallest code among the largest, whose sums are taken off by those of the next 64
    numbers: what is left is the smallest one, at every place in turn."""
    x = np.full((64, 128), 448, np.float16)
    x[:, 64:] = -448
    for i in range(64):
        x[i, i], x[i, 64 + i] = 2.0**-9, 0
    check(x, "fp8", None, run_on)
    _, scales, offsets = run(x, "fp8", None, run_on)
    assert (scales == 1).all()
    found = offsets[:, 0].view(np.float16)
    assert np.array_equal(found, np.tile([-8 * 2.0**-18, 7 * 2.0**-18], 32))


def test_zeros_of_both_signs_have_offsets_of_zero(run_on):
    x = np.zeros((3, 256), np.float16)
    x[0, 1::2], x[1, ::2], x[2] = -0.0, -0.0, -0.0
    _, _, offsets = run(x, "fp8", None, run_on)
    assert not offsets.any()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ("int8", "fp8"))
def test_the_other_compiler_gives_the_same_bytes(kind):
    check(rows(3, 2, 96, "float16"), kind, None, compiler=COMPILERS[1])


@pytest.mark.thorough
@pytest.mark.parametrize("k", (16, 144, 8208))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_the_other_compiler_gives_the_same_offsets(dtype, k):
    x = rows(6, 4, k, dtype)
    x[2, 5] = np.nan
    wanted, found = (run(x, "fp8", None, "machine", each) for each in COMPILERS)
    assert all(each.tobytes() == other.tobytes() for each, other in zip(wanted, found))
    check(x[[0, 1, 3]], "fp8", None, compiler=COMPILERS[1])


def test_it_is_no_rung_of_a_ladder():
    assert not registry.is_kernel(QUANTIZE.name)
    assert not registry.is_kernel(WITH_OFFSETS.name)


@pytest.mark.parametrize("kind", cases((("int8",), ("fp8",)), lambda kind: kind == "int8"))
def test_rows_of_the_smallest_numbers(kind, run_on):
    """Subnormal bfloat16, whose inverse scale float32 could not hold; beside rows that are not."""
    x = np.arange(3 * 64).reshape(3, 64) % 97 - 48.0
    x *= np.array([2.0**-133, 2.0**-64, 2.0**-60])[:, None]
    check(x.astype(float_type("bfloat16")), kind, None, run_on)


@pytest.mark.parametrize(
    "m, k, group_size, threads",
    (
        (16, 28672, None, 1024),
        (16, 8192, None, 512),
        (4096, 4096, None, 128),
        (4096, 14336, None, 256),
        (4096, 28672, None, 512),
        (64, 8192, 128, 32),
    ),
)
def test_as_many_threads_as_rows_want(m, k, group_size, threads):
    assert RowTypes(group_size=group_size).for_rows(m, k).threads == threads


@pytest.mark.thorough
def test_blocks_of_all_sizes_give_the_same_bytes(run_on):
    """1024 threads with 16 of them idle, and rows that 128 threads take in turns."""
    for m, k in ((2, 16 * 1040), (300, 16 * 280)):
        check(rows(4, m, k, "float16"), "int8", None, run_on)


@pytest.mark.parametrize("change", ({"kind": "int4"}, {"dtype": "float32"}))
def test_types_that_it_has_not_are_refused(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"{name}='{value}' must be"):
        RowTypes(**change)


@pytest.mark.parametrize("threads", (0, 48, 1056))
def test_a_block_of_so_many_threads_is_refused(threads):
    with pytest.raises(ValueError, match=f"threads={threads} must be a multiple of 32"):
        RowTypes(threads=threads)
