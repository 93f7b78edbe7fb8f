"""Contract under test: ``convert`` and ``inspect`` do what they say, with exit codes and JSON like
every verb's."""

import json
import os

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.cli import convert
from numba_marlin.cli import main as cli
from numba_marlin.formats.files import STORED
from tests.checkpoints.models import OTHERS, small_model


def run(capsys, *argv):
    code = cli.main([str(each) for each in argv] + ["--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nobody waits for the disk
    return nm.save_checkpoint(tmp_path / "source", small_model(3, "integer"), "gptq", others=OTHERS)


def test_help_knows_every_format():
    assert set(convert.FORMATS) == set(STORED)


def test_convert_writes_the_other_format(capsys, tmp_path, source):
    code, data = run(
        capsys,
        "convert",
        source,
        tmp_path / "awq",
        "--to",
        "awq",
        "--out",
        tmp_path / "said.json",
        "--shard-bytes",
        6000,
    )
    assert (
        run(capsys, "convert", source, tmp_path / "whole", "--to", "awq", "--shard-bytes", "inf")[
            1
        ]["target"]["files"]
        == 1
    )
    assert code == 0 and data["schema"] == "numba-marlin/convert/1" and data["ok"] is True
    assert data["source"]["formats"] == ["gptq"] and data["target"] | {"path": "", "bytes": 0} == {
        "path": "",
        "format": "awq",
        "layers": 3,
        "files": 3,
        "bytes": 0,
    }
    assert json.loads((tmp_path / "said.json").read_text()) == data
    before, after = nm.load_checkpoint(source), nm.load_checkpoint(tmp_path / "awq")
    assert all(
        np.array_equal(nm.dequantize(before[name]), nm.dequantize(after[name])) for name in before
    )


def test_layers_of_other_formats_do_not_stop_a_conversion_that_is_told_where_to_look(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    stray = {"half.of.a.layer.qzeros": np.zeros((4, 8), np.int32)}  # of another format's
    source = nm.save_checkpoint(tmp_path / "source", small_model(2), "gptq", others=stray)
    command = ("convert", source, tmp_path / "out", "--to", "awq")
    code, data = run(capsys, *command)
    assert code == 2 and "half.of.a.layer.qzeros" in data["error"]
    assert not (tmp_path / "out").exists()
    code, data = run(capsys, *command, "--from", "gptq")
    assert code == 0 and (tmp_path / "out").is_dir()
    assert (data["source"]["layers"], data["target"]["layers"]) == (2, 2)
    assert data["source"]["other_tensors"] == 1


def test_inspect_says_what_there_is(capsys, source):
    code, data = run(capsys, "inspect", source, "--data")
    assert (
        code == 0
        and data["schema"] == "numba-marlin/inspect/1"
        and data["quant_method"] == "gptq"
        and data["problems"] == []
    )
    assert data["other_tensors"] == len(OTHERS) and len(data["layers"]) == 3
    assert data["layers"][0] | {"bytes": 0, "bits_per_weight": 0} == {
        "name": "model.layers.0.mlp.up_proj",
        "format": "gptq",
        "k": 128,
        "n": 64,
        "bits": 4,
        "group_size": 32,
        "scale_dtype": "float16",
        "tensors": ["g_idx", "qweight", "qzeros", "scales"],
        "bytes": 0,
        "bits_per_weight": 0,
    }
    assert cli.main(["inspect", str(source), "--layers"]) == 0
    assert "3 of format gptq, 4 bits, groups of 32: 24,576 weights" in capsys.readouterr().out


def test_inspect_lists_layers_as_people_count(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    weight = nm.quantize(np.ones((128, 64), np.float32))
    names = ["m.1.down", "m.2.down", "m.2.up", "m.10.down", f"m.{'9' * 5000}.x"]
    path = nm.save_checkpoint(tmp_path / "m", dict.fromkeys(reversed(names), weight))
    assert [each["name"] for each in run(capsys, "inspect", path)[1]["layers"]] == names
    assert cli.main(["inspect", str(path), "--layers"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"layer      {name}:") for name in names[:4]]
    assert places == sorted(places)


def test_inspect_says_what_a_conversion_would_lose(capsys, source):
    code, data = run(capsys, "inspect", source, "--to", "marlin")
    assert (
        code == 1
        and data["ok"] is False
        and len(data["problems"]) == 3
        and "zero points do not fit in format 'marlin'" in data["problems"][0]
    )
    assert run(capsys, "inspect", source, "--to", "vllm-marlin")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "SOURCE", "OUT", "--to", "nope"], "format='nope' must be one of"),
        (["convert", "SOURCE", "SOURCE", "--to", "awq"], "never overwritten"),
        (
            ["convert", "SOURCE", "OUT", "--to", "marlin"],
            "layer 'model.layers.0.mlp.up_proj': zero points do not fit",
        ),
        (["convert", "OTHER", "OUT", "--to", "awq"], "no such file"),
        (
            ["convert", "SOURCE", "OUT", "--to", "awq", "--from", "pack-quantized"],
            "holds no layer of format 'pack-quantized'",
        ),
        (["convert", "SOURCE", "OUT", "--to", "awq", "--shard-bytes", "nan"], "must be at least 1"),
        (["inspect", "OTHER"], "no such file"),
    ],
)
def test_bad_input_is_exit_code_2_and_nothing_is_written(
    capsys, tmp_path, source, arguments, message
):
    before = sorted(tmp_path.iterdir())
    places = {"SOURCE": source, "OUT": tmp_path / "out", "OTHER": tmp_path / "other"}
    code, data = run(capsys, *[places.get(each, each) for each in arguments])
    assert code == 2 and message in data["error"] and sorted(tmp_path.iterdir()) == before


def test_what_is_said_of_many_layers_is_said_once(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    w = np.random.default_rng(0).standard_normal((64, 64))
    bytes_, zeros = nm.quantize(w, 8, 64), nm.quantize(w, group_size=64, symmetric=False)
    layers = {f"l.{i:02}": bytes_ for i in range(36)} | {"z": zeros}
    path = nm.save_checkpoint(tmp_path / "model", layers, "gptq")
    assert cli.main(["inspect", str(path), "--to", "marlin"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "- l.00, l.01, l.02, ... (36 layers): codes of 8 bits must" in out
    assert out.count("codes of 8 bits") == 1 and "- z: zero points do not fit" in out
    code, data = run(capsys, "inspect", path, "--to", "marlin")
    assert len(data["problems"]) == 37 and data["problems"][35].startswith("l.35: codes of 8 bits")


def test_a_loss_of_many_layers_is_said_once_whatever_their_numbers(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    random = np.random.default_rng(0)
    layers = {
        f"l.{i}": nm.quantize(random.standard_normal((64, 64)), format="nvfp4") for i in range(5)
    }
    assert len({each.global_scale for each in layers.values()}) == 5
    path = nm.save_checkpoint(tmp_path / "model", layers, "modelopt-nvfp4")
    assert cli.main(["inspect", str(path), "--to", "nvfp4-pack-quantized"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("would be stored as its reciprocal") == 1 and "... (5 layers): the gl" in out
