"""Contract under test: what docs/on_cpu.md says of each feature is what the program does."""

import warnings
from importlib import import_module
from pathlib import Path

import pytest

from tests.on_cpu import device_features, features  # noqa: F401, each registers its own
from tests.on_cpu.feature import FEATURES, outcome

PAGE = Path(__file__).parents[2] / "docs" / "on_cpu.md"
COMPILERS = ("numba.cuda", "numba_cuda_mlir.cuda")  # in the order of the page's columns


def said() -> dict[str, list[str]]:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- features -->")
    rows = [line.strip("| ").split(" | ") for line in rest.splitlines() if line.startswith("| ")]
    return {name: outcomes for name, *outcomes in rows[1:]}


def test_the_page_has_every_feature():
    assert list(said()) == list(FEATURES)


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", COMPILERS)
def test_features_do_what_the_page_says(gpu, compiler):
    pytest.importorskip(compiler.split(".")[0])
    column = COMPILERS.index(compiler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cuda = import_module(compiler)
        found = {name: outcome(name, cuda)[0] for name in FEATURES}
    assert found == {name: outcomes[column] for name, outcomes in said().items()}
