"""Which ``value[3]`` in kernel code stands for a name.

Not every literal index does: element 3 of an array, of an instruction's four result registers or of
eight accumulators has no better name than its number. The rule:

- ``value`` is a **record** if it was written down as a tuple of unlike things, ``(stage,
  parity)``: its elements mean different things, so that each deserves a name. A subscript of a
  record with a literal *stands for a name*, and is counted.
- ``value`` is a **vector** if it is an array (``cuda.local.array``, ``cuda.shared.array``), what an
  instruction (``ptx.NAME``) returns, a tuple whose elements are alike, or a slice, a concatenation
  or a repetition of vectors. It is not counted. Alike are results of one instruction, packed pairs
  of 16-bit numbers, elements of vectors (``(a[0], b[0])``), and expressions that differ in their
  literals (also one added, or shifted by), casts, and the ordinals of their names alone: ``(w0,
  w1)``, ``(low, high)``, ``(load(p), load(p + 16))``, ``(times(x, first_scale), times(x,
  second_scale))``.

Where a value comes from is followed through assignments, unpacking, arguments, results, closures,
namespaces and fields of records, over all modules that are given together, without regard to the
order of statements or to calling contexts: if a record can reach the subscript on any path, it
counts. What cannot be followed, such as an argument of a function that is never called, counts as
a record too, so that nothing passes by being obscure. A tuple of literals alone, like the ``(0,
1)`` where a ring begins, does not make a record of what it meets.

Kernel code is what a function contains that has a parameter ``lang`` or a decorator ``cuda.jit``,
and everything nested in it. Parameters of such a ``cuda.jit`` function are arrays unless it is a
device function, whose arguments are followed; ``shape`` is a vector.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field

VECTOR = ("vector",)
INSTRUCTION = ("instruction",)  # a callable whose result is a vector
ARRAY_MAKERS = {"local", "shared"}
NAMESPACES = {"SimpleNamespace", "namespace"}


@dataclass
class Scope:
    """A module or a function, with what its variables may hold: sets of atoms. An atom is VECTOR,
    INSTRUCTION, ("tuple", number of a tuple display) or ("function", number of a function)."""

    parent: Scope | None
    kernel_code: bool
    name: str
    variables: dict[str, set] = field(default_factory=lambda: defaultdict(set))
    results: set = field(default_factory=set)

    def holder(self, name: str) -> Scope | None:
        scope: Scope | None = self
        while scope is not None and name not in scope.variables:
            scope = scope.parent
        return scope


CASTS = {"uint16", "uint32", "uint64", "int32", "int64", "float32"}
ORDINALS = re.compile(r"\d+$|(_?(low|high|lower|upper|below|above|first|second)(?=_|$))")
PACKED = re.compile(r"_b?f16x2$")


class _Shape(ast.NodeTransformer):
    """An expression without its literals, casts and the digits and ordinals of its names."""

    def visit_Constant(self, node):
        return ast.Constant(0)

    def visit_Name(self, node):
        return ast.Name(ORDINALS.sub("", node.id), node.ctx)

    def visit_Attribute(self, node):
        return ast.Attribute(self.visit(node.value), ORDINALS.sub("", node.attr), node.ctx)

    def visit_Subscript(self, node):
        return ast.Name("element", ast.Load()) if _by_literal(node) else self.generic_visit(node)

    def visit_BinOp(self, node):  # an address plus a constant, a shifted word
        if isinstance(node.op, ast.Add | ast.RShift) and isinstance(node.right, ast.Constant):
            return self.visit(node.left)
        return self.generic_visit(node)

    def visit_Call(self, node):
        if _last_name(node.func) in CASTS and len(node.args) == 1:
            return self.visit(node.args[0])
        if _of_ptx(node.func):  # what one instruction returns is alike, and so are packed pairs
            packed = PACKED.search(node.func.attr)
            return ast.Name(packed[0] if packed else node.func.attr, ast.Load())
        return self.generic_visit(node)


def shape(node: ast.expr) -> str:
    return ast.dump(_Shape().visit(ast.parse(ast.unparse(node), mode="eval").body))


def is_record(node: ast.Tuple | ast.List) -> bool:
    """Whether a tuple display puts unlike things together. A tuple of literals does not say."""
    plain = [each for each in node.elts if not isinstance(each, ast.Starred)]
    return len({shape(each) for each in plain}) > 1


class Values:
    """What every expression of some modules may hold."""

    def __init__(self, modules: dict[str, ast.Module]):
        self.attributes: dict[str, set] = defaultdict(set)  # of namespaces and records, by name
        self.functions: list[tuple[ast.FunctionDef | ast.Lambda, Scope]] = []
        self.tuples: list[ast.Tuple | ast.List] = []
        self.elements: list[list[set]] = []
        self.records: list[bool] = []
        self.places: list[str] = []
        self.record_fields: dict[str, list[str]] = {}
        self.statements: list[tuple[ast.AST, Scope]] = []
        self.subscripts: list[tuple[str, ast.Subscript, Scope]] = []
        self._numbers: dict[int, int] = {}
        self._changed = False
        for path, tree in modules.items():
            self._collect(path, tree, Scope(None, False, ""))
        self._fields_of_records(modules)
        self._changed = True
        while self._changed:
            self._changed = False
            for node, scope in self.statements:
                self._execute(node, scope)

    def _collect(self, path, node, scope):
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.Lambda):
                inner = self._enter(child, scope)
            elif isinstance(child, ast.Tuple | ast.List):
                self._numbers[id(child)] = len(self.tuples)
                self.tuples.append(child)
                self.elements.append([set() for _ in child.elts])
                self.records.append(is_record(child))
                self.places.append(path)
            elif isinstance(child, ast.Subscript) and scope.kernel_code and _by_literal(child):
                self.subscripts.append((path, child, scope))
            self.statements.append((child, inner if inner is not scope else scope))
            for name in _bound(child):
                scope.variables[name]  # makes the entry, so that scopes inside find it
            self._collect(path, child, inner)

    def _enter(self, node, scope) -> Scope:
        arguments = node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
        kernel_code = (
            scope.kernel_code
            or "lang" in names
            or any(each.startswith("cuda.jit") for each in decorators)
        )
        number = self._numbers[id(node)] = len(self.functions)
        name = getattr(node, "name", "lambda")
        inner = Scope(scope, kernel_code, f"{scope.name}.{name}".lstrip("."))
        self.functions.append((node, inner))
        entry = any(e.startswith("cuda.jit") and "device=True" not in e for e in decorators)
        for each in names + [each.arg for each in arguments.kwonlyargs]:
            inner.variables[each] |= {VECTOR} if entry else set()
        if isinstance(node, ast.FunctionDef):
            scope.variables[name].add(("function", number))
            if scope.parent is None:  # found as an attribute of its module, or imported
                self.attributes[name].add(("function", number))
        return inner

    def _fields_of_records(self, modules):
        """``Tile = record("Tile", "row column")`` and classes that derive from NamedTuple."""
        for node in (each for tree in modules.values() for each in ast.walk(tree)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                called = _last_name(node.value.func)
                if called in ("record", "namedtuple") and len(node.value.args) == 2:
                    fields = node.value.args[1]
                    if isinstance(fields, ast.Constant):
                        names = str(fields.value).replace(",", " ").split()
                        self.record_fields[_last_name(node.targets[0])] = names
            elif isinstance(node, ast.ClassDef):
                if any(_last_name(base) == "NamedTuple" for base in node.bases):
                    written = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                    names = [_last_name(each.target) for each in written]
                    self.record_fields[node.name] = names

    def _add(self, held: set, atoms: set):
        if not atoms <= held:
            held |= atoms
            self._changed = True

    def _execute(self, node, scope):
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value, scope)
            case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                self._bind(node.target, node.value, scope)
            case ast.AugAssign():
                self._bind(node.target, node.value, scope)
            case ast.Return() if node.value is not None:
                self._add(scope.results, self.of(node.value, scope))
            case ast.Lambda():
                self._add(scope.results, self.of(node.body, scope))
            case ast.Call():
                self.of(node, scope)
            case ast.Tuple() | ast.List() if isinstance(node.ctx, ast.Load):
                for held, each in zip(self.elements[self._numbers[id(node)]], node.elts):
                    self._add(held, self.of(each, scope))
            case ast.For() | ast.comprehension():
                self._put(node.target, self._elements(self.of(node.iter, scope)), scope)

    def _bind(self, target, value, scope):
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) == len(value.elts):
                for one, its in zip(target.elts, value.elts, strict=True):
                    self._bind(one, its, scope)
                return
        self._put(target, self.of(value, scope), scope)

    def _put(self, target, atoms, scope):
        if isinstance(target, ast.Name):
            holder = scope.holder(target.id)
            self._add((holder or scope).variables[target.id], atoms)
        elif isinstance(target, ast.Tuple | ast.List):
            for index, each in enumerate(target.elts):
                if isinstance(each, ast.Starred):
                    self._put(each.value, atoms, scope)
                else:
                    self._put(each, self._elements(atoms, index), scope)

    def _elements(self, atoms, index=None) -> set:
        """What the elements of tuples, or the one with that index, may hold."""
        found: set = set()
        for kind, *number in atoms:
            if kind == "tuple":
                elements = self.elements[number[0]]
                known = index is not None and index < len(elements) and self.records[number[0]]
                found = found.union(*(elements[index : index + 1] if known else elements))
        return found

    def of(self, node: ast.expr, scope: Scope) -> set:
        """The atoms that an expression may hold; none for numbers and what cannot be followed."""
        match node:
            case ast.Name():
                holder = scope.holder(node.id)
                if holder is None:
                    return self.attributes.get(node.id, set())
                held = holder.variables[node.id]
                return held | self.attributes.get(node.id, set()) if not held else held
            case ast.Tuple() | ast.List():
                return {("tuple", self._numbers[id(node)])}
            case ast.Lambda():
                return {("function", self._numbers[id(node)])}
            case ast.Starred():
                return self._elements(self.of(node.value, scope))
            case ast.Attribute():
                if _of_ptx(node):
                    return {INSTRUCTION}
                return {VECTOR} if node.attr == "shape" else self.attributes.get(node.attr, set())
            case ast.IfExp():
                return self.of(node.body, scope) | self.of(node.orelse, scope)
            case ast.BoolOp():
                return set().union(*(self.of(each, scope) for each in node.values))
            case ast.BinOp():
                return self.of(node.left, scope) | self.of(node.right, scope)
            case ast.Subscript():
                atoms = self.of(node.value, scope)
                if isinstance(node.slice, ast.Slice):
                    return atoms
                index = getattr(node.slice, "value", None) if _by_literal(node) else None
                # a dictionary of functions is as good as any of them
                functions = {each for each in atoms if each[0] in ("function", "instruction")}
                return self._elements(atoms, index) | functions
            case ast.Dict():
                return set().union(*(self.of(each, scope) for each in node.values))
            case ast.Call():
                return self._call(node, scope)
        return set()

    def _call(self, node: ast.Call, scope: Scope) -> set:
        called = _last_name(node.func)
        if called in self.record_fields:
            for name, value in zip(self.record_fields[called], node.args):
                self._add(self.attributes[name], self.of(value, scope))
        if called in self.record_fields or called in NAMESPACES or called == "_replace":
            for keyword in node.keywords:
                if keyword.arg:
                    self._add(self.attributes[keyword.arg], self.of(keyword.value, scope))
            return set()
        if called == "array" and isinstance(node.func, ast.Attribute):
            if _last_name(node.func.value) in ARRAY_MAKERS:
                return {VECTOR}
        if called == "getattr" and ast.unparse(node.args[0]).endswith("ptx"):
            return {INSTRUCTION}
        if called == "device" and len(node.args) == 1:
            return self.of(node.args[0], scope)
        if called == "get" and isinstance(node.func, ast.Attribute):  # of a dict of functions
            return self.of(node.func.value, scope)
        found = set()
        for kind, *number in self.of(node.func, scope):
            if kind == "instruction":
                # of one with immediates the first call gives the instruction, the second the vector
                found |= {VECTOR, INSTRUCTION}
            elif kind == "function":
                function, inner = self.functions[number[0]]
                names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
                for name, value in zip(names, node.args):
                    self._add(inner.variables[name], self.of(value, scope))
                for keyword in node.keywords:
                    if keyword.arg in inner.variables:
                        atoms = self.of(keyword.value, scope)
                        self._add(inner.variables[keyword.arg], atoms)
                found |= inner.results
        return found


def _by_literal(node: ast.Subscript) -> bool:
    return (
        isinstance(node.ctx, ast.Load)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, int)
    )


def _of_ptx(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and _last_name(node.value) == "ptx"


def _last_name(node: ast.expr) -> str:
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _bound(node: ast.AST) -> list[str]:
    """Names that a statement binds in the scope that it stands in."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign():
            targets = node.targets
        case ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.comprehension() | ast.NamedExpr():
            targets = [node.target]
    return [each.id for one in targets for each in ast.walk(one) if isinstance(each, ast.Name)]


def names_in_disguise(modules: dict[str, ast.Module]) -> list[tuple[str, int, str]]:
    """(path, line, what it is) of every literal index of kernel code that stands for a name; with
    the tuple display that makes it a record, which is where to mend it."""
    values = Values(modules)
    found = []
    for path, node, scope in values.subscripts:
        atoms = values.of(node.value, scope)
        records = sorted(number[0] for kind, *number in atoms if kind == "tuple")
        records = [number for number in records if values.records[number]]
        if records:
            where, written = values.places[records[0]], values.tuples[records[0]]
            text = f"{ast.unparse(node)}, from ({where}:{written.lineno}) {ast.unparse(written)}"
        elif not atoms:
            text = f"{ast.unparse(node)}, from nowhere that could be found"
        else:
            continue
        found.append((path, node.lineno, text))
    return found
