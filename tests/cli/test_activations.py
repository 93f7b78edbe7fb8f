"""Contract under test: the verbs that show a product show one of activations in 8 bits, by the
option or by a kernel that takes nothing else, judge its bits where none is open, and refuse options
that do not go with it."""

from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.cli import activations
from numba_marlin.execution import expected
from numba_marlin.execution.plan import plan
from numba_marlin.hardware import devices
from numba_marlin.problems import ActivationsProblem, WeightProblem
from numba_marlin.trace import open_trace
from numba_marlin.trace.pages.idea import activation
from tests.cli.verbs import run, run_json

SIZES = ("--m", 5, "--n", 128, "--k", 256)
BY_REFERENCE = ("run", *SIZES, "--backend", "reference")
H200 = devices.device("H200")
ON_MACHINE = ("run", *SIZES, "--backend", "emulator")


@pytest.mark.parametrize(
    "more, kind",
    (
        (("--activations", "int8"), "int8"),
        (("--activations", "fp8"), "fp8"),
        (("--kernel", "wgmma_fp8"), "fp8"),
        (("--activations", "int8", "--zeros", "integer", "--group-size", -1), "int8"),
    ),
)
def test_x_is_quantised_and_what_that_loses_is_said(capsys, more, kind):
    code, data = run_json(capsys, *BY_REFERENCE, *more)
    assert code == 0 and data["run"]["problem"]["activations"] == kind
    assert data["activations"]["kind"] == kind and data["check"]["outputs"] == 5 * 128
    # half a step of 127, and of the 4 bits of e4m3
    low, high = {"int8": (0.003, 0.02), "fp8": (0.02, 0.04)}[kind]
    assert low < data["activations"]["relative_rms_error"] < high


def test_bfloat16_is_quantised_too(capsys):
    pytest.importorskip("ml_dtypes")
    more = ("--activations", "int8", "--dtype", "bfloat16")
    code, data = run_json(capsys, *BY_REFERENCE, *more)
    assert code == 0 and data["run"]["problem"]["dtype"] == "bfloat16"


def test_the_product_is_that_of_the_quantised_x(capsys, tmp_path):
    target = tmp_path / "y.npy"
    code, _ = run_json(capsys, *ON_MACHINE, "--kernel", "wgmma_int8", "--save", target)
    assert code == 0
    random = np.random.default_rng(0)
    w = random.standard_normal((256, 128), dtype=np.float32)
    x = random.standard_normal((5, 256)).astype(np.float16)
    q = nm.quantize_activations(x, "int8")
    assert np.array_equal(
        np.load(target), nm.reference.activations.kernel_product(q, nm.quantize(w))
    )


def test_where_no_bit_is_open_every_bit_is_compared(capsys, monkeypatch):
    code, data = run_json(capsys, *ON_MACHINE, "--kernel", "wgmma_int8")
    assert code == 0 and data["compiled"]["kernel"] == "wgmma_int8"
    assert data["check"]["other_bits"] == 0
    honest = nm.api.matmul

    def a_bit_off(x, p, *arguments, **options):
        """Where the bound would have it."""
        y, info = honest(x, p, *arguments, **options)
        allowed = nm.reference.activations.bounds(x, p)
        low, high = (
            (allowed.product + sign * allowed.accumulated).astype(np.float16) for sign in (-1, 1)
        )
        place = tuple(np.argwhere(low != high)[0])
        y[place] = (low if y[place] == high[place] else high)[place]
        return y, info

    monkeypatch.setattr(nm.api, "matmul", a_bit_off)
    code, data = run_json(capsys, *ON_MACHINE, "--kernel", "wgmma_int8")
    check = data["check"]
    assert code == 1 and not check["ok"] and (check["failures"], check["other_bits"]) == (0, 1)
    code, out, _ = run(capsys, *ON_MACHINE, "--kernel", "wgmma_int8")
    assert code == 1 and "WRONG: 1 outputs have other bits" in out


def test_what_is_out_of_its_bound_is_exit_code_1(capsys, monkeypatch):
    honest = nm.api.matmul

    def wrong(*arguments, **options):
        y, info = honest(*arguments, **options)
        y[0, 0] += np.float16(8)
        return y, info

    monkeypatch.setattr(nm.api, "matmul", wrong)
    code, data = run_json(capsys, *BY_REFERENCE, "--activations", "fp8")
    assert code == 1 and data["check"]["failures"] == 1 and "other_bits" not in data["check"]


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ("decode_int8", "decode_fp8", "wgmma_fp8"))
def test_every_kernel_runs_on_the_machine(capsys, kernel):
    code, data = run_json(capsys, *ON_MACHINE, "--kernel", kernel)
    assert code == 0 and data["compiled"]["kernel"] == kernel and data["check"]["ok"]
    # warps of decode_int8 have parts of groups, and e4m3 has no bits that are given
    assert "other_bits" not in data["check"]


def test_sums_of_parts_have_a_bound_that_holds_for_parts():
    """Of a kernel whose warps have parts of groups, not of one that has them whole."""
    problem = ActivationsProblem(16, 256, 1024)
    random = np.random.default_rng(0)
    w = nm.quantize(random.standard_normal((1024, 256), dtype=np.float32))
    x = nm.quantize_activations(random.standard_normal((16, 1024)).astype(np.float16))
    y = nm.reference.activations.kernel_product(x, w)
    of_parts = plan(problem, "emulator").candidate
    whole = plan(problem, "emulator", "wgmma_int8").candidate
    assert of_parts.kernel == "decode_int8"
    (in_parts, none), (in_order, other_bits) = (
        activations.judged(y, x, w, each) for each in (of_parts, whole)
    )
    assert none is None and other_bits == 0 and in_parts.ok and in_order.ok
    assert in_parts.bound_at_worst >= in_order.bound_at_worst


def test_one_weight_times_them_is_explained(capsys):
    sizes = "--m 1024 --n 8192 --k 8192 --device H200".split()
    code, data = run_json(capsys, "explain", *sizes, "--activations", "fp8")
    chosen = data["candidates"][0]
    assert code == 0 and chosen["kernel"] == "wgmma_fp8" and chosen["config"]["offsets"]


def test_a_walk_has_the_x_that_was_multiplied(capsys, tmp_path):
    target = tmp_path / "run.npz"
    code, out, _ = run(
        capsys, "trace", *SIZES, "--activations", "int8", "--save", target, "--phase", "idea,unpack"
    )
    assert code == 0 and "decode_int8, step by step" in out
    assert "in 8 bits, times a weight" in " ".join(out.split())
    # what integers of 8 bits are made by is not what 16-bit floats are made by
    assert "the integer 16 (code - 8)" in out and "1024" not in out
    trace = open_trace(target)
    assert trace.about["check"] == {"ok": True, "outputs": 5 * 128, "failures": 0}
    random = np.random.default_rng(0)
    random.standard_normal((256, 128), dtype=np.float32)
    x = nm.quantize_activations(random.standard_normal((5, 256)).astype(np.float16), "int8")
    assert [activation(trace, k) for k in range(256)] == x.values()[0].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ("wgmma_int8", "wgmma_fp8", "decode_fp8"))
def test_every_kernel_is_walked_through(capsys, tmp_path, kernel):
    target = tmp_path / "run.npz"
    walk = ("--html", tmp_path / "walk.html", "--save", target)
    code, _, _ = run(capsys, "trace", "--demo", "--kernel", kernel, *walk)
    trace = open_trace(target)
    assert code == 0 and trace.about["check"]["ok"]
    kind = kernel.rpartition("_")[2]
    x = random_x(trace.about["problem"], kind)
    assert [activation(trace, k) for k in range(x.k)] == x.values()[0].tolist()
    said = (tmp_path / "walk.html").read_text(encoding="utf-8")
    in_halves = kernel == "decode_fp8"  # it widens x, and multiplies in 16 bits
    assert ("1024 + code" in said) == in_halves
    assert ("four bytes of the first register" in said) != in_halves
    assert ("in int32, which is exact" in said) == (kind == "int8")


def random_x(problem, kind):
    """The x that ``trace`` draws behind the weight."""
    random = np.random.default_rng(0)
    random.standard_normal((problem["k"], problem["n"]), dtype=np.float32)
    x = random.standard_normal((problem["m"], problem["k"])).astype(np.float16)
    return nm.quantize_activations(x, kind)


@pytest.mark.thorough
def test_a_wrong_walk_is_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(
        "numba_marlin.cli.activations.judged",
        lambda *_: (SimpleNamespace(failures=0, size=640), 2),
    )
    code, data = run_json(capsys, "trace", *SIZES, "--kernel", "wgmma_int8", "--phase", "launch")
    assert code == 1 and not data["ok"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "more, kernel",
    ((("--activations", "int8"), "decode_int8"), (("--kernel", "wgmma_fp8"), "wgmma_fp8")),
)
def test_it_is_profiled(capsys, more, kernel):
    code, data = run_json(capsys, "profile", *SIZES, *more, "--device", "H200")
    profile = data["profile"]
    assert code == 0 and kernel == profile["kernel"]
    assert profile["kind"] == "activations" and profile["rates"]["flops"] == 2 * 5 * 128 * 256
    # of one byte each, where 16 bits are two, with a scale per row and the offsets of fp8
    assert 5 * 256 < profile["bytes"]["activations"] < 2 * 5 * 256
    assert not profile["measured"] and "23_w4a8" in profile["measured_elsewhere"][0]
    assert f"x in {profile['problem']['activations']}" in data["page"]["subtitle"]


@pytest.mark.thorough
def test_neighbours_are_counted_and_not_timed(capsys, monkeypatch, tmp_path):
    saved = tmp_path / "run.json"
    given = ("profile", *SIZES, "--kernel", "wgmma_int8", "--device", "H200")
    code, data = run_json(capsys, *given, "--try", "counted", "--save", saved)
    own, *others = data["profile"]["tried"]["rows"]
    assert code == 0 and others and own["flops"] == 2 * 16 * 128 * 256  # tiles have 16 rows
    assert all(each["config"] != own["config"] for each in others)
    usable = SimpleNamespace(usable=True)
    monkeypatch.setattr("numba_marlin.execution.driver.probe", lambda: usable)
    monkeypatch.setattr("numba_marlin.execution.driver.describe", lambda ordinal: H200)
    code, _, err = run(capsys, "profile", "--open", saved, "--try")
    assert code == 2 and "give --try counted" in err


def test_bounds_of_quantised_x_are_expected_to_take_time():
    of_x = SimpleNamespace(backend="cuda")
    halves = expected.whole(WeightProblem(64, 512, 512), of_x)
    for kind in ("int8", "fp8"):
        bytes_ = expected.whole(ActivationsProblem(64, 512, 512, activations=kind), of_x)
        assert bytes_.seconds - halves.seconds == pytest.approx(
            expected.BOUND_SECONDS[kind] * 64 * 512 * 512
        )
        assert bytes_.nbytes - halves.nbytes == expected.BOUND_BYTES[kind] * 64 * 512


@pytest.mark.parametrize(
    "arguments, match",
    (
        ("run --activations int8 --kernel ampere", "kernels that do: decode_int8, wgmma_int8"),
        ("run --activations fp8 --kernel wgmma_int8", "kernels that do: decode_fp8, wgmma_fp8"),
        ("run --activations int8 --bits 8", "--bits 8 is for x in 16 bits: leave out --act"),
        ("run --activations int8 --zeros float16", "--zeros float16 is for x in 16 bits"),
        ("run --kernel wgmma_int8 --format nvfp4", "leave out --kernel wgmma_int8"),
        ("run --kernel wgmma_int8 --experts 4", "not wgmma_int8"),
        (
            "explain --m 1 --n 128 --k 128 --activations fp8 --format nvfp4",
            "--format is for x in 16 bits: leave out --activations",
        ),
        ("trace --demo --activations int8", "--demo determines what is traced; omit --activ"),
        ("trace --activations int8 --weights nvfp4", "'decode_int8' does not take codes=e2m1"),
        ("trace --activations int8 --kernel tcgen05", "--activations is not for tcgen05"),
        ("profile --activations int8 --kernel block_scaled", "is not for block_scaled"),
        ("profile --open x.json --activations int8", "omit --activations"),
    ),
)
def test_options_that_do_not_go_together_are_refused(capsys, arguments, match):
    code, out, err = run(capsys, *arguments.split())
    assert code == 2 and out == "" and match in err
