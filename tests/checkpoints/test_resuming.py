"""Contract under test: an interrupted conversion goes on where everything that its shards depend on
is as it was, and starts anew otherwise; a target that came to be meanwhile is left alone."""

import json
import os

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert, job
from tests.checkpoints.models import small_model

OPTIONS = {"format": "gptq_v2", "shard_bytes": 6_000}


@pytest.fixture
def source(tmp_path):
    made = nm.save_checkpoint(tmp_path / "source", small_model(3), "gptq")
    (made / "tokenizer.json").write_text("{}")
    return made


def shards_of(monkeypatch, source, target, stop=None, **options):
    """Convert and return the names of the shards that were written; ``stop``: the number of shards
    after which the conversion is interrupted."""
    shard, written = job.Job._shard, []

    def noted(job, path, items):
        if len(written) == stop:
            raise KeyboardInterrupt
        written.append(path.name)
        return shard(job, path, items)

    with monkeypatch.context() as changed:
        changed.setattr(job.Job, "_shard", noted)
        if stop is None:
            convert(source, target, **options)
        else:
            with pytest.raises(KeyboardInterrupt):
                convert(source, target, **options)
    return written


def other_weights(source):
    """Others of the same size, long after."""
    path = source / "model.safetensors"
    with path.open("r+b") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
        begin = json.loads(path.read_bytes()[8:header])
        start, stop = begin["model.layers.0.mlp.up_proj.qweight"]["data_offsets"]
        file.seek(header + start)
        file.write(np.random.default_rng(1).bytes(stop - start))
    os.utime(path, ns=(2**60, 2**60))


def other_configuration(source):
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["Another"]}))


def other_companion(source):
    (source / "tokenizer.json").write_text('{"another": 1}')


def statement_beside(source):
    """What an older library says beside config.json."""
    (source / "quantize_config.json").write_text(
        json.dumps({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False})
    )


def contents(directory):
    return {each.name: each.read_bytes() for each in directory.iterdir()}


@pytest.mark.parametrize(
    "change", [other_weights, other_configuration, other_companion, statement_beside]
)
def test_a_source_that_has_changed_starts_a_conversion_anew(tmp_path, monkeypatch, source, change):
    first = shards_of(monkeypatch, source, tmp_path / "target", 2, **OPTIONS)
    change(source)
    again = shards_of(monkeypatch, source, tmp_path / "target", **OPTIONS)
    assert len(first) == 2 and set(first) <= set(again)
    whole = convert(source, tmp_path / "whole", **OPTIONS)
    assert contents(tmp_path / "target") == contents(whole)


@pytest.mark.parametrize(
    "other",
    [{"format": "gptq"}, {"source_format": "gptq"}, {"allow_loss": True}, {"shard_bytes": 6_001}],
    ids=lambda other: next(iter(other)),
)
def test_other_options_start_a_conversion_anew(tmp_path, monkeypatch, source, other):
    first = shards_of(monkeypatch, source, tmp_path / "target", 2, **OPTIONS)
    again = shards_of(monkeypatch, source, tmp_path / "target", **(OPTIONS | other))
    assert len(first) == 2 and set(first) <= set(again)


def test_another_version_starts_a_conversion_anew(tmp_path, monkeypatch, source):
    first = shards_of(monkeypatch, source, tmp_path / "target", 2, **OPTIONS)
    monkeypatch.setattr(nm, "__version__", "0.0.0")
    assert set(first) <= set(shards_of(monkeypatch, source, tmp_path / "target", **OPTIONS))


def test_the_same_conversion_goes_on(tmp_path, monkeypatch, source):
    first = shards_of(monkeypatch, source, tmp_path / "target", 2, **OPTIONS)
    again = shards_of(monkeypatch, source, tmp_path / "target", **OPTIONS)
    assert first and again and not set(first) & set(again)


OTHERS = {
    "an empty directory": lambda path: path.mkdir(),  # which a rename would silently replace
    "a file": lambda path: path.write_bytes(b"somebody else's"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_directory_that_came_to_be_meanwhile_is_left_alone(tmp_path, source, kind):
    target = tmp_path / "target"

    def progress(done, total, name):
        if done == total and not os.path.lexists(target):
            OTHERS[kind](target)

    with pytest.raises(nm.CheckpointError, match="target exists: a checkpoint is never"):
        convert(source, target, **OPTIONS, progress=progress)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source", "target"]
    assert not (target.is_dir() and list(target.iterdir()))


def test_a_target_is_looked_for_again_before_any_work(tmp_path, monkeypatch, source):
    """Another process finished it between this one's first look and its turn."""
    target, owned = tmp_path / "target", job.owned

    def late(partial):
        target.mkdir()
        return owned(partial)

    monkeypatch.setattr(job, "owned", late)
    worked = []
    with pytest.raises(nm.CheckpointError, match="target exists"):
        convert(source, target, **OPTIONS, progress=lambda *step: worked.append(step))
    assert not worked and sorted(each.name for each in tmp_path.iterdir()) == ["source", "target"]
