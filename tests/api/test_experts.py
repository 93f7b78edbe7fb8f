"""Contract under test: ``nm.moe_matmul`` and ``nm.moe_mlp`` give the products that their arguments
say, by the kernel or by the loop, of NumPy and of torch, and refuse what cannot be."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import heuristics, reference
from numba_marlin.errors import CapabilityMissing
from numba_marlin.formats.floats import round_to
from numba_marlin.hardware import devices
from numba_marlin.kernels.experts.moe import MoeConfig
from numba_marlin.kernels.experts.moe_wgmma import MoeWgmmaConfig
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.problems.experts import ExpertsProblem
from numba_marlin.reference.experts import (
    activate,
    moe_bounds,
    moe_mlp,
    moe_mlp_bounds,
)
from numba_marlin.testing.blocks import make_blocks
from numba_marlin.testing.contents import make_quantized
from tests.api.mixture import EXPERTS, LOGITS, RNG, ROUTING, E, K, M, N, X, experts, judged
from tests.kernels.harness import cases

pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize(
    "kernel, combine",
    cases(
        itertools.product(("moe", "moe_wgmma", "loop"), (False, True)),
        lambda kernel, combine: (kernel, combine) in (("moe", True), ("moe_wgmma", False)),
    ),
)
def test_it_is_within_its_bounds(kernel, combine):
    y = nm.moe_matmul(X, EXPERTS, ROUTING, combine=combine, kernel=kernel, backend="emulator")
    if kernel == "loop" and combine:
        # rounded for each expert first
        each = moe_bounds(X, EXPERTS, ROUTING)
        extra = (ROUTING.weights[:, :, None] * each.rounded).sum(axis=1)
        exact = moe_bounds(X, EXPERTS, ROUTING, combine=True)
        assert (np.abs(y - exact.product) <= extra + exact.rounded).all()
    else:
        method = "weights" if kernel == "moe_wgmma" else None
        options = {"combine": combine, "order": "random", "method": method}
        judged(y, moe_bounds(X, EXPERTS, ROUTING, **options))


@pytest.mark.thorough
def test_rows_of_pairs_are_multiplied_one_by_one():
    x = RNG.standard_normal((M, 2, K)).astype(np.float16)
    y = nm.moe_matmul(x, EXPERTS, ROUTING, backend="emulator")
    judged(y, moe_bounds(x, EXPERTS, ROUTING, method="sums"))
    assert y.shape == (M, 2, N)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", ({"bits": 8}, {"zeros_kind": "integer"}, {"zeros_kind": "float16"})
)
def test_other_formats_are_within_their_bounds(options):
    held = experts(**options)
    method = "offset" if options.get("zeros_kind") == "float16" else "sums"
    y = nm.moe_matmul(X, held, ROUTING, kernel="moe", backend="emulator")
    judged(y, moe_bounds(X, held, ROUTING, method=method))


def test_what_the_kernel_does_not_take_goes_through_the_loop():
    held = nm.PackedExperts.of(
        nm.pack(make_quantized("uniform", "ordinary", K, N, 16, seed)) for seed in range(E)
    )
    y = nm.moe_matmul(X, held, ROUTING, backend="emulator")
    judged(y, moe_bounds(X, held, ROUTING))
    with pytest.raises(CapabilityMissing, match="kernel='moe' does not take group_size=16"):
        nm.moe_matmul(X, held, ROUTING, kernel="moe", backend="emulator")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ("nvfp4", "mxfp4"))
def test_fp4_from_weights_to_a_layer(kind):
    def packed(k, n, seed):
        blocks = (make_blocks(kind, k, n, seed + e, ordinary=True) for e in range(E))
        return nm.PackedExperts.of(map(nm.pack, blocks))

    gate_up, down = packed(K, 2 * 96, 1), packed(96, K, 9)
    y = nm.moe_mlp(X, gate_up, down, ROUTING, activation="swiglu-oai", backend="emulator")
    judged(y, moe_mlp_bounds(X, gate_up, down, ROUTING, activation="swiglu-oai"))
    with pytest.raises(ValueError, match="x.dtype=bfloat16 must be float16"):
        nm.moe_matmul(round_to(X, "bfloat16"), gate_up, ROUTING, backend="emulator")


@pytest.mark.thorough
def test_experts_of_several_devices_add_up_to_all():
    """Each has its own experts, of all tokens; what it gives of others is 0."""
    whole = nm.moe_matmul(X, EXPERTS, ROUTING, backend="emulator").astype(np.float64)
    parts = [
        nm.moe_matmul(X, EXPERTS.taken(first, 2), ROUTING.local(first, 2), backend="emulator")
        for first in (0, 2)
    ]
    assert np.array_equal(parts[0].astype(np.float64) + parts[1], whole)
    held = (ROUTING.ids < 2)[:, :, None]
    assert not np.where(held, 0, parts[0]).any() and not np.where(held, parts[1], 0).any()
    some = (X, EXPERTS.taken(0, 2), ROUTING.local(0, 2))
    combined = nm.moe_matmul(*some, combine=True, backend="emulator")
    judged(combined, moe_bounds(*some, combine=True, method="sums"))


@pytest.mark.thorough
def test_columns_of_several_devices_lie_side_by_side():
    whole = nm.moe_matmul(X, EXPERTS, ROUTING, backend="emulator", batch_invariant=True)
    half = EXPERTS.cut(range(K), range(32, 64))
    part = nm.moe_matmul(X, half, ROUTING, backend="emulator", batch_invariant=True)
    assert np.array_equal(part, whole[:, :, 32:])


@pytest.mark.thorough
def test_batch_invariant_bits_do_not_depend_on_other_tokens():
    whole = nm.moe_matmul(X, EXPERTS, ROUTING, backend="emulator", batch_invariant=True)
    alone = nm.route(LOGITS[3:4], 2, normalize=True)
    one = nm.moe_matmul(X[3:4], EXPERTS, alone, backend="emulator", batch_invariant=True)
    assert np.array_equal(one[0], whole[3])


# with 96 columns of gate no launch activates them: it is done behind it
LAYERS = [("swiglu-oai", 64, "moe_wgmma")]
LAYERS += [
    pytest.param(*each, marks=pytest.mark.thorough)
    for each in (
        ("silu", 64, "moe"),
        ("silu", 64, "moe_wgmma"),
        ("swiglu-oai", 64, "moe"),
        ("silu", 96, None),
        ("swiglu-oai", 96, None),
        ("swiglu-oai", 64, "loop"),
    )
]


@pytest.mark.thorough
@pytest.mark.parametrize("activation, width, kernel", LAYERS)
def test_the_whole_layer_is_within_its_bounds(activation, width, kernel):
    gate_up, down = experts(K, 2 * width, 10), experts(width, K, 20)
    x = (X * np.float16(4)).astype(np.float16)  # some beyond the limit
    bias = RNG.standard_normal((E, 2 * width)).astype(np.float16)
    options = {"activation": activation, "gate_up_bias": bias}
    y = nm.moe_mlp(x, gate_up, down, ROUTING, backend="emulator", kernel=kernel, **options)
    method = "weights" if kernel in ("moe_wgmma", "loop") else "sums"
    allowed = moe_mlp_bounds(x, gate_up, down, ROUTING, method=method, order="random", **options)
    judged(y, allowed)
    assert np.allclose(allowed.product, moe_mlp(x, gate_up, down, ROUTING, **options))
    # a bound that is worth something: the layer's other activation is beyond it
    other = {"silu": "swiglu-oai", "swiglu-oai": "silu"}[activation]
    wrong = moe_mlp(x, gate_up, down, ROUTING, **options | {"activation": other})
    assert not reference.judged(round_to(wrong, "float16"), allowed).ok


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ("moe", "moe_wgmma"))
def test_activated_in_the_launch_or_behind_it_is_the_same_but_for_exp(kernel):
    """Gate and up are rounded before, in the launch too: what differs is an exp of 2 ulp."""
    held = experts(K, 128, 10)
    options = {"kernel": kernel, "backend": "emulator"}
    y = nm.moe_matmul(X, held, ROUTING, activation="silu", **options)
    rows = nm.moe_matmul(X, held, ROUTING, **options)
    wanted = activate(rows.astype(np.float64), "silu")
    assert (np.abs(y - wanted) <= 0.51 * np.spacing(np.abs(y)).astype(np.float64)).all()
    exact = nm.moe_matmul(X, held, ROUTING, activation="silu", backend="reference")
    assert exact.shape == y.shape == (M, 2, 64)


def test_many_rows_of_an_expert_get_the_kernel_for_them():
    """What a problem gets, and what of it that kernel cannot do."""
    problem = ExpertsProblem(512, 256, 128, 128, experts=8, top_k=2)

    def chosen(problem):
        return heuristics.rank(problem, devices.MODEL)[0].config

    assert type(chosen(problem)) is MoeWgmmaConfig
    assert type(chosen(replace(problem, m=63))) is MoeConfig  # fewer than 16 rows
    assert type(chosen(replace(problem, k=96))) is MoeConfig
    assert type(chosen(replace(problem, batch_invariant=True))) is MoeConfig
    heights = [chosen(replace(problem, m=m)).tile_m for m in (160, 512, 4096)]
    assert heights == sorted(heights) and heights[0] < 128 <= heights[-1]
    refused = find_kernel("moe_wgmma").takes.refusals(
        replace(problem, k=96, scale_dtype="bfloat16")
    )
    assert [each.partition(",")[0] for each in refused] == [
        "dtype=float16 with scale_dtype=bfloat16",
        "k=96",
    ]
    with pytest.raises(CapabilityMissing, match="kernel='moe_wgmma' does not take k=96"):
        held = experts(96, N)
        nm.moe_matmul(X[:, :1].repeat(96, axis=1), held, ROUTING, kernel="moe_wgmma")
    with pytest.raises(ValueError, match="config.activation=None must be .*activation=silu"):
        plain = ExpertsProblem(M, 128, K, 32, experts=E, top_k=2)
        nm.moe_matmul(X, experts(K, 128), ROUTING, activation="silu", config=chosen(plain))
    with pytest.raises(ValueError, match="activation='silu' must be without combine"):
        nm.moe_matmul(X, EXPERTS, ROUTING, activation="silu", combine=True)


def test_activations_are_those_of_the_models():
    gate_up = np.array([[0.5, -3.0, 9.0, 1.0, 2.0, -8.0]])
    gate, up = gate_up[0, :3], gate_up[0, 3:]
    silu = gate / (1 + np.exp(-gate)) * up
    assert activate(gate_up)[0] == pytest.approx(silu)
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    assert activate(gate_up, "swiglu-oai")[0] == pytest.approx(
        gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    )
    with pytest.raises(ValueError, match="activation='relu' must be one of silu, swiglu-oai"):
        activate(gate_up, "relu")


def test_torch_tensors_come_back_as_such():
    torch = pytest.importorskip("torch")
    routing = nm.route(torch.from_numpy(LOGITS), 2, normalize=True)
    x = torch.from_numpy(X)
    for options in ({}, {"combine": True}, {"kernel": "loop"}, {"backend": "reference"}):
        options = {"backend": "emulator", **options}
        y = nm.moe_matmul(x, EXPERTS, routing, **options)
        assert isinstance(y, torch.Tensor) and y.dtype == torch.float16
        wanted = nm.moe_matmul(X, EXPERTS, ROUTING, **options)
        assert np.array_equal(y.numpy(), wanted)
    gate_up, down = experts(K, 2 * 96, 10), experts(96, K, 20)
    for activation in ("silu", "swiglu-oai"):
        options = {"activation": activation, "backend": "emulator"}
        y = nm.moe_mlp(x, gate_up, down, routing, **options).numpy()
        wanted = nm.moe_mlp(X, gate_up, down, ROUTING, **options)
        assert np.abs(y - wanted).max() <= 2.0**-9 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "change, error, match",
    (
        ({"x": X[:3]}, ValueError, r"x.shape=\(3, 64\) must be \(m, k\) or .* with m=5"),
        ({"x": X[:, :48]}, ValueError, r"x.shape=\(5, 48\) must end in k=64"),
        ({"x": X.astype(np.float32)}, TypeError, "x.dtype=float32 must be one of float16"),
        ({"x": X[:, None]}, ValueError, "top_k=2, the routing's"),
        ({"experts": [1]}, TypeError, "experts is a list, must be a PackedExperts"),
        ({"experts": EXPERTS.taken(0, 3)}, ValueError, "routing has 4 experts, must be 3"),
        ({"routing": None}, TypeError, "routing is a NoneType, must be a Routing"),
        ({"bias": X[0, :8]}, ValueError, r"bias.shape=\(8,\) must be \(experts, n\)=\(4, 64\)"),
        (
            {"kernel": "fast"},
            ValueError,
            "kernel='fast' must be one of moe_wgmma_fp8, moe_wgmma_int8, moe_wgmma, moe, loop",
        ),
        ({"backend": "gpu"}, ValueError, "backend='gpu' must be one of auto"),
    ),
)
def test_wrong_arguments_name_the_rule(change, error, match):
    given = {"x": X, "experts": EXPERTS, "routing": ROUTING, "backend": "emulator"} | change
    with pytest.raises(error, match=match):
        nm.moe_matmul(**given)


def test_a_layer_whose_sizes_do_not_match_is_refused():
    with pytest.raises(ValueError, match="gate_up has n=64 columns, must be 2 x 64"):
        nm.moe_mlp(X, EXPERTS, EXPERTS, ROUTING)
    with pytest.raises(ValueError, match="activation='gelu' must be one of silu"):
        nm.moe_mlp(X, EXPERTS, EXPERTS, ROUTING, activation="gelu")


# ---- from a checkpoint, and cut for several devices


def test_experts_of_a_checkpoint_are_its_layers(tmp_path):
    name = "model.layers.0.mlp.experts.{}.{}_proj"
    layers = {
        name.format(expert, part): make_quantized("uniform", "ordinary", 64, 32, 32, 3 * expert + i)
        for expert in range(3)
        for i, part in enumerate(("gate", "up"))
    }
    path = nm.save_checkpoint(tmp_path / "m", layers, "gptq")
    names = [name.format("{}", part) for part in ("gate", "up")]
    found = nm.load_experts(nm.load_checkpoint(path), *names)
    assert found.shape == (3, 64, 64)
    for expert, each in enumerate(found):
        parts = [nm.pack(layers[given.format(expert)]) for given in names]
        assert np.array_equal(each.qweight, nm.concat(parts).qweight)
        assert np.array_equal(each.scales, nm.concat(parts).scales)
    with pytest.raises(KeyError, match="no layer 'nothing.0'"):
        nm.load_experts(layers, "nothing.{}")
    with pytest.raises(ValueError, match="must have one {}"):
        nm.load_experts(layers, "model.{}.layers.{}")


@pytest.mark.parametrize("dim", ("experts", "n", "k"))
def test_shards_are_those_of_each_expert(dim):
    parts = [nm.shard(EXPERTS, rank, 2, dim, return_columns=True) for rank in range(2)]
    for rank, (part, numbers) in enumerate(parts):
        assert list(numbers) == list(range(rank * len(numbers), (rank + 1) * len(numbers)))
        wanted = (
            list(EXPERTS)[2 * rank : 2 * rank + 2]
            if dim == "experts"
            else [nm.shard(each, rank, 2, dim) for each in EXPERTS]
        )
        for one, other in zip(part, wanted, strict=True):
            assert np.array_equal(one.qweight, other.qweight)
            assert np.array_equal(one.scales, other.scales)
    with pytest.raises(ValueError, match="world=3 equal parts"):
        nm.shard(EXPERTS, 0, 3, "experts")
