"""Contract under test: what is saved is what is loaded, in every format; a target that exists is finished; memory is a layer's, not the model's."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.checkpoints import convert, save
from numba_marlin.checkpoints.safetensors_file import SafetensorsFile
from numba_marlin.checkpoints.safetensors_writer import ShardWriter
from numba_marlin.formats.files import STORED
from tests.checkpoints.models import OTHERS, same_weight, small_model
from tests.formats import layers

ROOT = Path(__file__).resolve().parents[2]
INTEGER = [form for form in STORED.values() if form.holds != "BlockWeight"]


@pytest.mark.parametrize("target", ["model.safetensors", "directory"])
@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in INTEGER])
def test_what_is_saved_is_what_is_loaded(tmp_path, form, target):
    model = small_model(zeros_kind=None if form.name == "marlin" else "integer")
    path = nm.save_checkpoint(tmp_path / target, model, form.name, others=OTHERS, shard_bytes=12_000)
    loaded = nm.load_checkpoint(path)
    assert list(loaded) == list(model) and len(loaded) == 3 and "model.norm" not in loaded
    assert {layer.form.name for layer in loaded.layers.values()} == {form.name}, "the files say which format they are"
    for name, weight in model.items():
        assert same_weight(nm.unpack(loaded[name]) if isinstance(loaded[name], nm.PackedWeight) else loaded[name], weight)
        assert np.array_equal(nm.dequantize(loaded[name]), nm.dequantize(weight))
    assert set(loaded.others) == set(OTHERS)
    for name, array in OTHERS.items():
        assert loaded.tensor(name).dtype == array.dtype and np.array_equal(loaded.tensor(name), array)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    assert path.is_file() or len(files) > 1, "small shards make an index necessary"
    assert sorted(each.name for each in tmp_path.iterdir()) == [target], "nothing is left beside the target"
    for file in files:  # the library reads what we write, and every tensor is aligned to its type
        with safe_open(file, "numpy") as opened:
            for name in opened.keys():
                assert np.array_equal(opened.get_tensor(name), loaded.source.array(name))
                assert loaded.source.file_of(name).entries[name].begin % loaded.source.array(name).itemsize == 0


@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in STORED.values() if form.holds == "BlockWeight"])
def test_block_scaled_layers_are_saved_and_loaded(tmp_path, form):
    model = {f"layers.{number}.up": form.read(layers.random_layer(form, geometry, number)) for number, geometry in enumerate(form.test_geometries)}
    plain = {"layers.0.norm.weight": np.ones(4, np.float16), "head.weight": np.ones((4, 4), np.float16)}
    for target in ("model.safetensors", "directory"):
        loaded = nm.load_checkpoint(nm.save_checkpoint(tmp_path / target, model, form.name, others=plain))
        assert {layer.form.name for layer in loaded.layers.values()} == {form.name} and set(loaded.others) == set(plain)
        for name, weight in model.items():
            assert np.array_equal(loaded[name].codes, weight.codes) and loaded[name].scales.tobytes() == weight.scales.tobytes()
            assert np.array_equal(nm.dequantize(loaded[name], np.float64), nm.dequantize(weight, np.float64))
    types = {entry.dtype.name for entry in loaded.source.entries.values()}
    assert ("float8_e4m3fn" in types) == (form.name != "mxfp4-pack-quantized"), "8-bit floats are called so in the header"
    assert json.loads((tmp_path / "directory" / "config.json").read_text())["quantization_config"]["quant_method"] in ("modelopt", "compressed-tensors", "fp8")


def test_a_loaded_layer_multiplies(tmp_path):
    """From a GPTQ file with activation order to a product: rows are sorted by group, x is permuted."""
    rng = np.random.default_rng(0)
    weight = small_model(1)["model.layers.0.mlp.up_proj"]
    order = np.sort(rng.permutation(weight.k).reshape(weight.groups, -1), axis=1).ravel().astype(np.int32)
    ordered = nm.QuantizedWeight(weight.codes, weight.scales, None, 4, 32, order)
    nm.save_checkpoint(tmp_path / "m", {"up": ordered}, "gptq")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]["desc_act"] is True
    loaded = nm.load_checkpoint(tmp_path / "m")["up"]
    x = rng.integers(-2, 3, (4, weight.k)).astype(np.float16)
    expected = x.astype(np.float64) @ nm.dequantize(ordered, np.float64)
    packed = nm.pack(loaded)
    out = np.empty((4, weight.n), np.float16)
    for y in (nm.matmul(x, packed, "reference"), nm.matmul(x, packed, "reference", out=out)):
        assert np.array_equal(y, expected.astype(np.float16))
    assert y is out and same_weight(nm.unpack(packed), loaded)
    from numba_marlin import reference

    assert np.array_equal(reference.matmul(x, packed), expected)


def test_a_kernel_multiplies_permuted_activations():
    """The kernel knows nothing of a permutation: x is permuted for it. (Configuration of tests/cli: nothing is compiled for this test alone.)"""
    problem = testing.exact_problem(4, 128, 256, 128, seed=1)
    order = np.random.default_rng(0).permutation(256).astype(np.int32)
    packed = nm.pack(dataclasses.replace(problem.weight, permutation=order))
    x = np.empty_like(problem.x)
    x[:, order] = problem.x
    for _ in range(2):  # the second time, from what the first one left
        y, info = nm.matmul(x, packed, "emulator", kernel="ampere", return_info=True)
        assert np.array_equal(y, problem.expected) and info.backend == "emulator"
    assert not np.array_equal(nm.matmul(problem.x, packed, "reference"), problem.expected)


def test_the_configuration_says_which_version_of_gptq_it_is(tmp_path):
    model = small_model(1, "integer")
    for name in ("gptq", "gptq_v2"):
        nm.save_checkpoint(tmp_path / name, model, name)
        config = tmp_path / name / "config.json"
        said = json.loads(config.read_text())
        assert nm.load_checkpoint(tmp_path / name).layers["model.layers.0.mlp.up_proj"].form.name == name
        config.unlink()
        (tmp_path / name / "quantize_config.json").write_text(json.dumps(said["quantization_config"]))
        assert nm.load_checkpoint(tmp_path / name).layers["model.layers.0.mlp.up_proj"].form.name == name, "or quantize_config.json does"
    weight = nm.load_checkpoint(tmp_path / "gptq", format="gptq_v2")["model.layers.0.mlp.up_proj"]
    assert np.array_equal(weight.zeros, model["model.layers.0.mlp.up_proj"].zeros - np.uint8(1) & 15)


@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in INTEGER])
def test_converting_and_back_gives_the_same_layers(tmp_path, form):
    model = small_model(2)
    source = nm.save_checkpoint(tmp_path / "source", model, "gptq", others=OTHERS, config={"model_type": "llama", "hidden_size": 64})
    (source / "tokenizer.json").write_text("{}")
    there = convert(source, tmp_path / "there", form.name, shard_bytes=5_000)
    config = json.loads((there / "config.json").read_text())
    assert config["model_type"] == "llama" and config["quantization_config"]["quant_method"] and (there / "tokenizer.json").exists()
    back = convert(there, tmp_path / "back", "gptq")
    assert (back / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes(), "to the last bit"


def test_a_loss_is_refused_and_nothing_is_left(tmp_path):
    weight = small_model(1)["model.layers.0.mlp.up_proj"]
    order = np.random.default_rng(0).permutation(weight.k).astype(np.int32)
    source = nm.save_checkpoint(tmp_path / "source", {"up": nm.QuantizedWeight(weight.codes, weight.scales, None, 4, 32, order)}, "gptq")
    for target in ("awq", "awq.safetensors"):
        with pytest.raises(ValueError, match="cannot hold layer 'up' as it is: the format has no activation order"):
            convert(source, tmp_path / target, "awq")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["source"]
    convert(source, tmp_path / "awq", "awq", allow_loss=True)
    assert np.array_equal(nm.dequantize(nm.load_checkpoint(tmp_path / "awq")["up"]), nm.dequantize(nm.load_checkpoint(source)["up"]))


def test_targets_that_exist_are_left_alone(tmp_path):
    source = nm.save_checkpoint(tmp_path / "source", small_model(1), "gptq")
    (tmp_path / "precious").mkdir()
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "file").write_text("mine")
    for target, message in (("precious", "never written over"), ("other", "is no unfinished conversion"), ("no/where", "there is no directory")):
        with pytest.raises(nm.CheckpointError, match=message):
            convert(source, tmp_path / target, "awq")
    assert (tmp_path / "other.partial" / "file").read_text() == "mine"
    with pytest.raises(ValueError, match="format='nope' must be one of"):
        convert(source, tmp_path / "x", "nope")


Q = nm.quantize(np.ones((128, 64), np.float32))


@pytest.mark.parametrize("weights, options, error, message", [
    ([Q], {}, TypeError, "weights is a list, must be a mapping: name -> weight"), ({1: Q}, {}, TypeError, "weights: name 1 is a int, must be a str"), ({"\ud800": Q}, {}, ValueError, "cannot be written in UTF-8"),
    ({"a": None}, {}, TypeError, "layer 'a' is a NoneType, must be a QuantizedWeight"), ({"a": nm.quantize_blocks(np.ones((16, 64), np.float32))}, {}, TypeError, "to_weight makes one of it"),
    ({"a": Q}, {"others": {"__metadata__": np.ones(3)}}, ValueError, "'__metadata__' cannot be the name of a tensor"), ({"a": Q}, {"others": [1]}, TypeError, "others is a list"),
    ({"a": Q}, {"others": {"b": [1.0]}}, TypeError, "tensor 'b' is a list, must be a numpy.ndarray of bool"), ({"a": Q}, {"others": {"b": np.array([None])}}, TypeError, "tensor 'b' is of object"),
    ({"a": Q}, {"shard_bytes": 0}, ValueError, "shard_bytes=0 must be at least 1"),
])
def test_what_no_file_can_hold_is_refused_and_nothing_is_left(tmp_path, weights, options, error, message):
    with pytest.raises(error, match=message):
        nm.save_checkpoint(tmp_path / "model.safetensors", weights, **options)
    assert not list(tmp_path.iterdir())


def test_two_that_write_one_file_are_told_apart(tmp_path):
    """The second would empty what the first has written, and the first would give it its name."""
    pytest.importorskip("fcntl")
    model, target = small_model(2), tmp_path / "model.safetensors"
    first = ShardWriter(tmp_path / "model.safetensors.partial", ["a"])
    first.add("a", np.arange(4, dtype=np.float32))
    with pytest.raises(BlockingIOError, match="model.safetensors.partial.writing is being written by another process"):
        nm.save_checkpoint(target, model, "gptq")
    first.finish({})
    assert np.array_equal(SafetensorsFile(first.target).array("a"), np.arange(4)) and not target.exists()
    nm.save_checkpoint(target, model, "gptq")
    assert len(nm.load_checkpoint(target)) == 2


def test_a_shard_that_another_process_writes_is_left_alone(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    source = nm.save_checkpoint(tmp_path / "source", small_model(2), "gptq")
    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(save._Job, "_shard", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
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
    with pytest.raises(nm.CheckpointError, match="never written over"):
        nm.save_checkpoint(target, Model(small_model(1)), "gptq")
    assert target.read_bytes() == b"somebody else's" and [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_interrupted_conversion_leaves_nothing_finished_and_goes_on(tmp_path, monkeypatch):
    model = small_model(4)
    source = nm.save_checkpoint(tmp_path / "source", model, "gptq", others=OTHERS)
    whole = convert(source, tmp_path / "whole", "awq", shard_bytes=6_000)
    written = []
    shard = save._Job._shard

    def interrupted(job, path, items):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        shard(job, path, items)

    monkeypatch.setattr(save._Job, "_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "target", "awq", shard_bytes=6_000)
    assert not (tmp_path / "target").exists()
    with pytest.raises(nm.CheckpointError):
        nm.load_checkpoint(tmp_path / "target")
    (tmp_path / "target.partial" / "model-00003-of-00005.safetensors.writing").write_bytes(b"half")
    resumed = []
    monkeypatch.setattr(save._Job, "_shard", lambda job, path, items: (resumed.append(path.name), shard(job, path, items)))
    steps = []
    convert(source, tmp_path / "target", "awq", shard_bytes=6_000, progress=lambda done, total, name: steps.append((done, total)))
    assert written and not set(written) & set(resumed), "finished shards are not written again"
    assert steps[-1][0] == steps[-1][1] and [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert {each.name: each.read_bytes() for each in whole.iterdir()} == {each.name: each.read_bytes() for each in (tmp_path / "target").iterdir()}


def test_weights_may_be_made_when_they_are_asked_for(tmp_path):
    """Each once, in order, none before the one before it is written."""
    from collections.abc import Mapping

    made = small_model(3)

    class Lazy(Mapping):
        asked = []

        def __iter__(self):
            return iter(made)

        def __len__(self):
            return len(made)

        def __getitem__(self, name):
            self.asked.append(name)
            return made[name]

    steps = []
    nm.save_checkpoint(tmp_path / "lazy", Lazy(), "awq", others=OTHERS, shard_bytes=5_000, progress=lambda done, total, name: steps.append((done, total)))
    assert Lazy.asked == list(made) and steps == [(number, 3 + len(OTHERS)) for number in range(1, 4 + len(OTHERS))]
    nm.save_checkpoint(tmp_path / "again", nm.load_checkpoint(tmp_path / "lazy"), "awq", others=OTHERS, shard_bytes=5_000)
    assert len(list((tmp_path / "lazy").glob("model-*-of-*.safetensors"))) >= 3
    assert {each.name: each.read_bytes() for each in (tmp_path / "lazy").iterdir()} == {each.name: each.read_bytes() for each in (tmp_path / "again").iterdir()}


def test_another_plan_starts_anew(tmp_path, monkeypatch):
    source = nm.save_checkpoint(tmp_path / "source", small_model(3), "gptq")
    shard = save._Job._shard
    monkeypatch.setattr(save._Job, "_shard", lambda job, path, items: (_ for _ in ()).throw(KeyboardInterrupt) if "00002" in path.name else shard(job, path, items))
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "target", "awq", shard_bytes=6_000)
    monkeypatch.setattr(save._Job, "_shard", shard)
    convert(source, tmp_path / "target", "gptq_v2", shard_bytes=6_000)
    assert {layer.form.name for layer in nm.load_checkpoint(tmp_path / "target").layers.values()} == {"gptq_v2"}


def test_a_killed_conversion_leaves_no_target_and_resumes(tmp_path):
    """A process killed at any moment: until the last rename there is no target."""
    source = nm.save_checkpoint(tmp_path / "source", small_model(6, k=256, n=256), "gptq")
    program = (
        "import sys, time\nfrom numba_marlin.checkpoints import convert\n"
        "convert(sys.argv[1], sys.argv[2], 'awq', shard_bytes=40_000, progress=lambda *a: (print(a, flush=True), time.sleep(0.05)))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, source, tmp_path / "target"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
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


def sparse_checkpoint(directory, layers, k, n, group):
    """A GPTQ checkpoint of zeros that takes no room on disk: headers are written, data are holes. -> bytes"""
    directory.mkdir()
    total = 0
    shapes = {"qweight": ("I32", [k // 8, n]), "qzeros": ("I32", [k // group, n // 8]), "scales": ("F16", [k // group, n]), "g_idx": ("I32", [k])}
    for number in range(layers):
        header, position = {}, 0
        for name, (code, shape) in {f"layers.{number}.{last}": each for last, each in shapes.items()}.items():
            nbytes = int(np.prod(shape)) * (4 if code == "I32" else 2)
            header[name] = {"dtype": code, "shape": shape, "data_offsets": [position, position + nbytes]}
            position += nbytes
        text = json.dumps(header).encode()
        with (directory / f"model-{number:05d}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + position)
        total += position
    return total


PEAK = """
import sys
import numpy
from numba_marlin.hostloops import Compiled
from numba_marlin.formats.streams import MarlinCodes, Stream

def most():  # the largest resident memory so far; ru_maxrss would count what the parent held when it forked
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

codec, codes = Compiled(), numpy.zeros((1024, 512), numpy.uint8)
codec.unpack(Stream("k", "k"), codec.pack(Stream("k", "k"), codes, 4), 4), codec.pack(MarlinCodes(), codes, 4)
from numba_marlin.checkpoints import convert
before = most()
convert(sys.argv[1], sys.argv[2], "vllm-marlin")
print(most() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_memory_is_that_of_a_layer_and_not_of_the_model(tmp_path):
    """Peak resident memory, mapped pages included, of a conversion of 24 equal layers: a few times one layer's codes. By the same factor the layers
    of a model of 70B (the largest 28672 x 8192) need less than 4 GB."""
    k, n = 2048, 2048
    total = sparse_checkpoint(tmp_path / "source", 24, k, n, 128)
    done = subprocess.run([sys.executable, "-c", PEAK, tmp_path / "source", tmp_path / "target"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, codes = int(done.stdout), k * n
    assert total > 12 * codes
    assert peak < 5 * codes + (8 << 20)
    assert 5 * 28672 * 8192 < 4e9
    assert len(nm.load_checkpoint(tmp_path / "target")) == 24


def test_a_checkpoint_is_lazy(tmp_path):
    sparse_checkpoint(tmp_path / "source", 2, 28672, 8192, 128)  # 250 MB that nobody reads
    tracemalloc.start()
    loaded = nm.load_checkpoint(tmp_path / "source")
    assert [layer.geometry.k for layer in loaded.layers.values()] == [28672, 28672]
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    happened = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: happened.append("to disk"))
    monkeypatch.setattr(os, "replace", lambda source, target: (happened.append(Path(target).name), replace(source, target)))
    nm.save_checkpoint(tmp_path / "m", small_model(2), "awq", shard_bytes=5_000)
    shards = ["part-00000.safetensors", "part-00001.safetensors"]
    assert happened == ["to disk", shards[0], "to disk", shards[1], "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "to disk", "to disk", "m"]


def test_a_writer_refuses_a_name_twice_and_cleans_up(tmp_path):
    writer = ShardWriter(tmp_path / "x.safetensors", ["a"])
    writer.add("a", np.zeros(8, np.int32))
    with pytest.raises(ValueError, match="'a' must be written once"):
        writer.add("a", np.zeros(8, np.int32))
    writer.abandon()
    assert not list(tmp_path.iterdir())
