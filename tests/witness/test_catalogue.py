"""Contract under test: every file of ptx/ is compared with hardware or has no value to compare;
probes run on the machine; comparisons see what differs."""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin.compiler.tools import find_tools
from numba_marlin.emulator import Misaligned, OutOfBounds
from numba_marlin.witness import catalogue, probe, record, verdict
from numba_marlin.witness.probe import Probe, Result, run_on_machine

PROBES = {each.name: each for each in catalogue.every_probe()}
QUICK = [
    "lop3",
    "named barriers",
    "mbarrier phases",
    "cp_async_bulk_tensor_1d_g2s",
    "cp_async_bulk_tensor_2d_g2s float16 swizzle 64",
    "cp_async_bulk_tensor_2d_s2g uint8 swizzle 128 over the far edges",
    "cp_async_bulk_s2g complete",
    "mma_m16n8k8_f32_f16 zeros",
    "wgmma_m64k16_f32_f16_ss n56 swizzle 64 integers",
    "wgmma f16.e5m2.e5m2 n32 swizzle 32 bits",
    "mma.m16n8k32.f32.e5m2.e4m3.f32 steps",
    "mma.m16n8k64.s32.u4.s4.s32 bits",
    "mma.sp.m16n8k32.f32.f16.f16.f32 selector 1 infinities",
    "wgmma.mma_async.sp.m64n32k16.f32.tf32.tf32 A in shared swizzle 64 selector 1 integers",
]
BLACKWELL = [
    "tcgen05_mma_mxf4nvf4_4x exact sums",
    "mma_m16n8k64_f32_mxf4_2x threads 1 and 3 exact sums",
]


def told(each: Probe, results: dict, **more) -> tuple:
    """(arrays, meta) as a visit would bring them back if a GPU had left ``results``."""
    about = {
        "device": "d",
        "driver": "1",
        "date": "2026-01-01",
        "probes": {each.name: {"sha256": record.sources(each, each.buffers()), **more}},
    }
    return record.keep(each, results), about


def test_every_instruction_is_compared_or_has_no_value():
    assert set(catalogue.coverage()) == set(probe.instructions())


@pytest.mark.parametrize("where", ["rs", "ss"])
def test_transposed_matrices_give_the_same_products(where):
    plain = PROBES[f"wgmma_m64k16_f32_f16_{where} n56 swizzle 64 integers"]
    turned = PROBES[f"{plain.name} transposed"]
    assert turned.text.count(", 1, 1, 1") and not plain.text.count(", 1, 1, 1")
    found = [run_on_machine(each, each.buffers())["d"][:2] for each in (plain, turned)]
    assert np.array_equal(*found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [name for name, each in PROBES.items() if set(each.covers) - set(probe.instructions())],
)
def test_what_no_file_says_assembles(name):
    each = PROBES[name]
    assert probe.machine_code(each.text, each.target)[0].startswith(b"\x7fELF")


def test_only_what_must_fail_covers_nothing():
    """The report of experiment 05 tells them apart by it."""
    assert all(bool(each.covers) != bool(each.refused) for each in PROBES.values())


def test_names_are_unique():
    assert len(PROBES) == len(catalogue.every_probe())


@pytest.mark.parametrize("name", QUICK)
def test_a_probe_agrees_with_itself_and_with_nothing_else(name):
    each = PROBES[name]
    results = run_on_machine(each, each.buffers())
    assert not any(results[key].any() for key in results if key == "gave_up")
    row = verdict.judge(each, *told(each, {key: value.copy() for key, value in results.items()}))
    assert row["outcome"] == "equal" and row["elements"] == row["equal"] > 0
    changed = {key: value.copy() for key, value in results.items()}
    last = list(changed)[0]
    changed[last].reshape(-1)[-1] ^= 1
    row = verdict.judge(each, *told(each, changed))
    assert (
        row["outcome"] == "differs"
        and row["first"]["result"] == last
        and row["elements"] - row["equal"] in range(1, record.BLOCK + 1)
    )


@pytest.mark.parametrize("name", BLACKWELL)
def test_what_another_gpu_has_is_run_on_the_machine_and_not_here(name):
    """It assembles for its own architecture; a GPU of another has nothing to say about it, whatever
    it left."""
    each = PROBES[name]
    results = run_on_machine(each, each.buffers())
    assert (
        np.isfinite(results["d"].view(np.float32)).all()
        and results["d"].any()
        and not results.get("gave_up", np.zeros(1)).any()
    )
    assert probe.machine_code(each.text, each.target)[0].startswith(b"\x7fELF")
    arrays, about = told(each, results)
    row = verdict.judge(each, arrays, about)
    assert (
        row["outcome"] == f"not run: needs {each.target}"
        and verdict.good(row)
        and not verdict.good({"outcome": "not run"})
    )
    assert (
        verdict.judge(each, arrays, {**about, "arch": each.target.rstrip("a")})["outcome"]
        == "equal"
    )


@pytest.mark.parametrize("name", [name for name, each in PROBES.items() if each.refused])
def test_what_must_fail_fails_on_the_machine(name):
    with pytest.raises((Misaligned, OutOfBounds)) as fault:
        run_on_machine(PROBES[name], PROBES[name].buffers())
    assert fault.type.__name__ == PROBES[name].refused


def test_a_refusal_needs_an_error_on_both_sides():
    each = PROBES["a box from the middle of 16 bytes"]
    arrays, about = told(each, {}, error="DriverError: x: CUDA_ERROR_ILLEGAL_INSTRUCTION: y")
    assert verdict.judge(each, arrays, about)["outcome"] == "refused"
    assert verdict.judge(each, *told(each, {}))["outcome"] == "failed"


def test_other_operands_are_not_compared():
    each = PROBES["named barriers"]
    arrays, about = told(each, run_on_machine(each, each.buffers()))
    about["probes"][each.name]["sha256"] = "another"
    assert verdict.judge(each, arrays, about)["outcome"] == "not run"


@pytest.mark.parametrize("change", ["text", "name", "first", "last"])
def test_the_digest_of_a_probe_is_of_its_text_and_of_all_of_its_operands(change):
    """Of every buffer's name, and of its bytes to the last one."""
    each = PROBES["lop3"]
    arrays, about = told(each, run_on_machine(each, each.buffers()))
    for number, name in enumerate(each.buffers()):
        buffers = {key: value.copy() for key, value in each.buffers().items()}
        if change == "name":
            buffers = {key + "x" * (key == name): value for key, value in buffers.items()}
        elif change != "text":
            buffers[name].view(np.uint8).reshape(-1)[0 if change == "first" else -1] ^= 1
        text = each.text + "// another\n" * (change == "text")
        other = replace(each, text=text, buffers=lambda buffers=buffers: buffers)
        assert record.sources(other, buffers) != record.sources(each, each.buffers())
        assert verdict.judge(other, arrays, about)["outcome"] == "not run", number


@pytest.mark.parametrize("whole", [0, 1 << 20])
def test_bits_of_nan_are_told_apart_from_other_differences(whole):
    each = Probe("p", (), "", dict, {"d": Result("float32")}, 1, 32, 32)
    here = np.full(2 * record.BLOCK + 5, 0x3F800000, np.uint32)
    here[7] = 0x7FFFFFFF
    there = here.copy()
    there[7] = 0x7FC00000
    found = record.compare(each, "d", here, record.keep(each, {"d": there}, whole))
    assert (
        found.ok and found.nan_only == (1 if whole else record.BLOCK) and found.exact == bool(whole)
    )
    there[9] = 0
    found = record.compare(each, "d", here, record.keep(each, {"d": there}, whole))
    assert not found.ok and (found.first, found.here, found.there) == (9, 0x3F800000, 0)


@pytest.mark.skipif(
    not find_tools("nvdisasm"), reason="there is no nvdisasm for CUDA 12 as a wheel"
)
def test_a_policy_beside_a_uniform_address_is_not_assembled():
    """The machine code that Hopper refuses (compiler.gates): the same probe without its shuffle."""
    text = PROBES["cp_async_16_hint"].text
    lines = [line for line in text.splitlines() if "shfl.sync.idx" not in line]
    assert len(lines) == len(text.splitlines()) - 1
    probe.machine_code(text)
    with pytest.raises(ValueError, match="uniform register"):
        probe.machine_code("\n".join(lines))
