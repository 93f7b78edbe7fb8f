"""Contract under test: the decode kernel computes C = A @ W in every configuration, for every type
and shape it takes, whoever shares a tile with whom.

Compiling takes longer than the machine does, so configurations are few and have many cases.
``pytest --run-on cuda`` runs the same tests on a GPU.
"""

from itertools import product

import numpy as np
import pytest

from numba_marlin import compiler, reference, testing
from numba_marlin.compiler import gates
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import round_to
from numba_marlin.kernels.decode import KERNEL, DecodeConfig
from numba_marlin.quantizers import quantize
from tests.kernels.configurations import DECODE, group_size_of
from tests.kernels.harness import cases, run_kernel, target_of

pytest.importorskip("ml_dtypes")

# (warps_n, warps_k, stage_k), and group sizes: several in a warp's part of a stage, one, one for
# several warps, one for several stages
ARRANGEMENTS = {
    "one warp": (1, 1, 64),
    "wide": (4, 1, 64),
    "deep": (1, 4, 128),
    "deepest": (1, 8, 256),
    "both": (2, 2, 128),
    "large": (2, 2, 256),
}
GROUPED = (
    ("both", 64),
    ("wide", 128),
    ("deep", 64),
    ("deepest", 256),
    ("one warp", 32),
    ("large", 32),
    ("large", 128),
    ("both", 32),
    ("deepest", 128),
    ("deep", 32),
    ("wide", 64),
    ("one warp", 256),
)
TYPES = tuple(product((4, 8), (None, "integer", "float16"), ("float16", "bfloat16")))


def configuration(number, grouped):
    """Of type ``number``, with groups or with per-column scales. Every type comes with rows of x in
    pairs of k16 rows and in single ones (more than 16), every arrangement of warps with and without
    groups; batches, types of scales, biases and whole tiles are spread among them.
    """
    bits, zeros, dtype = TYPES[number]
    name, group_size = GROUPED[number] if grouped else (tuple(ARRANGEMENTS)[number % 6], -1)
    warps_n, warps_k, stage_k = ARRANGEMENTS[name]
    batch = ((8, 16) if grouped == (dtype == "float16") else (24, 32))[number // 2 % 2]
    return DecodeConfig(
        batch=batch,
        warps_n=warps_n,
        warps_k=warps_k,
        stage_k=stage_k,
        stages=2 + number % 2,
        resident=1,
        ragged=True,
        whole=number % 3 == 1,
        group_blocks=-1 if group_size == -1 else group_size // 16,
        dtype=dtype,
        scale_dtype=("float16", "bfloat16")[(number + grouped) // 2 % 2],
        bias=number % 4 < 2,
        bits=bits,
        zeros=zeros,
    )


def run(config, x, weight, bias, run_on, **options):
    return run_kernel(KERNEL, x, weight, bias=bias, config=config, run_on=run_on, **options).c


def exact(config, m, n, k, run_on, **options):
    """One case of a configuration, bit for bit."""
    problem = testing.exact_problem(
        m,
        n,
        k,
        group_size_of(config),
        seed=m + n + k,
        dtype=config.dtype,
        bits=config.bits,
        zeros_kind=config.zeros,
        scale_dtype=config.scale_dtype,
        bias=config.bias,
    )
    actual = run(config, problem.x, problem.weight, problem.bias, run_on, **options)
    wrong = np.argwhere(actual.astype(np.float64) != problem.expected.astype(np.float64))
    assert not len(wrong), (
        f"m={m}, n={n}, k={k}, {options}: {len(wrong)} wrong, the first at {wrong[:4].tolist()}"
    )


def real(config, m, n, k, run_on, **options):
    """One case of ordinary numbers, elementwise under the bound."""
    generator = np.random.default_rng(m + n + k)
    weight = quantize(
        generator.standard_normal((k, n)),
        config.bits,
        group_size_of(config),
        config.zeros is None,
        config.scale_dtype,
    )
    if config.zeros == "float16":
        moved = weight.zeros + generator.uniform(-0.5, 0.5, weight.zeros.shape)
        weight = QuantizedWeight(
            weight.codes,
            weight.scales,
            moved.astype(np.float16),
            config.bits,
            group_size_of(config),
        )
    x = round_to(generator.standard_normal((m, k)), config.dtype)
    bias = round_to(generator.standard_normal(n), config.dtype) if config.bias else None
    report = reference.check(
        run(config, x, weight, bias, run_on, **options),
        x,
        weight,
        bias,
        method=KERNEL.method(config),
    )
    assert report.ok and report.max_error > 0, report


@pytest.mark.parametrize(
    "number, grouped",
    cases(
        product(range(len(TYPES)), (True, False)),
        lambda number, grouped: grouped and number == 10,
    ),
    ids=[
        f"{'-'.join(map(str, types))}-{what}" for types in TYPES for what in ("groups", "columns")
    ],
)
def test_every_type_is_exact_with_tails_of_m_n_and_k_and_compiles_cleanly(number, grouped, run_on):
    """The least there is; whole stages, and a tile that columns are missing in; two tiles of rows,
    and k that ends in a stage, if groups can. (Bits and dtypes together in every way, each kind of
    zero points with both, per-column scales, which nothing but the end of a tile knows of, once:
    thorough.)
    """
    config = configuration(number, grouped)
    step = group_size_of(config) if config.grouped else 16
    exact(config, 1, 8, 2 * step if config.grouped else step, run_on, sms=2)
    exact(config, config.batch - 1, 72, 2 * max(config.stage_k, step), run_on, sms=1)
    exact(
        config,
        config.batch + 1,
        config.columns + 72,
        (config.stage_k // step + 2) * step,
        run_on,
        sms=5,
    )
    real(config, 3, 64, 2 * max(config.stage_k, step), run_on, sms=3)
    compiled = compiler.build(KERNEL, config, target=target_of(run_on))
    assert not gates.broken_promises(compiled)
    # the last stage's rows one by one; the sum of x
    rows, products = config.rows_per_warp + 1, 5 if config.zeros == "float16" else 4
    assert (
        gates.opcode_count(compiled, "mma.sync.aligned.m16n8k16")
        == rows * products * config.n8_blocks
    )


@pytest.mark.parametrize("sms", (1, 2, 3, 5, 7, 16))
def test_stripes_of_any_number_of_blocks(sms, run_on):
    """Tiles cut at every place: whole ones, one shared by many blocks, a block with parts of
    two."""
    exact(DECODE, 2, 384, 640, run_on, sms=sms)


def test_rows_of_activations_may_lie_apart_and_rows_that_do_not_exist_are_not_written(run_on):
    for m in (1, 4, 8, 19):
        exact(DECODE, m, 128, 128, run_on, sms=3, a_stride=136)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_blocks_come_changes_no_bit(seed, run_on):
    if run_on == "cuda":
        pytest.skip(
            "only the machine can choose the order; tests/kernels/test_original_suite.py repeats"
            " launches on a GPU"
        )
    generator = np.random.default_rng(1)
    x, weight = (
        generator.standard_normal((2, 512)).astype(np.float16),
        quantize(generator.standard_normal((512, 128)).astype(np.float32), group_size=64),
    )
    bits = [
        run(DECODE, x, weight, None, run_on, sms=5, seed=each).view(np.uint16)
        for each in (None, seed)
    ]
    assert (bits[0] == bits[1]).all()


@pytest.mark.parametrize(
    "wrong, rule",
    (
        ({"batch": 12}, "batch=12"),
        ({"warps_n": 3}, "warps_n=3"),
        ({"warps_k": 3}, "warps_k=3"),
        ({"stage_k": 96}, "stage_k=96"),
        ({"warps_n": 1, "warps_k": 8}, "stage_k=128 must be at least 256"),
        ({"stages": 1}, "stages=1"),
        ({"group_blocks": 3}, "group_blocks=3"),
        ({"blocks_per_sm": 3}, "blocks_per_sm=3"),
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"bits": 2}, "bits=2"),
        ({"zeros": True}, "zeros=True"),
        ({"stages": 7}, "shared memory"),
        ({"bits": 8}, "shared memory"),
    ),
)
def test_what_cannot_be_is_refused_by_name(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        DecodeConfig(**wrong)
