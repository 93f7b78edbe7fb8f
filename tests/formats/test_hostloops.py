"""Contract under test: the compiled loops give the bytes of the NumPy specification."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

from numba_marlin import hostloops, testing
from numba_marlin.formats import marlin


# 512 columns are one piece of work: a whole one, one and a bit, less than one, and several rows of
# blocks; then columns that do not fill a block, in the first piece, in a piece of their own, and
# beside whole blocks.
@pytest.mark.thorough
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("k", "n"),
    [
        (16, 64),
        (16, 512),
        (48, 576),
        (32, 1984),
        (160, 128),
        (32, 8),
        (16, 520),
        (48, 1016),
        (32, 72),
    ],
)
def test_compiled_bytes_equal_the_specification(k, n, bits):
    codes = testing.make_codes("uniform", k, n, seed=k + n, bits=bits)
    words = hostloops.pack_marlin_codes(codes, bits)
    assert words.dtype == np.int32
    assert np.array_equal(words, marlin.pack_codes(codes, bits))
    assert np.array_equal(hostloops.unpack_marlin_codes(words, bits, n), codes)
    assert np.array_equal(
        hostloops.unpack_marlin_codes(words, bits), marlin.unpack_codes(words, bits)
    )


@given(testing.quantized_weights(testing.problems(**testing.EVERY_SHAPE), **testing.EVERY_TYPE))
@settings(max_examples=20, deadline=None)
def test_compiled_round_trip_is_exact(weight):
    packed = hostloops.pack_marlin(weight)
    specified = marlin.pack(weight)
    assert np.array_equal(packed.qweight, specified.qweight)
    assert np.array_equal(packed.scales.view(np.uint16), specified.scales.view(np.uint16))
    back = hostloops.unpack_marlin(packed)
    assert np.array_equal(back.codes, weight.codes) and back.group_size == weight.group_size
    assert (back.bits, back.n, back.scale_dtype, back.zeros_kind) == (
        weight.bits,
        weight.n,
        weight.scale_dtype,
        weight.zeros_kind,
    )
    assert weight.symmetric or np.array_equal(back.zeros, weight.zeros)


def test_read_only_and_strided_input_is_accepted():
    codes = testing.make_codes("uniform", 64, 256, seed=1)
    strided = codes[::2, ::2]
    codes.setflags(write=False)
    assert np.array_equal(
        hostloops.pack_marlin_codes(strided), marlin.pack_codes(np.ascontiguousarray(strided))
    )
    assert np.array_equal(hostloops.pack_marlin_codes(codes), marlin.pack_codes(codes))


def test_threads_may_pack_at_the_same_time():
    inputs = [testing.make_codes("uniform", 128, 512, seed) for seed in range(4)]
    results = [None] * len(inputs)

    def work(index):
        results[index] = hostloops.pack_marlin_codes(inputs[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for codes, words in zip(inputs, results):
        assert np.array_equal(words, marlin.pack_codes(codes))


def test_wrong_arrays_are_refused():
    with pytest.raises(TypeError, match="codes is int8"):
        hostloops.pack_marlin_codes(np.zeros((16, 64), np.int8))
    with pytest.raises(ValueError, match="k=17"):
        hostloops.pack_marlin_codes(np.zeros((17, 64), np.uint8))
    with pytest.raises(ValueError, match="2 dimensions"):
        hostloops.pack_marlin_codes(np.zeros(64, np.uint8))
    with pytest.raises(TypeError, match="qweight is list"):
        hostloops.unpack_marlin_codes([1])
    with pytest.raises(ValueError, match="n=12 must be a positive multiple of 8"):
        hostloops.pack_marlin_codes(np.zeros((16, 12), np.uint8))
    with pytest.raises(ValueError, match="bits=2"):
        hostloops.pack_marlin_codes(np.zeros((16, 64), np.uint8), 2)
    for columns, bits in ((64, 4), (127, 4), (128, 8)):
        with pytest.raises(ValueError, match=rf"qweight.shape=\(1, {columns}\) must be"):
            hostloops.unpack_marlin_codes(np.zeros((1, columns), np.int32), bits)
    for n in (64, 136):
        with pytest.raises(ValueError, match=f"n={n} must be 128 or up to 63 less"):
            hostloops.unpack_marlin_codes(np.zeros((1, 256), np.int32), 4, n)


def test_only_marlin_is_unpacked():
    with pytest.raises(ValueError, match="layout='other' must be 'marlin'"):
        hostloops.unpack_marlin(SimpleNamespace(layout="other"))


FORKS = """
import os, sys
import numpy as np
from numba_marlin.hostloops import pack_marlin_codes, unpack_marlin_codes

codes = np.arange(1 << 20, dtype=np.uint32).astype(np.uint8).reshape(1024, 1024) & 15
words = pack_marlin_codes(codes)  # by several threads
child = os.fork()
if child == 0:
    same = np.array_equal(pack_marlin_codes(codes), words)
    os._exit(0 if same and np.array_equal(unpack_marlin_codes(words), codes) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_packs_after_its_parent_has():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
