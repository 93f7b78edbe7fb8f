"""Contract under test: no damage to a file of weights does more than being refused in words: bits
flipped, pieces cut off or patched, headers of any JSON."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numba_marlin as nm
from numba_marlin.checkpoints.source import Source
from numba_marlin.formats.files import STORED
from tests.checkpoints.models import file_bytes


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """One small file of every format, as bytes."""
    directory = tmp_path_factory.mktemp("good")
    from tests.formats import layers

    files = []
    for form in STORED.values():
        model = {"layer": form.read(layers.random_layer(form, form.test_geometries[-1], 1))}
        files.append(
            nm.save_checkpoint(
                directory / f"{form.name}.safetensors", model, form.name
            ).read_bytes()
        )
    return directory / "fuzzed.safetensors", files


def survives(path, data):
    """Reading it whole gives weights or a CheckpointError that names the file, in little memory."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        loaded = nm.load_checkpoint(path)
        for name in loaded:
            loaded[name]
    except nm.CheckpointError as error:
        assert str(path) in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 40 * len(data) + (1 << 21)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_bits_may_be_flipped_anywhere(good, data):
    path, files = good
    file = bytearray(data.draw(st.sampled_from(files)))
    end = 8 + file.index(b"}}", 8) if data.draw(st.booleans(), "header alone") else len(file)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, end - 1))
        file[position] ^= 1 << data.draw(st.integers(0, 7))
    survives(path, bytes(file))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_files_may_be_cut_off_or_patched_anywhere(good, data):
    path, files = good
    file = data.draw(st.sampled_from(files))
    cut = data.draw(st.integers(0, len(file)))
    survives(
        path,
        file[:cut]
        + data.draw(st.binary(max_size=40))
        + (file[cut:] if data.draw(st.booleans()) else b""),
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["F16", "I32", "BF16", "gptq", "", "../x"])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["dtype", "shape", "data_offsets", "__metadata__", "a.qweight", "a.scales"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
NAMES = [
    "a.qweight",
    "a.scales",
    "a.qzeros",
    "a.g_idx",
    "a.weight_shape",
    "a.weight_packed",
    "a.weight_scale",
    "__metadata__",
]


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), st.binary(max_size=64))
@settings(max_examples=40, deadline=None)
def test_headers_may_be_any_json(good, fields, data):
    survives(good[0], file_bytes(fields, data))


SIZES = st.lists(st.sampled_from([0, 1, 2, 8, 16, 32, 64]), max_size=3)


@given(st.sampled_from(list(STORED.values())), st.data())
@settings(max_examples=100, deadline=None)
def test_well_formed_files_of_ill_fitting_tensors(good, form, data):
    """The header is right to the last byte, so that it is the format's rules that are met: any
    types, any shapes, any bytes."""
    fields, position = {}, 0
    sizes = {
        "F16": 2,
        "BF16": 2,
        "F32": 4,
        "I32": 4,
        "I64": 8,
        "U8": 1,
        "F8_E4M3": 1,
        "F8_E8M0": 1,
        "F64": 8,
    }
    for name in [*form.keys, *data.draw(st.sets(st.sampled_from([*form.optional, "bias"])))]:
        code, shape = data.draw(st.sampled_from(list(sizes))), data.draw(SIZES)
        nbytes = sizes[code] * int(np.prod(shape))
        fields[f"layer.{name}"] = {
            "dtype": code,
            "shape": shape,
            "data_offsets": [position, position + nbytes],
        }
        position += nbytes
    contents = (
        np.random.default_rng(data.draw(st.integers(0, 99)))
        .integers(0, 256, position, dtype=np.uint8)
        .tobytes()
    )
    survives(good[0], file_bytes(fields, contents))


def test_single_bits_of_a_whole_header(good, thorough):
    """Exhaustively, every bit of the first 8 bytes and of 20 more; all of the file with
    --thorough."""
    path, files = good
    file = files[0]
    for position in range(len(file) if thorough else 28):
        for bit in range(8):
            flipped = bytearray(file)
            flipped[position] ^= 1 << bit
            survives(path, bytes(flipped))


def test_a_file_of_the_same_make_is_accepted(good):
    """What is refused above is refused for what was changed."""
    path, files = good
    for file in files:
        path.write_bytes(file)
        assert len(nm.load_checkpoint(path)) == 1 and Source(path).quantization
