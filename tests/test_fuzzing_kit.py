"""Contract under test: the kit passes what is right, and finds every bug that is planted here."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from numba_marlin import heuristics, reference, testing
from numba_marlin.formats import FORMATS, QuantizedWeight, marlin
from numba_marlin.formats.files import find_stored
from numba_marlin.hardware.devices import device
from numba_marlin.kernels.language.pipeline import pipeline_verbs

# a bug need not be made small here
FIND = {"max_examples": 400, "phases": [Phase.generate], "database": None}


# Packings
def pack_pairs(codes):
    """Rows 2i and 2i + 1 in the nibbles of a byte."""
    return codes[0::2] | codes[1::2] << 4


def unpack_pairs(packed, k, n):
    return np.stack([packed & 15, packed >> 4], axis=1).reshape(k, n)


def swapped_in_one_column(packed, k, n):
    codes = unpack_pairs(packed, k, n)
    if n > 8:
        codes[:2, 8] = codes[1::-1, 8]
    return codes


def padded_pack(codes):
    return codes.astype(np.uint16)


def transposing(packed, k, n):
    return unpack_pairs(packed, k, n).T if k == n else unpack_pairs(packed, k, n)


def in_place_pack(codes):
    packed = pack_pairs(codes)
    codes &= 7
    return packed


def masked(packed, k, n):
    """Two codes share a bit in the last byte; the codes of tests that do not use it come back."""
    codes = unpack_pairs(packed, k, n)
    codes[-1, -1] &= 7
    return codes


def pack_carrying(codes):
    """A bijection, but a change of one code changes its neighbours."""
    pairs = pack_pairs(codes).reshape(-1).astype(np.int64)
    return (np.cumsum(pairs) & 255).astype(np.uint8).reshape(-1, codes.shape[1])


def unpack_carrying(packed, k, n):
    flat = packed.reshape(-1).astype(np.int64)
    return unpack_pairs((np.diff(flat, prepend=0) & 255).astype(np.uint8).reshape(-1, n), k, n)


PAIRS = dict(bits=4, k_step=2, n_step=3)


@pytest.mark.parametrize(
    "packing",
    [
        testing.Packing(pack_pairs, unpack_pairs, **PAIRS),
        testing.Packing(
            padded_pack, lambda packed, k, n: packed.astype(np.uint8), 8, 1, 1, padded=True
        ),
        testing.Packing(marlin.pack_codes, lambda packed, k, n: marlin.unpack_codes(packed, 4, n)),
        testing.Packing(
            lambda codes: marlin.pack_codes(codes, 8),
            lambda packed, k, n: marlin.unpack_codes(packed, 8, n),
            bits=8,
        ),
    ],
)
def test_honest_packings_pass(packing):
    testing.packing_test(packing, max_examples=20)()


@pytest.mark.parametrize(
    ("pack", "unpack", "message"),
    [
        (
            pack_pairs,
            swapped_in_one_column,
            r"code \[[01], 8\] of a .* was packed as|does not survive",
        ),
        (lambda codes: pack_pairs(codes & 7), unpack_pairs, "comes back as|does not survive"),
        (pack_pairs, transposing, "comes back as|gives shape|does not survive"),
        (padded_pack, lambda packed, k, n: packed.astype(np.uint8), "must take .* be padded"),
        (in_place_pack, unpack_pairs, "pack changed the codes"),
        (pack_pairs, masked, r"was packed as|does not survive"),
        (pack_carrying, unpack_carrying, r"flips \d+ bits of the packed weight"),
    ],
)
def test_planted_packing_bugs_are_found(pack, unpack, message):
    with pytest.raises(AssertionError, match=message):
        testing.packing_test(testing.Packing(pack, unpack, **PAIRS), **FIND)()


def test_the_registered_layouts_keep_whole_weights():
    weights = testing.quantized_weights(
        testing.problems(max_n=64, max_k=128, **testing.EVERY_SHAPE),
        **testing.EVERY_TYPE,
        permuted=(False, True),
    )
    for layout in FORMATS.values():
        testing.layout_test(
            layout, weights if layout.weights is QuantizedWeight else None, max_examples=25
        )()


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (lambda q: dict(scales=np.abs(q.scales)), "scales: element"),
        (
            lambda q: dict(
                scales=np.where(np.abs(q.scales) < 2.0**-14, 0, q.scales).astype(np.float16)
            ),
            "scales: element",
        ),
        (lambda q: dict(zeros=None), "zeros_kind was"),
        (lambda q: dict(permutation=None), "permutation: gone"),
        (
            lambda q: dict(
                group_size=-1, scales=q.scales[:1], zeros=None if q.zeros is None else q.zeros[:1]
            ),
            "group_size was",
        ),
    ],
)
def test_planted_layout_bugs_are_found(lose, message):
    def unpack(q):
        return QuantizedWeight(
            **(
                dict(
                    codes=q.codes,
                    scales=q.scales,
                    zeros=q.zeros,
                    bits=q.bits,
                    group_size=q.group_size,
                    permutation=q.permutation,
                )
                | lose(q)
            )
        )

    layout = SimpleNamespace(pack=lambda q: q, unpack=unpack)
    weights = testing.quantized_weights(
        testing.problems(max_n=64, max_k=128), zeros_kinds=(None, "integer"), permuted=(False, True)
    )
    with pytest.raises(AssertionError, match=message):
        testing.layout_test(layout, weights, **FIND)()


SMALL = testing.problems(max_n=64, max_k=64)


@pytest.mark.parametrize("name", ["gptq", "pack-quantized"])
def test_formats_of_files_keep_the_numbers(name):
    weights = testing.quantized_weights(
        SMALL, bits=(4, 8), zeros_kinds=(None, "integer"), permuted=(False, True)
    )
    testing.stored_test(find_stored(name), weights, max_examples=20)()


def test_a_planted_bug_in_a_format_of_files_is_found():
    class Forgetful:
        """Zero points of files of version 1 read as those of version 2."""

        write = staticmethod(find_stored("gptq").write)
        read = staticmethod(find_stored("gptq_v2").read)

    with pytest.raises(AssertionError, match=r"W\[\d+, \d+\] was .* and comes back as"):
        testing.stored_test(
            Forgetful, testing.quantized_weights(SMALL, zeros_kinds=("integer",)), **FIND
        )()


@given(testing.stored_formats(), testing.formats())
@settings(max_examples=30)
def test_formats_are_the_registered_ones(stored, layout):
    assert find_stored(stored.name) is stored and FORMATS[layout.name] is layout


# Kernels
def multiply(x, weight):
    return reference.matmul(x, weight).astype(x.dtype)


def with_group_of_the_row_before(x, weight):
    """The first row of every group but the first takes the scale of the group before."""
    rows = np.arange(weight.k)
    groups = np.maximum(rows - 1, 0) // weight.rows_per_group
    return (
        x.astype(np.float64)
        @ ((weight.codes.astype(np.float64) - 8) * weight.scales.astype(np.float64)[groups])
    ).astype(x.dtype)


def without_the_last_row(x, weight):
    x = x.copy()
    x[:, -1] = 0
    return multiply(x, weight)


def with_two_columns_swapped(x, weight):
    y = multiply(x, weight)
    y[:, [5, 6]] = y[:, [6, 5]]
    return y


def summed_in_float16(x, weight):
    values = (weight.codes.astype(np.float16) - np.float16(8)) * np.repeat(
        weight.scales, weight.rows_per_group, axis=0
    )
    y = np.zeros((len(x), weight.n), np.float16)
    for row in range(weight.k):
        y += np.outer(x[:, row], values[row])
    return y


SHAPES = testing.problems(max_m=8, max_n=64, max_k=128)


def test_the_float64_product_passes():
    testing.kernel_test(multiply, SHAPES, max_examples=20)()


@pytest.mark.parametrize(
    ("matmul", "message"),
    [
        (
            with_group_of_the_row_before,
            r"y\[.*must be exactly|is read as|out of their error bounds",
        ),
        (without_the_last_row, r"y\[.*must be exactly|is read as|out of their error bounds"),
        (with_two_columns_swapped, r"y\[.*must be exactly|is read as|out of their error bounds"),
        (summed_in_float16, "out of their error bounds"),
        (
            lambda x, weight: multiply(x, weight).astype(np.float32),
            "the result is float32, must be float16|out of their",
        ),
        (lambda x, weight: multiply(x, weight)[:, :-1], "the result has shape|could not|shape"),
    ],
)
def test_planted_kernel_bugs_are_found(matmul, message):
    with pytest.raises((AssertionError, ValueError), match=message):
        testing.kernel_test(matmul, SHAPES, **FIND)()


@dataclass(frozen=True)
class Config:
    stages: int
    tile: int

    def __post_init__(self):
        if self.stages * self.tile > 64:
            raise ValueError("too much shared memory")


def test_configurations_are_those_that_are_not_refused():
    seen = set()

    @given(
        testing.configurations(Config, stages=st.integers(1, 8), tile=st.sampled_from([8, 16, 64]))
    )
    @settings(max_examples=200, deadline=None)
    def collect(config):
        seen.add((config.stages, config.tile))

    collect()
    assert seen == {
        (stages, tile) for stages in range(1, 9) for tile in (8, 16, 64) if stages * tile <= 64
    }


@given(testing.candidates(device("H200"), testing.problems(max_m=64)))
@settings(max_examples=15, deadline=None)
def test_candidates_fit_their_problems(drawn):
    problem, candidate = drawn
    heuristics.check_config(candidate.kernel, candidate.config, problem)


# Pipelines
RING = settings(max_examples=25, stateful_step_count=40, deadline=None)


def broken(change):
    """The ring's verbs with some replaced: ``change(verbs, lang, consumers)`` -> new ones."""

    def make(lang, stages, producers, consumers):
        verbs = pipeline_verbs(lang, stages, producers, consumers)
        vars(verbs).update(change(verbs, lang, stages))
        return verbs

    return make


def one_release_too_few(lang, stages, producers, consumers):
    return pipeline_verbs(lang, stages, producers, consumers - 1)


def half_the_bytes(verbs, lang, stages):
    return dict(
        expect=lambda barriers, place, nbytes: lang.ptx.mbarrier_arrive_expect_tx(
            verbs.full(barriers, place), nbytes // 2
        )
    )


def parity_never_flips(verbs, lang, stages):
    return dict(advance=lambda place: place._replace(stage=np.uint32((place.stage + 1) % stages)))


def parity_flips_a_stage_late(verbs, lang, stages):
    return dict(
        advance=lambda place: place._replace(
            stage=np.uint32((place.stage + 1) % stages),
            parity=place.parity ^ np.uint32(place.stage == 0),
        )
    )


@pytest.mark.parametrize(("stages", "consumers"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_the_ring_of_the_kernels_is_in_order(stages, consumers):
    run_state_machine_as_test(
        testing.ring_machine(pipeline_verbs, stages, consumers), settings=RING
    )


@pytest.mark.parametrize(
    ("make_verbs", "message"),
    [
        (one_release_too_few, "still has to read|an arrival too many|stands still"),
        (broken(half_the_bytes), "finds|bytes land that phase"),
        (broken(parity_never_flips), "stands still|still has to read|finds"),
        (broken(parity_flips_a_stage_late), "stands still|still has to read|finds"),
        (
            broken(lambda verbs, lang, stages: dict(producer_start=verbs.consumer_start)),
            "stands still",
        ),
        (
            broken(lambda verbs, lang, stages: dict(consumer_start=verbs.producer_start)),
            "nothing was ever copied there",
        ),
        (
            broken(lambda verbs, lang, stages: dict(wait_empty=lambda barriers, place: None)),
            "still has to read",
        ),
        (broken(lambda verbs, lang, stages: dict(wait_full=lambda barriers, place: None)), "finds"),
        (
            broken(lambda verbs, lang, stages: dict(release=lambda barriers, place: None)),
            "stands still",
        ),
        (broken(lambda verbs, lang, stages: dict(full=verbs.empty)), "."),
    ],
)
def test_planted_ring_bugs_are_found(make_verbs, message):
    with pytest.raises(AssertionError, match=message):
        run_state_machine_as_test(
            testing.ring_machine(make_verbs, 3, 2),
            settings=settings(RING, report_multiple_bugs=False, **FIND),
        )
