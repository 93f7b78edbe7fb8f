"""Contract under test: the page of experiment 33 has the tables of its results; the values of
another project's tests are read as that project means them; a wrong value is found."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.experiment_results import FOLDER, module, rows

EXPERIMENT = "33_lists"
RESULT = SimpleNamespace(warnings=(), instructions=7)


def test_the_page_has_the_tables(monkeypatch):
    report = module(EXPERIMENT, "report", monkeypatch)
    page = (FOLDER / EXPERIMENT / "README.md").read_text(encoding="utf-8")
    tables = "\n".join(report.tables(rows(EXPERIMENT)))
    assert tables in page, "run python experiments/33_lists/run.py report"


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("[1u64, 2]", np.array([1, 2], np.uint64)),
        ("[-1i32]", np.array([-1], np.int32)),
        ("[0x5E89_F6AE]", np.array([0x5E89F6AE], np.int32)),
        ("[0b11u8, u8::MAX]", np.array([3, 255], np.uint8)),
        ("[-1.5f32, 3.25, f32::NEG_INFINITY]", np.array([-1.5, 3.25, -np.inf], np.float32)),
        ("[f32::from_bits(0x33800000)]", np.array([2**-24], np.float32)),
        ("[half::f16::from_f32(0.5)]", np.array([0.5], np.float16)),
        ("[half::f16::NAN.to_bits()]", np.array([0x7E00], np.uint16)),
        ("[std::f32::consts::PI / 2f32]", np.array([np.pi / 2], np.float32)),
        ("[0.5, SEVEN]", None),
    ],
)
def test_values_of_rust(text, wanted, monkeypatch):
    read = module(EXPERIMENT, "rust_values", monkeypatch).array
    if wanted is None:
        with pytest.raises(ValueError, match="no value"):
            read(text)
    else:
        assert read(text).dtype == wanted.dtype and np.array_equal(read(text), wanted)


def test_tests_of_rust(monkeypatch):
    found = module(EXPERIMENT, "rust_values", monkeypatch).tests(
        """macro_rules! test_ptx { ($fn_name:ident) => { test_ptx_llvm!($fn_name); }; }
test_ptx!(ld, [1u32, 2], [3u64]); // TODO
// test_ptx!(gone, [1u32], [1u32]);
test_ptx_with_32!(
    add,
    [1u8],  // one
    [2u8]
);
test_ptx!(trap);
test_ptx_warp!(tid, [0u8, 1u8]);"""
    )
    assert [(each.name, each.threads, each.in_32_bits) for each in found] == [
        ("ld", 1, False),
        ("add", 1, True),
        ("trap", 1, False),
        ("tid", 64, False),
    ]
    assert found[0].given.tolist() == [1, 2] and found[0].wanted.dtype == np.uint64
    assert found[2].wanted is None and found[3].given is None


def test_a_wrong_value_is_found(monkeypatch):
    compared = module(EXPERIMENT, "judging", monkeypatch).compared
    wanted = np.array([1, np.nan, 0, 4], np.float32)
    assert compared(np.array([1, np.nan, -0.0, 4], np.float32), wanted, RESULT).outcome == "right"
    found = compared(np.array([1, 2, 0, 5], np.float32), wanted, RESULT)
    assert found.outcome == "wrong" and "2 of 4 values, the first at 1" in found.said


def test_a_feature_of_cuda_cpp_is_compiled_and_run(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with numba-marlin[cu13]")
    run = module(EXPERIMENT, "cuda_cpp", monkeypatch)
    (template,) = [each for each in run.FEATURES if each.name == "function template"]
    assert "k(const int *x, int *y)" in template.source
    assert run.run(template).outcome == "right"
    assert run.run(replace(template, wanted=template.wanted + 1)).outcome == "wrong"
    assert len({(each.group, each.name) for each in run.FEATURES}) == len(run.FEATURES)


def test_random_functions_are_the_same_for_both_compilers(monkeypatch):
    """A seed gives one text; what g++ makes of it runs, and a wrong bit is found."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with numba-marlin[cu13]")
    fuzzed = module(EXPERIMENT, "fuzzed", monkeypatch)
    kind, seeds = "flow of floats and integers", range(2, 3)
    source = fuzzed.c_programs.text(kind, seeds)
    assert source == fuzzed.c_programs.text(kind, seeds) and source.count("FUNCTION(k2)") == 1
    words = fuzzed.given(seeds)
    wanted = fuzzed.by_gcc(source, seeds, words)
    machine = fuzzed.Machine(fuzzed.compiling.ptx_of(source, "-fmad=false"))
    assert fuzzed.one(machine, "k2", words[2], wanted[2]).outcome == "right"
    wanted[2][5, 3] ^= 1
    assert "1 of 768 values" in fuzzed.one(machine, "k2", words[2], wanted[2]).said


def test_texts_are_read_or_refused(monkeypatch):
    texts = module(EXPERIMENT, "texts", monkeypatch)
    head = ".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { .reg .b32 r; "
    assert texts.judged(lambda: texts.read(head + "mov.u32 r, 1; ret; }")).outcome == "read"
    found = texts.judged(lambda: texts.read(head + "frobnicate.u32 r, 1; ret; }"))
    assert found.outcome == "refused" and "frobnicate" in found.said
