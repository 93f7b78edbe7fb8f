"""Contract under test: kernels of two block-scaled operands are profiled as the others are."""

import json

import pytest

from numba_marlin.cli.main import main
from numba_marlin.hardware import devices
from numba_marlin.heuristics import candidate
from numba_marlin.problems import BlockProblem
from numba_marlin.profile.sources import on_machine, rules
from tests.profile.built import data


def test_a_kernel_with_block_scaled_operands_is_profiled(tmp_path, capsys):
    arguments = ["--kernel", "tcgen05", "--m", "72", "--n", "128", "--k", "512"]
    assert main(["profile", *arguments, "--save", str(tmp_path / "run.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["profile"]
    assert (
        found["device"]["name"] == "B200"
        and found["target"] == "sm_100a"
        and found["tensor_bits"] == 4
        and not found["measured"]
    )
    assert (
        found["ceilings"]["matrix_flops"] == devices.device("B200").fp4_flops
        and found["ceilings"]["source"] == "spec"
    )
    assert (
        found["bytes"]
        == {
            "A, codes": 72 * 256,
            "B, codes": 128 * 256,
            "their scales": 200 * 32,
            "result": 2 * 72 * 128,
        }
        and sum(found["bytes"].values()) == found["rates"]["least_bytes"]
    )
    assert found["counts"]["factor"] == 1 and found["counts"]["tensor_memory"] == {
        "scales": 2 * 8 * 4 * 512,
        "loaded": 4 * 128 * 128,
    }
    assert {
        name for name in found["sections"] if name.startswith(("copy", "multiply", "write"))
    } == {"copy", "multiply", "write"} and found["sections"]["copy"]["global_bytes"] > 0
    waits = {span[2] for lane in found["lanes"]["warps"][:4] for span in lane["spans"]}
    assert "wait_role" in waits and "write" in waits  # the epilogue waits for the sums
    word = found["word"]["codes"]
    assert [each["k"] for each in word] == list(range(8)) and all(
        each["code"] == found["word"]["value"] >> each["low"] & 15 for each in word
    )
    assert (
        main(
            [
                "profile",
                "--open",
                str(tmp_path / "run.json"),
                "--view",
                "summary,memory,packing,tensor",
            ]
        )
        == 0
    )
    shown_ = " ".join(capsys.readouterr().out.split())
    for words in (
        "nvfp4 times nvfp4",
        "never: no GPU with these instructions was at hand",
        "a lower bound",
        "tensor memory, scales",
        "number of type e2m1",
        "4-bit operands",
    ):
        assert words in shown_


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--kernel", "tcgen05", "--device", "H200"], "choose B200"),
        (["--kernel", "block_scaled", "--device", "model"], "has no timing"),
        (["--kernel", "block_scaled", "--k", "100"], "k=100 must be a multiple of 32"),
        (["--kernel", "block_mma", "--group-size", "64"], "--group-size is not for block_mma"),
        (
            ["--kernel", "tcgen05", "--config", "tile_m=4"],
            "NAME=VALUE with one of activation, bias",
        ),
        (["--config", "stages=4"], "also give --kernel"),
    ],
)
def test_what_a_block_scaled_kernel_cannot_do_is_refused_before_any_work(
    arguments, message, capsys
):
    assert (
        main(
            [
                "profile",
                "--m",
                "64",
                "--n",
                "128",
                *([] if "--k" in arguments else ["--k", "128"]),
                *arguments,
            ]
        )
        == 2
    )
    assert message in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kernel, waits",
    [("block_scaled", {"wait_copies", "wait_room", "wait_role"}), ("block_mma", {"wait_copies"})],
)
def test_every_kernel_with_block_scaled_operands_is_profiled(kernel, waits, capsys):
    assert (
        main(["profile", "--kernel", kernel, "--m", "160", "--n", "256", "--k", "1024", "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)["profile"]
    assert waits <= {span[2] for lane in found["lanes"]["warps"] for span in lane["spans"]}
    assert {"copy", "multiply", "write"} <= set(found["sections"]) and found["sections"][
        "multiply"
    ]["flops"] == found["counts"]["flops"] >= found["rates"]["flops"]


def test_large_block_scaled_problems_are_cut_along_tiles():
    """As many multiprocessors' share of a large one as fits, in whole tiles."""
    for kernel, device in (
        ("block_scaled", "H200"),
        ("tcgen05", "B200"),
        ("block_mma", "RTX 5090"),
    ):
        problem = BlockProblem(8192, 8192, 4096)
        chosen = candidate(problem, devices.device(device), kernel)
        config = chosen.config
        part, sms = on_machine.cut(problem, chosen, devices.device(device))
        assert (
            part.m % getattr(config, "tile_m", 128) == part.n % 128 == 0
            and part.k == problem.k
            and sms >= 1
            and part.m * part.n < 8192 * 8192 // 16
        )


def test_blocks_that_are_too_few_are_told_what_would_help():
    """Not to share k where they do; and nothing is well where the next launch only makes ready."""
    found = data()
    found["launch"] |= {"blocks": 60, "dependent": True}
    assert "the launch behind begins there" in rules.few_blocks(found).text
    found["launch"]["reads_early"] = False
    assert "a kernel that shares tiles along k" in rules.few_blocks(found).text
    found["launch"]["cluster"] = 2
    assert "larger clusters" in rules.few_blocks(found).text
