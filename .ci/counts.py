"""Count what the house rules forbid, and hold every count to its recorded maximum.

    python .ci/counts.py            # a table; exit 1 if a count is above its maximum
    python .ci/counts.py --list     # and every place that was counted
    python .ci/counts.py --json     # schema numba-marlin/form-counts/1

The maxima are a ratchet: they may only go down. What is counted, over the Python files that git
tracks (all files, where there is no repository):

- ``tuple_fields``: in kernels/, literal tuple indices that stand for a name (rule:
  ``tuple_fields.py``)
- ``casts_of_constants``: in kernels/, ``uint32(...)`` around literals and constants (names in
  capitals, fields of ``config``)
- ``wide_functions``: in kernels/, device functions with more than 8 parameters
- ``kernel_names``: in the package, kernels that code names outside their own packages (rule:
  ``kernel_names.py``)
- ``long_lines``: lines over 100 columns, but for those that end in a URL which begins before that
- ``long_modules``: modules over 400 lines
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kernel_names import kernel_names
from tuple_fields import names_in_disguise

ROOT = Path(__file__).resolve().parent.parent
KERNELS = "numba_marlin/kernels/"
COLUMNS, LINES, PARAMETERS = 100, 400, 8

MAXIMA = {
    "tuple_fields": 0,
    "casts_of_constants": 0,
    "wide_functions": 0,
    "kernel_names": 0,
    "long_lines": 0,
    "long_modules": 0,
}

Sources = dict[str, str]
Place = tuple[str, int, str]


def sources(root: Path) -> Sources:
    """Path relative to root -> text, of every Python file of the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        paths = [root / line for line in listed.stdout.splitlines()]
    else:
        paths = list(root.rglob("*.py"))
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(paths)
        if path.exists()
    }


def kernel_trees(files: Sources) -> dict[str, ast.Module]:
    return {path: ast.parse(text) for path, text in files.items() if path.startswith(KERNELS)}


def is_constant(node: ast.expr) -> bool:
    """Whether an expression is made of literals, NAMES in capitals and fields of ``config``."""
    match node:
        case ast.Constant():
            return True
        case ast.Name():
            return node.id.isupper()
        case ast.Attribute():
            base = getattr(node.value, "id", "")
            return node.attr.isupper() or base.isupper() or base == "config"
        case ast.UnaryOp():
            return is_constant(node.operand)
        case ast.BinOp():
            return is_constant(node.left) and is_constant(node.right)
    return False


def tuple_fields(files: Sources) -> Iterator[Place]:
    yield from names_in_disguise(kernel_trees(files))


def casts_of_constants(files: Sources) -> Iterator[Place]:
    for path, tree in kernel_trees(files).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) == 1:
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                if name == "uint32" and is_constant(node.args[0]):
                    yield path, node.lineno, ast.unparse(node)


def wide_functions(files: Sources) -> Iterator[Place]:
    for path, tree in kernel_trees(files).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(
                "device" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                arguments = node.args
                count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
                if count > PARAMETERS:
                    yield path, node.lineno, f"{node.name} takes {count} parameters"


def long_lines(files: Sources) -> Iterator[Place]:
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            # what cannot be broken, as ruff has it: a URL that begins before the limit and ends the
            # line
            last = (line.split() or [""])[-1]
            url = "://" in last and len(line) - len(last) < COLUMNS
            if len(line) > COLUMNS and not url:
                yield path, number, f"{len(line)} columns"


def long_modules(files: Sources) -> Iterator[Place]:
    for path, text in files.items():
        count = len(text.splitlines())
        if count > LINES:
            yield path, 1, f"{count} lines"


COUNTS: dict[str, Callable[[Sources], Iterator[Place]]] = {
    each.__name__: each
    for each in (
        tuple_fields,
        casts_of_constants,
        wide_functions,
        kernel_names,
        long_lines,
        long_modules,
    )
}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every place that was counted")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    files = sources(root)
    found = {name: sorted(count(files)) for name, count in COUNTS.items()}
    over = [name for name, places in found.items() if len(places) > MAXIMA[name]]
    if options.json:
        counts = {
            name: {"count": len(places), "maximum": MAXIMA[name], "places": places}
            for name, places in found.items()
        }
        print(json.dumps({"schema": "numba-marlin/form-counts/1", "ok": not over, **counts}))
        return bool(over)
    for name, places in found.items():
        count, maximum = len(places), MAXIMA[name]
        verdict = "  above its maximum" if name in over else ""
        if count < maximum:
            verdict = f"  now lower its maximum to {count} in {Path(__file__).name}"
        print(f"{name:20} {count:5}   at most {maximum:5}{verdict}")
        for path, line, what in places if options.list or name in over else ():
            print(f"    {path}:{line}: {what}")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
