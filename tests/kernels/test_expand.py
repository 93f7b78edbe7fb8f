"""Contract under test: every code of every word becomes its number, exactly, in its register and
half, on the machine and on a GPU."""

from dataclasses import dataclass

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.execution.binding import OPERAND, RESULT, Binding, Buffer
from numba_marlin.execution.machine import set_up
from numba_marlin.formats import marlin
from numba_marlin.formats.floats import float_type
from numba_marlin.kernels.dequantize.expand import expand_verbs, pair
from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.layout.fragments import MMA_M16N8K16_A, MMA_M16N8K16_B
from numba_marlin.testing.launches import Prepared
from tests.kernels.harness import on_gpu, target_of

pytest.importorskip("ml_dtypes")

THREADS = 256
CASES = [
    (dtype, bits, origin)
    for dtype in ("float16", "bfloat16")
    for bits in (4, 8)
    for origin in (0, 1 << (bits - 1))
]


@dataclass(frozen=True)
class ExpandConfig:
    dtype: str
    bits: int
    origin: int


def make(lang, config):
    expand = expand_verbs(lang, config.dtype, config.bits, config.origin)
    ptx, cuda, uint32, uint64 = lang.ptx, lang.cuda, lang.uint32, lang.uint64
    count = 16 // config.bits

    def expand_words(b, c, m):
        """c[m words][registers] from b[m words]."""
        index = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        if index < uint32(m):
            registers = expand(ptx.ld_global_b32(b + uint64(index) * uint64(4)))
            for number in range(count):
                ptx.st_global_b32(
                    c + (uint64(index) * uint64(count) + uint64(number)) * uint64(4),
                    registers[number],
                )

    return expand_words


KERNEL = KernelDefinition(
    name="expand_words",
    config_type=ExpandConfig,
    parameters=(("b", "u64"), ("c", "u64"), ("m", "i32")),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: (-(-m // THREADS), 1, 1),
)


def expanded(words, dtype, bits, origin, run_on):
    """uint32 [words] -> [words, registers, 2 halves] of ``dtype``."""
    config = ExpandConfig(dtype, bits, origin)
    compiled = compiler.build(KERNEL, config, target=target_of(run_on))
    assert not gates.broken_promises(compiled)
    words = np.ascontiguousarray(words)
    binding = Binding(
        KERNEL,
        config,
        compiled,
        KERNEL.grid(config, words.size, 0, 0, 0),
        (words.size, 0, 0, 0),
        {
            "b": Buffer(OPERAND, words.shape, "uint32", array=words),
            "c": Buffer(RESULT, (words.size, 16 // bits), "uint32"),
        },
    )
    if run_on == "cuda":
        result = on_gpu(Prepared.of(binding)).launched().collect()["c"]
    else:
        launch = set_up(binding)
        launch.run()
        result = launch.results["c"]
    return result.view(np.uint16).view(float_type(dtype)).reshape(words.size, 16 // bits, 2)


def expected(words, bits, origin):
    registers = 16 // bits
    codes = np.stack(
        [
            words >> np.uint32(bits * code) & np.uint32((1 << bits) - 1)
            for code in range(32 // bits)
        ],
        axis=-1,
    ).astype(np.float64)
    return codes.reshape(-1, 2, registers).transpose(0, 2, 1) - origin


@pytest.mark.parametrize("dtype, bits, origin", CASES)
def test_every_half_word_is_expanded_exactly(dtype, bits, origin, run_on):
    """All 2**16 halves, as the low and as the high half of a word."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    # an odd factor: the high halves are all of them too
    words = halves | (halves * np.uint32(40503) & np.uint32(0xFFFF)) << np.uint32(16)
    assert np.array_equal(
        expanded(words, dtype, bits, origin, run_on).astype(np.float64),
        expected(words, bits, origin),
    )


@pytest.mark.parametrize("bits", (4, 8))
def test_registers_are_fragments(bits, run_on):
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 1 << bits, (16, 64), dtype=np.uint8)
    middle = 1 << (bits - 1)
    values = codes.astype(np.float64) - middle
    words = marlin.pack_codes(codes, bits).view(np.uint32).ravel()
    # of a lane: 4 of each n16 columns
    registers = (
        expanded(words, "bfloat16", bits, middle, run_on).astype(np.float64).reshape(32, 16, 2)
    )
    for tile in range(8):
        assert np.array_equal(
            registers[:, 2 * tile : 2 * tile + 2].reshape(32, 4),
            MMA_M16N8K16_B.gather(values[:, 8 * tile : 8 * tile + 8]),
        )
    for j in range(4):
        a = registers[:, 4 * j : 4 * j + 4][:, [0, 2, 1, 3]].reshape(32, 8)
        assert np.array_equal(a, MMA_M16N8K16_A.gather(values[:, 16 * j : 16 * j + 16].T))


@pytest.mark.parametrize("bits", (4, 8))
def test_packed_zeros_expand_to_pairs_that_go_with_scales(bits, run_on):
    zeros = np.random.default_rng(1).integers(0, 1 << bits, (2, 64), dtype=np.uint8)
    words = marlin.pack_zeros(zeros, bits).view(np.uint32).ravel()
    pairs = expanded(words, "float16", bits, 0, run_on).astype(np.float64).reshape(2, 64)
    assert np.array_equal(pairs, marlin.pack_scales(zeros.astype(np.float16)).astype(np.float64))


def test_constants_are_pairs():
    assert (pair(1032, "float16"), pair(1 / 16, "float16"), pair(-72, "float16")) == (
        0x64086408,
        0x2C002C00,
        0xD480D480,
    )
    assert (pair(128, "bfloat16"), pair(136, "bfloat16"), pair(16, "bfloat16")) == (
        0x43004300,
        0x43084308,
        0x41804180,
    )
