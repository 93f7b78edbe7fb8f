"""Contract under test: the groups of the emulator import each other in one direction, and its
docstrings name modules that exist."""

import ast
import re
from pathlib import Path

import pytest

import numba_marlin.emulator

ROOM = Path(numba_marlin.emulator.__file__).parent
PREFIX = "numba_marlin.emulator."
BASE = {"errors", "limits", "checks"}  # modules that every group may import
GROUPS_BELOW = {
    "text": set(),
    "state": {"text"},
    "asynchronous": {"text", "state"},
    "ordering": {"text", "state"},
    "tensor": {"text", "state", "asynchronous"},
    "instructions": {"text", "state", "asynchronous", "ordering", "tensor"},
    "scheduling": {"text", "state", "asynchronous", "ordering", "tensor", "instructions"},
}
BELOW = {"errors": set(), "limits": {"errors"}, "checks": {"errors"}} | {
    group: BASE | below for group, below in GROUPS_BELOW.items()
}


def imports(node):
    """Names that the source imports when it runs: not those for type checkers only."""
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def files_of(group):
    return [ROOM / f"{group}.py"] if group in BASE else sorted((ROOM / group).glob("*.py"))


def test_every_group_has_its_place():
    assert set(BELOW) == {path.parent.name for path in ROOM.glob("*/__init__.py")} | BASE


@pytest.mark.parametrize("group", BELOW)
def test_a_group_imports_only_groups_below_it(group):
    for path in files_of(group):
        names = imports(ast.parse(path.read_text(encoding="utf-8")))
        others = {name.split(".")[2] for name in names if name.startswith(PREFIX)} - {group}
        assert others <= BELOW[group], path.name


def test_the_groups_are_documented_in_the_order_of_their_imports():
    documented = re.findall(r"^``(\w+)``$", numba_marlin.emulator.__doc__, re.MULTILINE)
    assert documented == list(GROUPS_BELOW)
    for place, group in enumerate(documented):
        assert GROUPS_BELOW[group] <= set(documented[:place])


@pytest.mark.parametrize("group", GROUPS_BELOW)
def test_the_docstring_of_a_group_names_all_its_modules(group):
    text = ast.get_docstring(ast.parse((ROOM / group / "__init__.py").read_text(encoding="utf-8")))
    if group == "instructions":  # one module per family of opcodes
        return
    named = set(re.findall(r"``([a-z_0-9]+)``", text))
    assert {path.stem for path in files_of(group)} - {"__init__"} <= named


def test_docstrings_name_modules_where_they_are():
    """``emulator.GROUP.MODULE`` in any text of the package, and ``GROUP.MODULE`` in the emulator's,
    are paths of modules."""
    package, wrong = ROOM.parent, []
    for path in package.rglob("*.py"):
        prefix = r"(?:emulator\.)?" if ROOM in path.parents else r"emulator\."
        for found in re.finditer(
            rf"``{prefix}([a-z_]+)(?:\.([a-z_0-9]+))?[^`]*``", path.read_text(encoding="utf-8")
        ):
            group, module = found.groups()
            if group in BELOW and module is not None:
                exists = (ROOM / group / f"{module}.py").exists()
            else:
                exists = group in BELOW or "emulator." not in found[0] or group == "machine"
            if not exists:
                wrong.append(f"{path.relative_to(package)}: {found[0]}")
    assert not wrong
