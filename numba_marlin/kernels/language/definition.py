"""What a kernel is before anybody compiles it.

``KernelDefinition.make(lang, config)`` returns a Python function over the parameters, in the
language that ``numba_marlin.compiler.language`` explains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from numba_marlin.kernels.language.about import About
from numba_marlin.kernels.language.arrays import array_type, array_words, flat_parameters
from numba_marlin.problems.protocol import ACTIVATIONS, EXPERTS, OPERANDS, WEIGHTS, Problem

if TYPE_CHECKING:
    from numba_marlin.kernels.language.choice import Chooser

PARAMETER_TYPES = ("u64", "i32", "tensormap")
# what a kernel of another kind of problem does not take
_OPERANDS_OF = {
    WEIGHTS: "16-bit activations times one weight",
    OPERANDS: "two block-scaled operands",
    ACTIVATIONS: "8-bit activations",
    EXPERTS: "the experts of a mixture",
}


@dataclass(frozen=True, kw_only=True)
class Takes:
    """The problems with a quantised weight (``problems.WeightProblem``) that a kernel takes,
    whatever its configuration; the defaults are those of the published Marlin."""

    kind: ClassVar[str] = WEIGHTS

    #: Pairs of the types of activations (and results) and of scales.
    dtypes: tuple[tuple[str, str], ...] = (("float16", "float16"),)
    #: Of a code.
    bits: tuple[int, ...] = (4,)
    #: Kinds of zero points (``formats.types.ZEROS_KINDS``).
    zeros: tuple[str | None, ...] = (None,)
    #: Whether one may be added.
    bias: bool = False
    #: What n must be a multiple of.
    column_step: int = 64
    #: None for -1 and any multiple of 16.
    group_sizes: tuple[int, ...] | None = (-1, 32, 64, 128)
    #: Blocks of FP4, whose scales have one type; () for a kernel that has no FP4.
    fp4_groups: tuple[int, ...] = ()

    def refusals(self, problem: Problem) -> tuple[str, ...]:
        """What of ``problem`` the kernel does not take, a phrase each; empty if it takes all of
        it."""
        if problem.kind != self.kind:
            return (_OPERANDS_OF[problem.kind],)
        found = []
        fp4 = problem.codes != "integer"
        if fp4 and not self.fp4_groups:
            found.append(f"codes={problem.codes}")
        elif (
            problem.dtype not in {dtype for dtype, _ in self.dtypes}
            if fp4
            else (problem.dtype, problem.scale_dtype) not in self.dtypes
        ):
            found.append(f"dtype={problem.dtype} with scale_dtype={problem.scale_dtype}")
        found += _not_among(problem, bits=self.bits, zeros=self.zeros)
        if problem.bias and not self.bias:
            found.append("a bias")
        if problem.n % self.column_step:
            found.append(f"n={problem.n}, which must be a multiple of {self.column_step}")
        group_sizes = (self.fp4_groups or None) if fp4 else self.group_sizes
        if group_sizes is not None and problem.group_size not in group_sizes:
            found.append(f"group_size={problem.group_size}, which must be one of {group_sizes}")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TakesActivations(Takes):
    """The same of problems with activations in 8 bits (``problems.ActivationsProblem``)."""

    kind: ClassVar[str] = ACTIVATIONS

    #: Of them: of ``formats.activations.KINDS``.
    activations: tuple[str, ...] = ("int8",)

    def refusals(self, problem: Problem) -> tuple[str, ...]:
        found = super().refusals(problem)
        if problem.kind == self.kind:
            found += tuple(_not_among(problem, activations=self.activations))
        return found


@dataclass(frozen=True, kw_only=True)
class TakesExperts(Takes):
    """The same of the products of a mixture's experts (``problems.ExpertsProblem``)."""

    kind: ClassVar[str] = EXPERTS

    #: Most of a mixture, and most of a token: tables of them lie in shared memory.
    experts: int = 1024
    #: What k must be a multiple of.
    k_step: int = 16
    #: Kinds of zero points that a weight with one scale per column may have.
    zeros_of_columns: tuple[str | None, ...] = (None, "integer", "float16")
    #: Of gate and up (``reference.experts.ACTIVATIONS``).
    activations: tuple[str | None, ...] = (None,)
    #: Of x: of ``formats.activations.KINDS``, or None for the 16 bits of ``dtypes``.
    kinds_of_x: tuple[str | None, ...] = (None,)
    #: With an activation, what n must be a multiple of, and the kinds of zero points.
    gated_step: int = 128
    zeros_of_gated: tuple[str | None, ...] = (None, "integer", "float16")

    def refusals(self, problem: Problem) -> tuple[str, ...]:
        found = super().refusals(problem)
        if problem.kind == self.kind:
            for name in ("experts", "top_k"):
                if getattr(problem, name) > min(self.experts, problem.experts):
                    most = f"{self.experts} experts and as many of a token"
                    found += (f"{name}={getattr(problem, name)}, of at most {most}",)
            found += self._of_sizes(problem)
            if problem.activations not in self.kinds_of_x:
                taken = " or ".join(each or "x in 16 bits" for each in self.kinds_of_x)
                found += (f"activations={problem.activations}, but {taken}",)
            if problem.activation is not None:
                found += self._of_gated(problem)
        return found

    def _of_sizes(self, problem: Problem) -> tuple[str, ...]:
        found = []
        if problem.k % self.k_step:
            found.append(f"k={problem.k}, which must be a multiple of {self.k_step}")
        if problem.group_size == -1 and problem.zeros not in self.zeros_of_columns:
            found.append(f"zeros={problem.zeros!r} without groups")
        return tuple(found)

    def _of_gated(self, problem: Problem) -> tuple[str, ...]:
        found, gated = [], f"activation={problem.activation!r}"
        if problem.activation not in self.activations:
            found.append(gated)
        if problem.n % self.gated_step:
            found.append(f"{gated} with n={problem.n}, not a multiple of {self.gated_step}")
        if problem.zeros not in self.zeros_of_gated:
            found.append(f"{gated} with zeros={problem.zeros!r}")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TakesOperands:
    """The products of two block-scaled operands (``problems.BlockProblem``) that a kernel takes,
    whatever its configuration; the defaults are those of a kernel without an epilogue."""

    kind: ClassVar[str] = OPERANDS

    #: Of A and B.
    formats: tuple[str, ...] = ("nvfp4",)
    #: Types of D.
    results: tuple[str, ...] = ("float16", "bfloat16", "float32")
    #: Those of them to which a C of the same type may be added.
    sources: tuple[str, ...] = ()
    #: Types of a C that may be added whatever the type of D.
    c_dtypes: tuple[str, ...] = ()
    #: Whether one may be added.
    bias: bool = False
    #: None: the sums as they are.
    activations: tuple[str | None, ...] = (None,)

    def refusals(self, problem: Problem) -> tuple[str, ...]:
        """As ``Takes.refusals``."""
        if problem.kind != self.kind:
            return (_OPERANDS_OF[problem.kind],)
        found = _not_among(
            problem, format=self.formats, result=self.results, activation=self.activations
        )
        taken = (
            problem.result in self.sources
            if problem.c_dtype is None
            else problem.c_dtype in self.c_dtypes
        )
        if problem.source and (not taken or problem.gated):
            kind = f" of {problem.c_dtype}" if problem.c_dtype else ""
            found.append(
                f"a C{kind} with result={problem.result!r}"
                + (" and a gate" if problem.gated else "")
            )
        if problem.bias and not self.bias:
            found.append("a bias")
        return tuple(found)


def _not_among(problem: Problem, **allowed: tuple) -> list[str]:
    """name=value of the fields whose value is not allowed."""
    return [
        f"{name}={getattr(problem, name)}"
        for name, values in allowed.items()
        if getattr(problem, name) not in values
    ]


@dataclass(frozen=True, kw_only=True)
class KernelDefinition:
    """A kernel: how its body is made and launched, which problems it takes, and what others want
    to know of it. Every function but ``make`` and ``chooser``'s takes the configuration first."""

    # ---- what it is

    #: Also the name of its package and, as marlin_NAME, of its PTX entry.
    name: str
    #: A line for lists of kernels.
    summary: str = ""
    #: The place on the ladder of its kind of problem, simplest first; steps of ten leave room.
    rung: int = 0

    # ---- how it is made

    #: A frozen dataclass that refuses with a ValueError what the kernel cannot do.
    config_type: type
    #: (lang, config) -> the kernel's body, a Python function over the parameters.
    make: Callable[[Any, Any], Callable]
    #: (name, type) in order. u64: a device address; i32; tensormap: 128 bytes passed by value, in
    #: the body a u64, their generic address; or an array, "float16[:, ::1]" (``arrays``).
    parameters: tuple[tuple[str, str], ...]
    #: The least target.
    min_arch: str = "sm_80"

    # ---- how it is launched

    #: (config) -> threads per block.
    threads: Callable[[Any], int]
    #: (config) -> bytes of dynamic shared memory per block.
    shared_bytes: Callable[[Any], int]
    #: (config) -> bytes of static shared memory per block, which the body declares itself.
    static_shared_bytes: Callable[[Any], int] = lambda config: 0
    #: (config, m, n, k, sms) -> (x, y, z) blocks on a device of that many SMs.
    grid: Callable[..., tuple[int, int, int]]
    #: (config, m, n, k, sms) -> () or (bytes of ``partials``, bytes of ``locks``), for a kernel
    #: with these parameters. Locks are int32, zero before a launch and after.
    workspace_bytes: Callable[..., tuple[int, ...]] = lambda config, m, n, k, sms: ()
    #: (config, m, n, k, a_stride) -> {parameter of type tensormap: (parameter whose memory it
    #: describes, TensorMap)}.
    tensor_maps: Callable[..., dict] = lambda config, m, n, k, a_stride: {}
    #: (config, m, n, k) -> {parameter that is an array: its shape}.
    shapes: Callable[..., dict[str, tuple[int, ...]]] = lambda config, m, n, k: {}
    #: Whether blocks that share a workspace wait for each other: then all of a launch must be
    #: resident at once.
    waits: bool = True
    #: (config) -> blocks of a cluster, 1 for none.
    cluster: Callable[[Any], int] = lambda config: 1
    #: (config) -> blocks that must fit on an SM together, which bounds their registers.
    blocks_per_sm: Callable[[Any], int] = lambda config: 1
    #: (config) -> whether it uses programmatic dependent launch: a launch may begin while the
    #: kernel before it on the stream ends, and waits for it itself (griddepcontrol.wait) before it
    #: touches anything but ``reads_early``.
    dependent: Callable[[Any], bool] = lambda config: False
    #: Parameters, weights as a rule, that are read before that wait.
    reads_early: tuple[str, ...] = ("b", "scales", "zeros")
    #: (config) -> the passes behind a launch that make its result what the product asks for. They
    #: multiply nothing, and are on no ladder.
    behind: Callable[[Any], tuple[Configured, ...]] = lambda config: ()
    #: (alpha, beta, inverse of the result's global scale) -> {parameter: float32 array} of the
    #: numbers that a kernel of two operands multiplies its sums by.
    factors: Callable[..., dict[str, Any]] = lambda alpha, beta, inverse: {}

    # ---- which problems it takes, in which configuration

    #: The problems that it can be configured for.
    takes: Takes | TakesActivations | TakesExperts | TakesOperands = Takes()
    #: The configurations worth a thought for a problem, and why (``choice.Chooser``). None for a
    #: kernel that nobody chooses: a test's.
    chooser: Chooser | None = None
    #: (config, {field: value}) -> the configuration with these fields, and others that must follow.
    changed: Callable[..., Any] = lambda config, changes: replace(config, **changes)
    #: (config) -> how it multiplies, one of ``reference.METHODS``, None for the default: bounds how
    #: far results may be from exact ones.
    method: Callable[[Any], str | None] = lambda config: None
    #: (config) -> reduction-order key, in words: all that the order in which a result's products
    #: are added depends on, besides k and the types. Equal keys guarantee bit-identical rows,
    #: whatever m, n, the grid and the row's place; None if the order depends on m or the grid. This
    #: takes for granted that on one device an instruction (mma, wgmma) adds up an element of its
    #: product in the same order whatever its width, and wherever in it the element is: the ISA
    #: leaves that open, so tests ask the device.
    order_of_sums: Callable[[Any], str | None] = lambda config: None

    # ---- what others want to know of it

    #: For the views of a run, the profile and the command line.
    about: About = About()

    def __post_init__(self):
        if not self.name.isidentifier():
            raise ValueError(f"kernel name {self.name!r} must be an identifier")
        for name, kind in self.parameters:
            if kind not in PARAMETER_TYPES and array_type(kind) is None:
                raise ValueError(
                    f"kernel {self.name}: parameter {name!r} has type {kind!r}, must be one of"
                    f" {', '.join(PARAMETER_TYPES)}, or an array such as float16[:, ::1]"
                )

    @property
    def kind(self) -> str:
        """Of the problems that it takes: one of ``problems.KINDS``."""
        return self.takes.kind

    @property
    def plain(self) -> bool:
        """Whether it is an ``@cuda.jit`` kernel over arrays (``kernels.language.plain``)."""
        return any(array_type(kind) for _, kind in self.parameters)

    @property
    def passed(self) -> tuple[tuple[str, str], ...]:
        """What a launch passes, (name, type) in order: the parameters, arrays word by word."""
        return flat_parameters(self.parameters)

    def arguments(
        self,
        config,
        addresses: dict[str, int],
        m: int,
        n: int,
        k: int,
        a_stride: int,
        encode: Callable[[Any, int], bytes],
    ) -> tuple:
        """The values of ``passed``, in order: m, n, k, a_stride (elements from a row of a to the
        next) by name, encode(TensorMap, address) for a tensormap, else the address of that name in
        ``addresses``, 0 if there is none."""
        values = {**addresses, "m": m, "n": n, "k": k, "a_stride": a_stride}
        maps = self.tensor_maps(config, m, n, k, a_stride)
        shapes = self.shapes(config, m, n, k)
        passed = []
        for name, kind in self.parameters:
            if name in maps:
                passed.append(encode(maps[name][1], values[maps[name][0]]))
            elif name in shapes:
                passed += array_words(kind, values.get(name, 0), shapes[name])
            else:
                passed.append(values.get(name, 0))
        return tuple(passed)

    def launch_options(self, config) -> dict:
        """What ``launch.launcher`` must know besides the compiled kernel."""
        return {"cluster": self.cluster(config), "dependent": self.dependent(config)}

    def check_config(self, config) -> None:
        """TypeError unless config is of this kernel's type."""
        if not isinstance(config, self.config_type):
            raise TypeError(
                f"kernel {self.name} takes a {self.config_type.__name__}, not"
                f" {type(config).__name__}: {config!r}"
            )


@dataclass(frozen=True)
class Configured:
    """A kernel, or a pass behind one, in a configuration."""

    definition: KernelDefinition
    config: Any


class TooMuchSharedMemory(ValueError):
    """A configuration that is right but for the shared memory of a block: fewer stages may fit."""


CODES = ("integer", "e2m1")


def check_codes(config) -> None:
    """ValueError unless the fields codes, group_blocks, bits and zeros of a configuration go
    together."""
    if config.codes not in CODES:
        raise ValueError(f"codes={config.codes!r} must be one of {CODES}")
    if config.codes == "integer":
        if config.group_blocks not in (-1, 2, 4, 8, 16):
            raise ValueError(
                f"group_blocks={config.group_blocks} must be -1, 2, 4, 8 or 16 (group sizes 32, 64,"
                " 128, 256)"
            )
    elif config.group_blocks not in (1, 2) or config.bits != 4 or config.zeros is not None:
        raise ValueError(
            f"codes='e2m1' with group_blocks={config.group_blocks}, bits={config.bits} and"
            f" zeros={config.zeros} must have group_blocks 1 or 2 (blocks of 16, 32), 4 bits and no"
            " zero points"
        )


def ceil_div(value: int, divisor: int) -> int:
    """value / divisor, rounded up; for ints >= 0."""
    return -(-value // divisor)
