"""Contract under test: the verbs that show a product show a mixture's, and refuse options that do
not go with it."""

import json

import pytest

from numba_marlin.cli import mixtures
from tests.cli.verbs import run

SIZES = ("--m", 5, "--n", 128, "--k", 256, "--group-size", 64)
# two by one warps, as small as the kernel gets
CONFIG = ("batch=8", "warps_n=2", "warps_k=1", "stage_k=64", "stages=2", "group_blocks=4")
SMALL = (*SIZES, "--experts", 4, "--top-k", 2)


def test_a_mixture_is_explained(capsys):
    given = ("--m", 16, "--n", 1536, "--k", 2048, "--experts", 128, "--top-k", 8, "--combine")
    code, out, _ = run(capsys, "explain", *given, "--device", "H200", "--json")
    found = json.loads(out)
    problem = found["problem"]
    assert code == 0 and found["candidates"][0]["kernel"] == "moe"
    assert (problem["experts"], problem["top_k"]) == (128, 8)
    assert problem["combine"] and problem["x_of_pairs"]
    # 128 pairs may go to as many experts: their codes and scales, x, lists and the result
    weights = 128 * 1536 * 2048 // 2
    assert problem["least_bytes"] > weights * (1 + 4 / 128)
    code, out, _ = run(capsys, "explain", *given[:-1], "--batch-invariant", "--device", "H200")
    assert code == 0 and "whole=True" in out and "8 of 128 experts" in out


def test_a_mixture_runs_by_the_reference(capsys):
    """Of the kernel: with --thorough, and in tests/api."""
    code, out, _ = run(capsys, "run", *SMALL, "--backend", "reference", "--json")
    data = json.loads(out)
    assert code == 0 and data["check"]["ok"] and data["check"]["outputs"] == 5 * 2 * 128
    assert sum(data["routing"]["rows"]) == 10 and len(data["routing"]["ids"]) == 5
    assert data["packed"]["bits_per_weight"] == pytest.approx(4.25)
    assert data["run"]["problem"]["experts"] == 4


def test_a_mixture_may_have_x_in_8_bits(capsys):
    """By the option, or by the kernel that takes nothing else."""
    for more in (("--activations", "fp8"), ("--kernel", "moe_wgmma_fp8")):
        code, out, _ = run(capsys, "run", *SMALL, *more, "--backend", "reference", "--json")
        data = json.loads(out)
        assert code == 0 and data["check"]["ok"]
        assert data["run"]["problem"]["activations"] == "fp8"
    code, out, _ = run(
        capsys, "explain", *SMALL, "--activations", "int8", "--device", "H200", "--json"
    )
    assert code == 0 and json.loads(out)["candidates"][0]["kernel"] == "moe_wgmma_int8"


@pytest.mark.thorough
def test_a_mixture_with_x_in_8_bits_is_run_walked_through_and_profiled(capsys):
    given = (*SMALL, "--kernel", "moe_wgmma_int8", "--combine")
    code, out, _ = run(capsys, "run", *given, "--backend", "emulator")
    assert code == 0 and "compiled   moe_wgmma_int8" in out and "ok: each of" in out
    code, out, _ = run(capsys, "trace", *given, "--phase", "experts")
    assert code == 0 and "Rows of a token's experts" in out
    code, out, _ = run(capsys, "profile", *given, "--device", "H200", "--json")
    assert code == 0 and json.loads(out)["profile"]["kernel"] == "moe_wgmma_int8"


@pytest.mark.thorough
@pytest.mark.parametrize("more", ((), ("--combine",), ("--bits", 8, "--zeros", "integer")))
def test_a_mixture_runs_on_the_machine(capsys, tmp_path, more):
    pytest.importorskip("ml_dtypes")
    target = tmp_path / "y.npy"
    code, out, _ = run(capsys, "run", *SMALL, *more, "--backend", "emulator", "--save", target)
    assert code == 0 and "compiled   moe" in out and "ok: each of" in out and target.exists()


@pytest.mark.thorough
def test_a_mixture_is_walked_through_saved_and_profiled(capsys, tmp_path):
    record = tmp_path / "run.npz"
    code, out, _ = run(
        capsys, "trace", *SMALL, "--config", *CONFIG, "--save", record, "--phase", "experts"
    )
    assert code == 0 and "Which block took which expert's rows" in out
    assert "Rows of a token's experts" in out and "adds them up" not in out  # asked for no sums
    code, out, _ = run(capsys, "trace", "--open", record, "--phase", "experts", "--json")
    assert code == 0 and json.loads(out)["kernel"] == "marlin_moe"
    code, out, _ = run(capsys, "profile", *SMALL, "--device", "H200", "--json")
    profile = json.loads(out)["profile"]
    assert (
        code == 0
        and profile["kernel"] == "moe"
        and profile["rates"]["flops"] == (2 * 10 * 128 * 256)
    )


@pytest.mark.parametrize(
    "arguments, match",
    (
        (
            ("run", "--experts", 4, "--kernel", "ampere"),
            "--kernel moe_wgmma_fp8 or moe_wgmma_int8 or moe_wgmma or moe, not ampere",
        ),
        (("run", "--experts", 4, "--top-k", 5), "--top-k 5 must be at most --experts 4"),
        (("run", "--experts", 0), "--experts 0 must be at least 1"),
        (("run", "--kernel", "moe", "--input", "w.npy"), "--input is of one weight"),
        (("run", "--combine", "--format", "nvfp4"), "--combine is of one --format for weights"),
        (("trace", "--kernel", "moe", "--floats", 1), "--floats is of one weight"),
        (("trace", "--demo", "--experts", 4), "--demo determines what is traced; omit --experts"),
        (("profile", "--open", "x.json", "--top-k", 4), "omit --top-k"),
        (("profile", "--m", 2, "--top-k", 2), "a size is missing"),
    ),
)
def test_options_that_do_not_go_together_are_refused(capsys, arguments, match):
    code, _, err = run(capsys, *arguments)
    assert code == 2 and match in err


def test_the_defaults_are_a_mixture_that_can_be():
    assert mixtures.EXPERTS >= mixtures.TOP_K
