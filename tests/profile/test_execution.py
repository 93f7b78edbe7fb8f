"""Contract under test: what a profile lists around first products of a warp, and how much of a run
it calls divergent, is what the machine executed."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.profile.pages import profile_page
from numba_marlin.profile.sources import rules, verdict
from numba_marlin.profile.sources.execution import DEQUANTISES, PRODUCTS, Execution
from numba_marlin.views import text
from tests.profile.built import counted, data, section

DIVERGING = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry half(.param .u64 out) {
  .reg .b64 %a; .reg .b32 %t, %nmr_at; .reg .pred %p;
  mov.u32 %t, %tid.x;
  mov.u32 %nmr_at, %t;
  setp.lt.u32 %p, %t, 16;
  @!%p bra DONE;
  add.u32 %t, %t, 1;
  add.u32 %t, %t, 1;
DONE:
  ret;
}
"""


def test_instructions_of_parted_lanes_are_counted_and_the_recorders_are_not():
    heard = Execution("%nmr_")
    Machine(DIVERGING).run(
        "half", args=[np.zeros(1, np.uint64)], grid=1, block=32, listener=Listener(before=heard)
    )
    # mov, setp and the branch by all; two additions by half of the lanes
    assert heard.partial == 2 and heard.executed == 6


def test_without_branches_nothing_is_parted():
    assert counted().execution.partial == 0
    found = data()
    assert found["counts"]["partial_share"] == 0
    assert ("divergence", 0.0, "none") in verdict.verdicts(found)


def test_the_list_is_of_one_warp_in_order_and_ends_before_the_third_product():
    rows = data()["first_products"]
    kinds = [row["kind"] for row in rows]
    assert kinds.count("product") == PRODUCTS - 1 and {"memory", "halves"} <= set(kinds)
    assert len({row["warp"] for row in rows}) == 1
    clocks = [row["clock"] for row in rows]
    assert clocks == sorted(set(clocks)) and clocks[-1] < counted().execution.executed
    shown = section(data(), "transactions")
    assert DEQUANTISES in shown and "tensor cores" in shown and f"{clocks[0]:,}" in shown


def test_a_kernel_without_products_has_no_list():
    found = {**data(), "first_products": []}
    assert "first products" not in section(found, "transactions")


@pytest.mark.parametrize(
    "share, word, tone",
    [(0.0, "none", rules.GOOD), (0.02, "little", rules.GOOD), (0.3, "much", rules.WARN)],
)
def test_divergence_is_judged(share, word, tone):
    found = data()
    found["counts"]["partial_share"] = share
    assert ("divergence", share, word) in verdict.verdicts(found)
    (finding,) = [each for each in rules.findings(found) if "divergence" in each.text]
    assert finding.tone == tone and f"{share:.1%}" in finding.text


def test_each_resource_has_its_own_verdict():
    found = data()
    found["time"]["us"] = 10.0
    found["rates"].update(memory_share=0.7, tensor_share=0.4, issue_share=0.1)
    found["occupancy"]["achieved"] = 0.8
    assert {name: word for name, _, word in verdict.verdicts(found)} == {
        "compute: tensor cores": "middling",
        "compute: issue slots": "low",
        "memory": "busy",
        "occupancy": "high",
        "divergence": "none",
    }


def test_profiles_of_earlier_versions_are_shown_without_it():
    found = data()
    del found["first_products"], found["counts"]["partial_share"]
    shown = text.render(profile_page.page(found), 80)
    assert "first products" not in shown and "divergence" not in shown
