"""Contract under test: the folders of sentence-transformers' modules, which modules.json names, go
along with the weights: without 1_Pooling/config.json the library cannot load what is written. Names
and links that lead elsewhere lead nowhere."""

import json
import os

import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import companions, convert
from tests.checkpoints.models import small_model
from tests.cli.verbs import run_json

POOLING = '{"pooling_mode_mean_tokens": true}'


def modules(*paths):
    return json.dumps([{"idx": i, "name": str(i), "path": each} for i, each in enumerate(paths)])


@pytest.fixture
def source(tmp_path):
    made = nm.save_checkpoint(tmp_path / "source", small_model(1), "gptq")
    (made / "modules.json").write_text(modules("", "1_Pooling", "2_Dense", "3_Normalize"))
    for name in ("1_Pooling", "2_Dense", "onnx"):
        (made / name).mkdir()
        (made / name / "config.json").write_text(POOLING)
    (made / "2_Dense" / "model.safetensors").write_bytes(b"weights")
    (made / "2_Dense" / "deeper").mkdir()
    return made


def below(directory):
    return sorted(
        each.relative_to(directory).as_posix() for each in directory.glob("*/*") if each.is_file()
    )


def test_folders_of_modules_go_along(tmp_path, source):
    made = convert(source, tmp_path / "made", "awq")
    assert below(made) == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ]
    assert (made / "1_Pooling" / "config.json").read_text() == POOLING
    assert len(nm.load_checkpoint(made)) == len(nm.load_checkpoint(source))


@pytest.mark.parametrize(
    "text",
    [
        modules(
            "..", ".", "../elsewhere", "/etc", "1_Pooling/../../elsewhere", "elsewhere", "link"
        ),
        '[1, {}, {"path": 3}, {"path": ["1_Pooling"]}, {"path": "a\\u0000b"}]',
        '{"path": "1_Pooling"}',
        "no JSON",
        "[" * 100_000,
    ],
)
def test_names_that_lead_elsewhere_lead_nowhere(tmp_path, source, text):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.json").write_text("{}")
    (source / "link").symlink_to("../elsewhere")
    (source / "modules.json").write_text(text)
    assert below(convert(source, tmp_path / "made", "awq")) == []


def test_links_in_a_folder_are_not_copied_and_that_is_said(capsys, tmp_path, source):
    (tmp_path / "secret.json").write_text("{}")
    (source / "1_Pooling" / "more.json").symlink_to("../../secret.json")
    code, data = run_json(capsys, "convert", source, tmp_path / "made", "--to", "awq")
    assert code == 0 and "1_Pooling/more.json" not in below(tmp_path / "made")
    assert data["source"]["links_not_copied"] == ["1_Pooling/more.json"]


def test_a_download_cache_has_links_there_too(tmp_path, source):
    snapshot = tmp_path / "models--x--y" / "snapshots" / "0123"
    blobs = tmp_path / "models--x--y" / "blobs"
    blobs.mkdir(parents=True)
    source.rename(tmp_path / "plain")
    for number, each in enumerate(sorted((tmp_path / "plain").rglob("*"))):
        if each.is_file():
            link = snapshot / each.relative_to(tmp_path / "plain")
            link.parent.mkdir(parents=True, exist_ok=True)
            each.rename(blobs / f"blob{number}")
            link.symlink_to(os.path.relpath(blobs / f"blob{number}", link.parent))
    made = convert(snapshot, tmp_path / "made", "awq")
    assert (made / "1_Pooling" / "config.json").read_text() == POOLING


def test_a_conversion_goes_on_that_was_interrupted_among_them(tmp_path, source, monkeypatch):
    def stopped(source, target):
        companions.copy_small_files(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr("numba_marlin.checkpoints.job.copy_small_files", stopped)
        convert(source, tmp_path / "made", "awq")
    assert below(tmp_path / "made.partial")
    (source / "1_Pooling" / "config.json").write_text("{}")
    made = convert(source, tmp_path / "made", "awq")
    assert (made / "1_Pooling" / "config.json").read_text() == "{}"
