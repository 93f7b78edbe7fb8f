"""Contract under test: ``--calib texts.txt`` runs the model in SRC on the texts, as transformers
loads it, and gives each layer the Hessian of what it was called with; what cannot run is refused.

The models are made here, of random weights: nothing comes from a network."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import numba_marlin as nm
from tests.cli.verbs import run_json

REASON = "runs a model of transformers"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
tokenizers = pytest.importorskip("tokenizers", reason=REASON)
pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = "the a cat dog sat ran on under mat tree and then slept ate fish".split()
K, POSITIONS = 128, 48


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A Llama of two layers with a tokenizer, a word a token."""
    directory = tmp_path_factory.mktemp("made")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {word: number for number, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"
        )
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(
        directory
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS) + 1,
        hidden_size=K,
        intermediate_size=2 * K,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy of the model, texts, and the working directory."""
    shutil.copytree(made, tmp_path / "model")
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size)) for size in (5, 30, 70, 1)]
    (tmp_path / "texts.txt").write_text("\n\n".join(texts) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


CHOSEN = ("--tensor", "*.1.mlp.*_proj.weight")
GPTQ = ("--method", "gptq", "--no-clip", "--format", "gptq")


def expected_inputs(directory, texts):
    """layer -> inputs of all texts [rows, k], by hooks on the model."""
    model = transformers.LlamaForCausalLM.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    kept = {}
    for name, each in model.named_modules():
        if isinstance(each, torch.nn.Linear):
            each.register_forward_hook(
                lambda module, args, out, name=name: kept.setdefault(name, []).append(
                    args[0].detach().float().reshape(-1, args[0].shape[-1]).numpy()
                )
            )
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :POSITIONS]
        with torch.no_grad():
            model(ids)
    return kept


def test_texts_become_the_hessians_of_the_layers(capsys, place):
    code, data = run_json(
        capsys,
        *("quantize", "model", "q", *CHOSEN, *GPTQ, "--calib", "texts.txt"),
        *("--hessians", "h.safetensors"),
    )
    assert code == 0, data
    texts = [line for line in (place / "texts.txt").read_text().splitlines() if line]
    assert data["calibration"] == {"source": "texts.txt", "texts": 4, "tokens": 5 + 30 + 48 + 1}
    kept, found = expected_inputs(place / "model", texts), nm.load_hessians("h.safetensors")
    assert sorted(found) == [f"model.layers.1.mlp.{each}_proj" for each in ("down", "gate", "up")]
    assert len(found.shared) == 2  # gate and up
    weights, written = load_file(place / "model" / "model.safetensors"), nm.load_checkpoint("q")
    for name, each in found.items():
        hessian = nm.Hessian(each.k)
        for x in kept[name]:
            hessian.add(x)
        assert each.rows == 84 and np.array_equal(each.mean(), hessian.mean())
        q = nm.quantize(weights[f"{name}.weight"].T, method="gptq", clip=False, calibration=hessian)
        assert np.array_equal(nm.dequantize(written[name]), nm.dequantize(q))
    assert data["fewer_rows_than_k"] == sorted(found)


def without(directory, name):
    """Remove a tensor of the model."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, {"format": "pt"})


def with_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def with_nan(directory):
    file = directory / "model.safetensors"
    tensors = {name: each.copy() for name, each in load_file(file).items()}
    tensors["model.layers.0.self_attn.o_proj.weight"][0, 3] = np.nan
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "tensor", "message"),
    [
        (None, "model.embed_tokens.weight", "model.embed_tokens is no torch.nn.Linear of Llama"),
        (
            lambda model: with_config(model, architectures=["NoSuchModel"]),
            "*.1.mlp.up_proj.weight",
            "architectures has 'NoSuchModel', must be a model that transformers",
        ),
        (
            lambda model: with_config(model, architectures=["pipeline"]),
            "*.1.mlp.up_proj.weight",
            "architectures has 'pipeline', must be a model",
        ),
        (
            lambda model: with_config(
                model, model_type="mine", auto_map={"AutoConfig": "mine.Mine"}
            ),
            "*.1.mlp.up_proj.weight",
            "transformers cannot load model: ",
        ),
        (
            lambda model: without(model, "model.layers.0.mlp.up_proj.weight"),
            "*.1.mlp.up_proj.weight",
            "lacks model.layers.0.mlp.up_proj.weight of LlamaForCausalLM (1 tensors in all)",
        ),
        (
            lambda model: (model / "tokenizer.json").unlink(),
            "*.1.mlp.up_proj.weight",
            "transformers cannot load model: ",
        ),
        (
            with_nan,
            "*.1.mlp.up_proj.weight",
            "running LlamaForCausalLM: batches[0]: layer 'model.layers.1.mlp.up_proj': calibration:"
            " x[0, 0]=nan must be finite",
        ),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(capsys, place, change, tensor, message):
    (place / "model" / "mine.py").write_text("raise SystemExit('code of the directory has run')")
    if change is not None:
        change(place / "model")
    argv = ("--tensor", tensor, "--transpose", *GPTQ, "--calib", "texts.txt")
    code, data = run_json(capsys, "quantize", "model", "q", *argv, "--hessians", "h.safetensors")
    assert code == 2 and message in data["error"], data
    assert sorted(each.name for each in place.iterdir()) == ["model", "texts.txt"]


def test_a_layer_that_no_text_reaches_is_named_and_the_others_are_kept(tmp_path):
    from numba_marlin.cli import texts

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x)

    kept = tmp_path / "h.safetensors"
    with pytest.raises(
        ValueError, match=r"layer b: called with no inputs in 1 text, .*the other 1"
    ):
        texts._calibrated("texts.txt", Model(), [{"x": torch.ones(1, 8)}], ["a", "b"], kept)
    assert list(nm.load_hessians(kept)) == ["a"]


def test_from_a_shell_to_a_model_that_transformers_would_find_complete(place):
    def numba_marlin(*argv):
        done = subprocess.run(
            [sys.executable, "-m", "numba_marlin", *argv, "--json"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{':'.join(sys.path)}"},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    model = ("model", "--tensor", "*_proj.weight")
    table = numba_marlin("methods", *model, "--calib", "texts.txt", "--hessians", "h.safetensors")
    assert len(table["layers"]) == 14
    for name, each in table["layers"].items():
        errors = each["output_error"]
        assert errors["gptq"] < 0.7 * min(errors["rtn"], errors["mse"]), name
    for method in ("rtn", "gptq"):
        said = numba_marlin(
            *("quantize", "model", method, *model[1:], "--method", method, "--format", "gptq"),
            *("--hessians", "h.safetensors"),
        )
        for name, each in said["layers"].items():
            expected = table["layers"][name]["output_error"][method]
            assert each["relative_output_error"] == pytest.approx(expected, rel=1e-6)
    assert (place / "gptq" / "tokenizer.json").is_file()
    logits = {}
    for name in ("float", "rtn", "gptq"):
        loaded = transformers.LlamaForCausalLM.from_pretrained(place / "model")
        if name != "float":
            layers = nm.load_checkpoint(place / name)
            for layer in layers:
                w = np.ascontiguousarray(nm.dequantize(layers[layer], np.float32).T)
                loaded.get_submodule(layer).weight.data = torch.from_numpy(w)
        tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
        text = (place / "texts.txt").read_text().splitlines()[2]
        with torch.no_grad():
            logits[name] = loaded(**tokenizer(text, return_tensors="pt")).logits
    lost = {name: float((logits[name] - logits["float"]).norm()) for name in ("rtn", "gptq")}
    assert lost["gptq"] < 0.6 * lost["rtn"]
