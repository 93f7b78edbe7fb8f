"""Contract under test: NVFP4 and MXFP4 weights, from a file to the product: load_checkpoint, pack,
matmul, explain; and what is said where something does not fit."""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import heuristics, reference, testing
from numba_marlin.api import packing
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.fp4_marlin import canonical
from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem
from tests.kernels.configurations import FEW_ROWS, SINGLE_ROWS, configured

pytest.importorskip("ml_dtypes")

K, N = 96, 72
FILES = {
    "modelopt-nvfp4": ("nvfp4", 0.25, False),
    "nvfp4-pack-quantized": ("nvfp4", 300.0, True),
    "mxfp4-pack-quantized": ("mxfp4", None, False),
}
# tests/kernels/test_fp4 compiles them too
CONFIGS = {
    "nvfp4": configured(FEW_ROWS, "nvfp4", "float16"),
    "mxfp4": configured(SINGLE_ROWS, "mxfp4", "bfloat16"),
}


def backend_of(run_on):
    return "cuda" if run_on == "cuda" else "emulator"


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=pytest.mark.thorough if kind == "nvfp4" else ())
        for form, (kind, _, _) in FILES.items()
    ],
)
def test_weights_of_a_file_multiply(form, tmp_path, run_on):
    kind, factor, divides = FILES[form]
    weight = testing.make_blocks(kind, K, N, 1, factor, divides, ordinary=True)
    nm.save_checkpoint(tmp_path / "model.safetensors", {"layer": weight}, form)
    config = CONFIGS[kind]
    packed = nm.pack(
        nm.load_checkpoint(tmp_path / "model.safetensors")["layer"], dtype=config.dtype
    )
    rng = np.random.default_rng(0)
    x, bias = (
        round_to(rng.standard_normal((7, K)), config.dtype),
        round_to(rng.standard_normal(N), config.dtype),
    )
    y = nm.matmul(x, packed, backend_of(run_on), config=config, bias=bias)
    verdict = reference.check(y, x, weight, bias, order="random")
    assert verdict.ok, verdict
    assert np.array_equal(nm.dequantize(packed, "float64"), nm.dequantize(weight, "float64"))
    again = tmp_path / "again.safetensors"
    nm.save_checkpoint(again, {"layer": packed}, form)  # packed weights go back to files
    assert np.array_equal(
        nm.dequantize(nm.load_checkpoint(again)["layer"], "float64"),
        nm.dequantize(weight, "float64"),
    )


def test_the_choice_is_made_by_itself(run_on):
    problem = testing.exact_blocks("nvfp4", 3, 64, 512, 4)
    y, info = nm.matmul(problem.x, nm.pack(problem.weight), backend_of(run_on), return_info=True)
    testing.check_exact(y, problem)
    assert (
        info.candidate.kernel == "decode"
        and info.candidate.config.codes == "e2m1"
        and info.problem.group_size == 16
    )
    testing.check_exact(nm.matmul(problem.x, nm.pack(problem.weight), "reference"), problem)


def test_packing_is_the_same_with_compiled_loops(monkeypatch):
    weight = testing.make_blocks("mxfp4", 64, 72, 2)
    plain = nm.pack(weight)
    monkeypatch.setattr(packing, "_MANY_WEIGHTS", 1)
    fast = nm.pack(weight)
    assert all(
        np.array_equal(getattr(plain, name), getattr(fast, name))
        for name in ("qweight", "scales", "factors")
    )
    assert all(
        np.array_equal(getattr(nm.unpack(fast), name), getattr(canonical(weight), name))
        for name in ("codes", "scales")
    )


def test_every_m_has_a_choice_and_its_types():
    for group_size in (16, 32):
        for m, dtype in ((1, "float16"), (20, "bfloat16"), (300, "float16"), (5000, "bfloat16")):
            problem = Problem(m, 1024, 2048, group_size, dtype, codes="e2m1", bias=m == 20)
            for each in heuristics.rank(problem, devices.device("H200")):
                assert each.kernel in ("general", "decode", "wgmma")
                heuristics.check_config(each.kernel, each.config, problem)
                assert (each.config.codes, each.config.dtype) == ("e2m1", dtype)
            free, same = (
                replace(problem, batch_invariant=invariant) for invariant in (False, True)
            )
            assert heuristics.rank(same, devices.device("H200"))[0].figures["free_us"] > 0 < free.m


def test_explain_speaks_of_blocks():
    text = str(nm.explain(16, 8192, 8192, 16, "H200", codes="e2m1"))
    assert "FP4 weights, blocks of 16" in text and "codes=e2m1" in text
    least = nm.explain(1, 8192, 8192, 16, "H200", codes="e2m1").problem.least_bytes
    # 4.5 bits a weight; factors; x and y
    assert least == 8192 * 8192 * 4.5 / 8 + 4 * 8192 + 4 * 8192


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(group_size=64), r"group_size=64 must be one of \(16, 32\) for codes='e2m1'"),
        (dict(bits=8), "bits=8 must be one of"),
        (dict(zeros="integer"), "zeros='integer' must be one of"),
        (dict(codes="e3m2"), "codes='e3m2' must be one of"),
        (dict(scale_dtype="bfloat16"), "scale_dtype='bfloat16' must be one of"),
    ],
)
def test_problems_that_nobody_has_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Problem(1, 64, 64, **{"group_size": 16, "codes": "e2m1", **change})


def test_what_does_not_fit_says_what_to_do():
    weight = testing.make_blocks("nvfp4", 64, 64, 0)
    x = np.zeros((1, 64), np.float16)
    with pytest.raises(TypeError, match=r"p is a BlockWeight, must be packed: pass nm.pack\(q\)"):
        nm.matmul(x, weight)
    with pytest.raises(
        ValueError,
        match="kernel 'ampere' does not take codes=e2m1; kernels that do: general, decode, wgmma",
    ):
        nm.matmul(x, nm.pack(weight), "emulator", kernel="ampere")
    with pytest.raises(
        ValueError, match="config.scale_dtype=float16 must be the weight.s scale_dtype=e5m3"
    ):
        nm.matmul(
            x,
            nm.pack(weight),
            "emulator",
            config=replace(
                CONFIGS["nvfp4"], codes="integer", group_blocks=2, scale_dtype="float16", bias=False
            ),
        )
    with pytest.raises(
        ValueError,
        match=(
            r"x.dtype=bfloat16 must be float16, which p is packed for: nm.pack\(nm.unpack\(p\),"
            r" dtype='bfloat16'\)"
        ),
    ):
        nm.matmul(round_to(x, "bfloat16"), nm.pack(weight), "reference")
    with pytest.raises(
        ValueError, match="dtype='float16' must be None: layout 'marlin' is the same"
    ):
        nm.pack(testing.make_quantized("uniform", "ordinary", 64, 64, 32, 1), dtype="float16")
    with pytest.raises(TypeError, match=r"q is a BlockScaled, .*to_weight\(q\)"):
        nm.pack(nm.quantize_blocks(np.ones((64, 64), np.float32)))
    with pytest.raises(TypeError, match="must be a BlockWeight for layout 'marlin-fp4'"):
        nm.pack(testing.make_quantized("uniform", "ordinary", 64, 64, 32, 1), "marlin-fp4")


@pytest.mark.parametrize("kind, step", (("nvfp4", 16), ("mxfp4", 32), ("mxfp8-e4m3", 32)))
def test_floats_are_quantised_to_a_weight_in_one_call(kind, step):
    w = np.random.default_rng(0).standard_normal((K, N))
    weight = nm.quantize(w, format=kind)
    assert isinstance(weight, nm.BlockWeight) and weight.block == (step, 1)
    blocks = nm.quantize_blocks(w.T.copy(), kind)
    assert (nm.dequantize(weight) == nm.dequantize(blocks).T).all()
    assert (nm.quantize(w, weight.bits, step, format=kind).codes == weight.codes).all()
    error = nm.dequantize(weight, np.float64) - w
    assert 0 < np.abs(error).max() < np.abs(w).max() / 4
    if kind == "nvfp4":
        x = np.random.default_rng(1).standard_normal((3, K)).astype(np.float16)
        y = nm.matmul(x, nm.pack(weight), "reference")
        assert np.allclose(y, x @ nm.dequantize(weight, np.float64), rtol=1e-2, atol=1e-2)
        scaled = nm.quantize(w, format=kind, global_scale=0.25)
        assert scaled.global_scale == 0.25
    else:
        up = nm.quantize(w, format=kind, rounding="ceil")
        assert (up.scales >= weight.scales).all() and (up.scales > weight.scales).any()


HOLED = np.ones((32, 8))
HOLED[20, 3] = np.nan


@pytest.mark.parametrize(
    "options, error, said",
    (
        ({"format": "fp5"}, ValueError, "format='fp5' must be one of nvfp4"),
        ({"format": "nvfp4", "group_size": 128}, ValueError, "group_size=128 must be 16"),
        ({"format": "mxfp4", "bits": 8}, ValueError, "bits=8 must be 4"),
        ({"format": "mxfp4", "scale_dtype": "float16"}, ValueError, "must be left out"),
        ({"format": "nvfp4", "method": "gptq"}, ValueError, "method='gptq'.*must be 'rtn'"),
        ({"format": "nvfp4", "symmetric": False}, ValueError, "symmetric=False must be"),
        ({"format": "nvfp4", "calibration": 1}, TypeError, "takes no calibration"),
        ({"format": "mxfp4", "global_scale": 2.0}, ValueError, "global_scale"),
        ({"format": "nvfp4", "w": np.ones((24, 8))}, ValueError, "k a multiple of 16"),
        ({"format": "nvfp4", "w": np.ones(16)}, ValueError, r"w.shape=\(16,\) must have 2"),
        ({"format": "nvfp4", "w": np.ones((0, 8))}, ValueError, r"w.shape=\(0, 8\) must not"),
        ({"format": "nvfp4", "w": np.ones((32, 8), int)}, TypeError, "w.dtype=int64 must"),
        ({"format": "nvfp4", "w": HOLED}, ValueError, r"w\[20, 3\]=nan must be finite"),
    ),
)
def test_what_a_format_of_floats_does_not_take(options, error, said):
    with pytest.raises(error, match=said):
        nm.quantize(**{"w": np.ones((32, 8), np.float32)} | options)
