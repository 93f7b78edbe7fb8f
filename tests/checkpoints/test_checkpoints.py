"""Contract under test: what is saved is what is loaded, in every format; memory is a layer's, not
the model's."""

import dataclasses
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.checkpoints import convert
from numba_marlin.formats.files import STORED
from tests.checkpoints.models import OTHERS, same_weight, small_model
from tests.formats import layers

ROOT = Path(__file__).resolve().parents[2]
INTEGER = [form for form in STORED.values() if form.holds != "BlockWeight"]


@pytest.mark.parametrize("target", ["model.safetensors", "directory"])
@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in INTEGER])
def test_what_is_saved_is_what_is_loaded(tmp_path, form, target):
    model = small_model(zeros_kind=None if form.name == "marlin" else "integer")
    path = nm.save_checkpoint(
        tmp_path / target, model, form.name, others=OTHERS, shard_bytes=12_000
    )
    loaded = nm.load_checkpoint(path)
    assert list(loaded) == list(model) and len(loaded) == 3 and "model.norm" not in loaded
    assert {layer.form.name for layer in loaded.layers.values()} == {form.name}, (
        "the files say which format they are"
    )
    for name, weight in model.items():
        assert same_weight(
            nm.unpack(loaded[name]) if isinstance(loaded[name], nm.PackedWeight) else loaded[name],
            weight,
        )
        assert np.array_equal(nm.dequantize(loaded[name]), nm.dequantize(weight))
    assert set(loaded.others) == set(OTHERS)
    for name, array in OTHERS.items():
        assert loaded.tensor(name).dtype == array.dtype and np.array_equal(
            loaded.tensor(name), array
        )
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    assert path.is_file() or len(files) > 1, "small shards make an index necessary"
    assert sorted(each.name for each in tmp_path.iterdir()) == [target], (
        "nothing is left beside the target"
    )
    for file in files:  # the library reads what we write, and every tensor is aligned to its type
        with safe_open(file, "numpy") as opened:
            for name in opened.keys():
                assert np.array_equal(opened.get_tensor(name), loaded.source.array(name))
                assert (
                    loaded.source.file_of(name).entries[name].begin
                    % loaded.source.array(name).itemsize
                    == 0
                )


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, id=form.name) for form in STORED.values() if form.holds == "BlockWeight"],
)
def test_block_scaled_layers_are_saved_and_loaded(tmp_path, form):
    model = {
        f"layers.{number}.up": form.read(layers.random_layer(form, geometry, number))
        for number, geometry in enumerate(form.test_geometries)
    }
    plain = {
        "layers.0.norm.weight": np.ones(4, np.float16),
        "head.weight": np.ones((4, 4), np.float16),
    }
    for target in ("model.safetensors", "directory"):
        loaded = nm.load_checkpoint(
            nm.save_checkpoint(tmp_path / target, model, form.name, others=plain)
        )
        assert {layer.form.name for layer in loaded.layers.values()} == {form.name} and set(
            loaded.others
        ) == set(plain)
        for name, weight in model.items():
            assert (
                np.array_equal(loaded[name].codes, weight.codes)
                and loaded[name].scales.tobytes() == weight.scales.tobytes()
            )
            assert np.array_equal(
                nm.dequantize(loaded[name], np.float64), nm.dequantize(weight, np.float64)
            )
    types = {entry.dtype.name for entry in loaded.source.entries.values()}
    assert ("float8_e4m3fn" in types) == (form.name != "mxfp4-pack-quantized"), (
        "8-bit floats are called so in the header"
    )
    assert json.loads((tmp_path / "directory" / "config.json").read_text())["quantization_config"][
        "quant_method"
    ] in ("modelopt", "compressed-tensors", "fp8")


def test_a_loaded_layer_multiplies(tmp_path):
    """From a GPTQ file with activation order to a product: rows are sorted by group, x is
    permuted."""
    rng = np.random.default_rng(0)
    weight = small_model(1)["model.layers.0.mlp.up_proj"]
    order = (
        np.sort(rng.permutation(weight.k).reshape(weight.groups, -1), axis=1)
        .ravel()
        .astype(np.int32)
    )
    ordered = nm.QuantizedWeight(weight.codes, weight.scales, None, 4, 32, order)
    nm.save_checkpoint(tmp_path / "m", {"up": ordered}, "gptq")
    assert (
        json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]["desc_act"]
        is True
    )
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
    """The kernel knows nothing of a permutation: x is permuted for it. (Configuration of tests/cli:
    nothing is compiled for this test alone.)"""
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
        assert (
            nm.load_checkpoint(tmp_path / name).layers["model.layers.0.mlp.up_proj"].form.name
            == name
        )
        config.unlink()
        (tmp_path / name / "quantize_config.json").write_text(
            json.dumps(said["quantization_config"])
        )
        assert (
            nm.load_checkpoint(tmp_path / name).layers["model.layers.0.mlp.up_proj"].form.name
            == name
        ), "or quantize_config.json does"
    weight = nm.load_checkpoint(tmp_path / "gptq", format="gptq_v2")["model.layers.0.mlp.up_proj"]
    assert np.array_equal(
        weight.zeros, model["model.layers.0.mlp.up_proj"].zeros - np.uint8(1) & 15
    )


@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in INTEGER])
def test_converting_and_back_gives_the_same_layers(tmp_path, form):
    model = small_model(2)
    source = nm.save_checkpoint(
        tmp_path / "source",
        model,
        "gptq",
        others=OTHERS,
        config={"model_type": "llama", "hidden_size": 64},
    )
    (source / "tokenizer.json").write_text("{}")
    there = convert(source, tmp_path / "there", form.name, shard_bytes=5_000)
    config = json.loads((there / "config.json").read_text())
    assert (
        config["model_type"] == "llama"
        and config["quantization_config"]["quant_method"]
        and (there / "tokenizer.json").exists()
    )
    back = convert(there, tmp_path / "back", "gptq")
    assert (back / "model.safetensors").read_bytes() == (
        source / "model.safetensors"
    ).read_bytes(), "to the last bit"


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
    nm.save_checkpoint(
        tmp_path / "lazy",
        Lazy(),
        "awq",
        others=OTHERS,
        shard_bytes=5_000,
        progress=lambda done, total, name: steps.append((done, total)),
    )
    assert Lazy.asked == list(made) and steps == [
        (number, 3 + len(OTHERS)) for number in range(1, 4 + len(OTHERS))
    ]
    nm.save_checkpoint(
        tmp_path / "again",
        nm.load_checkpoint(tmp_path / "lazy"),
        "awq",
        others=OTHERS,
        shard_bytes=5_000,
    )
    assert len(list((tmp_path / "lazy").glob("model-*-of-*.safetensors"))) >= 3
    assert {each.name: each.read_bytes() for each in (tmp_path / "lazy").iterdir()} == {
        each.name: each.read_bytes() for each in (tmp_path / "again").iterdir()
    }


def sparse_checkpoint(directory, layers, k, n, group):
    """A GPTQ checkpoint of zeros that takes no room on disk: headers are written, data are holes.
    -> bytes"""
    directory.mkdir()
    total = 0
    shapes = {
        "qweight": ("I32", [k // 8, n]),
        "qzeros": ("I32", [k // group, n // 8]),
        "scales": ("F16", [k // group, n]),
        "g_idx": ("I32", [k]),
    }
    for number in range(layers):
        header, position = {}, 0
        for name, (code, shape) in {
            f"layers.{number}.{last}": each for last, each in shapes.items()
        }.items():
            nbytes = int(np.prod(shape)) * (4 if code == "I32" else 2)
            header[name] = {
                "dtype": code,
                "shape": shape,
                "data_offsets": [position, position + nbytes],
            }
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

# the largest resident memory so far; ru_maxrss would count what the parent held when it forked
def most():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

codec, codes = Compiled(), numpy.zeros((1024, 512), numpy.uint8)
codec.unpack(Stream("k", "k"), codec.pack(Stream("k", "k"), codes, 4), 4)
codec.pack(MarlinCodes(), codes, 4)
from numba_marlin.checkpoints import convert
before = most()
convert(sys.argv[1], sys.argv[2], "vllm-marlin")
print(most() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="resident memory is read from /proc"
)
def test_memory_is_that_of_a_layer_and_not_of_the_model(tmp_path):
    """Peak resident memory, mapped pages included, of a conversion of 24 equal layers: a few times
    one layer's codes. By the same factor the layers of a model of 70B (the largest 28672 x 8192)
    need less than 4 GB."""
    k, n = 2048, 2048
    total = sparse_checkpoint(tmp_path / "source", 24, k, n, 128)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "source", tmp_path / "target"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
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
