"""What a task says: arguments, sizes, the reference, the bound, the launch.

Functions of a task are called with what they name of sizes, scalars and inputs: ``lambda n: -(-n //
128)``, ``def reference(x, w)``. A ValueError says what is wrong with a task, and where.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from numba_marlin.emulator.checks import DEFAULT, levels_of
from numba_marlin.wording import did_you_mean

MOST_ELEMENTS = 1 << 24  # of an array
MOST_BLOCKS = 1 << 12
ALIGNED = 256  # what cudaMalloc gives at least
Shape = Sequence[Any] | Callable


@dataclass(frozen=True)
class Size:
    """A number that cases differ in: from ``least`` to ``most``, both included, a multiple of
    ``multiple_of``. ``edges``: values that are always tried."""

    least: int = 1
    most: int = 300
    multiple_of: int = 1
    edges: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.multiple_of < 1 or self.least < 0 or not self.values():
            raise ValueError(
                f"Size({self.least}, {self.most}, {self.multiple_of}) has no value: least must be 0"
                " or more, and a multiple lie between least and most"
            )
        for edge in self.edges:
            if edge not in self.values():
                raise ValueError(f"edge {edge} is no value of {self}")

    def values(self) -> range:
        first = -(-self.least // self.multiple_of) * self.multiple_of
        return range(first, self.most + 1, self.multiple_of)


@dataclass(frozen=True)
class Scalar:
    """A number by value: ``value`` is one, the name of a size, or a function of sizes."""

    name: str
    dtype: str
    value: Any


@dataclass(frozen=True)
class Array:
    """C-contiguous. ``shape``: numbers, names of sizes and functions of sizes, or one function that
    gives all. ``alignment``: bytes that the address is a multiple of; less than 256 is tried."""

    name: str
    dtype: str
    shape: Shape
    alignment: int = field(default=ALIGNED, kw_only=True)
    readonly = False
    poisoned = False
    compared = False


@dataclass(frozen=True)
class Input(Array):
    """Read-only. ``fill``: one or several of FILLS, or functions (rng, shape) -> array.
    ``may_ignore``: a kernel may be right without reading it."""

    fill: Any = None
    may_ignore: bool = False
    readonly = True


@dataclass(frozen=True)
class InOut(Array):
    """Changed in place: filled as an Input, compared as an Output."""

    fill: Any = None
    compared = True


@dataclass(frozen=True)
class Output(Array):
    """Holds garbage at first, or ``begins`` if that is a number; compared with the reference."""

    begins: float | None = None
    compared = True

    @property
    def poisoned(self) -> bool:  # type: ignore[override]
        return self.begins is None


@dataclass(frozen=True)
class Workspace(Array):
    """Scratch memory, not compared; garbage at first if ``begins`` is None."""

    begins: float | None = 0

    @property
    def poisoned(self) -> bool:  # type: ignore[override]
        return self.begins is None


def normal(rng, shape):
    return rng.standard_normal(shape)


def uniform(rng, shape):
    return rng.random(shape)


def integers(rng, shape):
    return rng.integers(-8, 9, shape)


def positive(rng, shape):
    return rng.integers(0, 17, shape)


def wide(rng, shape):
    return rng.standard_normal(shape) * np.exp2(rng.integers(-12, 13, shape))


FILLS: dict[str, Callable] = {
    each.__name__: each for each in (normal, uniform, integers, positive, wide)
} | {"zeros": lambda rng, shape: np.zeros(shape), "ones": lambda rng, shape: np.ones(shape)}
USUAL = {"f": ("normal", "integers"), "i": ("integers",), "u": ("positive",), "b": ("positive",)}


@dataclass(frozen=True)
class Task:
    """``arguments`` in the kernel's order; ``reference`` gives the outputs (and InOuts) in that
    order, one array, a tuple or a dict, from inputs in float64 (integers as they are). ``bound``:
    how far an element may be from it, beside the reference rounded to the output's type: a number,
    or a function as the reference, which may name ``expected``. ``grid``, ``block``, ``shared``
    (bytes of dynamic shared memory), ``cluster``: numbers, tuples or functions of sizes.
    ``deterministic``: every schedule must give the same bits. ``valid``: which sizes go together.
    ``checks``: the machine's, as in docs/checks.md."""

    arguments: Sequence[Scalar | Array]
    reference: Callable
    grid: Any
    block: Any
    sizes: Mapping[str, Size] = field(default_factory=dict)
    bound: Any = 0
    shared: Any = 0
    cluster: Any = None
    deterministic: bool = True
    valid: Callable = lambda: True
    checks: str = DEFAULT
    title: str = ""

    def __post_init__(self) -> None:
        names = [*self.sizes, *(each.name for each in self.arguments)]
        for name in names:
            if not str(name).isidentifier():
                raise ValueError(f"{name!r} is no name")
        twice = {name for name in names if names.count(name) > 1}
        # a scalar that passes a size on may have its name
        twice -= {each.name for each in self.scalars if each.value == each.name}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))}: each size and argument needs its name")
        if not any(each.compared for each in self.arrays):
            raise ValueError("the task has no Output and no InOut: there is nothing to judge")
        for each in self.arguments:
            kind = kind_of(each.dtype)
            if isinstance(each, (Input, InOut)):
                for fill in fills(each, kind):
                    if not callable(fill):
                        raise ValueError(f"fill={fill!r} of {each.name} must be a function")
            if isinstance(each, Array) and (
                each.alignment < 1 or each.alignment & (each.alignment - 1)
            ):
                raise ValueError(f"alignment={each.alignment} of {each.name}: not a power of two")
        levels_of(self.checks)
        if not callable(self.reference):
            raise ValueError("reference must be a function")

    @property
    def arrays(self) -> list[Array]:
        return [each for each in self.arguments if isinstance(each, Array)]

    @property
    def scalars(self) -> list[Scalar]:
        return [each for each in self.arguments if isinstance(each, Scalar)]

    @property
    def types(self) -> tuple[tuple[str, int | None], ...]:
        """Of the arguments, as ``on_cpu.compiling`` takes them."""
        smallest = {name: size.values()[0] for name, size in self.sizes.items()}
        return tuple(
            (each.dtype, None if isinstance(each, Scalar) else len(shape_of(each, smallest)))
            for each in self.arguments
        )


@dataclass(frozen=True)
class Problem:
    """A task's case, with numbers: ``values`` of all arguments by name, ``expected`` and ``bounds``
    in float64 of those that are compared."""

    values: dict[str, Any]
    expected: dict[str, np.ndarray]
    bounds: dict[str, np.ndarray]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    cluster: tuple[int, ...] | None


def kind_of(dtype: str) -> str:
    """ "b", "i", "u" or "f"."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise ValueError(f"dtype={dtype!r} is none of NumPy's") from None
    if found.kind not in "biuf" or found.itemsize > 8:
        raise ValueError(f"dtype={dtype!r} must be of integers or floats of at most 8 bytes")
    return found.kind


def fills(argument, kind: str) -> tuple[Callable, ...]:
    """The functions that fill an input."""
    given = argument.fill if argument.fill is not None else USUAL[kind]
    given = given if isinstance(given, (tuple, list)) else (given,)
    for each in given:
        if isinstance(each, str) and each not in FILLS:
            raise ValueError(
                f"fill={each!r} of {argument.name} must be one of {', '.join(FILLS)}"
                f"{did_you_mean(each, FILLS)}"
            )
    return tuple(FILLS[each] if isinstance(each, str) else each for each in given)


def shape_of(argument: Array, sizes: Mapping[str, int]) -> tuple[int, ...]:
    def one(value) -> int:
        if isinstance(value, str):
            if value not in sizes:
                raise ValueError(
                    f"shape of {argument.name}: there is no size {value!r}"
                    f"{did_you_mean(value, sizes)}"
                )
            return sizes[value]
        found = called(value, sizes, f"shape of {argument.name}")
        return int(found)

    shape = called(argument.shape, sizes, f"shape of {argument.name}")
    shape = (shape,) if isinstance(shape, (int, str, np.integer)) else shape
    found = tuple(one(each) for each in shape)
    if any(each < 0 for each in found) or int(np.prod(found, dtype=object)) > MOST_ELEMENTS:
        raise ValueError(
            f"{argument.name} of shape {found} must have 0 to {MOST_ELEMENTS} elements: choose"
            " smaller sizes"
        )
    return found


def called(value, known: Mapping[str, Any], what: str):
    """``value``, or what the function ``value`` gives for those of ``known`` that it names."""
    if not callable(value):
        return value
    parameters = inspect.signature(value).parameters.values()
    wanted = [each.name for each in parameters if each.name in known]
    missing = [each.name for each in parameters if each.default is each.empty]
    missing = [name for name in missing if name not in known]
    if missing:
        raise ValueError(
            f"{what} asks for {', '.join(missing)}: there are {', '.join(known) or 'no sizes'}"
        )
    try:
        return value(**{name: known[name] for name in wanted})
    except Exception as error:
        raise ValueError(f"{what} ends with {type(error).__name__}: {error}") from error


def problem(task: Task, sizes: Mapping[str, int], seed: int) -> Problem:
    """The arrays and the expected results for these sizes. The same for the same seed."""
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    known: dict[str, Any] = dict(sizes)
    for each in task.arguments:
        kind = kind_of(each.dtype)
        if isinstance(each, Scalar):
            value = each.value
            if isinstance(value, str):
                if value not in sizes:
                    raise ValueError(f"{each.name}: there is no size {value!r}")
                value = sizes[value]
            value = np.dtype(each.dtype).type(called(value, sizes, each.name))
            values[each.name] = value
            known[each.name] = float(value) if kind == "f" else int(value)
            continue
        shape = shape_of(each, sizes)
        if isinstance(each, (Input, InOut)):
            choices = fills(each, kind)
            made = np.asarray(choices[rng.integers(len(choices))](rng, shape))
            if made.shape != shape:
                raise ValueError(f"fill of {each.name} gave {made.shape}, expected {shape}")
            values[each.name] = np.ascontiguousarray(made.astype(each.dtype))
            exact = values[each.name].astype(np.float64) if kind == "f" else values[each.name]
            known[each.name] = exact.copy()
        else:
            begins = getattr(each, "begins", None)
            values[each.name] = np.full(shape, begins or 0, each.dtype)
    compared = [each for each in task.arrays if each.compared]
    with np.errstate(all="ignore"):
        found = called(task.reference, known, "reference")
        expected = by_name("reference", found, compared, values)
        of_one = {"expected": next(iter(expected.values())) if len(expected) == 1 else expected}
        found = called(task.bound, known | of_one, "bound")
        if np.isscalar(found):
            found = {each.name: np.full(values[each.name].shape, found) for each in compared}
        bounds = by_name("bound", found, compared, values)
    for name, bound in bounds.items():
        if not (bound >= 0).all():
            raise ValueError(f"bound of {name} must be 0 or more everywhere")
    blocks = dimensions("grid", called(task.grid, sizes, "grid"))
    if int(np.prod(blocks, dtype=object)) > MOST_BLOCKS:
        raise ValueError(f"grid={blocks} has more than {MOST_BLOCKS} blocks: choose smaller sizes")
    cluster = called(task.cluster, sizes, "cluster")
    return Problem(
        values,
        expected,
        bounds,
        blocks,
        dimensions("block", called(task.block, sizes, "block")),
        int(called(task.shared, sizes, "shared")),
        None if cluster is None else dimensions("cluster", cluster),
    )


def dimensions(what: str, value) -> tuple[int, ...]:
    found = tuple(int(each) for each in (value if isinstance(value, (tuple, list)) else (value,)))
    if not 1 <= len(found) <= 3 or min(found) < 1:
        raise ValueError(f"{what}={value!r} must be one to three positive numbers")
    return found


def by_name(what: str, found, compared: Sequence[Array], values) -> dict[str, np.ndarray]:
    """Arrays in float64 (integers as they are) for each output. ValueError where one is missing or
    of another shape."""
    if not isinstance(found, dict):
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(compared):
            raise ValueError(
                f"{what} gives {len(found)} results, the outputs are"
                f" {', '.join(each.name for each in compared)}"
            )
        found = {each.name: value for each, value in zip(compared, found)}
    result = {}
    for each in compared:
        if each.name not in found:
            raise ValueError(f"{what} gives nothing for {each.name}")
        array = np.asarray(found[each.name])
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{what} of {each.name} must be numbers, not {array.dtype}")
        shape = values[each.name].shape
        if what == "bound" and array.shape != shape:
            array = np.broadcast_to(array, shape)
        if array.shape != shape:
            raise ValueError(f"{what} of {each.name} has shape {array.shape}, expected {shape}")
        result[each.name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return result


def load(path: str | Path) -> Task:
    """The Task of a file: its only one, or the one named ``task``."""
    try:
        found = runpy.run_path(str(path))
    except OSError:
        raise
    except BaseException as error:  # whatever: SystemExit too
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    tasks = {name: each for name, each in found.items() if isinstance(each, Task)}
    if "task" not in tasks and len(tasks) != 1:
        raise ValueError(f"{path} must have a `task = judge.Task(...)`; it has {len(tasks)} tasks")
    return tasks["task"] if "task" in tasks else next(iter(tasks.values()))
