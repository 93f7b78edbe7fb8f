"""Contract under test: the kernels that pack and unpack give the bytes of ``formats.marlin``, for
every shape that the format has, and touch nothing else: on the PTX machine with every trap set (the
result poisoned, memory around each array not mapped, races looked for), or on a GPU between guard
bands (``--run-on cuda``)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin.compiler import COMPILERS
from numba_marlin.counts import count
from numba_marlin.emulator import Machine
from numba_marlin.execution import packing
from numba_marlin.execution.machine import set_up
from numba_marlin.formats import marlin
from numba_marlin.formats.gptq import AWQ_ORDER
from numba_marlin.formats.streams import MarlinCodes, Stream
from numba_marlin.kernels import registry
from numba_marlin.kernels.packing import PACK, READ_WORDS, UNPACK, CodeBits, FileWords
from numba_marlin.testing import launches
from numba_marlin.testing.weights import make_codes
from tests.kernels.harness import on_gpu, target_of


def run(definition, config, k, n, run_on, compiler=COMPILERS[0], **given):
    """What a definition writes: int32 words."""
    prepared = launches.Prepared.of(
        packing.binding(definition, config, k, n, target_of(run_on), given, compiler)
    )
    (written,) = prepared.binding.written
    if run_on == "cuda":
        return on_gpu(prepared).launched().collect()[written]
    launches.on_machine(prepared, races=True)
    return prepared.buffers[written]


def check(k, n, bits, run_on, kind="uniform", compiler=COMPILERS[0]):
    codes = make_codes(kind, k, n, seed=k + n, bits=bits)
    words = run(PACK, CodeBits(bits), k, n, run_on, compiler, codes=codes)
    assert np.array_equal(words, marlin.pack_codes(codes, bits))
    back = run(UNPACK, CodeBits(bits), k, n, run_on, compiler, words=words)
    assert np.array_equal(back.view(np.uint8), codes)


# a thread block has 256 columns: one that has more, all, one warp's, and part of one warp's
@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize(
    "k, n", ((16, 64), (16, 256), (48, 320), (32, 8), (32, 72), (16, 264), (16, 248), (16, 520))
)
def test_bytes_equal_the_specification(k, n, bits, run_on):
    check(k, n, bits, run_on)


@pytest.mark.parametrize("bits", (4, 8))
def test_each_code_goes_to_its_own_place_and_back(bits, run_on):
    """All codes are the least, or the greatest, but for one row or column of others."""
    least, greatest = np.zeros((16, 72), np.uint8), np.full((16, 72), (1 << bits) - 1, np.uint8)
    for codes, other in ((least, greatest), (greatest, least)):
        for place in (np.s_[5], np.s_[:, 8], np.s_[:, 71]):
            codes = codes.copy()
            codes[place] = other[place]
            words = run(PACK, CodeBits(bits), 16, 72, run_on, codes=codes)
            assert np.array_equal(words, marlin.pack_codes(codes, bits))
            back = run(UNPACK, CodeBits(bits), 16, 72, run_on, words=words)
            assert np.array_equal(back.view(np.uint8), codes)


@settings(max_examples=15)
@given(st.integers(1, 6), st.integers(1, 90), st.sampled_from((4, 8)))
def test_every_shape_is_packed_and_unpacked(run_on, k16_rows, tiles, bits):
    check(16 * k16_rows, 8 * tiles, bits, run_on)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", (4, 8))
def test_the_other_compiler_makes_the_same(bits, run_on):
    pytest.importorskip("numba_cuda_mlir")
    check(32, 72, bits, run_on, compiler=COMPILERS[1])


def test_columns_past_n_decode_to_zero(run_on):
    for bits in (4, 8):
        codes = np.zeros((16, 8), np.uint8)
        words = run(PACK, CodeBits(bits), 16, 8, run_on, codes=codes)
        plain = marlin.unpack_codes(words, bits)
        assert (plain[:, 8:] == 1 << (bits - 1)).all() and not plain[:, :8].any()


@pytest.mark.parametrize("definition, bits", [(d, b) for d in (PACK, UNPACK) for b in (4, 8)])
def test_memory_is_touched_in_whole_sectors(definition, bits):
    """Words: each sector once. Codes: an instruction of ``pack`` takes half of each of its sectors,
    the next the other half, out of L1; ``unpack`` stores whole ones, for only L2 puts stores
    together. That is what speed is to be expected from."""
    k, n = 32, 256
    codes = make_codes("uniform", k, n, seed=1, bits=bits)
    given = {"codes": codes, "words": marlin.pack_codes(codes, bits)}
    del given["words" if definition is PACK else "codes"]
    binding = packing.binding(definition, CodeBits(bits), k, n, launches.TARGET, given)
    machine = Machine(binding.compiled.ptx)
    _, counts = count(machine, **set_up(binding, machine=machine).launch)
    for name, times in (("words", 1), ("codes", 2 if definition is PACK else 1)):
        buffer = counts.buffer(name)
        sectors = buffer.nbytes // 32
        assert buffer.reads.sectors + buffer.writes.sectors == times * sectors, name


# ---- words of files

STREAMS = {
    "along_k": Stream("k", "k"),
    "transposed": Stream("k", "n"),
    "interleaved": Stream("n", "k", order=AWQ_ORDER),
}


def check_read(order, bits, k, n, run_on, compiler=COMPILERS[0]):
    stream, config = STREAMS[order], FileWords(bits, order)
    assert packing.file_words(stream, bits) == config
    codes = make_codes("uniform", k, n, seed=k * n, bits=bits)
    rows = np.random.default_rng(n).permutation(k).astype(np.int32)
    words = stream.pack(codes, bits)
    found = run(READ_WORDS, config, k, n, run_on, compiler, words=words, rows=rows).view(np.uint8)
    assert np.array_equal(found[rows], codes)


FILES = (("along_k", 4), ("along_k", 8), ("transposed", 4), ("transposed", 8), ("interleaved", 4))


# thread blocks have 512, 64 and 1024 columns
@pytest.mark.parametrize("order, bits", FILES)
@pytest.mark.parametrize("k, n", ((16, 8), (48, 72), (80, 520), (16, 1032)))
def test_words_of_files_are_read(order, bits, k, n, run_on):
    check_read(order, bits, k, n, run_on)


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 90), st.sampled_from(FILES))
def test_words_of_every_shape_are_read(run_on, k16_rows, tiles, file):
    check_read(*file, 16 * k16_rows, 8 * tiles, run_on)


@pytest.mark.thorough
@pytest.mark.parametrize("order, bits", FILES)
def test_the_other_compiler_reads_them_too(order, bits, run_on):
    pytest.importorskip("numba_cuda_mlir")
    check_read(order, bits, 48, 72, run_on, COMPILERS[1])


def test_words_that_cannot_be_read_are_known():
    assert packing.file_words(Stream("k", "k"), 3) is None
    assert packing.file_words(Stream("k", "n", "uint8"), 4) is None
    assert packing.file_words(Stream("n", "k"), 4) is None
    assert packing.file_words(Stream("n", "k", order=AWQ_ORDER), 8) is None
    assert packing.file_words(MarlinCodes(), 4) is None
    with pytest.raises(ValueError, match="order='x' must be one of along_k, transposed, interl"):
        FileWords(4, "x")
    with pytest.raises(ValueError, match="bits=8 must be 4 with order='interleaved'"):
        FileWords(8, "interleaved")


def test_it_is_no_product_that_anybody_may_ask_for():
    for definition in (PACK, UNPACK, READ_WORDS):
        assert not registry.is_kernel(definition.name)


def test_other_sizes_of_codes_are_refused():
    with pytest.raises(ValueError, match="bits=2 must be 4 or 8"):
        CodeBits(2)
    with pytest.raises(TypeError, match="kernel pack takes a CodeBits"):
        PACK.check_config(4)
