"""Contract under test: the timing model of a block's pipeline is what its rules say, of the work
that was recorded."""

import pytest

from numba_marlin.trace import model
from numba_marlin.trace.stages import fills
from tests.trace.runs import recorded


def test_the_model_is_what_its_rules_say():
    works = [
        model.Work(0, 1000, 400, 0, -1),
        model.Work(16, 1000, 400, 0, -1),
        model.Work(32, 1000, 400, 0, 0),
    ]
    rates = model.Rates(bytes_per_cycle=10, flops_per_cycle=1000)
    alone = model.without_pipeline(works, rates)
    # 700 cycles of latency and 100 of work, three times
    assert [use.done for use in alone] == [800, 1600, 2400]
    together = model.with_pipeline(works, rates)
    assert [(use.issued, use.landed, use.done) for use in together] == [
        (0, 700, 800),
        (0, 700, 900),
        (700, 1400, 1500),
    ]
    slow = model.Rates(bytes_per_cycle=1, flops_per_cycle=1000)
    # the wire, not the latency
    assert [use.landed for use in model.with_pipeline(works, slow)] == [1000, 2000, 3000]
    heavy = [model.Work(0, 10, 4, 500_000, -1)]
    assert model.with_pipeline(heavy, rates)[0].done == 700 + 500


def test_an_idle_wire_is_no_head_start():
    """The second copy is issued long after the first has come: it takes its whole time from then
    on."""
    works = [model.Work(0, 100, 400, 0, -1), model.Work(16, 10_000, 400, 0, 0)]
    rates = model.Rates(bytes_per_cycle=10, flops_per_cycle=1000)
    first, second = model.with_pipeline(works, rates)
    assert (first.landed, first.done) == (700, 800)
    assert (second.issued, second.landed, second.done) == (700, 700 + 1000, 1800)


def test_a_stage_is_not_filled_while_it_is_in_use():
    """The run issued the second fill of the stage as its first use began; it must wait for the end
    of that use."""
    rates = model.Rates(bytes_per_cycle=10, flops_per_cycle=1000)
    works = [model.Work(0, 100, 400, 0, -1), model.Work(16, 100, 400, 0, 0, freed=0)]
    assert [use.issued for use in model.with_pipeline(works, rates)] == [0, 800]


def test_a_double_buffer_fills_the_stage_that_the_use_before_the_last_one_left():
    rates = model.Rates(bytes_per_cycle=10, flops_per_cycle=1000)
    works = [model.Work(16 * turn, 1000, 400, 0, -1) for turn in range(4)]
    assert [(use.issued, use.landed, use.done) for use in model.double_buffer(works, rates)] == [
        (0, 700, 800),
        (0, 700, 900),
        (800, 1500, 1600),
        (900, 1600, 1700),
    ]


def test_the_kernel_with_a_double_buffer_is_modelled_as_one():
    found, _ = recorded("buffered")
    rates = model.rates(4.8e12, 989e12, 132)
    works = model.works(found, 0)
    assert len(works) > 2 and [work.freed for work in works] == [
        max(-1, turn - 2) for turn in range(len(works))
    ]
    assert model.with_pipeline(works, rates) == model.double_buffer(works, rates)


def test_the_rates_of_an_sm_are_its_share_of_the_device_a_cycle():
    found = model.rates(4.8e12, 989e12, 132)
    assert found.bytes_per_cycle * 132 * 1.7e9 == pytest.approx(4.8e12)
    assert found.flops_per_cycle * 132 * 1.7e9 == pytest.approx(989e12)


@pytest.mark.parametrize("key", ["ampere", "decode", "wgmma"])
def test_the_pipeline_is_never_modelled_slower_than_none(key):
    found, _ = recorded(key)
    rates = model.rates(4.8e12, 989e12, 132)
    for block in range(found.blocks):
        works = model.works(found, block)
        assert works and sum(work.flops for work in works) > 0
        assert (
            model.with_pipeline(works, rates)[-1].done
            < model.without_pipeline(works, rates)[-1].done
        )


@pytest.mark.parametrize("key", ["ampere", "decode"])
def test_the_work_of_a_block_is_what_its_warps_did_from_the_first_stage_on(key):
    """Every warp instruction from the first read of a stage to the last product is of one use, and
    so is every product; every byte that came into a stage and was read."""
    found, _ = recorded(key)
    flops = 0
    for block in range(found.blocks):
        works = model.works(found, block)
        used = [each for each in fills(found, block) if each.read >= 0 and not each.zeros]
        used.sort(key=lambda each: each.read)
        executed = [
            int(step)
            for warp in range(block * found.warps, (block + 1) * found.warps)
            for step in found.steps_of(warp)
        ]
        products = {pc for pc, ins in enumerate(found.instructions) if ins["root"] == "mma"}
        last = max(step for step in executed if int(found.step_pc[step]) in products)
        assert sum(work.instructions for work in works) == sum(
            used[0].read <= step <= last for step in executed
        )
        assert sum(work.nbytes for work in works) == sum(each.nbytes for each in used)
        begun = [each.read for each in used]
        assert [work.ahead for work in works] == [
            sum(begin <= each.issued for begin in begun[:number]) - 1
            for number, each in enumerate(used)
        ]
        flops += sum(work.flops for work in works)
    assert flops == found.counts["total"]["tally"]["flops"]
