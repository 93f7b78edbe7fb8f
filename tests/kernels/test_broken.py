"""Contract under test: the machine says of each broken kernel (``broken``) what is wrong with it,
and of the intact ones nothing (``test_schedules``).

(The systematic version, every guard of every kernel, is the mutation tool's business.)
"""

import re

import pytest

from numba_marlin.emulator import MachineError, Race
from tests.kernels.broken import EVERY, SHARED_SLOTS, WRONG, shared_scales


@pytest.mark.parametrize("broken", EVERY, ids=lambda broken: broken.what)
def test_the_cause_is_named(broken):
    def edit(ptx):
        edited = broken.edit(ptx)
        assert edited != ptx, "the edit found nothing to break"
        return edited

    try:
        found, message = WRONG if broken.small.wrong(edit_ptx=edit, races=True) else "nothing", ""
    except MachineError as error:
        found, message = error.kind, str(error)
        assert re.search(r"(?s)line \d+.*block.*warp", message) or "ended" in message
    assert found == broken.kind and broken.word in message, message


def test_the_published_race_gives_right_results_and_is_a_race_all_the_same():
    """Why nobody saw it: the order in which warps usually run does no harm. Both ends are named."""
    assert SHARED_SLOTS.wrong(races=True) == 0
    assert SHARED_SLOTS.wrong(edit_ptx=shared_scales) == 0
    with pytest.raises(Race) as caught:
        SHARED_SLOTS.wrong(edit_ptx=shared_scales, races=True)
    copy, read = caught.value, caught.value.first
    assert (
        copy.text.startswith("cp.async")
        and read.text.startswith("ld.shared.v4")
        and copy.warp != copy.first_thread[1]
    )
    assert (
        "this write of dynamic_shared" in str(copy)
        and "not ordered after a read" in str(copy)
        and "bar.sync" in str(copy)
    )
