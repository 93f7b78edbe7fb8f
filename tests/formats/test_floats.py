"""Contract under test: 16-bit floats are rounded once, to nearest even, and bfloat16 needs
ml_dtypes only where it is asked for."""

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin.formats import floats

ml_dtypes = pytest.importorskip("ml_dtypes")


def nearest_bfloat16(value):
    """By exact rational arithmetic: the multiple of the last place that is nearest, ties to the
    even one."""
    exponent = max(math.frexp(value)[1] - 8, -133)
    quotient = Fraction(value) / Fraction(2) ** exponent
    result = round(quotient) * Fraction(2) ** exponent  # Python rounds halves to even
    return float(result) if abs(result) < 2**128 else math.copysign(math.inf, value)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-4e38, max_value=4e38))
def test_rounding_to_bfloat16_is_one_rounding(value):
    assert float(floats.round_to(np.float64([value]), "bfloat16")[0]) == nearest_bfloat16(value)


@given(st.integers(-133, 127), st.integers(128, 255), st.integers(-3, 3), st.integers(9, 44))
def test_rounding_near_ties_falls_to_the_right_side(exponent, significand, beside, distance):
    """Halfway between two neighbours, and as little beside it as float64 can say."""
    value = math.ldexp(significand + 0.5 + beside * 2.0**-distance, exponent - 7)
    assert float(floats.round_to(np.float64([value, -value]), "bfloat16")[0]) == nearest_bfloat16(
        value
    )
    assert float(floats.round_to(np.float64([value, -value]), "bfloat16")[1]) == -nearest_bfloat16(
        value
    )


def test_every_bfloat16_rounds_to_itself():
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    # of its own, NumPy warns of signalling NaN
    finite = every[np.isfinite(every.astype(np.float32))]
    assert np.array_equal(
        floats.round_to(finite.astype(np.float64), "bfloat16").view(np.uint16),
        finite.view(np.uint16),
    )
    assert np.array_equal(
        floats.round_to(np.float64([np.inf, -np.inf]), "bfloat16").astype(float), [np.inf, -np.inf]
    )
    assert np.isnan(floats.round_to(np.float64([np.nan]), "bfloat16").astype(float)).all()


@pytest.mark.parametrize("dtype", floats.HALF_TYPES)
def test_limits_are_those_of_the_type(dtype):
    info = ml_dtypes.finfo(floats.float_type(dtype))
    assert floats.largest(dtype) == float(info.max)
    assert floats.smallest_subnormal(dtype) == float(info.smallest_subnormal)
    assert floats.unit_roundoff(dtype) == float(info.eps) / 2


def test_types_have_one_spelling():
    assert (
        floats.float_type("bfloat16")
        == floats.float_type(ml_dtypes.bfloat16)
        == np.dtype(ml_dtypes.bfloat16)
    )
    assert floats.float_type(">f2") == floats.float_type("float16") == np.float16


def test_bfloat16_is_imported_on_demand_and_missed_in_words():
    program = (
        "import sys; sys.modules['ml_dtypes'] = None; import numba_marlin.formats.floats as f\ntry:"
        " f.float_type('bfloat16')\nexcept ImportError as e: print(e)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert "pip install ml_dtypes" in result.stdout, result.stderr
