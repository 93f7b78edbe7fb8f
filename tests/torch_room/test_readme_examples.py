"""Contract under test: the README's examples in torch run as they stand. Skipped without torch."""

import re

import numpy as np
import pytest

from tests.pages import TEXT

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")

EXAMPLES = re.findall(r"<!-- with torch -->\n```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.thorough
def test_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    layers = torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)
    model = torch.nn.Sequential(*layers)
    names = {
        "torch": torch,
        "model": model,
        "batches": [torch.randn(64, 128) for _ in range(2)],
        "device": "cpu",
        "x": torch.randn(2, 128).half(),
    }
    (calibrated, compiled, mixture), found = EXAMPLES, []
    for example in (calibrated, compiled, mixture):
        own = dict(names)
        exec("import numba_marlin as nm\n" + example, own)
        found.append(own)
    assert set(found[0]["hessians"]) == {"0", "2"} and "gptq" in capsys.readouterr().out
    assert all(isinstance(model[i], nmt.Linear) for i in (0, 2))
    y = found[1]["y"].detach().float().numpy()
    assert y.shape == (2, 64) and np.isfinite(y).all() and y.std() > 0
    y = found[2]["y"].detach().float()
    assert y.shape == (5, 64) and y.isfinite().all() and y.std() > 0


class Tokenizer:
    def decode(self, tokens):
        return " ".join(map(str, tokens.tolist()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(0, id="swap"),
        pytest.param(1, id="quantised", marks=pytest.mark.thorough),
        pytest.param(2, id="taken over", marks=pytest.mark.thorough),
    ],
)
def test_the_examples_with_transformers_run(tmp_path, monkeypatch, capsys, number):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers' device_map")
    pytest.importorskip("ml_dtypes")
    from tests.torch_room import models

    model = models.llama(hidden_size=128)
    weights = models.quantised(model, **models.GROUP)
    monkeypatch.chdir(tmp_path)
    model.save_pretrained(tmp_path / "llama")
    models.stored(tmp_path / "llama-gptq", model, weights)
    found = re.findall(r"<!-- with transformers -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    examples = list(dict.fromkeys(found))
    assert len(examples) == 3
    own = {"tokenizer": Tokenizer(), "tokens": models.TOKENS, "device": "cpu"}
    exec(examples[number], own)
    assert len(capsys.readouterr().out.split()) == models.TOKENS.shape[1] + 8
    layers = [each for each in own["model"].modules() if isinstance(each, nmt.Linear)]
    assert len(layers) == len(weights)
