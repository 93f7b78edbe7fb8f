"""The objects of ``numba_marlin.ptx``, which plain ``@cuda.jit`` kernels of either compiler call.

An object does not belong to a compiler. Each compiler reads the attribute ``_numba_type_`` of a
value that it does not know. The attribute's value depends on the compiler that reads it: it is the
type of an intrinsic of that compiler, created on demand.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache, partial

from numba_marlin.compiler import plain
from numba_marlin.compiler.builder import COMPILERS, backend
from numba_marlin.compiler.language import operand_signature
from numba_marlin.isa import EFFECTS, Instruction, Operand, load_instructions

_ASKING = {"numba.cuda": "numba-cuda", "numba_cuda_mlir": "numba-cuda-mlir"}
"""Package whose code reads ``_numba_type_`` -> the compiler that it belongs to."""

_PYTHON_TYPES = {
    "u16": "uint16",
    "u32": "uint32",
    "i32": "int32",
    "u64": "uint64",
    "f32": "float32",
}


@cache
def instruction(name: str) -> DeviceFunction | None:
    """Return the instruction of ``ptx/NAME.ptx``; None if there is no such file."""
    found = load_instructions().get(name)
    return found and PtxInstruction(found, ())


@cache
def address(name: str) -> DeviceFunction:
    """Return ``cvta_to_global`` or ``cvta_to_shared``."""
    return AddressOf(name)


class DeviceFunction:
    """A function that kernels can call. Subclasses create its intrinsic in
    ``_intrinsic(compiler)``."""

    def __init__(self, name: str, doc: str, signature: inspect.Signature):
        self.__name__ = self.__qualname__ = name
        self.__module__ = "numba_marlin.ptx"
        self.__doc__ = f"{name}{_without_types(signature)}\n\n{doc}"
        self.__signature__ = signature
        self._types = {}

    @property
    def _numba_type_(self):
        asking = sys._getframe(1).f_globals["__name__"]
        for package, compiler in _ASKING.items():
            if asking == package or asking.startswith(package + "."):
                return self.type_for(compiler)
        raise AttributeError(f"{asking} does not belong to a compiler ({', '.join(COMPILERS)})")

    def type_for(self, compiler: str):
        """Return the type that this function has for ``compiler``."""
        if compiler not in self._types:
            self._types[compiler] = plain.of(compiler).type_of(self._intrinsic(compiler))
        return self._types[compiler]

    def __call__(self, *args, **kwargs):
        raise TypeError(f"ptx.{self.__name__} can be called only in a kernel")

    def __repr__(self):
        return f"<numba_marlin.ptx.{self.__name__}>"


def _without_types(signature):
    return signature.replace(
        parameters=[each.replace(annotation=each.empty) for each in signature.parameters.values()],
        return_annotation=signature.empty,
    )


class PtxInstruction(DeviceFunction):
    """An instruction of ``ptx/``. immediates: (name, value) pairs of those that already have a
    value."""

    def __init__(self, definition: Instruction, immediates: tuple):
        self.definition, self.immediates = definition, immediates
        self.open = () if immediates else definition.immediates
        operands = definition.resolved(**dict(immediates)) if immediates else definition
        super().__init__(
            definition.name, _doc(operands, immediates), _signature(operands, self.open)
        )

    def __call__(self, *args, **immediates):
        """Outside a kernel: return the instruction with its immediates filled in."""
        if args or not self.open:
            return super().__call__()
        # Raises TypeError or ValueError for invalid immediates. The cache below would find 2 for
        # 2.0, and 1 for True.
        self.definition.assembly(**immediates)
        return _filled_in(self.definition.name, tuple(sorted(immediates.items())))

    def __reduce__(self):
        if self.immediates:
            return _filled_in, (self.definition.name, self.immediates)
        return instruction, (self.definition.name,)

    def _intrinsic(self, compiler):
        make = partial(backend(compiler).make_intrinsic, plain=True)
        if not self.open:
            return make(self.definition, **dict(self.immediates))
        room = plain.of(compiler)
        return room.intrinsic_of(self._with_literals(make, room.literal_required()))

    def _with_literals(self, make, literal_required):
        """Return the typing function of a call in a kernel that also passes immediates. Their
        values are those of their literal types."""
        signature = operand_signature(self.definition, self.open)
        count = len(self.definition.inputs)

        def snippet(typingctx, *operands, **immediates):
            arguments = signature.bind(typingctx, *operands, **immediates).args[1:]
            operands, immediates = arguments[:count], arguments[count:]
            values = {}
            for name, kind in zip(self.open, immediates):
                if not hasattr(kind, "literal_value"):
                    raise literal_required(self._refusal(name, kind))
                values[name] = kind.literal_value
            made, codegen = make(self.definition, **values).__wrapped__(typingctx, *operands)
            return made.return_type(*made.args, *immediates), codegen

        snippet.__name__, snippet.__doc__ = self.__name__, self.__doc__
        snippet.__signature__ = signature
        return snippet

    def _refusal(self, name, kind):
        return (
            f"ptx.{self.__name__}: the immediate {name} must be a literal or a global constant, got"
            f" {kind}; or fill it in outside the kernel: step = ptx.{self.__name__}({name}=...)"
        )


@cache
def _filled_in(name, immediates):
    return PtxInstruction(load_instructions()[name], immediates)


class AddressOf(DeviceFunction):
    """The address of an array's element. name: cvta_to_global or cvta_to_shared."""

    _DOCS = {
        "cvta_to_global": (
            "The address of array[index] in global memory, for instructions that take a global"
            " address.",
            "uint64",
        ),
        "cvta_to_shared": (
            "The address of array[index], an element of a cuda.shared.array, in the block's window"
            " of shared memory,\nfor instructions that take a shared address.",
            "uint32",
        ),
    }

    def __init__(self, name: str):
        summary, returned = self._DOCS[name]
        parameters = [_parameter("array", "array"), _parameter("index", "int | tuple")]
        super().__init__(
            name,
            f"{summary}\n\narray: of any type and with any strides\n"
            "index: int, or a tuple with an int for each dimension; not checked\n"
            f"returns: {returned}\n\n"
            "https://docs.nvidia.com/cuda/parallel-thread-execution/"
            "#data-movement-and-conversion-instructions-cvta",
            inspect.Signature(parameters, return_annotation=returned),
        )

    def __reduce__(self):
        return address, (self.__name__,)

    def _intrinsic(self, compiler):
        return plain.of(compiler).address_intrinsic(self.__name__, shared="shared" in self.__name__)


def _parameter(name, annotation, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD):
    return inspect.Parameter(name, kind, annotation=annotation)


def _signature(definition, immediates):
    parameters = [_parameter(each.name, _python_type(each)) for each in definition.inputs]
    parameters += [_parameter(name, "int", inspect.Parameter.KEYWORD_ONLY) for name in immediates]
    returned = _python_type(definition.outputs[0]) if definition.outputs else None
    return inspect.Signature(parameters, return_annotation=returned)


def _python_type(operand: Operand) -> str:
    name = _PYTHON_TYPES[operand.type]
    return name if operand.width == 1 else f"tuple of {operand.width} {name}"


def _doc(definition, filled_in) -> str:
    lines = [definition.summary, ""]
    lines += [f"{each.name}: {_python_type(each)}" for each in definition.inputs]
    if not filled_in:
        lines += [f"{name}: int, an immediate" for name in definition.immediates]
    lines += [f"{name} is {value}, filled in" for name, value in filled_in]
    if definition.outputs:
        lines.append(f"returns: {_python_type(definition.outputs[0])}")
    lines.append("effects: " + ("; ".join(EFFECTS[e] for e in definition.effects) or "none"))
    lines += [f"needs: {definition.arch}", "", definition.body, "", definition.url]
    return "\n".join(lines)
