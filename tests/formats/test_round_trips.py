"""Contract under test: from every format's tensors to every other's and back, whatever both can
hold is the same weight; a million random codes a pair with --thorough. No pair but those of the
conformance table has such a weight."""

import math

import numpy as np
import pytest

from numba_marlin import hostloops
from numba_marlin.formats import conformance, gptq
from numba_marlin.formats.files import STORED, find_stored
from numba_marlin.formats.stored import PLAIN

pytest.importorskip("ml_dtypes")
MILLION = 1_000_000
PAIRS = [
    (row.form.name, other)
    for row in conformance.rows()
    for other in (row.form.name, *row.exact, *row.sometimes)
]


def size_for(source, target, wanted):
    """Of the probes, so that those which both formats hold have as many codes as ``wanted``."""
    held = sum(
        each.codes.size
        for each in conformance.probes()
        if conformance.holds(source, each) and conformance.holds(target, each)
    )
    return math.isqrt(-(-wanted // held) - 1) + 1


@pytest.mark.parametrize("source", STORED)
def test_there_and_back(source):
    """Thousands of random codes a pair; no pair but those of the table has a weight that both
    hold."""
    for target in STORED:
        codes = conformance.round_trips(
            find_stored(source), find_stored(target), conformance.probes(seed=1)
        )
        assert codes >= 4096 if (source, target) in PAIRS else codes == 0, target


@pytest.mark.thorough
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_million_codes_there_and_back(source, target):
    forms = find_stored(source), find_stored(target)
    weights = conformance.probes(size_for(*forms, MILLION), seed=2)
    assert conformance.round_trips(*forms, weights, hostloops.Compiled()) >= MILLION


def test_a_conversion_that_changes_a_weight_is_seen(monkeypatch):
    monkeypatch.setattr(
        gptq.GPTQ.__class__,
        "encode",
        lambda self, weight, codec, encode=gptq.GptqFormat.encode: _one_code_less(
            encode(self, weight, codec)
        ),
    )
    with pytest.raises(AssertionError, match="said it would lose nothing"):
        conformance.round_trips(find_stored("awq"), find_stored("gptq"), conformance.probes())


def _one_code_less(tensors):
    tensors["qweight"][0, 0] ^= np.int32(1)
    return tensors


@pytest.mark.thorough
def test_codecs_make_the_same_trip():
    weights = conformance.probes()[:4]
    forms = find_stored("pack-quantized"), find_stored("gptq_v2")
    assert (
        conformance.round_trips(*forms, weights, PLAIN)
        == conformance.round_trips(*forms, weights, hostloops.Compiled())
        > 0
    )
