"""Contract under test: experiment 28's ablations are edits that find their lines and leave the
product right; its tables are those of its counts; and the faithful kernel's machine code has what
the kernel is written for: one LOP3 with immediates for two numbers, and dequantisation between the
products."""

import pytest

from numba_marlin import compiler
from numba_marlin.compiler.assemble import disassemble
from numba_marlin.kernels.ampere import KERNEL, AmpereConfig
from tests import experiment_results

NAME = "28_ablation"


@pytest.fixture
def ablations(monkeypatch):
    return experiment_results.module(NAME, "ablations", monkeypatch)


@pytest.fixture
def sass(monkeypatch):
    return experiment_results.module(NAME, "sass", monkeypatch)


def test_every_edit_finds_its_lines(ablations):
    difference = ablations.edited_kernel.__globals__["difference"]
    for name, ablation in ablations.EVERY.items():
        assert ablation.kernel.name == name
        assert bool(difference(ablation.edits)) == bool(ablation.edits)


def test_an_edit_of_lines_that_are_gone_is_refused(ablations):
    for old in ("nothing of the kind", "ptx."):  # not there; too often
        with pytest.raises(ValueError, match="kernel.py of .* times, not 1"):
            ablations.edited_kernel("x", (ablations.Edit("kernel", old, ""),))


def test_tables_are_those_of_the_recorded_counts(monkeypatch):
    report = experiment_results.module(NAME, "report", monkeypatch)
    text = (experiment_results.FOLDER / NAME / "README.md").read_text(encoding="utf-8")
    for name, table in (("counts", report.counts_table), ("sass", report.sass_table)):
        begin, end = report.markers(name)
        rows = experiment_results.rows(NAME, f"{name}.jsonl")
        assert text.split(begin)[1].split(end)[0].strip() == table(rows)


def test_what_was_counted_is_what_is_said_of_it():
    """The same products whatever is taken away, and the conflicts of the swizzle alone."""
    for row in experiment_results.rows(NAME, "counts.jsonl"):
        m, n, k = row["m"], row["n"], row["k"]
        assert row["classes"]["tensor"] == m * n * k // (16 * 8 * 16)
        assert row["buffers"]["b"] == {"asked": n * k // 2, "distinct": n * k // 2, "written": 0}
        assert bool(row["conflicts"]) == (row["name"] == "no_swizzle")


LISTING = """
.L_x_1:
        /*0010*/                   MOV R1, R2 ;
.L_x_2:
        /*0020*/                   LOP3.LUT R3, R8, 0xf000f0, R7.reuse, 0xea, !PT ;
        /*0030*/                   HFMA2 R0, R3, R4.reuse.H0_H0, -72, -72 ;
        /*0040*/                   HMMA.16816.F32 R12, R16, R20, R12 ;
        /*0050*/                   HMMA.16816.F32 R12, R16, R20, R12 ;
        /*0060*/               @P0 LDSM.16.M88.4 R4, [R9+0x400] ;
        /*0070*/                   HADD2 R60, R60, -1032, -1032 ;
        /*0080*/                   HMMA.16816.F32 R12, R16, R20, R12 ;
        /*0090*/              @!P1 BRA `(.L_x_2) ;
        /*00a0*/              @!P1 BRA `(.L_x_1) ;
"""


def test_the_loop_of_a_listing_and_its_figures(sass):
    loop = sass.main_loop(LISTING)
    assert [each.opcode for each in loop][:2] == ["LOP3", "HFMA2"] and len(loop) == 8
    found = sass.figures(loop, 1)
    assert found["gaps"] == 2 and found["filled"] == 1 and found["together"] == 2
    assert (found["accesses"], found["offsets"], found["apart"]) == (1, 1, 2)
    steps = found["steps"]
    assert found["lop3"] * steps == 1 and found["fp16"] * steps == 2


def machine_code(sass, kernel, config):
    compiled = compiler.build(kernel, config, target="sm_90a")
    listing = disassemble(compiled.cubin) if compiled.cubin else None
    if listing is None:
        pytest.skip("needs ptxas and nvdisasm")
    return sass.figures(sass.main_loop(listing), config.thread_m_blocks)


@pytest.mark.thorough
@pytest.mark.parametrize("m_blocks, filled", [(1, 0.9), (4, 0.75)])
def test_the_machine_code_has_immediates_and_interleaves(sass, m_blocks, filled):
    """Each warp dequantises 8 words a step, of 4 pairs each: a LOP3 and one fp16 instruction a
    pair; between most products stands some of it, and no products of two words side by side."""
    found = machine_code(sass, KERNEL, AmpereConfig(m_blocks, 8, 8, group_blocks=8))
    assert found["lop3"] == found["fp16"] == 32
    assert found["filled"] >= filled * found["gaps"] and found["together"] < 4 * m_blocks
    assert found["offsets"] > 0.6 * found["accesses"]


@pytest.mark.thorough
@pytest.mark.parametrize("name, lop3, fp16", [("convert", 0, 0), ("shift_and_mask", 0, 32)])
def test_without_the_trick_the_immediates_are_gone(sass, name, lop3, fp16):
    """What the test above would see: also where only ``lop3`` is not called by its name."""
    ablation = sass.EVERY[name]
    config = ablation.configured(AmpereConfig(1, 8, 8, group_blocks=8))
    found = machine_code(sass, ablation.kernel, config)
    assert (found["lop3"], found["fp16"]) == (lop3, fp16)


@pytest.mark.thorough
def test_without_the_double_buffer_products_stand_side_by_side(sass):
    ablation = sass.EVERY["single_registers"]
    config = ablation.configured(AmpereConfig(4, 8, 8, group_blocks=8))
    found = machine_code(sass, ablation.kernel, config)
    assert found["filled"] < 0.75 * found["gaps"] and found["together"] >= 4 * 4


@pytest.mark.thorough
def test_every_ablation_gives_the_right_product_without_a_race(monkeypatch):
    counting = experiment_results.module(NAME, "counting", monkeypatch)
    for sizes, base in counting.PROBLEMS:
        for ablation in counting.EVERY.values():
            counting.check(ablation, sizes, base)
