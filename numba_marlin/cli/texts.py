"""``--calib texts.txt``: the Hessians of a model's layers, from texts that it runs on.

The model is SRC, a directory as transformers writes it, with its tokenizer; transformers and torch
are imported here and nowhere else. Each line of the file is a text (empty ones are skipped), cut
where the model's positions end, and at 2048 tokens. Texts run one at a time, so that there is no
padding; on the CPU, from .safetensors files, without code from the directory or anything from the
network. ``nm.calibrate`` does the same for a model that was loaded otherwise.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from numba_marlin.calibration import Hessians, NeverCalled, calibrate, save_hessians
from numba_marlin.errors import CapabilityMissing

LONGEST = 2048  # tokens of a text


def from_texts(path: Path, report, source, kept: Path | None) -> Hessians:
    """The Hessians of ``source``'s layers. kept: the file to which they will go; sums that memory
    does not hold lie beside it."""
    texts = _texts(path)
    if source.directory is None:
        raise ValueError(
            f"--calib {path}: SRC must be a directory with config.json and a tokenizer, as"
            " transformers writes it, for the model to run on texts"
        )
    try:
        import torch
        import transformers
    except ImportError as error:
        raise CapabilityMissing(
            f"--calib {path} runs the model on texts, which needs torch and transformers"
            f" ({error}): pip install torch transformers; or calibrate elsewhere, and pass"
            " --hessians FILE"
        ) from error
    with report.step(f"loading {source.directory} with transformers"):
        model, tokenizer = _loaded(transformers, source.directory)
    modules = dict(model.named_modules())
    for name in source.shapes:
        if not isinstance(modules.get(name), torch.nn.Linear):
            raise ValueError(
                f"--calib {path}: {name} is no torch.nn.Linear of {type(model).__name__}: leave it"
                " out of --tensor, or pass its inputs in a .safetensors file"
            )
    batches = _batches(path, texts, model, tokenizer)
    tokens = sum(each["input_ids"].shape[1] for each in batches)
    said = f"{len(batches)} text{'s' * (len(batches) != 1)} of {path}, {tokens:,} tokens"
    with report.step(f"calibrating {len(source.shapes)} layers on {said}"):
        found = _calibrated(path, model, batches, list(source.shapes), kept)
    report.row("calib", f"{said}: {len(found)} layers with {len(found.shared)} different inputs")
    report.data["calibration"] = {"source": str(path), "texts": len(batches), "tokens": tokens}
    return found


def _texts(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"--calib {path} must be a text in UTF-8 ({error})") from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise ValueError(f"--calib {path} contains no text: it must have one on each line")
    return texts


def _loaded(transformers, directory: Path):
    """The model and the tokenizer of a directory, of the class that config.json names, since its
    modules have the names of the tensors."""
    options = {"local_files_only": True, "trust_remote_code": False}
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(directory, **options)
        [name, *_] = getattr(config, "architectures", None) or [""]
        kind = getattr(transformers, str(name), None)
        if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
            raise ValueError(
                f"config.json's architectures has {name!r}, must be a model that transformers"
                f" {transformers.__version__} has"
            )
        model, info = kind.from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **options)
    except Exception as error:  # whatever is wrong with a directory, in whichever library
        raise ValueError(f"transformers cannot load {directory}: {_line(error)}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(
            f"{directory} lacks {missing[0]} of {kind.__name__} ({len(missing)} tensors in all): it"
            " would run on random weights; load it as it is meant, calibrate it with nm.calibrate,"
            " and pass --hessians FILE"
        )
    return model, tokenizer


def _batches(path: Path, texts: list[str], model, tokenizer) -> list:
    longest = min(
        LONGEST,
        tokenizer.model_max_length,
        getattr(model.config, "max_position_embeddings", None) or LONGEST,
    )
    batches = [
        tokenizer(text, truncation=True, max_length=longest, return_tensors="pt") for text in texts
    ]
    batches = [each for each in batches if each["input_ids"].shape[1]]
    if not batches:
        raise ValueError(f"--calib {path}: the tokenizer makes no token of its texts")
    return batches


def _calibrated(path: Path, model, batches: list, names: list[str], kept: Path | None) -> Hessians:
    spill = tempfile.gettempdir() if kept is None else kept.parent
    try:
        return calibrate(model, batches, [_literal(name) for name in names], spill=spill)
    except NeverCalled as error:
        there = ""
        if kept is not None and error.hessians:
            save_hessians(kept, error.hessians)
            there = f"; the Hessians of the other {len(error.hessians)} are in {kept}"
        texts = f"{len(batches)} text{'s' * (len(batches) != 1)}"
        rest = f" and {len(error.layers) - 1} more" * (len(error.layers) > 1)
        raise ValueError(
            f"--calib {path}: layer {error.layers[0]}{rest}: called with no inputs in"
            f" {texts}, must be with some: give texts that reach it, or leave it out of"
            f" --tensor{there}"
        ) from error
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of the model's own forward, whatever it is
        raise ValueError(
            f"--calib {path}: running {type(model).__name__}: {_line(error)}"
        ) from error


def _literal(name: str) -> str:
    """A pattern that matches a name and nothing else."""
    return name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
