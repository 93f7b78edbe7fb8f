"""Contract under test: a word taken apart says which bits are which code of which weight, for every
stored format, and notices codes that are not what the reader finds."""

import numpy as np
import pytest

from numba_marlin.formats.files import STORED
from numba_marlin.layout.fragments import MMA_M16N8K16_B
from numba_marlin.profile.pages import word_page
from numba_marlin.profile.sources.random_layers import random_layer
from numba_marlin.profile.sources.words import Layer
from numba_marlin.quantizers import dequantize
from numba_marlin.views import html, text
from tests.formats import layers
from tests.views.pages import shown

CASES = [(form, geometry) for form in STORED.values() for geometry in form.test_geometries]


@pytest.mark.parametrize("form, geometry", CASES, ids=lambda case: getattr(case, "name", ""))
def test_fields_of_all_words_are_all_codes_bit_for_bit(form, geometry):
    """Every bit of a word is a bit of one code, every code is found again, and its value is that of
    the weight."""
    layer = Layer(form, layers.random_layer(form, geometry, seed=1))
    values = dequantize(layer.weight, np.float64)
    for name in layer.packed:
        seen = set()
        rows, columns = layer.spec(name).packing.shape(*layer.spec(name).matrix, geometry.bits)
        for row, column in {(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 3)}:
            word = layer.word(name, row, column)
            rebuilt = 0
            for field in word.fields:
                rebuilt |= (field.code >> field.skip & (1 << field.width) - 1) << field.low
                assert field.agrees and (row, column) in layer.find(name, field.k, field.n)
                if layer.is_codes(name):
                    assert np.isclose(field.value, values[field.row, field.n], rtol=1e-6, atol=0)
                seen.add((field.k, field.n))
            assert rebuilt == word.value and sum(field.width for field in word.fields) == word.bits


def test_a_code_of_three_bits_that_straddles_words_is_in_both():
    layer = Layer(STORED["gptq"], random_layer(STORED["gptq"], 64, 32, 3, 0))
    assert layer.find("qweight", 10, 4) == ((0, 4), (1, 4))
    low, high = (
        next(field for field in layer.word("qweight", row, 4).fields if field.k == 10)
        for row in (0, 1)
    )
    assert (low.skip, low.width, high.skip, high.width) == (0, 2, 2, 1) and low.code == high.code


def test_marlins_words_are_the_fragments_of_mma():
    layer = Layer(STORED["marlin"], random_layer(STORED["marlin"], 32, 64, 4, 0))
    for column in range(128):
        word = layer.word("B", 1, column)
        lane, number, places = word.holder
        assert column == 4 * lane + number
        for field, (tile, register, half) in zip(word.fields, places):
            element = 2 * register + half
            assert (field.k - 16, field.n - 8 * tile) == (
                MMA_M16N8K16_B.row_of[lane, element],
                MMA_M16N8K16_B.col_of[lane, element],
            )


def test_codes_that_the_reader_does_not_find_there_are_noticed():
    layer = Layer(STORED["awq"], random_layer(STORED["awq"], 32, 64, 4, 0))
    assert all(field.agrees for field in layer.word("qweight", 3, 1).fields)
    layer.plain.codes[3, 12] ^= 1
    wrong = [(field.k, field.n) for field in layer.word("qweight", 3, 1).fields if not field.agrees]
    assert wrong == [(3, 12)]
    assert "WRONG" in text.render(word_page.page(layer, (layer.word("qweight", 3, 1),), "a test"))


def test_places_outside_of_a_tensor_are_refused():
    layer = Layer(STORED["marlin"], random_layer(STORED["marlin"], 32, 64, 4, 0))
    with pytest.raises(ValueError, match="within B, which has 2 x 128 words"):
        layer.word("B", 2, 0)
    with pytest.raises(ValueError, match="within the 32 x 64"):
        layer.find("B", 32, 0)
    with pytest.raises(ValueError, match="must be one that holds packed codes: B"):
        layer.word("s", 0, 0)
    with pytest.raises(ValueError, match="codes of 4 bits"):
        random_layer(STORED["marlin"], 32, 64, 8, 0)


@pytest.mark.parametrize("form", STORED.values(), ids=lambda form: form.name)
def test_every_format_has_a_random_layer_and_a_page(form):
    layer = Layer(form, random_layer(form, 128, 64, None, 3))
    shown = text.render(
        word_page.page(layer, (layer.word(layer.packed[0], 0, 0),), "random"), width=80
    )
    assert "0x" in shown and max(map(len, shown.splitlines())) <= 80


def test_the_page_steps_through_words_in_a_browser(tmp_path):
    layer = Layer(STORED["awq"], random_layer(STORED["awq"], 32, 64, 4, 0))
    page = word_page.page(
        layer, tuple(layer.word("qweight", 3, column) for column in range(3)), "random", (3, 12)
    )
    with shown(html.render(page), tmp_path, "#word") as (browser, complaints):
        titles = []
        for _ in range(3):
            titles.append(
                [
                    title
                    for title in ("qweight[3, 0]", "qweight[3, 1]", "qweight[3, 2]")
                    if browser.get_by_text(title).first.is_visible()
                ]
            )
            browser.keyboard.press("ArrowRight")
        assert (
            titles == [["qweight[3, 0]"], ["qweight[3, 1]"], ["qweight[3, 2]"]] and complaints == []
        )
