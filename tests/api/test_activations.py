"""Contract under test: ``nm.matmul`` in 8 bits, of activations that are quantised already or now,
on every backend that there is, and what it refuses."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, driver, gpu, quantizing
from numba_marlin.execution.binding import (
    activation_operands,
    activation_rows,
    bind,
    weight_operands,
)
from numba_marlin.formats.floats import round_to
from numba_marlin.hardware import devices
from numba_marlin.kernels import registry
from numba_marlin.problems import ActivationsProblem
from numba_marlin.reference import activations
from numba_marlin.testing.activations import check_product

K, N, M = 256, 128, 20


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).standard_normal((M, K)).astype(np.float16)


@pytest.fixture(scope="module")
def weight():
    w = np.random.default_rng(2).standard_normal((K, N)).astype(np.float32)
    return nm.quantize(w, group_size=128)


@pytest.fixture(scope="module")
def packed(weight):
    return nm.pack(weight)


@pytest.mark.thorough
def test_few_rows_are_within_the_bound_of_parts_of_groups(x, weight, packed):
    q = nm.quantize_activations(x)
    y, info = nm.matmul(q, packed, return_info=True)
    assert info.candidate.kernel == "decode_int8" and "int8 activations" in repr(info)
    check_product(y, q, weight, depth=16)
    assert np.array_equal(nm.matmul(x, packed, activations="int8"), y)


def test_both_ways_give_the_references_bits(x, weight, packed):
    q = nm.quantize_activations(x)
    y, info = nm.matmul(q, packed, return_info=True, kernel="wgmma_int8")
    assert info.candidate.kernel == "wgmma_int8" and "int8 activations" in repr(info)
    assert nm.last_run() is info
    expected = activations.kernel_product(q, weight)
    assert y.dtype == np.float16 and np.array_equal(y, expected)
    named = {"activations": "int8", "kernel": "wgmma_int8"}
    assert np.array_equal(nm.matmul(x, packed, **named), expected)
    assert np.array_equal(nm.matmul(q, packed, **named), expected)


def test_the_batch_invariant_mode_takes_the_kernel_of_all_batches(x, weight, packed):
    q = nm.quantize_activations(x)
    options = {"batch_invariant": True, "return_info": True}
    y, info = nm.matmul(q, packed, **options)
    assert info.candidate.kernel == "wgmma_int8"
    assert np.array_equal(y, activations.kernel_product(q, weight))
    one, info = nm.matmul(x[:1], packed, activations="int8", **options)
    assert info.candidate.kernel == "wgmma_int8" and np.array_equal(one, y[:1])
    with pytest.raises(ValueError, match="independent of m.*'decode_int8' has no such"):
        nm.matmul(q, packed, kernel="decode_int8", **options)
    whole, one = (
        nm.matmul(nm.quantize_activations(each), packed, "reference", **options)[0]
        for each in (x, x[:1])
    )
    assert np.array_equal(whole[:1], one)


def test_fp8_is_within_its_bound(x, weight, packed):
    q = nm.quantize_activations(x, "fp8")
    y, info = nm.matmul(q, packed, return_info=True)
    assert info.candidate.kernel == "wgmma_fp8" and "fp8 activations" in repr(info)
    check_product(y, q, weight, parts=info.candidate.config.parts)
    assert np.array_equal(nm.matmul(x, packed, activations="fp8"), y)
    check_product(nm.matmul(q, packed, kernel="decode_fp8"), q, weight)


@pytest.mark.thorough
def test_bias_and_out(x, weight, packed):
    q, bias = nm.quantize_activations(x), np.arange(N).astype(np.float16)
    out = np.empty((M, N), np.float16)
    assert nm.matmul(q, packed, bias=bias, out=out, kernel="wgmma_int8") is out
    assert np.array_equal(out, activations.kernel_product(q, weight, bias))


@pytest.mark.parametrize("kind, group_size", (("int8", None), ("int8", 32), ("fp8", 64)))
def test_the_reference_takes_every_kind(x, weight, packed, kind, group_size):
    q = nm.quantize_activations(x, kind, group_size)
    y = nm.matmul(q, packed, "reference")
    assert np.array_equal(y, round_to(activations.matmul(q, weight), np.float16))
    near = nm.matmul(x, packed, "reference").astype(float)
    scale = np.abs(near).max()
    assert np.abs(y - near).max() < {"int8": 0.02, "fp8": 0.05}[kind] * scale


def test_a_weight_in_activation_order(x, weight, packed):
    order = np.random.default_rng(3).permutation(K).astype(np.int32)
    permuted = nm.pack(replace(weight, permutation=order))
    y = nm.matmul(x, permuted, activations="int8")
    assert np.array_equal(y, nm.matmul(x[:, order], packed, activations="int8"))
    with pytest.raises(ValueError, match="p has a permutation .* p.sorted_rows"):
        nm.matmul(nm.quantize_activations(x), permuted)


def test_a_torch_tensor_gives_a_torch_tensor(x, packed):
    torch = pytest.importorskip("torch")
    y = nm.matmul(torch.from_numpy(x), packed, activations="int8")
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float16
    assert np.array_equal(y.numpy(), nm.matmul(x, packed, activations="int8"))


def test_offsets_are_operands_of_dense_kernels_and_of_no_mixtures(x):
    """A mixture's offsets are those of its routing."""
    plain = {"a", "a_scales"}
    for kind, group_size in (("int8", None), ("fp8", 32)):
        assert activation_operands(nm.quantize_activations(x, kind, group_size)).keys() == plain
    q = nm.quantize_activations(x, "fp8")
    assert activation_operands(q)["offsets"] is q.offsets
    assert activation_rows(q).keys() == plain


def test_a_kernel_is_bound_to_offsets_if_it_reads_them(x, packed):
    """It does through a tensor map."""
    q = nm.quantize_activations(x, "fp8")
    given = {**activation_operands(q), **weight_operands(packed)}
    problem = ActivationsProblem.of_quantized(q, packed)
    kernel, read = registry.find_kernel("wgmma_fp8"), {"a", "a_scales", "b", "scales", "c"}
    for with_offsets in (False, True):
        config = kernel.config_type(offsets=with_offsets)
        found = bind(kernel, config, problem, given, sms=2)
        assert found.buffers.keys() == (read | {"offsets"} if with_offsets else read)


def test_what_was_unpickled_without_offsets_is_refused_by_name(x, packed):
    q = nm.quantize_activations(x, "fp8")
    object.__setattr__(q, "offsets", None)
    with pytest.raises(TypeError, match="offsets=None must be .*of_codes"):
        nm.matmul(q, packed, "reference")


def test_offsets_must_lie_where_the_codes_do(x, packed, monkeypatch):
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 0)
    q = nm.quantize_activations(x, "fp8")
    away = replace(q, offsets=OnDevice(q.offsets.shape, "<f2"))
    with pytest.raises(ValueError, match="x.offsets is on .*, must be where x.codes is"):
        nm.matmul(away, packed)


@pytest.mark.parametrize(
    "options, error, match",
    (
        ({"activations": "int4"}, ValueError, "kind='int4' must be one of int8, fp8"),
        ({"activations": "fp8", "kernel": "wgmma_int8"}, ValueError, "not take activations=fp8"),
        ({"activations": "int8", "kernel": "wgmma"}, ValueError, "does not take 8-bit activ"),
        ({"kernel": "wgmma_int8"}, ValueError, "does not take 16-bit activations"),
        ({"activations": "int8", "bias": np.zeros(N)}, TypeError, "bias.dtype=float64 must be"),
        ({"activations": "int8", "out": np.zeros((M, N))}, TypeError, "out.dtype=float64 must be"),
        ({"activations": "int8", "backend": "cuda"}, CapabilityMissing, "backend='cuda'"),
    ),
)
def test_what_cannot_be_is_refused_with_the_rule(x, packed, options, error, match):
    if options.get("backend") == "cuda" and driver.probe().usable:
        pytest.skip("there is a GPU")
    with pytest.raises(error, match=match):
        nm.matmul(x, packed, **options)


def test_operands_that_do_not_fit_are_refused(x, packed):
    q = nm.quantize_activations(x)
    with pytest.raises(ValueError, match=r"x.shape=\(20, 128\) must be \(m, k\) with k=256"):
        nm.matmul(nm.quantize_activations(x[:, :128]), packed)
    with pytest.raises(ValueError, match="activations='fp8' must be 'int8', x's, or None"):
        nm.matmul(q, packed, activations="fp8")
    with pytest.raises(ValueError, match="group_size=32 of x must be None"):
        nm.matmul(nm.quantize_activations(x, group_size=32), packed)
    with pytest.raises(TypeError, match="p is a PackedBlocks"):
        blocks = nm.pack(nm.quantize(np.ones((64, 64), np.float32), format="nvfp4"))
        nm.matmul(x[:, :64], blocks, activations="int8")


@pytest.mark.parametrize("kind", ("int8", "fp8"))
def test_explain_says_what_would_run(kind):
    said = nm.explain(1024, 8192, 8192, device="H200", activations=kind, zeros="integer")
    assert said.to_dict()["candidates"][0]["kernel"] == f"wgmma_{kind}"
    assert f"{kind} activations" in str(said) and "counted, not measured" in str(said)
    plain = nm.explain(16, 64, 64, device="H200", activations=None).to_dict()["problem"]
    assert "activations" not in plain


# ---- on a device, whose driver is made up


class OnDevice:
    def __init__(self, shape, typestr, address=4096):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, False),
            "version": 3,
        }
        self.shape, self.dtype = shape, np.dtype(typestr)


@pytest.fixture
def done(monkeypatch):
    """What is done on device 0, in order."""
    found = []
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 0)
    monkeypatch.setattr(driver, "describe", lambda ordinal: devices.device("H200"))
    monkeypatch.setattr(driver, "follow", lambda *what: found.append(("follow", *what)))
    monkeypatch.setattr(
        arrays,
        "empty_like",
        lambda view, shape, dtype: OnDevice(shape, np.dtype(dtype).str, 1 << 20),
    )
    monkeypatch.setattr(gpu, "arguments", lambda launch, addresses, ordinal: addresses)
    monkeypatch.setattr(
        gpu, "loaded", lambda launch, ordinal: lambda *what: found.append((launch.config, *what))
    )
    monkeypatch.setattr(quantizing, "_compiled", lambda *_: SimpleNamespace())
    return found


def test_x_on_a_device_is_quantised_there(done):
    q = nm.quantize_activations(OnDevice((3, 64), "<f2"), "int8", 32)
    ((config, grid, addresses, stream),) = done
    assert (config.kind, config.dtype, config.group_size) == ("int8", "float16", 32)
    assert grid == (3, 2, 1) and stream == 0
    assert addresses == {"x": 4096, "codes": 1 << 20, "scales": 1 << 20}
    assert (q.shape, q.scales.shape, q.dtype) == ((3, 64), (3, 2), "float16")


def test_fp8_on_a_device_has_offsets_there(done):
    q = nm.quantize_activations(OnDevice((3, 8208), "<f2"), "fp8")
    ((config, grid, addresses, _),) = done
    assert config.offsets and grid == (3, 1, 1)
    assert addresses.keys() == {"x", "codes", "scales", "offsets"}
    assert (q.offsets.shape, q.offsets.dtype) == ((3, 1, 128), np.float16)
    assert nm.quantize_activations(OnDevice((3, 64), "<f2"), "fp8", 32).offsets is None


def test_another_stream_waits_for_the_librarys_and_is_waited_for(done):
    nm.quantize_activations(OnDevice((3, 64), "<f2"), stream=7)
    assert [each[0] if each[0] == "follow" else "launch" for each in done] == [
        "follow",
        "launch",
        "follow",
    ]
    assert done[0][1:] == (0, 7, 0) and done[2][1:] == (0, 0, 7)


def test_a_device_without_the_conversion_is_refused(done, monkeypatch):
    monkeypatch.setattr(driver, "describe", lambda ordinal: devices.device("A100"))
    with pytest.raises(CapabilityMissing, match="kind='fp8' needs sm_89"):
        nm.quantize_activations(OnDevice((3, 64), "<f2"), "fp8")
    assert not done


@pytest.mark.parametrize(
    "shape, typestr, kind, error, match",
    (
        ((3, 64), "<f4", "int8", TypeError, "x.dtype=float32 must be one of"),
        ((3, 40), "<f2", "int8", ValueError, "k=40 must be a positive multiple of 16"),
        ((64,), "<f2", "int8", ValueError, r"must be \(m, k\)"),
        ((3, 64), "<f2", "int2", ValueError, "kind='int2' must be one of"),
    ),
)
def test_a_device_array_is_checked_before_anything_is_done(
    done, shape, typestr, kind, error, match
):
    with pytest.raises(error, match=match):
        nm.quantize_activations(OnDevice(shape, typestr), kind)
    assert not done
