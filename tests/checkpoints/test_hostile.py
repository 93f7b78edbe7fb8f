"""Contract under test: a file that is not what it says gives an error that names file and rule;
never a crash, a large allocation, or anything written."""

import json
import pickle
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert
from numba_marlin.checkpoints.safetensors_file import SafetensorsFile
from numba_marlin.cli import main as cli
from tests.checkpoints.models import file_bytes, small_model

pytest.importorskip("ml_dtypes")

F32 = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was loaded')",))


def header(**entries):
    return {name: F32 | each for name, each in entries.items()}


HOSTILE = {
    "empty": (b"", "0 bytes are too few"),
    "short": (b"1234567", "7 bytes are too few"),
    "text": (b"hello world, this is text", "not a .safetensors file, or cut off"),
    "huge_header": (
        file_bytes(b"", length=2**62),
        "a header of 4611686018427387904 bytes must fit",
    ),
    "header_beyond_the_file": (
        file_bytes(b"{}", length=3),
        "a header of 3 bytes must fit in the file",
    ),
    "no_json": (file_bytes(b"{{{{{{"), "not JSON"),
    "list": (file_bytes(b"[]"), r"must begin with '\{'"),
    "not_utf_8": (file_bytes(b'{"\xff\xfe": 1}'), "not JSON of UTF-8"),
    "deep": (file_bytes(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "not JSON"),
    "digits": (file_bytes(b'{"a":' + b"9" * 10_000 + b"}"), "not JSON"),
    "twice": (
        file_bytes(
            b'{"w": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "w":'
            b' {"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            b"\0" * 4,
        ),
        "'w' must stand there once",
    ),
    "field_twice": (
        file_bytes(
            b'{"w": {"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4
        ),
        "'dtype' must stand there once",
    ),
    "no_entry": (file_bytes({"w": 5}), "tensor 'w': must have dtype, shape and data_offsets"),
    "extra_field": (file_bytes(header(w={"surprise": 1}), b"\0" * 16), "and nothing else"),
    "missing_field": (file_bytes({"w": {"dtype": "F32", "shape": [1]}}), "must have dtype"),
    "unknown_type": (
        file_bytes(header(w={"dtype": "F31"}), b"\0" * 16),
        "dtype 'F31' must be one of",
    ),
    "type_is_a_list": (file_bytes(header(w={"dtype": ["F32"]}), b"\0" * 16), "must be one of"),
    "negative_size": (
        file_bytes(header(w={"shape": [-2, -2]}), b"\0" * 16),
        "must be at most 32 sizes",
    ),
    "size_is_true": (
        file_bytes(header(w={"shape": [True, 4]}), b"\0" * 16),
        "must be at most 32 sizes",
    ),
    "size_is_a_float": (
        file_bytes(header(w={"shape": [2.0, 2]}), b"\0" * 16),
        "must be at most 32 sizes",
    ),
    "absurd_size": (file_bytes(header(w={"shape": [2**62, 2**62]}), b"\0" * 16), "must span the"),
    "absurd_empty_size": (
        file_bytes(header(w={"shape": [2**62, 0, 2**62], "data_offsets": [0, 0]}), b""),
        None,
    ),
    "many_dimensions": (file_bytes(header(w={"shape": [1] * 40}), b"\0" * 16), "at most 32 sizes"),
    "backwards": (
        file_bytes(header(w={"data_offsets": [16, 0]}), b"\0" * 16),
        "must span the 16 bytes",
    ),
    "negative_offset": (
        file_bytes(header(w={"data_offsets": [-16, 0]}), b"\0" * 16),
        r"must be \[begin, end\]",
    ),
    "overlap": (
        file_bytes(header(a={}, b={"data_offsets": [8, 24]}), b"\0" * 24),
        "overlaps the tensor before it",
    ),
    "gap": (
        file_bytes(header(a={}, b={"data_offsets": [24, 40]}), b"\0" * 40),
        "leaves a gap before it",
    ),
    "cut_off": (file_bytes(header(w={}), b"\0" * 15), "cut off: .* must be"),
    "too_long": (file_bytes(header(w={}), b"\0" * 17), "longer than its header says"),
    "metadata": (
        file_bytes({"__metadata__": {"a": 1}}),
        "__metadata__ must map strings to strings",
    ),
    "zip": (b"PK\x03\x04" + b"\0" * 60, "a zip file, as PyTorch writes them"),
    "pickle": (pickle.dumps(Evil()), "a pickle"),
    "gguf": (b"GGUF" + b"\0" * 60, "a GGUF file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_words(tmp_path, capsys, name):
    data, message = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    if message is None:
        nm.load_checkpoint(path)
    else:
        with pytest.raises(nm.CheckpointError, match=message) as caught:
            nm.load_checkpoint(path)
        assert str(path) in str(caught.value) and len(str(caught.value)) < 1000
    assert tracemalloc.get_traced_memory()[1] < len(data) * 20 + (1 << 21)
    tracemalloc.stop()
    for argv in (
        ["inspect", path],
        ["warmup", path, "--m", "1"],
        ["convert", path, tmp_path / "out", "--to", "awq"],
        ["convert", path, tmp_path / "o.safetensors", "--to", "awq"],
    ):
        assert cli.main([str(each) for each in argv]) == (
            0 if message is None and argv[0] == "inspect" else 2
        )
        errors = [
            line for line in capsys.readouterr().err.splitlines() if not line.endswith(" ...")
        ]
        assert (
            message is None
            or len(errors) == 1
            and errors[0].startswith(f"numba-marlin {argv[0]}: error: ")
        )
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_torch_files_beside_nothing_else_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as file:
        file.writestr("data.pkl", pickle.dumps(Evil()))
    with pytest.raises(
        nm.CheckpointError, match="holds no .safetensors file .pytorch_model.bin are not loaded"
    ):
        nm.load_checkpoint(tmp_path)
    with pytest.raises(nm.CheckpointError, match="a zip file, as PyTorch writes them"):
        nm.load_checkpoint(tmp_path / "pytorch_model.bin")


@pytest.fixture
def sharded(tmp_path):
    return nm.save_checkpoint(tmp_path / "model", small_model(3), "gptq", shard_bytes=6000)


def rewritten(directory, change):
    """The index with a change."""
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/secret.safetensors",
        "..\\secret.safetensors",
        "",
        ".",
        "..",
        "model.bin",
        5,
        None,
        ["model.safetensors"],
        "model\0.safetensors",
        "./model-00001-of-00003.safetensors",
        "..safetensors/../../secret.safetensors",
    ],
)
def test_indexes_cannot_lead_out_of_the_directory(tmp_path, sharded, monkeypatch, name):
    """Whatever is there: it is not even looked at."""
    (tmp_path / "secret.safetensors").write_bytes(file_bytes({}))
    rewritten(
        sharded,
        lambda index: index["weight_map"].update({"model.layers.0.mlp.up_proj.qweight": name}),
    )
    opened = []
    read = SafetensorsFile.__init__
    monkeypatch.setattr(
        SafetensorsFile, "__init__", lambda self, path: (opened.append(path), read(self, path))[1]
    )
    with pytest.raises(
        nm.CheckpointError, match="must be the name of a .safetensors file in the directory"
    ):
        nm.load_checkpoint(sharded)
    assert not opened


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("weight_map"), "weight_map must be an object"),
        (lambda index: index.update(weight_map=[]), "weight_map must be an object"),
        (
            lambda index: index["weight_map"].update(ghost="model-00001-of-00003.safetensors"),
            "tensor 'ghost' is in .* where it is not",
        ),
        (
            lambda index: index["weight_map"].update(ghost="ghost.safetensors"),
            "file 'ghost.safetensors' is missing",
        ),
        (
            lambda index: index["weight_map"].pop("model.layers.0.mlp.up_proj.scales"),
            "tensor 'model.layers.0.mlp.up_proj.scales' is not in the index",
        ),
        (
            lambda index: index["weight_map"].update(
                {"model.layers.0.mlp.up_proj.scales": "model-00002-of-00003.safetensors"}
            ),
            "where it is not",
        ),
    ],
)
def test_indexes_and_files_must_agree(sharded, change, message):
    rewritten(sharded, change)
    with pytest.raises(nm.CheckpointError, match=message):
        nm.load_checkpoint(sharded)


def test_a_shard_too_many_or_too_few(sharded):
    (sharded / "model.safetensors.index.json").rename(sharded / "index.json")
    assert len(nm.load_checkpoint(sharded)) == 3, "without an index all files count"
    first = sharded / "model-00001-of-00003.safetensors"
    (sharded / "again.safetensors").write_bytes(first.read_bytes())
    with pytest.raises(
        nm.CheckpointError, match="is in again.safetensors too, must be in one file"
    ):
        nm.load_checkpoint(sharded)
    (sharded / "again.safetensors").unlink()
    for name in ("a", "b"):
        (sharded / f"{name}.safetensors.index.json").write_text("{}")
    with pytest.raises(nm.CheckpointError, match="holds 2 indexes"):
        nm.load_checkpoint(sharded)


@pytest.mark.parametrize(
    "name", ["config.json", "quantize_config.json", "model.safetensors.index.json"]
)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a":1,"a":2}',
        b"\xff",
        b'{"a":' + b"[" * 100_000,
        b"PK\x03\x04",
    ],
)
def test_configurations_that_are_none_are_refused(tmp_path, sharded, name, text):
    (sharded / "config.json").unlink()
    (sharded / name).write_bytes(text)
    with pytest.raises(nm.CheckpointError, match=name.replace(".", r"\.")):
        nm.load_checkpoint(sharded)


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": 5},
        {"quantization_config": {"quant_method": ["x"], "checkpoint_format": {}}},
        {"text_config": 7},
    ],
)
def test_configurations_of_odd_types_say_nothing(sharded, config):
    (sharded / "config.json").write_text(json.dumps(config))
    assert {layer.form.name for layer in nm.load_checkpoint(sharded).layers.values()} == {"gptq"}


def gptq_file(path, **changed):
    """A file of one GPTQ layer with some tensors changed; None leaves one out."""
    from safetensors.numpy import save_file

    from numba_marlin.formats.files import find_stored

    tensors = find_stored("gptq").write(small_model(1)["model.layers.0.mlp.up_proj"]) | changed
    save_file(
        {
            f"up.{name}": np.ascontiguousarray(each)
            for name, each in tensors.items()
            if each is not None
        },
        path,
    )
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qweight": np.zeros((16, 64), np.int64)}, "qweight: dtype int64 must be int32"),
        ({"qweight": np.zeros((16, 64, 1), np.int32)}, r"qweight: shape \(16, 64, 1\)"),
        ({"qweight": np.zeros((16, 65), np.int32)}, "qweight: shape"),
        ({"qweight": np.zeros((0, 64), np.int32)}, "must not be empty"),
        ({"scales": np.zeros((4, 64), np.float32)}, "scales: dtype float32 must be"),
        ({"scales": np.zeros((4, 63), np.float16)}, "qzeros: .* must be a multiple of 63"),
        ({"scales": np.full((4, 64), np.nan, np.float16)}, r"scales\[0, 0\]=nan must be finite"),
        ({"g_idx": np.zeros(127, np.int32)}, "g_idx: shape"),
        ({"g_idx": np.full(128, 99, np.int32)}, r"g_idx must be in 0\.\.3"),
        ({"qzeros": np.zeros((4, 5), np.int32)}, "qzeros: 160 must be a multiple of 64"),
        ({"g_idx": np.arange(128, dtype=np.int32)[::-1] % 2}, "gives 64 rows to group 0"),
    ],
)
def test_layers_that_are_broken_are_named(tmp_path, changed, message):
    path = gptq_file(tmp_path / "up.safetensors", **changed)
    with pytest.raises(nm.CheckpointError, match=message) as caught:
        loaded = nm.load_checkpoint(path)
        [loaded[name] for name in loaded]
    assert str(path) in str(caught.value) and "'up'" in str(caught.value)
    with pytest.raises(ValueError):
        convert(path, tmp_path / "out", "awq")
    assert [each.name for each in tmp_path.iterdir()] == ["up.safetensors"]


def test_a_layer_with_a_tensor_missing_is_broken(tmp_path):
    for missing, beside in (
        ("scales", "g_idx, qweight, qzeros"),
        ("qzeros", "g_idx, qweight, scales"),
        ("qweight", "g_idx, qzeros, scales"),
    ):
        path = gptq_file(tmp_path / "up.safetensors", **{missing: None})
        with pytest.raises(
            nm.CheckpointError,
            match=(
                f"one of a quantised layer, but others of it are missing: there is {beside}|layer"
                " 'up': "
            ),
        ) as caught:
            nm.load_checkpoint(path)
        assert str(path) in str(caught.value)
        with pytest.raises(nm.CheckpointError, match="holds no layer of format 'gptq'"):
            nm.load_checkpoint(path, "gptq")


def test_a_file_of_plain_tensors_has_no_layers(tmp_path):
    from safetensors.numpy import save_file

    save_file(
        {"a.weight": np.ones((4, 4), np.float16), "a.weight_scale": np.ones(1, np.float32)},
        tmp_path / "plain.safetensors",
    )
    assert len(nm.load_checkpoint(tmp_path / "plain.safetensors")) == 0
    with pytest.raises(nm.CheckpointError, match="holds no quantised layer of a known format"):
        convert(tmp_path / "plain.safetensors", tmp_path / "out", "awq")


def test_time_does_not_grow_with_the_square_of_the_names(tmp_path):
    """Both took a minute or two."""
    begin = time.process_time()
    names = ",".join(f'"n{number}":1' for number in range(64_000))
    (tmp_path / "twice.safetensors").write_bytes(file_bytes(f'{{{names},"n63999":1}}'.encode()))
    with pytest.raises(nm.CheckpointError, match="'n63999' must stand there once"):
        nm.load_checkpoint(tmp_path / "twice.safetensors")
    fields = {
        f"{number}.{name}": F32
        | {"data_offsets": [16 * (4 * number + i), 16 * (4 * number + i + 1)]}
        for number in range(6_000)
        for i, name in enumerate(("a", "b", "c", "d"))
    }
    path = tmp_path / "many.safetensors"
    path.write_bytes(file_bytes(fields, bytes(16 * 24_000)))
    source = nm.load_checkpoint(path).source
    assert sum(source.entries[name].nbytes for name in source.entries) == 16 * 24_000
    assert time.process_time() - begin < 10
