"""Contract under test: what a figure of a walk shows is what happened, also where the run is not
the demonstration: grids of many blocks, rows enough to exchange partial sums, large products."""

import functools
import re

import numpy as np
import pytest

from numba_marlin import compiler, trace
from numba_marlin.cli.main import main
from numba_marlin.counts.phases import phases
from numba_marlin.emulator import Machine, Schedule
from numba_marlin.hardware.devices import device
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.trace import model, pages
from numba_marlin.trace.pages import launch as launch_page
from numba_marlin.trace.pages import memory
from numba_marlin.trace.stages import fills
from numba_marlin.trace.traffic import copies
from numba_marlin.views import plain, text
from tests.trace import block_runs
from tests.trace.runs import launch, recorded

SHARED_SLICES = AmpereConfig(4, 8, 8, group_blocks=8, stages=4)  # partial sums go through cp.async


@functools.cache
def of_one_block():
    """(trace of block 0 alone, the same run recorded of all blocks); blocks exchange sums."""
    found = []
    for blocks in ((0,), None):
        machine, given, _, about, _ = launch("ampere", 64, 256, 512, 128, SHARED_SLICES, sms=5)
        found.append(trace.record(machine, about=about, blocks=blocks, **given))
    return found


@pytest.mark.thorough
def test_the_blocks_of_every_tile_are_shown_though_one_block_was_recorded():
    alone, all_of_them = of_one_block()
    assert alone.blocks == 5 and alone.header["blocks"] == [0]
    grid, whole = (launch_page.tiles(each) for each in (alone, all_of_them))
    assert grid == whole
    assert "-" not in {cell.text for row in grid.cells for cell in row}


@pytest.mark.thorough
def test_the_blocks_of_every_result_are_shown_though_one_block_was_recorded():
    found, _, _ = block_runs.recorded("block_scaled")
    _, prepared = block_runs.prepared("block_scaled")
    machine = block_runs.Machine(prepared.compiled.ptx)
    alone = trace.record(
        machine, about=found.about, blocks=(1,), **block_runs.launch_on(machine, prepared)
    )
    assert launch_page.results(alone) == launch_page.results(found)


@pytest.mark.thorough
def test_a_file_that_lacks_other_blocks_says_so():
    alone, _ = of_one_block()
    mine = alone.access_warp // alone.warps == 0
    old = trace.Trace(
        alone.header,
        alone.arrays
        | {name: alone.arrays[name][mine] for name in alone.arrays if name.startswith("access_")},
    )
    assert "Only block 0 of 5 was recorded: - is not known." in launch_page.tiles(old).note
    assert "Only" not in launch_page.tiles(alone).note


@pytest.mark.parametrize(
    "key, columns",
    [
        ("naive", ["0-31", "32-63", "0-31", "32-63"]),  # row 0 of y, then row 1
        ("tiled", ["0-15", "16-31", "32-47", "48-63"]),  # a word of each lane's four
        ("buffered", ["0-15", "16-31", "32-47", "48-63"]),
        ("ampere", ["0-63", "64-127"] * 4),  # all four words of a lane
        # two of the four, panel by panel, of two tiles
        ("wgmma", ["0-31, 128-159", "64-95, 192-223", "32-63, 160-191", "96-127, 224-255"]),
    ],
)
def test_the_columns_of_a_warp_are_those_of_the_words_that_it_loads(key, columns):
    found, _ = recorded(key)
    said = [launch_page.weights_of(found, warp).partition(";")[0] for warp in range(len(columns))]
    assert said == [f"n {each}" for each in columns]


def test_only_a_kernel_with_a_ring_is_said_to_copy_while_it_multiplies():
    for key, overlaps in (("naive", False), ("tiled", False), ("buffered", True), ("ampere", True)):
        said = text.render(pages.page(recorded(key)[0], keys=("phases",)), 100)
        said = " ".join(said.split())
        assert ("copies of later ones are on their way" in said) == overlaps, key
        assert ("no ring of stages" in said) != overlaps, key


@pytest.mark.thorough
def test_copies_of_partial_sums_are_no_fills_of_the_ring():
    alone, _ = of_one_block()
    partials = alone.buffer("partials")
    found = fills(alone, 0)
    assert any(each.source >= partials["address"] for each in copies(alone, 0))
    assert [each.tile for each in found if not each.zeros] == [0, 128]
    assert [each.tile for each in model.works(alone, 0)] == [0, 128]
    # sums are read where a stage was: those reads are not of the stage
    products = model.last_product(alone, *steps_and_flops(alone))
    assert max(each.read_last for each in found) <= products
    said = plain.render(pages.page(alone, keys=("pipeline", "timeline")))
    assert "kNone" not in said and "use x" not in said


def steps_and_flops(found):
    steps = np.concatenate([found.steps_of(warp) for warp in range(found.warps)])
    flops = np.array(
        [row["tally"]["flops"] / max(row["tally"]["executed"], 1) for row in model.per_pc(found)]
    )
    return steps, found.step_pc[steps], flops


@pytest.mark.parametrize("m, slower", [(16, True), (1024, False)])
def test_sixteen_bit_weights_meet_the_same_tensor_cores(m, slower):
    """At the limit, packed weights are never slower than 16-bit ones."""
    found, _ = recorded("ampere")
    about = found.about | {"problem": found.about["problem"] | {"m": m, "n": 1024, "k": 1024}}
    other = trace.Trace(found.header | {"about": about}, found.arrays)
    section = memory.intensity(other, pages.Choice(device=device("H200")))
    (words,) = [row[1] for row in section.parts[-1].rows if row[0] == "at the limit"]
    wide, packed = map(float, re.findall(r"([\d.]+) us", words))
    assert (wide > packed) == slower and wide >= packed


def ahead(found):
    """Fills that were issued before the use of an earlier one began."""
    used = sorted((each for each in fills(found, 0) if each.read >= 0), key=lambda each: each.read)
    return sum(
        after.issued_last < before.read for before, after in zip(used, used[1:], strict=False)
    )


@pytest.mark.thorough
def test_producers_run_ahead_where_every_warp_issues_at_the_same_rate():
    found, _, _ = block_runs.recorded("tcgen05")
    order = Schedule(0, "in turn", "any")
    _, prepared = block_runs.prepared("tcgen05")
    machine = block_runs.Machine(prepared.compiled.ptx)
    given = block_runs.launch_on(machine, prepared) | {"seed": order}
    about = found.about | {"order": order.order}
    in_turn = trace.record(machine, about=about, **given)
    assert ahead(found) == 0 < ahead(in_turn)
    for run, words in ((found, "one round of its loop"), (in_turn, "issues at the same rate")):
        for key in ("pipeline", "timeline"):
            assert words in plain.render(pages.page(run, keys=(key,)))


@pytest.mark.thorough
def test_a_walk_shows_the_schedule_in_which_producers_run_ahead(tmp_path):
    path = tmp_path / "run.npz"
    asked = ["trace", "--demo", "--kernel", "block_scaled", "--phase", "pipeline"]
    assert main([*asked, "--save", str(path)]) == 0
    found = trace.open_trace(path)
    assert found.about["order"] == "in turn" and ahead(found) >= 3


@pytest.mark.thorough
@pytest.mark.parametrize("kernel, target", [("tcgen05", "sm_100a"), ("block_scaled", "sm_90a")])
def test_every_verb_of_a_kernel_has_a_name(kernel, target):
    definition = find_kernel(kernel)
    built = compiler.build(definition, definition.config_type(), target=target, line_info=True)
    machine = Machine(built.ptx)
    assert not [name for name in phases(machine.module, machine.kernel(None)) if "lambda" in name]
