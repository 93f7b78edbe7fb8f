"""What a kernel is before anybody compiles it.

``KernelDefinition.make(lang, config)`` returns a Python function over the parameters, in the
language that ``numba_marlin.compiler.language`` explains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PARAMETER_TYPES = ("u64", "i32", "tensormap")


@dataclass(frozen=True)
class Takes:
    """The problems that a kernel takes, whatever the configuration; the defaults are those of the
    published Marlin. dtypes: pairs of the types of activations (and results) and of scales; bits of
    a code; zeros: kinds of zero points (``formats.types.ZEROS_KINDS``); bias: whether one may be
    added; column_step: what n must be a multiple of; group_sizes: None for -1 and any multiple of
    16; fp4_groups: of block-scaled FP4, whose scales have one type.
    """

    dtypes: tuple[tuple[str, str], ...] = (("float16", "float16"),)
    bits: tuple[int, ...] = (4,)
    zeros: tuple[str | None, ...] = (None,)
    bias: bool = False
    column_step: int = 64
    group_sizes: tuple[int, ...] | None = (-1, 32, 64, 128)
    fp4_groups: tuple[int, ...] = ()

    def refusals(self, problem) -> tuple[str, ...]:
        """What of ``problem`` (a ``heuristics.Problem``) the kernel does not take, a phrase each;
        empty if it takes all of it."""
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
        found += [
            f"{name}={value}"
            for name, value, allowed in (
                ("bits", problem.bits, self.bits),
                ("zeros", problem.zeros, self.zeros),
            )
            if value not in allowed
        ]
        if problem.bias and not self.bias:
            found.append("a bias")
        if problem.n % self.column_step:
            found.append(f"n={problem.n}, which must be a multiple of {self.column_step}")
        group_sizes = (self.fp4_groups or None) if fp4 else self.group_sizes
        if group_sizes is not None and problem.group_size not in group_sizes:
            found.append(f"group_size={problem.group_size}, which must be one of {group_sizes}")
        return tuple(found)


@dataclass(frozen=True)
class KernelDefinition:
    """name: also the name of its module and, as marlin_NAME, of its PTX entry; config_type: a
    frozen dataclass that refuses what the kernel cannot do; parameters: (name, type) in order, type
    u64 for a device address, i32, or tensormap: 128 bytes passed by value, in the body a u64, their
    generic address; make, threads and shared_bytes: functions of the configuration (threads a
    block; bytes of dynamic shared memory); grid(config, m, n, k, sms) -> (x, y, z) blocks on a
    device of that many multiprocessors; workspace_bytes(config, m, n, k, sms) -> () or (bytes of
    partials, bytes of locks): what a kernel with these two parameters needs besides its operands;
    locks are int32, zero before a launch and after; min_arch: the least target; waits: blocks of a
    launch wait for each other where they share a workspace, so that all of them must be on the
    device at once; cluster(config): blocks of a cluster, 1 for none; dependent(config): a launch
    may begin while the kernel before it on the stream ends, and waits for it itself
    (griddepcontrol.wait) before it touches anything but weights, the parameters ``reads_early``;
    blocks_per_sm(config): blocks that must fit on a multiprocessor together, which bounds their
    registers; tensor_maps(config, m, n, k, a_stride) -> {parameter of type tensormap: (parameter
    whose memory it describes, TensorMap)}; takes: the problems it can be configured for;
    method(config): how it multiplies, one of ``reference.METHODS``, None for the default, which
    says how far its results may be from exact ones; order_of_sums(config): all that the order in
    which a result's products are added depends on, besides k and the types, in words: two
    configurations of which it is equal give every row of x the same bits, whatever m, n, the grid
    and the row's place; None where that order hangs on m or the grid as well. It takes for granted
    that on one device an instruction (mma, wgmma) adds up an element of its product in the same
    order whatever its width, and wherever in it the element is: the ISA leaves that open, so tests
    ask the device.
    """

    name: str
    config_type: type
    parameters: tuple[tuple[str, str], ...]
    make: Callable[[Any, Any], Callable]
    threads: Callable[[Any], int]
    shared_bytes: Callable[[Any], int]
    grid: Callable[..., tuple[int, int, int]]
    workspace_bytes: Callable[..., tuple[int, ...]] = lambda config, m, n, k, sms: ()
    min_arch: str = "sm_80"
    summary: str = ""
    waits: bool = True
    cluster: Callable[[Any], int] = lambda config: 1
    dependent: Callable[[Any], bool] = lambda config: False
    reads_early: tuple[str, ...] = ("b", "scales", "zeros")
    blocks_per_sm: Callable[[Any], int] = lambda config: 1
    tensor_maps: Callable[..., dict] = lambda config, m, n, k, a_stride: {}
    takes: Takes = Takes()
    method: Callable[[Any], str | None] = lambda config: None
    order_of_sums: Callable[[Any], str | None] = lambda config: None

    def __post_init__(self):
        if not self.name.isidentifier():
            raise ValueError(f"kernel name {self.name!r} must be an identifier")
        for name, kind in self.parameters:
            if kind not in PARAMETER_TYPES:
                raise ValueError(
                    f"kernel {self.name}: parameter {name!r} has type {kind!r}, must be one of"
                    f" {', '.join(PARAMETER_TYPES)}"
                )

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
        """What a launch passes, in order: m, n, k, a_stride (elements from a row of a to the next)
        by name, encode(TensorMap, address) for a tensormap, else the address of that name in
        ``addresses``, 0 if there is none."""
        values = {**addresses, "m": m, "n": n, "k": k, "a_stride": a_stride}
        maps = self.tensor_maps(config, m, n, k, a_stride)
        return tuple(
            encode(maps[name][1], values[maps[name][0]]) if name in maps else values.get(name, 0)
            for name, _ in self.parameters
        )

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
