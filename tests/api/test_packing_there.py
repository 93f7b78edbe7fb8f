"""Contract under test: ``pack(q, place=...)`` makes a weight whose arrays are born on the device,
``unpack`` takes one apart there, and what they do not do there is done on the host. Without a GPU
devices are played by host memory and the kernels run on the PTX machine (tests/kernels/
test_packing.py has the kernels themselves)."""

import logging
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.api import packing as api
from numba_marlin.compiler import MissingCompiler
from numba_marlin.execution import driver, packing, residence
from numba_marlin.formats.residence import arrays_of
from numba_marlin.formats.stored import StoredWeight
from numba_marlin.formats.streams import Stream
from numba_marlin.kernels.packing import PACK, READ_WORDS, UNPACK, CodeBits
from numba_marlin.testing import launches

K, N = 64, 72
KINDS = ("int4", "int8", "zeros", "float_zeros", "ordered")


def weight(kind, k=K, n=N):
    w = np.random.default_rng(0).standard_normal((k, n), np.float32)
    bits = 8 if kind == "int8" else 4
    q = nm.quantize(w, bits=bits, group_size=32, symmetric=kind != "zeros")
    if kind == "float_zeros":
        q = replace(q, zeros=np.full(q.scales.shape, 7.5, np.float16))
    if kind == "ordered":
        q = replace(q, permutation=np.random.default_rng(1).permutation(k).astype(np.int32))
    return q


class There:
    """An array that claims to be on a device."""

    def __init__(self, array, device):
        self.array, self.device = np.ascontiguousarray(array), device
        self.shape, self.dtype = array.shape, array.dtype
        self.__cuda_array_interface__ = {
            "typestr": array.dtype.str,
            "shape": array.shape,
            "strides": None,
            "data": (self.array.ctypes.data, False),
            "version": 3,
        }

    def to_host(self):
        return self.array


@pytest.fixture
def played(monkeypatch):
    """Device 1, played; -> the definitions that ran there."""
    ran = []

    def on_machine(definition, config, k, n, **given):
        ran.append(definition)
        prepared = launches.Prepared.of(
            packing.binding(definition, config, k, n, launches.TARGET, given)
        )
        launches.on_machine(prepared)
        (written,) = prepared.binding.written
        return prepared.buffers[written]

    def pack_codes(codes, bits, ordinal):
        return There(on_machine(PACK, CodeBits(bits), *codes.shape, codes=codes), ordinal)

    def pack_words(words, form, k, n, ordinal, rows):
        place = np.arange(k) if rows is None else np.argsort(rows)
        given = {"words": words, "rows": place.astype(np.int32)}
        codes = on_machine(READ_WORDS, form, k, n, **given)
        return There(on_machine(PACK, CodeBits(form.bits), k, n, codes=codes), ordinal)

    def unpack_codes(qweight, bits, n):
        k = 16 * qweight.shape[0]
        words = qweight.array
        return on_machine(UNPACK, CodeBits(bits), k, n, words=words).view(np.uint8)

    def uploader(place, library=None):
        return lambda array: There(array, residence.ordinal_of(place))

    monkeypatch.setattr(packing, "pack_codes", pack_codes)
    monkeypatch.setattr(packing, "pack_words", pack_words)
    monkeypatch.setattr(packing, "unpack_codes", unpack_codes)
    monkeypatch.setattr(residence, "uploader", uploader)
    monkeypatch.setattr(api, "_MANY_ON_DEVICE", K * N)
    return ran


def assert_same(p, q):
    """Two packed weights, byte for byte."""
    assert arrays_of(p).keys() == arrays_of(q).keys()
    p, q = p.to("cpu"), q.to("cpu")
    for name, array in arrays_of(p).items():
        assert array.tobytes() == getattr(q, name).tobytes(), name
    assert (p.k, p.n, p.bits, p.group_size) == (q.k, q.n, q.bits, q.group_size)


def assert_unpacked(back, q):
    for name in ("codes", "scales", "zeros", "permutation"):
        here, there = getattr(q, name), getattr(back, name)
        assert (here is None) == (there is None), name
        assert here is None or (isinstance(there, np.ndarray) and np.array_equal(there, here)), name
    assert (back.bits, back.group_size) == (q.bits, q.group_size)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_born_where_it_shall_be(played, kind):
    q = weight(kind)
    p = nm.pack(q, place="cuda:1")
    assert p.place == "cuda:1" and played == [PACK]
    assert_same(p, nm.pack(q))
    assert_unpacked(nm.unpack(p), q)
    assert played == [PACK, UNPACK]


def test_the_host_packs_what_is_small_and_fp4(played):
    small = nm.pack(weight("int4", K, N - 8), place="cuda:1")
    blocks = nm.pack(nm.quantize(np.ones((K, N)), format="nvfp4"), place="cuda:1")
    assert (small.place, blocks.place, played) == ("cuda:1", "cuda:1", [])
    assert_same(small, nm.pack(weight("int4", K, N - 8)))
    assert nm.unpack(small).n == N - 8 and nm.unpack(blocks).n == N and not played


def test_without_a_compiler_the_host_does_it_and_says_so(played, monkeypatch, caplog):
    def missing(*arguments):
        raise MissingCompiler("no compiler, says the test")

    q = weight("int4")
    p = nm.pack(q, place="cuda:1")
    monkeypatch.setattr(packing, "pack_codes", missing)
    monkeypatch.setattr(packing, "unpack_codes", missing)
    with caplog.at_level(logging.WARNING, "numba_marlin"):
        assert_same(nm.pack(q, place="cuda:1"), p)
        assert_unpacked(nm.unpack(p), q)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("on the host, not on cuda:1: no compiler" in s for s in said)


def test_the_host_is_a_place_too():
    q = weight("int4")
    for place in (None, "cpu"):
        p = nm.pack(q, place=place)
        assert p.place == "cpu" and isinstance(p.qweight, np.ndarray)


# ---- words of files


def written(path, q, form):
    file = path / f"{len(list(path.iterdir()))}.safetensors"
    nm.save_checkpoint(file, {"layer": q}, format=form, allow_loss=form == "awq")
    return nm.load_checkpoint(file)


FILES = (
    ("gptq", "int4"),
    ("gptq", "int8"),
    ("gptq_v2", "zeros"),
    ("gptq", "ordered"),
    ("awq", "zeros"),
    ("awq", "ordered"),
    ("pack-quantized", "int8"),
    ("pack-quantized", "ordered"),
)


@pytest.mark.parametrize("form, kind", FILES)
def test_words_of_a_file_are_packed_where_they_shall_be(played, tmp_path, form, kind, monkeypatch):
    model = written(tmp_path, weight(kind), form)
    expected = nm.pack(model["layer"])
    stored = model.stored("layer")
    assert_same(nm.pack(stored), expected)
    assert_same(nm.pack(stored, place="cpu"), expected)
    assert not played
    monkeypatch.setattr(StoredWeight, "read", None)  # the host reads no code
    p = nm.pack(stored, place="cuda:1")
    assert p.place == "cuda:1" and played == [READ_WORDS, PACK]
    assert_same(p, expected)


def test_the_host_reads_what_the_kernels_do_not(played, tmp_path, monkeypatch):
    """Codes of 3 bits are refused as they are on the host; of formats without words of codes the
    checkpoint gives the weight itself; small ones, and those without a compiler, are read here."""
    q = nm.quantize(np.random.default_rng(0).standard_normal((K, 64), np.float32), group_size=32)
    three = replace(q, codes=q.codes >> 1, bits=3)
    with pytest.raises(ValueError, match="bits=3 must be one of"):
        nm.pack(written(tmp_path, three, "gptq").stored("layer"), place="cuda:1")
    model = written(tmp_path, q, "gptq")
    assert_same(nm.pack(model.stored("layer"), place="cuda:1"), nm.pack(q))  # less than K * N
    assert isinstance(written(tmp_path, nm.pack(q), "vllm-marlin").stored("layer"), nm.PackedWeight)
    blocks = nm.quantize(np.ones((K, 64)), format="nvfp4")
    assert isinstance(written(tmp_path, blocks, "modelopt-nvfp4").stored("layer"), nm.BlockWeight)
    assert not played


def stored(**changes):
    made = nm.QuantizedWeight(
        np.ones((32, 64), np.uint8), np.ones((2, 64), np.float16), None, 4, 16
    )
    packing = changes.pop("packing", Stream("k", "k"))
    found = {
        "words": packing.pack(made.codes, 4),
        "scales": made.scales,
        "zeros": None,
        "bits": 4,
        "group_size": 16,
        "k": 32,
        "n": 64,
    }
    return StoredWeight(packing=packing, **found | changes)


@pytest.mark.parametrize(
    "changes, message",
    (
        ({"scales": np.full((2, 64), np.nan, np.float16)}, r"scales\[0, 0\]=nan must be finite"),
        ({"scales": np.ones((1, 64), np.float16)}, r"scales.shape=\(1, 64\) must be \(groups, n\)"),
        ({"zeros": np.ones((1, 64), np.uint8)}, r"zeros.shape=\(1, 64\) must be scales.shape"),
        (
            {"words": np.ones((3, 64), np.int32)},
            r"words is int32 \(3, 64\), must be int32 \(4, 64\)",
        ),
        ({"words": np.ones((4, 64), np.int8)}, r"words is int8 \(4, 64\), must be int32 \(4, 64\)"),
        ({"rows": np.zeros(32, np.int32)}, "permutation must hold every row number from 0 to 31"),
        ({"permutation": np.full(32, 99, np.int32)}, "permutation must hold every row number"),
        ({"group_size": 24}, "group_size=24"),
        ({"bits": 5}, "bits=5"),
    ),
)
def test_words_that_make_no_weight_never_reach_a_device(changes, message):
    """What a device holds is not looked at any more: a file's NaN, or a row that is not there, must
    be found before."""
    assert stored().k == 32
    with pytest.raises(ValueError, match=message):
        stored(**changes)


def test_a_stored_weight_says_what_it_is():
    assert repr(stored()) == (
        "<StoredWeight [k=32, n=64], 4 bits, groups of 16 rows, symmetric, scales float16;"
        " 1.25 KiB on the host>"
    )


@pytest.mark.parametrize(
    "q, place, error, message",
    (
        (weight("int4"), "gpu", ValueError, "place='gpu' must be 'cpu', 'cuda' or 'cuda:N'"),
        (weight("int4"), True, ValueError, "place=True must be"),
        (np.zeros((16, 64)), "cuda", TypeError, "weight is a ndarray, must be a QuantizedWeight"),
        (
            nm.QuantizedWeight(np.zeros((16, 12), np.uint8), np.ones((1, 12), np.float16), None, 4),
            "cuda",
            ValueError,
            "n=12 must be a positive multiple of 8",
        ),
        (
            StoredWeight(
                np.zeros((3, 64), np.int32),
                Stream("k", "k"),
                4,
                np.ones((1, 64), np.float16),
                None,
                -1,
                24,
                64,
            ),
            "cuda",
            ValueError,
            "k=24 must be a positive multiple of 16",
        ),
    ),
)
def test_what_cannot_be_packed_is_refused_before_a_device_is_asked(
    monkeypatch, q, place, error, message
):
    monkeypatch.setattr(residence, "uploader", None)
    with pytest.raises(error, match=message):
        nm.pack(q, place=place)


def test_a_device_that_is_not_there_is_named(run_on):
    if run_on == "cuda":
        with pytest.raises(ValueError, match="device=99 must be below"):
            nm.pack(weight("int4"), place="cuda:99")
    elif driver.probe().usable:
        pytest.skip("there is one: run it with --run-on cuda")
    else:
        with pytest.raises(nm.CapabilityMissing, match="NVIDIA|cuda-bindings"):
            nm.pack(weight("int4"), place="cuda")


# ---- on a GPU


@pytest.mark.parametrize("library", ("own", "torch", "cupy"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_packs_and_unpacks(run_on, kind, library, monkeypatch):
    if run_on != "cuda":
        pytest.skip("needs a GPU: run it with --run-on cuda")
    if library != "own":
        pytest.importorskip(library)
    q, ran = weight(kind, 1024, 1032), []
    real = packing.enqueue
    monkeypatch.setattr(packing, "enqueue", lambda *given: (ran.append(given[0]), real(*given)))
    monkeypatch.setattr(residence, "_library", lambda name: library)
    p = nm.pack(q, place="cuda:0")
    assert type(p.qweight).__module__.partition(".")[0] == {"own": "numba_marlin"}.get(
        library, library
    )
    assert p.place == "cuda:0" and p.copies == {}
    assert_same(p, nm.pack(q))
    assert_unpacked(nm.unpack(p), q)
    assert ran == [PACK, UNPACK]
    x = np.random.default_rng(2).standard_normal((3, 1024)).astype(np.float16)
    if kind in ("int4", "zeros"):
        assert np.array_equal(nm.matmul(x, p), nm.matmul(x, nm.pack(q)))


@pytest.mark.parametrize("form, kind", FILES)
def test_a_gpu_packs_the_words_of_a_file(run_on, tmp_path, form, kind, monkeypatch):
    if run_on != "cuda":
        pytest.skip("needs a GPU: run it with --run-on cuda")
    model = written(tmp_path, weight(kind, 1024, 1032), form)
    expected = nm.pack(model["layer"])
    monkeypatch.setattr(StoredWeight, "read", None)
    p = nm.pack(model.stored("layer"), place="cuda:0")
    assert p.place == "cuda:0"
    assert_same(p, expected)
