"""Contract under test: a target that exists is finished. What cannot be written, is interrupted,
killed or written by two leaves nothing that looks like one, and goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert, job
from numba_marlin.checkpoints.safetensors_file import SafetensorsFile
from numba_marlin.checkpoints.safetensors_writer import ShardWriter
from tests.checkpoints.models import OTHERS, small_model

ROOT = Path(__file__).resolve().parents[2]


def test_a_loss_is_refused_and_nothing_is_left(tmp_path):
    weight = small_model(1)["model.layers.0.mlp.up_proj"]
    order = np.random.default_rng(0).permutation(weight.k).astype(np.int32)
    source = nm.save_checkpoint(
        tmp_path / "source",
        {"up": nm.QuantizedWeight(weight.codes, weight.scales, None, 4, 32, order)},
        "gptq",
    )
    for target in ("awq", "awq.safetensors"):
        with pytest.raises(
            ValueError, match="cannot hold layer 'up' as it is: the format has no activation order"
        ):
            convert(source, tmp_path / target, "awq")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["source"]
    convert(source, tmp_path / "awq", "awq", allow_loss=True)
    assert np.array_equal(
        nm.dequantize(nm.load_checkpoint(tmp_path / "awq")["up"]),
        nm.dequantize(nm.load_checkpoint(source)["up"]),
    )


def test_targets_that_exist_are_left_alone(tmp_path):
    source = nm.save_checkpoint(tmp_path / "source", small_model(1), "gptq")
    (tmp_path / "precious").mkdir()
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "file").write_text("mine")
    for target, message in (
        ("precious", "never overwritten"),
        ("other", "is no unfinished conversion"),
        ("no/where", "there is no directory"),
    ):
        with pytest.raises(nm.CheckpointError, match=message):
            convert(source, tmp_path / target, "awq")
    assert (tmp_path / "other.partial" / "file").read_text() == "mine"
    with pytest.raises(ValueError, match="format='nope' must be one of"):
        convert(source, tmp_path / "x", "nope")


Q = nm.quantize(np.ones((128, 64), np.float32))


@pytest.mark.parametrize(
    "weights, options, error, message",
    [
        ([Q], {}, TypeError, "weights is a list, must be a mapping: name -> weight"),
        ({1: Q}, {}, TypeError, "weights: name 1 is a int, must be a str"),
        ({"\ud800": Q}, {}, ValueError, "cannot be written in UTF-8"),
        ({"a": None}, {}, TypeError, "layer 'a' is a NoneType, must be a QuantizedWeight"),
        (
            {"a": nm.quantize_blocks(np.ones((16, 64), np.float32))},
            {},
            TypeError,
            "to_weight converts it",
        ),
        (
            {"a": Q},
            {"others": {"__metadata__": np.ones(3)}},
            ValueError,
            "'__metadata__' cannot be the name of a tensor",
        ),
        ({"a": Q}, {"others": [1]}, TypeError, "others is a list"),
        (
            {"a": Q},
            {"others": {"b": [1.0]}},
            TypeError,
            "tensor 'b' is a list, must be a numpy.ndarray of bool",
        ),
        ({"a": Q}, {"others": {"b": np.array([None])}}, TypeError, "tensor 'b' is of object"),
        ({"a": Q}, {"shard_bytes": 0}, ValueError, "shard_bytes=0 must be at least 1"),
    ],
)
def test_what_no_file_can_hold_is_refused_and_nothing_is_left(
    tmp_path, weights, options, error, message
):
    with pytest.raises(error, match=message):
        nm.save_checkpoint(tmp_path / "model.safetensors", weights, **options)
    assert not list(tmp_path.iterdir())


def test_two_that_write_one_file_are_told_apart(tmp_path):
    """The second would empty what the first has written, and the first would give it its name."""
    pytest.importorskip("fcntl")
    model, target = small_model(2), tmp_path / "model.safetensors"
    first = ShardWriter(tmp_path / "model.safetensors", ["a"])
    first.add("a", np.arange(4, dtype=np.float32))
    with pytest.raises(
        BlockingIOError,
        match="model.safetensors.partial is being written by another process",
    ):
        nm.save_checkpoint(target, model, "gptq")
    first.finish({})
    assert np.array_equal(SafetensorsFile(first.target).array("a"), np.arange(4))
    target.unlink()
    nm.save_checkpoint(target, model, "gptq")
    assert len(nm.load_checkpoint(target)) == 2


def test_a_shard_that_another_process_writes_is_left_alone(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    source = nm.save_checkpoint(tmp_path / "source", small_model(2), "gptq")
    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(
            job.Job, "_shard", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        convert(source, tmp_path / "target", "awq")
    other = ShardWriter(tmp_path / "target.partial" / "model.safetensors", ["a"])
    with pytest.raises(BlockingIOError, match="is being written by another process"):
        convert(source, tmp_path / "target", "awq")
    assert other.partial.exists()
    other.abandon()


def test_what_came_to_be_meanwhile_is_not_written_over(tmp_path):
    class Model(dict):
        def __getitem__(self, name):
            target.write_bytes(b"somebody else's")
            return super().__getitem__(name)

    target = tmp_path / "model.safetensors"
    with pytest.raises(nm.CheckpointError, match="never overwritten"):
        nm.save_checkpoint(target, Model(small_model(1)), "gptq")
    assert target.read_bytes() == b"somebody else's" and [
        each.name for each in tmp_path.iterdir()
    ] == ["model.safetensors"]


def test_an_interrupted_conversion_leaves_nothing_finished_and_goes_on(tmp_path, monkeypatch):
    model = small_model(4)
    source = nm.save_checkpoint(tmp_path / "source", model, "gptq", others=OTHERS)
    whole = convert(source, tmp_path / "whole", "awq", shard_bytes=6_000)
    written = []
    shard = job.Job._shard

    def interrupted(job, path, items):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        shard(job, path, items)

    monkeypatch.setattr(job.Job, "_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "target", "awq", shard_bytes=6_000)
    assert not (tmp_path / "target").exists()
    with pytest.raises(nm.CheckpointError):
        nm.load_checkpoint(tmp_path / "target")
    (tmp_path / "target.partial" / "model-00003-of-00005.safetensors.partial").write_bytes(b"half")
    resumed = []
    monkeypatch.setattr(
        job.Job,
        "_shard",
        lambda job, path, items: (resumed.append(path.name), shard(job, path, items)),
    )
    steps = []
    convert(
        source,
        tmp_path / "target",
        "awq",
        shard_bytes=6_000,
        progress=lambda done, total, name: steps.append((done, total)),
    )
    assert written and not set(written) & set(resumed), "finished shards are not written again"
    assert steps[-1][0] == steps[-1][1] and [done for done, _ in steps] == sorted(
        done for done, _ in steps
    )
    assert {each.name: each.read_bytes() for each in whole.iterdir()} == {
        each.name: each.read_bytes() for each in (tmp_path / "target").iterdir()
    }


def test_another_plan_starts_anew(tmp_path, monkeypatch):
    source = nm.save_checkpoint(tmp_path / "source", small_model(3), "gptq")
    shard = job.Job._shard
    monkeypatch.setattr(
        job.Job,
        "_shard",
        lambda job, path, items: (
            (_ for _ in ()).throw(KeyboardInterrupt)
            if "00002" in path.name
            else shard(job, path, items)
        ),
    )
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "target", "awq", shard_bytes=6_000)
    monkeypatch.setattr(job.Job, "_shard", shard)
    convert(source, tmp_path / "target", "gptq_v2", shard_bytes=6_000)
    assert {
        layer.form.name for layer in nm.load_checkpoint(tmp_path / "target").layers.values()
    } == {"gptq_v2"}


def test_a_killed_conversion_leaves_no_target_and_resumes(tmp_path):
    """A process killed at any moment: until the last rename there is no target."""
    source = nm.save_checkpoint(tmp_path / "source", small_model(6, k=256, n=256), "gptq")
    program = (
        "import sys, time\nfrom numba_marlin.checkpoints import convert\nconvert(sys.argv[1],"
        " sys.argv[2], 'awq', shard_bytes=40_000, progress=lambda *a: (print(a, flush=True),"
        " time.sleep(0.05)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, source, tmp_path / "target"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "target").exists() and (tmp_path / "target.partial").exists()
    done = sorted(each.name for each in (tmp_path / "target.partial").glob("*.safetensors"))
    stamps = [(tmp_path / "target.partial" / name).stat().st_mtime_ns for name in done]
    convert(source, tmp_path / "target", "awq", shard_bytes=40_000)
    assert done and stamps == [(tmp_path / "target" / name).stat().st_mtime_ns for name in done]
    assert len(nm.load_checkpoint(tmp_path / "target")) == 6


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Its contents, and the directory that has its name: a power cut loses nothing that is
    finished."""
    source = nm.save_checkpoint(tmp_path / "source", small_model(1), "gptq")
    (source / "tokenizer.json").write_text("{}")
    happened, places, replace = [], {}, os.replace

    def named(status):
        return places.get((status.st_dev, status.st_ino), "?")

    def to_disk(descriptor):
        happened.append("disk: " + named(os.fstat(descriptor)))

    def renamed(old, new):
        happened.append(f"name: {Path(new).name}")
        replace(old, new)

    opened = os.open

    def noted(path, *arguments, **options):
        descriptor = opened(path, *arguments, **options)
        status = os.fstat(descriptor)
        places[status.st_dev, status.st_ino] = os.path.basename(path)
        return descriptor

    monkeypatch.setattr(os, "fsync", to_disk)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "open", noted)
    nm.save_checkpoint(tmp_path / "m", small_model(2), "awq", shard_bytes=5_000, companions=source)
    parts = [f"part-0000{number}.safetensors" for number in range(2)]
    assert happened == [
        "disk: ?",  # the plan
        f"disk: {parts[0]}.partial",
        f"name: {parts[0]}",
        "disk: m.partial",
        f"disk: {parts[1]}.partial",
        f"name: {parts[1]}",
        "disk: m.partial",
        "name: model-00001-of-00002.safetensors",
        "name: model-00002-of-00002.safetensors",
        "disk: ?",  # the index
        "disk: ?",  # config.json
        "disk: ?",  # tokenizer.json
        "disk: m.partial",
        "name: m",
        f"disk: {tmp_path.name}",
    ]
    happened.clear()
    nm.save_checkpoint(tmp_path / "m.safetensors", small_model(1), "awq")
    assert happened == [
        "disk: m.safetensors.partial",
        "name: m.safetensors",
        f"disk: {tmp_path.name}",
    ]


def test_a_writer_refuses_a_name_twice_and_cleans_up(tmp_path):
    writer = ShardWriter(tmp_path / "x.safetensors", ["a"])
    writer.add("a", np.zeros(8, np.int32))
    with pytest.raises(ValueError, match="'a' must be written once"):
        writer.add("a", np.zeros(8, np.int32))
    writer.abandon()
    assert not list(tmp_path.iterdir())
