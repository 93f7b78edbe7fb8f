"""The language that kernels are written in: the subset of Numba's CUDA Python that numba-cuda and
numba-cuda-mlir share, with four additions. One source serves both compilers.

A kernel's ``make(lang, config)`` returns the kernel, a Python function of raw addresses and sizes.
Everything that its closure contains is a constant. ``lang`` is a ``Language``:

``lang.cuda``           the compiler's own ``cuda``: blockIdx, syncthreads, local.array ...
``lang.ptx.NAME``       the instruction ``ptx/NAME.ptx``. One with immediates is specialised while
                        the kernel is made, outside its body, which calls the result:
                        ``wait = lang.ptx.cp_async_wait_group(n=2)``, then ``wait()``
``lang.device``         decorator: a function that the kernel calls, always inlined
``lang.shared_base()``  address of the block's dynamic shared memory, a u32 of the shared window
``lang.uint32`` ...     number types, called to convert: uint16 uint32 uint64 int32 int64 float32
``lang.record``         state with names: ``Tile = lang.record("Tile", "row column rows")``
``lang.namespace``      a group of names: ``ring = lang.namespace("ring", advance=advance)``
``lang.constants``      the numbers of a configuration: ``sizes = lang.constants(config)``

**Plain kernels** (the first ones of the ladder, and yours) have no ``lang``: they are ``@cuda.jit``
over arrays, with ``from numba_marlin import ptx``, which has the same instructions. There a call
``ptx.NAME(...)`` in the kernel *is* the instruction, and immediates are keywords of that call:
``ptx.cp_async_wait_group(n=1)`` waits. It also has ``cvta_to_global(array, index)`` and
``cvta_to_shared(array, index)``: the address (uint64; uint32 in shared memory) of array[index], by
the array's strides; index is an int or a tuple. A NAME may be a few instructions:
``both_low_f16x2(pair)`` is the low half of ``pair``, twice. ``numba_marlin.ptx`` says more. What
follows about unsigned numbers and records holds for kernels over ``lang`` only: in a plain kernel
an instruction returns Numba's own uint32, uint64 or float32, or a tuple of them.

**Order.** An instruction that accesses memory, copies, waits or is a barrier (any whose ``effects``
in ptx/NAME.ptx are not "none" or "convergent") is volatile and clobbers memory. So it stays in
order with all others, with ``cuda.syncthreads`` and with the elements of arrays that the kernel
itself reads and writes, in plain kernels too. Loads are among these instructions.

**Pairs.** In a register of two 16-bit numbers, the first in a call is in the low half:
``cvt_rn_f16x2_f32(low, high)`` and ``cvt_rn_bf16x2_f32(low, high)`` (``pair_of`` in kernels) round
two floats to such a pair. PTX itself names the high half first.

**Unsigned numbers** follow the rules of C. The types ``uint32`` and ``uint64`` (of addresses, of
what instructions return and of ``uint32(x)``) are not those of Numba. In Numba the sum of two
uint32 has 64 bits, and a uint32 together with an int becomes a float64. Here::

    thread = ptx.tid_x()
    row, chunk = thread // 8, thread % 8
    ptx.ld_shared_b32(shared + (row * 8 + (chunk ^ row % 8)) * 16)  # 32 bits throughout
    ptx.ld_global_b32(address + 4 * thread)  # the offset is widened

- The operators are + - * // % & | ^ << >>, also in place, comparisons, ~ - not, ``min``, ``max``,
  ``range`` and conditions. Sums wrap around. A shift by at least as many bits as the number has is
  undefined, as is a division by 0.
- A Python int (a literal, a constant of the closure or of a namespace, the index of ``range(4)``)
  takes the width of the other operand: ``x - 1``, ``row + 16 * i``, ``x == -1`` (all bits set).
  So does every Numba integer of at most 32 bits, and every signed one of 64 bits, because that is
  Numba's type of Python ints. A signed 64-bit value of your own therefore loses its upper half.
- If one operand has 32 bits and the other is an unsigned 64-bit number, the first is extended with
  zeros. ``address + 16 * row`` multiplies in 32 bits; if the product can be wider, widen a factor:
  ``uint64(row) * pitch``. Nothing is narrowed implicitly: write ``uint32(wide)``.
- They do not mix with floats; ``float32(x)`` converts. ``/`` and ``**`` are rejected.
- Between two plain ints Numba's rules hold: ``cuda.blockIdx.x * 4`` has 64 bits. Begin with
  ``uint32(cuda.blockIdx.x)``, and put sizes into a record first.
- A variable to which ints are assigned in several places is a uint32: ``i = 0`` and ``i += 1`` in a
  loop.

**Records** are namedtuples. Fields have any type (numbers, tuples, arrays, records). Integers
become unsigned: a literal becomes a uint32, an address a uint64. Records have no cost at run time.
They can be passed, returned, reassigned in loops (the fields keep their types), constructed by
position or name, and unpacked with ``a, b = pair``. The same name and fields give the same class
everywhere. A record that holds an array must not be reassigned, because numba-cuda-mlir cannot
allocate a second one.

**Namespaces** are module objects, whose attributes Numba looks up while it compiles:
``ring.advance(place)`` calls a function, and ``sizes.stages`` is a constant, equivalent to a
literal. There is one exception: if one side of a branch cannot be typed, its condition must be a
plain constant of the closure. Numba removes the dead side of ``if grouped:`` before it infers
types, but that of ``if sizes.grouped:`` after.

**Constants**: loops over ``range(CONSTANT)`` are unrolled, branches on constants are removed, and
small ``cuda.local.array(CONSTANT, uint32)`` become registers. A ``break`` prevents the unrolling of
such a loop and keeps the arrays that it indexes in memory: guard the rest of the body with an
``if`` instead. A loop around another loop may also stay rolled if their product is large: libnvvm
of CUDA 13.0 does so for sm_120 (newer ones do not, nor does it for sm_90a); write out the inner
loop. A loop over a number that is not constant compiles to less code with ``while`` than with
``range``.

**Wide accumulators** (``wgmma``, 4 to 128 floats) are tuples that an instruction takes and returns:
``acc = multiply(acc, a, b_desc, 1)``. They may pass through device functions and loops. Index them
only with literals or constant slices (``kernels.language.tuples`` halves them): indexed by a loop
variable, a tuple of 64 becomes a tree of branches. Assemblers serialise ``wgmma`` instructions if a
register of theirs is accessed between issue and wait; they report it, and ``compiler.gates`` counts
it as a violation. Seen with ptxas 13.4 (nvJitLink serialises more):

- good: fence, products chained on one accumulator, commit, wait (n=0), read; the same if the next A
  is loaded or dequantised before the wait
- good: one accumulator, a product in flight over the loop's back edge,
  ``wgmma_wait_group_f32(n=1)`` then ``keep_u32`` on the previous A, read after n=0
- good: two accumulators issued one after the other, wait (n=1), read the first, wait (n=0), read
  the second, all in one iteration of the loop
- serialised: two accumulators in turns, one of them in flight over the back edge while the other is
  read, with any kind of wait
- a wait inserted by the assembler: accumulators used before any wait

This module contains what both compilers share; ``unsigned`` adds the types to a compiler.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from numba_marlin.isa import Instruction, load_instructions

SHARED_SYMBOL, SHARED_ALIGNMENT = "dynamic_shared", 128
"""Symbol of the dynamic shared memory, and its alignment in bytes, which suits bulk copies. Tiles
with a 128-byte swizzle need 1024: their kernels round the address up (``kernels.wgmma``)."""

OPAQUE_WORD = ("mov.b32 $0, $1;", "=r,r")
"""Inline assembly that hides where a word comes from: knowing that an address was 64 bits wide
once, LLVM keeps computing with 64 bits. (The instruction ``opaque_u32``, for kernels, is such a
move too, and volatile: what is computed from its result is computed anew.)"""


class RecordType(type):
    """The metaclass of records, by which the compilers distinguish them from other namedtuples."""


@cache
def record_class(name: str, fields: str) -> type:
    """Return the namedtuple class with this name and these fields (separated by spaces); the same
    class for the same arguments. Raises ValueError if a field has the name of a tuple's method."""
    for field in fields.split():
        if hasattr(tuple, field):
            raise ValueError(f"record {name}: {field!r} is a method of tuples, not a field")
    return RecordType(name, (namedtuple(name, fields),), {"__slots__": ()})


class Namespace(ModuleType):
    """A module object that groups names. Numba looks up its attributes at compile time."""


def namespace(name: str, **members) -> Namespace:
    """Return a ``Namespace`` of device functions, constants and instructions."""
    made = Namespace(name)
    made.__dict__.update(members)
    return made


def constants(config) -> Namespace:
    """Return a ``Namespace`` of those fields and properties of a frozen dataclass whose values
    Numba can look up: numbers, flags, strings and None."""
    properties = [n for n, p in inspect.getmembers(type(config)) if isinstance(p, property)]
    members = {name: getattr(config, name) for name in (*vars(config), *properties)}
    plain = {n: m for n, m in members.items() if m is None or isinstance(m, int | float | str)}
    return namespace(type(config).__name__, **plain)


@dataclass(frozen=True)
class Language:
    """The language for one compiler, created once per process. compiler: the compiler's name."""

    compiler: str
    cuda: Any
    ptx: ModuleType
    device: Callable
    record: Callable
    shared_base: Callable
    uint16: Any
    uint32: Any
    uint64: Any
    int32: Any
    int64: Any
    float32: Any

    namespace = staticmethod(namespace)
    constants = staticmethod(constants)


def ptx_module(
    make_intrinsic: Callable[..., Any], instructions: dict[str, Instruction] | None = None
) -> ModuleType:
    """Return a module with an attribute for every instruction. It is
    ``make_intrinsic(instruction)``; for an instruction with immediates, it is a function of them
    that returns ``make_intrinsic(instruction, **immediates)``, the same object for the same
    immediates.
    """
    module = ModuleType("ptx", "Inline PTX instructions, one for every file of ptx/.")
    for name, instruction in (
        load_instructions() if instructions is None else instructions
    ).items():
        setattr(
            module,
            name,
            (
                _with_immediates(make_intrinsic, instruction)
                if instruction.immediates
                else make_intrinsic(instruction)
            ),
        )
    return module


def _with_immediates(make_intrinsic, instruction):
    @cache
    def specialise(**immediates):
        return make_intrinsic(instruction, **immediates)

    specialise.__name__ = instruction.name
    specialise.__doc__ = f"{instruction.summary} Immediates: {', '.join(instruction.immediates)}."
    return specialise


def operand_signature(
    instruction: Instruction, immediates: tuple[str, ...] = ()
) -> inspect.Signature:
    """Return the signature (typingctx, operands ..., immediates ...). Numba binds the arguments of
    a call by the signature of the function that types it."""
    names = ["typingctx", *(operand.name for operand in instruction.inputs), *immediates]
    return inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )


def check_operands(instruction: Instruction, kinds) -> None:
    """Check the arguments of a call. Raises TypeError, which names instruction and operand, unless
    they fit the declaration.

    kinds: for every argument "integer", "float" or any other text, or a list of these for a tuple.
    Integers convert to every declared type. Floats convert only to f32, so that a forgotten cast of
    a float to an address, or to the bits of a register, is an error.
    """
    if len(kinds) != len(instruction.inputs):
        raise TypeError(
            f"ptx.{instruction.name} takes {len(instruction.inputs)} operands "
            f"({', '.join(o.name for o in instruction.inputs)}), got {len(kinds)}"
        )
    for operand, kind in zip(instruction.inputs, kinds):
        width = len(kind) if isinstance(kind, list) else 1
        if width != operand.width or isinstance(kind, list) != (operand.width > 1):
            expected = (
                f"a tuple of {operand.width} {operand.type}"
                if operand.width > 1
                else f"one {operand.type}"
            )
            raise TypeError(
                f"ptx.{instruction.name}: operand {operand.name!r} must be {expected}, "
                f"got {f'a tuple of {width}' if isinstance(kind, list) else kind}"
            )
        for element in kind if isinstance(kind, list) else [kind]:
            if element != "integer" and not (element == "float" and operand.type == "f32"):
                raise TypeError(
                    f"ptx.{instruction.name}: operand {operand.name!r} is {operand.type}, got"
                    f" {element}"
                )
