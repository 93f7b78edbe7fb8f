"""Contract under test: ``moe_matmul`` and ``moe_mlp`` with activations in 8 bits, given quantised
or quantised first: the bits of ``reference.activations`` for each pair, in every library, and the
rule for what cannot be."""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.errors import CapabilityMissing
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.fp4_marlin import Fp4MarlinFormat
from numba_marlin.problems.experts import ExpertsProblem
from numba_marlin.reference.activations import fma
from numba_marlin.reference.experts import activate, kernel_rows, moe_bounds
from numba_marlin.testing.blocks import make_blocks
from numba_marlin.testing.contents import make_quantized
from tests.api.mixture import judged
from tests.kernels.moe_bytes import DOWN, SMALL

pytest.importorskip("ml_dtypes")

M, E, K, N = 6, 5, 256, 128
RNG = np.random.default_rng(3)
X = RNG.standard_normal((M, K)).astype(np.float16)
ROUTING = nm.route(RNG.standard_normal((M, E)).astype(np.float32), 2, normalize=True)
CONFIG = SMALL["int8"]


def experts(k=K, n=N, group=128, **options):
    return nm.PackedExperts.of(
        nm.pack(make_quantized("uniform", "ordinary", k, n, group, each, **options))
        for each in range(E)
    )


EXPERTS = experts()


@pytest.mark.parametrize("rows, combine", (("of tokens", False), ("of pairs", True)))
def test_rows_have_the_bits_of_the_reference(rows, combine):
    """Given codes, or quantised first; sums of a token's rows in the order of its experts."""
    x = X if rows == "of tokens" else RNG.standard_normal((M, 2, K)).astype(np.float16)
    config = replace(CONFIG, **(DOWN if combine else {}))
    options = {"combine": combine, "config": config, "backend": "emulator"}
    y, info = nm.moe_matmul(x, EXPERTS, ROUTING, activations="int8", return_info=True, **options)
    q = nm.quantize_activations(x.reshape(-1, K), "int8")
    wanted = kernel_rows(q, EXPERTS, ROUTING).reshape(M, 2, N)
    if combine:
        total = np.zeros((M, N), np.float32)
        for slot in range(2):
            weights = np.broadcast_to(ROUTING.weights[:, slot, None], total.shape)
            total = fma(weights.astype(np.float32), wanted[:, slot], total)
        wanted = total
    assert np.array_equal(y, round_to(wanted, "float16"))
    assert np.array_equal(y, nm.moe_matmul(q, EXPERTS, ROUTING, **options))
    assert info.candidate.kernel == "moe_wgmma_int8" and "int8 activations" in repr(info)


@pytest.mark.parametrize("kind", ("int8", "fp8"))
def test_the_reference_backend_takes_them(kind):
    q = nm.quantize_activations(X, kind)
    for combine in (False, True):
        allowed = moe_bounds(q, EXPERTS, ROUTING, combine=combine)
        for x, activations in ((q, None), (X, kind)):
            y = nm.moe_matmul(
                x,
                EXPERTS,
                ROUTING,
                combine=combine,
                activations=activations,
                backend="reference",
            )
            judged(y, allowed)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ("int8", "fp8"))
@pytest.mark.parametrize("zeros", (None, "integer"))
def test_a_layer_is_its_two_products(kind, zeros):
    """With the activation in the launch, or with zero points in a pass behind it."""
    gate_up, down = experts(n=2 * N, zeros_kind=zeros), experts(k=N, n=K, zeros_kind=zeros)
    options = {"activations": kind, "backend": "emulator"}
    y = nm.moe_mlp(X, gate_up, down, ROUTING, **options)
    rows = nm.moe_matmul(X, gate_up, ROUTING, **options)
    hidden = round_to(activate(rows.astype(np.float32)), "float16")
    near = nm.moe_matmul(X, gate_up, ROUTING, activation="silu", **options)
    assert np.abs(hidden.astype(float) - near).max() <= np.spacing(np.abs(hidden)).max()
    assert np.array_equal(y, nm.moe_matmul(near, down, ROUTING, combine=True, **options))
    given = nm.quantize_activations(X, kind)
    assert np.array_equal(y, nm.moe_mlp(given, gate_up, down, ROUTING, backend="emulator"))


@pytest.mark.thorough
@pytest.mark.parametrize("rows", ("of tokens", "of pairs"))
def test_what_the_kernel_does_not_take_goes_through_the_loop(rows):
    """k=192: a step of 128 would leave the expert. The same bits, for the order of sums is."""
    held = experts(k=192, group=64)
    x = X[:, :192] if rows == "of tokens" else RNG.standard_normal((M, 2, 192)).astype(np.float16)
    y = nm.moe_matmul(x, held, ROUTING, activations="int8", backend="emulator")
    q = nm.quantize_activations(np.ascontiguousarray(x).reshape(-1, 192), "int8")
    assert np.array_equal(y.reshape(-1, N), round_to(kernel_rows(q, held, ROUTING), "float16"))
    assert nm.last_run().candidate.kernel in ("wgmma_int8", "decode_int8")


def test_torch_gets_torch_back():
    torch = pytest.importorskip("torch")
    ids, weights = map(torch.from_numpy, (ROUTING.ids, ROUTING.weights))
    there = nm.Routing.of(ids, weights, E)
    options = {"activations": "int8", "config": CONFIG, "backend": "emulator"}
    y = nm.moe_matmul(torch.from_numpy(X), EXPERTS, there, **options)
    assert y.dtype == torch.float16 and y.shape == (M, 2, N)
    assert np.array_equal(y.numpy(), nm.moe_matmul(X, EXPERTS, ROUTING, **options))


@pytest.mark.parametrize(
    "change, error, match",
    (
        ({"activations": "int4"}, ValueError, "kind='int4' must be one of int8, fp8"),
        (
            {"x": nm.quantize_activations(X, "fp8"), "activations": "int8"},
            ValueError,
            "activations='int8' must be 'fp8', x's, or None",
        ),
        (
            {"x": nm.quantize_activations(X, "int8", 128)},
            ValueError,
            "group_size=128 of x must be None, a scale per row",
        ),
        (
            {"x": nm.quantize_activations(X[:4], "int8")},
            ValueError,
            r"x.shape=\(4, 256\) must be \(m, k\), or \(m top_k, k\), with m=6 and top_k=2",
        ),
        (
            {"x": nm.quantize_activations(X[:, :128], "int8")},
            ValueError,
            r"x.shape=\(6, 128\) must end in k=256",
        ),
        ({"kernel": "moe"}, CapabilityMissing, "does not take activations=int8, but x in 16 bits"),
        ({"activations": None, "kernel": "moe_wgmma_int8"}, CapabilityMissing, "activations=None"),
        (
            {"config": replace(CONFIG, group_blocks=4)},
            ValueError,
            "group",
        ),
        ({"bias": np.zeros((E, N), np.float32)}, TypeError, "bias.dtype=float32 must be float16"),
    ),
)
def test_wrong_arguments_name_the_rule(change, error, match):
    given = {"x": X, "activations": "int8", "backend": "emulator"} | change
    if not isinstance(given["x"], np.ndarray) and "activations" not in change:
        given["activations"] = None
    with pytest.raises(error, match=match):
        nm.moe_matmul(given.pop("x"), EXPERTS, ROUTING, **given)


def test_weights_of_floats_are_refused():
    blocks = Fp4MarlinFormat().pack(make_blocks("nvfp4", K, N, 0, ordinary=True), "float16")
    with pytest.raises(TypeError, match="experts are PackedBlocks, must have integer codes"):
        nm.moe_matmul(X, nm.PackedExperts.of([blocks] * E), ROUTING, activations="int8")


def test_the_choice_is_explained():
    problem = {"experts": 8, "top_k": 2, "combine": True, "x_of_pairs": True}
    found = nm.explain(2048, 4096, 4096, device="H200", activations="int8", **problem)
    assert found.choice.kernel == "moe_wgmma_int8"
    assert "modelled: " in str(found) and "with x in 16 bits" in str(found)
    # codes are half the bytes of 16 bits, and have a scale per row
    plain = ExpertsProblem(2048, 4096, 4096, **problem)
    eight = replace(plain, activations="int8")
    assert plain.least_bytes - eight.least_bytes == 2 * 2048 * (4096 - 4)
