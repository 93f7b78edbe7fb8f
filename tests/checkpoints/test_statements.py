"""Contract under test: whose word counts on what a file holds. GPTQ's two versions look alike: the
wrong one is every zero point off by one."""

import json

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert
from tests.checkpoints.models import same_weight, small_model
from tests.cli.verbs import run, run_json

NAME = "model.layers.0.mlp.up_proj"


def gptq_config(version):
    return {"quantization_config": {"quant_method": "gptq", "checkpoint_format": version}}


@pytest.fixture
def directory(tmp_path):
    """A model of version 1 whose file says nothing itself, as others write them."""
    return foreign(nm.save_checkpoint(tmp_path / "M", small_model(2, "integer"), "gptq"))


def foreign(directory):
    from safetensors.numpy import load_file, save_file

    for path in directory.glob("*.safetensors"):
        save_file(load_file(path), path)
    return directory


def test_a_file_beside_another_configuration_is_refused(capsys, directory):
    """It was read back as version 1, and what it was converted to kept the mistake."""
    target = directory / "v2.safetensors"
    with pytest.raises(nm.CheckpointError, match="config.json says .* of format 'gptq', this one"):
        convert(directory / "model.safetensors", target, "gptq_v2")
    with pytest.raises(nm.CheckpointError, match="choose another directory"):
        nm.save_checkpoint(target, small_model(1), "pack-quantized")
    code, _, err = run(
        capsys, "convert", directory / "model.safetensors", target, "--to", "gptq_v2"
    )
    assert code == 2 and "would be 'gptq_v2' and be misread" in err
    assert sorted(each.name for each in directory.iterdir()) == ["config.json", "model.safetensors"]
    same = convert(directory / "model.safetensors", directory / "again.safetensors", "gptq")
    assert same_weight(nm.load_checkpoint(same)[NAME], small_model(1, "integer")[NAME])


@pytest.mark.parametrize("name", ["config.json", "quantize_config.json"])
def test_a_files_own_word_counts_more_than_its_neighbours(capsys, tmp_path, directory, name):
    made = convert(directory, tmp_path / "v2.safetensors", "gptq_v2")
    there = tmp_path / "other"
    there.mkdir()
    said = gptq_config("gptq")
    (there / name).write_text(
        json.dumps(said if name == "config.json" else said["quantization_config"])
    )
    made = made.rename(there / "model.safetensors")
    for path in (made, there):
        loaded = nm.load_checkpoint(path)
        assert {layer.form.name for layer in loaded.layers.values()} == {"gptq_v2"}
        assert same_weight(loaded[NAME], small_model(1, "integer")[NAME])
        sentence = f"model.safetensors says that it holds 'gptq_v2', {name} says 'gptq'"
        assert loaded.source.contradictions() == [sentence]
        code, data = run_json(capsys, "inspect", path)
        assert code == 0 and data["contradictions"] == [sentence]
    target = tmp_path / "awq"
    code, out, _ = run(capsys, "convert", there, target, "--to", "awq")
    assert code == 0 and "believed" in out and "says 'gptq'" in " ".join(out.split())
    assert same_weight(nm.load_checkpoint(target)[NAME], small_model(1, "integer")[NAME])


def test_files_that_agree_are_no_contradiction(tmp_path, directory):
    assert nm.load_checkpoint(directory).source.contradictions() == []
    for form in ("gptq_v2", "vllm-marlin", "pack-quantized"):
        made = convert(directory, tmp_path / form, form, shard_bytes=6_000)
        assert nm.load_checkpoint(made).source.contradictions() == []


def test_configurations_that_disagree_are_named(directory):
    (directory / "quantize_config.json").write_text('{"checkpoint_format": "gptq_v2"}')
    loaded = nm.load_checkpoint(directory)
    assert loaded.layers[NAME].form.name == "gptq"
    assert loaded.source.contradictions() == [
        "config.json says that it holds 'gptq', quantize_config.json says 'gptq_v2'"
    ]


def test_a_layer_in_files_that_disagree_is_refused(tmp_path):
    from numba_marlin.checkpoints.safetensors_writer import ShardWriter
    from numba_marlin.formats.files import find_stored

    tensors = find_stored("gptq").write(small_model(1, "integer")[NAME])
    (tmp_path / "m").mkdir()
    for version, names in (("gptq", ("qzeros", "scales")), ("gptq_v2", ("qweight", "g_idx"))):
        writer = ShardWriter(tmp_path / "m" / f"{version}.safetensors", list(names))
        for name in names:
            writer.add(f"up.{name}", tensors[name])
        said = gptq_config(version)["quantization_config"]
        writer.finish({"quantization_config": json.dumps(said)})
    with pytest.raises(nm.CheckpointError, match="layer 'up' lies in files that say different"):
        nm.load_checkpoint(tmp_path / "m")


@pytest.mark.parametrize("text", ["5", "null", '["gptq"]', '{"checkpoint_format": ["gptq_v2"]}'])
def test_words_of_odd_types_say_nothing(tmp_path, text):
    from numba_marlin.checkpoints.safetensors_writer import ShardWriter

    writer = ShardWriter(tmp_path / "m.safetensors", ["a"])
    writer.add("a", np.ones(4, np.float32))
    writer.finish({"quantization_config": text})
    loaded = nm.load_checkpoint(tmp_path / "m.safetensors")
    assert loaded.source.contradictions() == [] and loaded.source.excepted == []
