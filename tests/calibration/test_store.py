"""Contract under test: Hessians come back from a file as they were, one at a time; a file is
complete or not there; a hostile one is refused by file, layer and rule."""

import json
import os
import stat
import struct
import weakref

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import numba_marlin as nm
from numba_marlin.calibration.store import METADATA, Hessians, Shared
from numba_marlin.quantizers.hessian import Hessian


def inputs(k, seed, rows=60):
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, k)) @ random.standard_normal((k, k))).astype(np.float32)


def hessian(k, seed):
    return nm.Hessian(k).add(inputs(k, seed))


@pytest.fixture
def kept():
    """q and k share an input."""
    qk = hessian(32, 0)
    return {"a.q": qk, "a.k": qk, "a.down": hessian(48, 1)}


def test_a_file_gives_back_what_was_written_bit_for_bit(tmp_path, kept):
    path = nm.save_hessians(tmp_path / "h.safetensors", kept)
    found = nm.load_hessians(path)
    assert set(found) == set(kept) and len(found) == 3 and "a.q" in found and "b" not in found
    for name, each in kept.items():
        assert found[name].rows == 60 and (found.k_of(name), found.rows_of(name)) == (each.k, 60)
        assert np.array_equal(found[name].mean(), each.mean())
    assert [each.layers for each in found.shared] == [("a.q", "a.k"), ("a.down",)]
    w = 0.02 * np.random.default_rng(2).standard_normal((32, 16))
    codes = [
        nm.quantize(w, group_size=16, method="gptq", calibration=each["a.k"]).codes
        for each in (kept, found)
    ]
    assert np.array_equal(*codes)
    again = nm.save_hessians(tmp_path / "again.safetensors", found)
    assert again.read_bytes() == path.read_bytes()
    assert list(tmp_path.glob("*.partial")) == []


def test_other_programs_can_read_it(tmp_path, kept):
    nm.save_hessians(tmp_path / "h.safetensors", kept)
    tensors = load_file(tmp_path / "h.safetensors")
    assert sorted(tensors) == ["a.down", "a.q"]
    x = inputs(48, 1).astype(np.float64)
    np.testing.assert_allclose(
        tensors["a.down"], (x.T @ x)[np.triu_indices(48)], rtol=1e-4, atol=1e-3
    )


def test_a_hessian_is_read_when_it_is_asked_for_and_the_last_is_kept(tmp_path, kept, monkeypatch):
    nm.save_hessians(tmp_path / "h.safetensors", kept)
    read, alive, real = [], [], Hessian.of_triangle

    def reading(k, *rest):
        assert not any(each() for each in alive)  # memory of one
        read.append(k)
        found = real(k, *rest)
        alive.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Hessian, "of_triangle", staticmethod(reading))
    found = nm.load_hessians(tmp_path / "h.safetensors")
    assert read == [] and found.nbytes == 8 * (32**2 + 48**2)
    shared = found["a.q"] is found["a.k"]
    assert shared and read == [32]
    sizes = [found[name].k for name in ("a.down", "a.q")]
    assert sizes == [48, 32] and read == [32, 48, 32]


def test_they_are_said_in_a_line_and_a_table(tmp_path, kept):
    found = nm.load_hessians(nm.save_hessians(tmp_path / "h.safetensors", kept))
    assert "3 layers with 2 inputs, 26 KiB" in repr(found) and "h.safetensors" in repr(found)
    assert "<td" in found._repr_html_() and "a.q, a.k" in found._repr_html_()
    with pytest.raises(KeyError, match=r"no Hessian of layer 'a\.dawn'; did you mean 'a\.down'\?"):
        found["a.dawn"]


@pytest.mark.parametrize(
    ("name", "what", "error", "message"),
    [
        ("h.npz", {"a": hessian(8, 0)}, ValueError, "must end in .safetensors"),
        ("h.safetensors", {}, ValueError, "no Hessians to write"),
        ("h.safetensors", {"a": nm.Hessian(8)}, ValueError, "layer 'a': the Hessian holds no rows"),
        ("h.safetensors", {"a": np.eye(8)}, TypeError, "layer 'a' has a ndarray, must be a Hess"),
        ("h.safetensors", {"__metadata__": hessian(8, 0)}, ValueError, "cannot be the name"),
        ("h.safetensors", {3: hessian(8, 0)}, TypeError, "name 3 is a int, must be a str"),
        ("gone/h.safetensors", {"a": hessian(8, 0)}, ValueError, "there is no directory"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(
    tmp_path, name, what, error, message
):
    with pytest.raises(error, match=message):
        nm.save_hessians(tmp_path / name, what)
    assert not list(tmp_path.iterdir())


def test_a_file_is_never_overwritten_and_never_half(tmp_path, kept, monkeypatch):
    path = nm.save_hessians(tmp_path / "h.safetensors", kept)
    before = path.read_bytes()
    never = Hessians([Shared(("a",), 8, 1, lambda: pytest.fail("read in vain"))])
    with pytest.raises(nm.CheckpointError, match="exists: remove it"):
        nm.save_hessians(path, never)

    def somebody_elses():
        (tmp_path / "other.safetensors").write_bytes(b"theirs")
        return kept["a.q"]

    with pytest.raises(nm.CheckpointError, match="other.safetensors exists"):
        late = Hessians([Shared(("a",), 32, 60, somebody_elses)])
        nm.save_hessians(tmp_path / "other.safetensors", late)
    assert (tmp_path / "other.safetensors").read_bytes() == b"theirs"
    (tmp_path / "other.safetensors").unlink()

    def broken(self):
        raise MemoryError

    monkeypatch.setattr(Hessian, "triangle", broken)
    with pytest.raises(MemoryError):
        nm.save_hessians(tmp_path / "other.safetensors", kept)
    assert [each.name for each in tmp_path.iterdir()] == ["h.safetensors"]
    assert path.read_bytes() == before


def test_what_is_written_is_on_the_disk(tmp_path, kept, monkeypatch):
    synced, real = [], os.fsync

    def fsync(descriptor):
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    nm.save_hessians(tmp_path / "h.safetensors", kept)
    assert synced == [False, True]  # the file, then its name


GOOD = [{"layers": ["a", "b"], "rows": 60}]


def written(path, said=GOOD, tensor=None, name="a"):
    tensor = hessian(8, 0).triangle() if tensor is None else tensor
    text = said if isinstance(said, str) else json.dumps(said)
    save_file({name: tensor}, path, {METADATA: text})
    return path


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('[{"rows": 1, "rows": 2}]', "'rows' must stand there once"),
        ([], "must be a list"),
        ({}, "must be a list"),
        ([["a"]], "must have layers"),
        ([{"layers": "ab", "rows": 1}], "must have layers"),
        ([{"layers": [], "rows": 1}], "must have layers"),
        ([{"layers": ["a", 3], "rows": 1}], "must have layers"),
        ([{"layers": ["a"], "rows": 1, "more": 1}], "must have layers"),
        ([{"layers": ["a"], "rows": 0}], "layer 'a': rows=0 must be 1 or more"),
        ([{"layers": ["a"], "rows": True}], "layer 'a': rows=True"),
        ([{"layers": ["a"], "rows": 1.5}], "layer 'a': rows=1.5"),
        ([{"layers": ["a"], "rows": 2**63}], "layer 'a': rows=9223372036854775808"),
        ([{"layers": ["b", "a"], "rows": 60}], "layer 'b': there is no such tensor"),
        ([*GOOD, *GOOD], "layer 'a' must stand there once"),
        ([{"layers": ["a", "a"], "rows": 60}], "layer 'a' must stand there once"),
    ],
)
def test_hostile_metadata_are_refused(tmp_path, said, message):
    path = written(tmp_path / "h.safetensors", said)
    with pytest.raises(nm.CheckpointError, match=message) as caught:
        nm.load_hessians(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "tensor",
    [
        np.ones(37),
        np.ones(0),
        np.ones((6, 6)),
        np.ones(36, np.float32),
        np.ones(36, np.int64),
        np.float64(1),
    ],
)
def test_tensors_that_are_no_triangle_are_refused(tmp_path, tensor):
    path = written(tmp_path / "h.safetensors", tensor=np.asarray(tensor))
    with pytest.raises(
        nm.CheckpointError, match=r"tensor 'a': .* must be F64 \[k \(k \+ 1\) / 2\]"
    ):
        nm.load_hessians(path)


def test_numbers_that_no_inputs_have_are_refused_when_they_are_read(tmp_path):
    values = hessian(8, 0).triangle()
    values[3] = np.nan
    found = nm.load_hessians(written(tmp_path / "h.safetensors", tensor=values))
    with pytest.raises(nm.CheckpointError, match=r"h\.safetensors: layer 'a': .*\[0, 3\]=nan"):
        found["b"]


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "h.safetensors"
    with pytest.raises(nm.CheckpointError, match="No such file"):
        nm.load_hessians(path)
    save_file({"a": np.ones(36)}, path)
    with pytest.raises(nm.CheckpointError, match="holds no Hessians: nm.save_hessians"):
        nm.load_hessians(path)
    save_file({"a": hessian(8, 0).triangle(), "c": np.ones(3)}, path, {METADATA: json.dumps(GOOD)})
    with pytest.raises(nm.CheckpointError, match="must name tensor 'c'"):
        nm.load_hessians(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(nm.CheckpointError, match="a zip file"):
        nm.load_hessians(path)
    text = b'{"__metadata__":{"numba_marlin.hessians":"\\ud800"}}'
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(nm.CheckpointError, match="not JSON of UTF-8"):
        nm.load_hessians(path)


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path):
    path = written(tmp_path / "h.safetensors")
    found = nm.load_hessians(path)
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(nm.CheckpointError, match="has changed since it was opened"):
        found["a"]


def damaged(data, random):
    """A file with a few bytes changed, or a piece of its header cut out or put in."""
    data, numbers = bytearray(data), 8 + struct.unpack("<Q", data[:8])[0]
    header = len(data[:numbers].rstrip())
    for _ in range(random.integers(1, 4)):
        if random.random() < 0.5:
            data[random.integers(numbers, len(data) - 9)] = random.integers(256)
            continue
        place, kind = int(random.integers(header)), random.integers(4)
        if kind == 0:
            del data[place : place + int(random.integers(1, 9))]
        elif kind == 1:
            data[place:place] = bytes(random.choice(list(b'0123456789{}[]",:-e\\u'), 2).tolist())
        elif kind == 2:
            data[place] = random.integers(256)
        else:
            data[place] ^= 1 << int(random.integers(8))
    return bytes(data)


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(3000), marks=pytest.mark.thorough)]
)
def test_a_damaged_file_is_refused_or_holds_what_inputs_may_have(tmp_path, kept, seeds):
    good = nm.save_hessians(tmp_path / "h.safetensors", kept).read_bytes()
    path, refused = tmp_path / "damaged.safetensors", 0
    for seed in seeds:
        path.write_bytes(damaged(good, np.random.default_rng(seed)))
        try:
            found = nm.load_hessians(path)
            for name in found:
                mean = found[name]._mean()
                root = np.sqrt(np.diagonal(mean))
                assert (np.abs(mean) <= 1.001 * np.outer(root, root)).all()
                assert found[name].rows > 0
        except nm.CheckpointError as error:
            refused += 1
            assert str(path) in str(error) and len(str(error)) < 1000
    assert len(seeds) / 4 < refused < len(seeds)  # else it is no test of what is read
