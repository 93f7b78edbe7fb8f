"""Contract under test: a link that somebody planted leads nowhere: nothing is read through it into
what is written, and nothing is written through it."""

import json
import os

import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert
from tests.checkpoints.models import small_model
from tests.cli.verbs import run_json

SECRET = '{"secret": "of somebody else"}'


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.pem"
    path.write_text(SECRET)
    return path


@pytest.fixture
def source(tmp_path):
    path = nm.save_checkpoint(tmp_path / "source", small_model(2), "gptq")
    (path / "tokenizer.json").write_text("{}")
    return path


def everything(directory):
    return b"".join(each.read_bytes() for each in directory.rglob("*") if each.is_file())


def test_linked_files_are_not_copied_and_that_is_said(capsys, tmp_path, source, secret):
    (source / "notes.txt").symlink_to(secret)
    (source / "relative.json").symlink_to("../secret.pem")
    (source / "env.json").symlink_to("/proc/self/environ")
    (source / "far.md").symlink_to("notes.txt")
    (source / "dangling.txt").symlink_to("nowhere")
    os.mkfifo(source / "pipe.json")
    (source / "directory.json").mkdir()
    code, data = run_json(capsys, "convert", source, tmp_path / "out", "--to", "awq")
    assert code == 0 and SECRET.encode() not in everything(tmp_path / "out")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    names = ["dangling.txt", "env.json", "far.md", "notes.txt", "relative.json"]
    assert data["source"]["links_not_copied"] == names


@pytest.mark.parametrize(
    "name", ["config.json", "quantize_config.json", "model.safetensors.index.json"]
)
def test_linked_configurations_are_refused(tmp_path, source, secret, name):
    """What config.json holds would arrive in the target's."""
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(secret)
    with pytest.raises(nm.CheckpointError, match=f"{name}: a link out of the directory"):
        convert(source, tmp_path / "out", "awq")
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_is_a_pipe_does_not_hang(source):
    (source / "config.json").unlink()
    os.mkfifo(source / "config.json")
    with pytest.raises(nm.CheckpointError, match="config.json: must be a regular file"):
        nm.load_checkpoint(source)


def in_a_cache(tmp_path, source):
    """The source as Hugging Face's download cache has it."""
    snapshot = tmp_path / "models--x--y" / "snapshots" / "0123"
    blobs = tmp_path / "models--x--y" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, each in enumerate(sorted(source.iterdir())):
        each.rename(blobs / f"blob{number}")
        (snapshot / each.name).symlink_to(f"../../blobs/blob{number}")
    return snapshot


def test_a_download_cache_is_a_directory_like_any_other(tmp_path, source, secret):
    snapshot = in_a_cache(tmp_path, source)
    (snapshot / "notes.txt").symlink_to(secret)
    (snapshot / "merges.txt").symlink_to("../../blobs/../../secret.pem")
    made = convert(snapshot, tmp_path / "out", "awq")
    assert (made / "tokenizer.json").read_text() == "{}"
    assert not (made / "notes.txt").exists() and not (made / "merges.txt").exists()


def test_a_cache_whose_blobs_lie_elsewhere_is_none(tmp_path, source, secret):
    snapshot = in_a_cache(tmp_path, source)
    blobs = snapshot.parent.parent / "blobs"
    blobs.rename(tmp_path / "private")
    blobs.symlink_to(tmp_path / "private")
    with pytest.raises(nm.CheckpointError, match="config.json: a link out of the directory"):
        nm.load_checkpoint(snapshot)


@pytest.mark.parametrize("planted", ["q.safetensors.partial", "q.safetensors"])
@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_written_through_a_link_at_a_file(tmp_path, secret, planted, exists):
    aim = secret if exists else tmp_path / "made.through"
    (tmp_path / planted).symlink_to(aim)
    with pytest.raises(nm.CheckpointError, match="exists and is no unfinished file|never overw"):
        nm.save_checkpoint(tmp_path / "q.safetensors", small_model(1), "gptq")
    assert secret.read_text() == SECRET and aim.exists() == exists
    assert (tmp_path / planted).is_symlink()


def test_nothing_is_written_through_a_hard_link(tmp_path, secret):
    os.link(secret, tmp_path / "q.safetensors.partial")
    nm.save_checkpoint(tmp_path / "q.safetensors", small_model(1), "gptq")
    assert secret.read_text() == SECRET


def test_nothing_is_written_through_a_linked_directory(tmp_path, source):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.partial").symlink_to("elsewhere")
    with pytest.raises(nm.CheckpointError, match="out.partial exists and is no unfinished"):
        convert(source, tmp_path / "out", "awq")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    "name",
    [
        "numba_marlin_conversion.json",
        "config.json",
        "model.safetensors",
        "model.safetensors.partial",
    ],
)
def test_nothing_is_written_through_links_in_what_was_left(tmp_path, source, secret, name):
    left = tmp_path / "out.partial"
    left.mkdir()
    (left / "numba_marlin_conversion.json").write_text("an older plan")
    (left / name).unlink(missing_ok=True)
    (left / name).symlink_to(secret)
    with pytest.raises(nm.CheckpointError, match="is no unfinished conversion"):
        convert(source, tmp_path / "out", "awq")
    assert secret.read_text() == SECRET and (left / name).is_symlink()


def test_quantize_copies_no_links_either(capsys, tmp_path, secret):
    import numpy as np
    from safetensors.numpy import save_file

    model = tmp_path / "model"
    model.mkdir()
    save_file({"a.weight": np.ones((64, 128), np.float16)}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps({"architectures": ["X"]}))
    (model / "notes.txt").symlink_to(secret)
    code, data = run_json(capsys, "quantize", model, tmp_path / "q")
    assert code == 0 and data["links_not_copied"] == ["notes.txt"]
    assert SECRET.encode() not in everything(tmp_path / "q")
