"""Where code names a kernel that lies elsewhere.

A kernel is named in its own package, in tests and in experiments; what other modules must know of
it, it declares (``numba_marlin/kernels/language/about.py``), and they ask the registry. So, in the
package outside ``kernels/``, these are counted, and inside it those that mean a kernel of another
family:

- an import from a kernel's package, and the type of its configuration (but a package in BUILT_OF is
  made of another's verbs, and says so);
- a string that is a kernel's name, or has one as a word: names with an underscore anywhere, others
  behind the word kernel ("--kernel decode"), for they are words of English too;
- of names that are those of PTX instructions as well (INSTRUCTIONS), which the rooms about PTX
  speak of, a string only where it is compared with something called kernel, or stands behind the
  word.

Docstrings and comments are prose, and so are EXAMPLES and EPILOG of the command line's verbs, which
--help prints: their kernels are held against the registry by a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

PACKAGE, KERNELS = "numba_marlin/", "numba_marlin/kernels/"
DECLARATION = "declare.py"
INSTRUCTIONS = {"wgmma", "tcgen05"}
# folder in kernels/ -> the kernels whose verbs it is made of
BUILT_OF = {"experts": {"decode", "wgmma"}, "w4a8": {"decode"}}
DOCUMENTATION = {"EXAMPLES", "EPILOG"}


def declared_in(files: dict[str, str]) -> dict[str, str]:
    """Kernel -> type of its configuration ("" if none is named), by the declarations in the
    packages."""
    return {
        PurePosixPath(path).parent.name: "".join(re.findall(r"config_type=(\w+)", text)[:1])
        for path, text in files.items()
        if path.startswith(KERNELS) and PurePosixPath(path).name == DECLARATION
    }


def family(path: str) -> str:
    """The folder in ``kernels/`` that a module of it lies in."""
    return path.removeprefix(KERNELS).partition("/")[0]


def kernel_names(files: dict[str, str]) -> Iterator[tuple[str, int, str]]:
    """(path, line, what) of every place."""
    declared = declared_in(files)
    families: dict[str, set[str]] = {}
    for path in files:
        if path.startswith(KERNELS) and PurePosixPath(path).name == DECLARATION:
            families.setdefault(family(path), set()).add(PurePosixPath(path).parent.name)
    for path, text in files.items():
        if not path.startswith(PACKAGE):
            continue
        mine = set()
        if path.startswith(KERNELS):
            mine = families.get(family(path), set()) | BUILT_OF.get(family(path), set())
        others = {name: each for name, each in declared.items() if name not in mine}
        for line, what in naming(ast.parse(text), others):
            yield path, line, what


def naming(tree: ast.Module, kernels: dict[str, str]) -> Iterator[tuple[int, str]]:
    """(line, what) of what names one of ``kernels``, {name: type of its configuration}."""
    types = set(kernels.values()) - {""}
    prose = {id(each) for each in documentation(tree)}
    compared = {
        id(each): ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("numba_marlin.kernels"):
                parts = {*module.split("."), *(each.name for each in node.names)}
                if parts & {*kernels, *types}:
                    yield node.lineno, ast.unparse(node)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in types:
                yield node.lineno, ast.unparse(node)
            case ast.Constant(value=str(text)) if id(node) not in prose:
                if any(means(text, name, compared.get(id(node), "")) for name in kernels):
                    yield node.lineno, repr(text)


def means(text: str, kernel: str, comparison: str) -> bool:
    """Whether a string means a kernel; ``comparison``: the one that it stands in."""
    word = rf"(?<![\w./-]){kernel}(?![\w.(\\-])"
    if re.search(r"kernels?\W+" + word, text):
        return True
    if kernel in INSTRUCTIONS:
        return text == kernel and "kernel" in comparison
    return text == kernel or "_" in kernel and re.search(word, text) is not None


def documentation(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of docstrings, and of what is assigned to DOCUMENTATION."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            yield from ast.walk(node.body[0])
        elif (
            isinstance(node, ast.Assign)
            and {getattr(target, "id", None) for target in node.targets} & DOCUMENTATION
        ):
            yield from ast.walk(node.value)
