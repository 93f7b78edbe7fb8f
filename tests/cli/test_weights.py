"""Contract under test: a weight file that somebody else made is read as it is meant, or refused in
one line, never with a crash."""

import json
import pickle
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from numba_marlin.cli import main as cli
from numba_marlin.cli.weights import load

W = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)


def test_npy_files_are_read_and_transposed(tmp_path):
    for array in (W, W.astype(np.float16), np.asfortranarray(W), W.astype(">f4")):
        np.save(tmp_path / "w.npy", array)
        assert np.array_equal(load(str(tmp_path / "w.npy")).values, array)
        assert np.array_equal(load(str(tmp_path / "w.npy"), transpose=True).values, array.T)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_safetensors_are_read(tmp_path, dtype):
    path = str(tmp_path / "w.safetensors")
    save_file(
        {"bias": np.ones(64, dtype), "weight": W.astype(dtype)}, path, metadata={"by": "test"}
    )
    weight = load(path)
    assert weight.values.dtype == dtype and np.array_equal(weight.values, W.astype(dtype))
    assert weight.source == f"{path}:weight", "the only matrix needs no --tensor"


def test_bfloat16_becomes_float32_bit_for_bit(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = str(tmp_path / "w.safetensors")
    values = np.random.default_rng(0).standard_normal((16, 64)).astype(ml_dtypes.bfloat16)
    save_file({"w": values}, path)
    assert np.array_equal(load(path).values, values.astype(np.float32))


def test_several_matrices_need_a_choice(tmp_path):
    path = str(tmp_path / "w.safetensors")
    save_file({f"layer{i}": W for i in range(25)}, path)
    assert load(path, "layer7").source.endswith(":layer7")
    with pytest.raises(
        ValueError,
        match=r"holds 25 matrices; choose one with --tensor: layer0, layer1,.* and 5 more",
    ):
        load(path)
    with pytest.raises(ValueError, match="--tensor nothing is not in"):
        load(path, "nothing")


def npy_bytes(array=W, **changes):
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | changes
    text = (repr(header) + "\n").encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes()


def safetensors_bytes(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was loaded')",))


HOSTILE = {
    "empty.npy": b"",
    "text.npy": b"hello",
    "truncated.npy": npy_bytes()[:-1],
    "short_header.npy": npy_bytes()[:20],
    "huge_shape.npy": npy_bytes(shape=(2**40, 2**20)),
    "negative_shape.npy": npy_bytes(shape=(-128, 64)),
    "code_shape.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", 24) + b"__import__('os').exit(1)",
    "objects.npy": npy_bytes(descr="|O"),
    "pickle.npy": pickle.dumps(Evil()),
    "zip.npy": b"PK\x03\x04" + b"\0" * 40,
    "vector.npy": npy_bytes(shape=(128 * 64,)),
    "nothing.npy": npy_bytes(np.zeros((0, 64), np.float32)),
    "integers.npy": npy_bytes(W.astype(np.int64)),
    "complex.npy": npy_bytes(W.astype(np.complex64)),
    "nan.npy": npy_bytes(np.full_like(W, np.nan)),
    "empty.safetensors": b"",
    "garbage.safetensors": b"garbage" * 10,
    "huge_header.safetensors": struct.pack("<Q", 2**62),
    "not_json.safetensors": struct.pack("<Q", 5) + b"{{{{{",
    "offsets.safetensors": safetensors_bytes(
        {"w": {"dtype": "F32", "shape": [128, 64], "data_offsets": [0, 2**40]}}
    ),
    "overlap.safetensors": safetensors_bytes(
        {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8]}}, b"\0" * 8
    ),
    "negative.safetensors": safetensors_bytes(
        {"w": {"dtype": "F32", "shape": [-1, 2], "data_offsets": [0, 8]}}, b"\0" * 8
    ),
    "no_tensor.safetensors": safetensors_bytes({}),
    "integers.safetensors": safetensors_bytes(
        {"w": {"dtype": "I32", "shape": [2, 2], "data_offsets": [0, 16]}}, b"\0" * 16
    ),
    "nothing.safetensors": safetensors_bytes(
        {"w": {"dtype": "F32", "shape": [0, 2], "data_offsets": [0, 0]}}
    ),
    "other.bin": b"anything",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_odd_files_are_exit_code_2_and_one_line(tmp_path, capsys, name):
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    out = tmp_path / "y.npy"
    assert (
        cli.main(["run", "--backend", "reference", "--input", str(path), "--save", str(out)]) == 2
    )
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if not line.endswith(" ...")]
    assert len(errors) == 1 and errors[0].startswith("numba-marlin run: error: ")
    assert not out.exists()


def test_a_good_file_of_the_same_make_is_accepted(tmp_path, capsys):
    """The hostile files above fail for what is wrong with them, not for how they were made."""
    (tmp_path / "w.npy").write_bytes(npy_bytes())
    data = W.tobytes()
    (tmp_path / "w.safetensors").write_bytes(
        safetensors_bytes(
            {"w": {"dtype": "F32", "shape": [128, 64], "data_offsets": [0, len(data)]}}, data
        )
    )
    for name in ("w.npy", "w.safetensors"):
        assert cli.main(["run", "--backend", "reference", "--input", str(tmp_path / name)]) == 0, (
            capsys.readouterr().err
        )


def test_a_torch_linear_weight_is_transposed(tmp_path, capsys):
    np.save(tmp_path / "w.npy", np.ascontiguousarray(W.T))
    argv = ["run", "--backend", "reference", "--input", str(tmp_path / "w.npy"), "--json"]
    assert cli.main([*argv, "--transpose"]) == 0
    assert json.loads(capsys.readouterr().out)["weight"]["k"] == 128
