"""Contract under test: docs/ptx.md says what the machine does, of instructions that there are."""

import pytest

from numba_marlin.compiler.assemble import assemble
from numba_marlin.compiler.errors import AssemblyError
from numba_marlin.compiler.tools import find_tools
from numba_marlin.emulator.instructions import HANDLERS, root_of
from numba_marlin.hardware.targets import target_named
from tests.ci_scripts import script

TABLE = script("ptx_table")
FORMS = TABLE.forms()
TARGETS = sorted({form.target for form in FORMS})
# of PTX before 6.4, or of targets before sm_70: the machine looks at neither, ptxas of today
# assembles for no such target
OF_OLD = ("shfl", "vote")


def test_every_handler_has_a_form_on_the_page():
    spelt = {root for root in HANDLERS if not root.startswith("%")} - {"return"}  # ret, in a call
    assert spelt <= {root_of(form.opcode) for form in FORMS}
    text = TABLE.PAGE.read_text(encoding="utf-8")
    assert all(f"`{form.opcode}" in text for form in FORMS if form.section != "Special registers")
    assert len(set(FORMS)) == len(FORMS)


@pytest.mark.thorough
def test_the_page_says_what_the_machine_does():
    """If this fails: python .ci/ptx_table.py."""
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.page()


def test_what_the_machine_refuses_it_refuses_by_name():
    """Never by an error of Python's, and textures among them."""
    texture = next(form for form in FORMS if form.opcode.startswith("tex."))
    assert TABLE.refusal(texture) == "no handler"
    alien = TABLE.Form("", TABLE.TARGET, "add.sat.u32 %r0, %r1, %r2;")
    assert TABLE.refusal(alien) == "modifier .sat is not implemented"
    assert not TABLE.refusal(TABLE.Form("", TABLE.TARGET, "add.u32 %r0, %r1, %r2;"))


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
def test_every_form_is_one_that_ptxas_knows(target):
    if not find_tools("ptxas"):
        pytest.skip("there is no ptxas")
    mine = [form for form in FORMS if form.target == target]
    today = [form for form in mine if root_of(form.opcode) not in OF_OLD]
    assert assemble(TABLE.module(today), target_named(target))[0]
    for form in set(mine) - set(today):
        with pytest.raises(AssemblyError, match="without '.sync' is not supported"):
            assemble(TABLE.module([form]), target_named(target))
    # and one that is none does not pass
    wrong = TABLE.Form("", target, "add.sat.u32 %r0, %r1, %r2;")
    with pytest.raises(AssemblyError, match="no assembler accepts"):
        assemble(TABLE.module([wrong]), target_named(target))
