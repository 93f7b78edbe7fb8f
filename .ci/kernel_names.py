"""Which code names a kernel: an import out of its package, the type of its configuration, or a
string with its name as a word. Docstrings and comments are prose, and so are the examples that the
command line prints.

A kernel's name may stand in its own package, in tests and in experiments: what others must know of
a kernel, it declares (``numba_marlin/kernels/NAME/declare.py``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

KERNELS = "numba_marlin/kernels/"
# Also the names of PTX instructions, which the rooms about PTX speak of: for these only what can be
# meant for a kernel counts: a --kernel, or a comparison of something called kernel.
INSTRUCTIONS = {"wgmma", "tcgen05"}
# What the command line's verbs print with --help.
EXAMPLES = {"EXAMPLES", "EPILOG"}


def names_and_types(files: dict[str, str]) -> tuple[set[str], set[str]]:
    """(kernels, types of their configurations) that the sources, {path: text}, declare."""
    names, types = set(), set()
    for path, text in files.items():
        if path.startswith(KERNELS):
            types |= set(re.findall(r"(?m)^class (\w+Config)\b", text))
            if re.search(r"(?m)^KERNEL = KernelDefinition\(", text):
                *_, package, module = path.removesuffix(".py").split("/")
                names.add(package if module == "declare" else module)
    return names, types


def naming(
    tree: ast.Module, names: Collection[str], types: Collection[str]
) -> Iterator[tuple[int, str]]:
    """(line, text) of what names one of these kernels in code."""
    word = re.compile(rf"(?<![\w./-])({'|'.join(sorted(names))})(?![\w.(\\-])")
    prose = {id(each) for node in ast.walk(tree) for each in _prose(node)}
    comparisons = {
        id(each): ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            parts = {*module.split("."), *(each.name for each in node.names)}
            if module.startswith("numba_marlin.kernels") and parts & {*names, *types}:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Name | ast.Attribute):
            if getattr(node, "id", getattr(node, "attr", None)) in types:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in prose:
                continue
            compared = comparisons.get(id(node), "").split("==")[0].rstrip()
            for found in word.finditer(node.value):
                before = node.value[: found.start()]
                if found[1] not in INSTRUCTIONS or re.search(r"kernel\W*$", before + compared):
                    yield node.lineno, repr(node.value)


def _prose(node: ast.AST) -> Iterator[ast.AST]:
    """The strings of a docstring, or of the command line's examples."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        if ast.get_docstring(node) is not None:
            yield from ast.walk(node.body[0])
    elif isinstance(node, ast.Assign):
        if {getattr(target, "id", None) for target in node.targets} & EXAMPLES:
            yield from ast.walk(node.value)
