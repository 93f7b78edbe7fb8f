"""Contract under test: the instructions that the package ships."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from numba_marlin import isa

INSTRUCTIONS = isa.load_instructions()
WIDTHS = {"v4": 4, "x4": 4, "v2": 2}


def test_all_files_load_and_nothing_else_is_in_the_directory():
    files = {path.stem for path in isa.ptx_directory().iterdir() if path.suffix == ".ptx"}
    assert set(INSTRUCTIONS) == files and len(files) > 50
    assert all(
        path.suffix in (".ptx", ".pyc") or path.name == "__pycache__"
        for path in isa.ptx_directory().iterdir()
    )


def test_adding_an_instruction_is_adding_a_file(tmp_path):
    source = isa.ptx_directory().joinpath("lop3.ptx").read_text()
    tmp_path.joinpath("my_lop.ptx").write_text(source.replace("name: lop3", "name: my_lop"))
    assert list(isa.load_instructions(tmp_path)) == ["my_lop"]


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_header_and_opcode_agree(name):
    """What can be read off the opcode: vector widths, memory spaces, whole-warp execution."""
    instruction = INSTRUCTIONS[name]
    opcodes = [
        line.split()[1 if line.split()[0].startswith("@") else 0]
        for line in instruction.body.splitlines()
        if line.strip(" {}")
    ]
    main = opcodes[-1]
    for part in main.split("."):
        if part in WIDTHS and not main.startswith("mma"):
            assert {o.width for o in instruction.outputs or instruction.inputs[1:]} == {
                WIDTHS[part]
            }
    if re.match(r"ld(matrix)?\..*shared", main):
        assert "shared.read" in instruction.effects
    if re.match(r"st\..*shared|cp\.async\.cg", main):
        assert "shared.write" in instruction.effects
    if re.match(r"ld\..*global|cp\.async\.cg|red", main):
        assert "global.read" in instruction.effects
    if re.match(r"st\..*global|red", main):
        assert "global.write" in instruction.effects
    if re.search(r"acquire|release|acq_rel", main):
        assert "fence" in instruction.effects
    if re.search(r"\.aligned|^bar", main):
        assert instruction.convergent
    if not instruction.outputs:
        assert not instruction.pure, "computes nothing and does nothing"
    addresses = {"shared": "u32", "global": "u64"}
    if re.match(r"(ld|st|red|ldmatrix)\.", main):
        space = next(space for space in addresses if f".{space}" in main)
        assert instruction.inputs[0] == isa.Operand("address", addresses[space])


def test_the_room_loads_no_numba():
    program = (
        "import sys, numba_marlin.isa as isa; isa.load_instructions(); print('numba' in"
        " sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == "False"


def test_instructions_is_an_attribute_of_the_room():
    assert isa.instructions == INSTRUCTIONS
    with pytest.raises(AttributeError):
        isa.nothing_of_the_kind  # noqa: B018  (that it is looked up is the test)


def test_an_installed_package_finds_the_files_inside_itself(tmp_path):
    """As setup.cfg lays it out: directory ptx/ becomes the data package numba_marlin.isa.ptx."""
    package = Path(isa.__file__).parent.parent
    shutil.copytree(package / "isa", tmp_path / "numba_marlin" / "isa")
    shutil.copy(package / "__init__.py", tmp_path / "numba_marlin")
    shutil.copytree(isa.ptx_directory(), tmp_path / "numba_marlin" / "isa" / "ptx")
    program = (
        "from numba_marlin import isa; print(len(isa.load_instructions()), isa.ptx_directory())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=""),
    )
    assert done.stdout.split() == [
        str(len(INSTRUCTIONS)),
        str(tmp_path / "numba_marlin" / "isa" / "ptx"),
    ], done.stderr
