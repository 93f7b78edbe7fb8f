"""Compiles kernels to PTX with numba-cuda, without a GPU or a driver. Only this module depends on
its internals.

The module has the same functions as ``numba_cuda_mlir``: ``language`` and ``to_ptx``, and in
addition supports line numbers. The first call of one of them imports numba.
"""

from __future__ import annotations

import operator
import threading
import warnings
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import SimpleNamespace

from numba_marlin.compiler import unsigned
from numba_marlin.compiler.errors import MissingCompiler, installed_with
from numba_marlin.compiler.language import (
    OPAQUE_WORD,
    SHARED_ALIGNMENT,
    SHARED_SYMBOL,
    Language,
    check_operands,
    operand_signature,
    ptx_module,
    record_class,
)
from numba_marlin.compiler.plain.parameters import parameter_types
from numba_marlin.compiler.swift import made_once, swiftly
from numba_marlin.hardware.targets import Target
from numba_marlin.isa import Instruction
from numba_marlin.row_stack import restore_row_stack

NAME = "numba-cuda"
IMPORT_NAME = "numba_cuda"
INSTALL = 'pip install "numba-marlin[cu13]" (or [cu12] for a driver of CUDA 12)'

_lock = threading.RLock()


@cache
def _numba():
    """Import the modules used here. Raises MissingCompiler if numba-cuda cannot be imported."""
    restore_row_stack()
    try:
        with warnings.catch_warnings():
            # numba-cuda's typing rules, not ours, use time units that NumPy 2.5 deprecates
            warnings.filterwarnings(
                "ignore",
                message="The 'generic' unit for NumPy timedelta",
                category=DeprecationWarning,
            )
            # redirects `numba.cuda`, which otherwise is another, older code base
            import numba_cuda  # noqa: F401
            from cuda.pathfinder import DynamicLibNotFoundError
            from llvmlite import ir
            from numba import cuda

            # the module itself: ``numba.types`` is another once anybody has imported that name,
            # and what is set on that one numba-cuda does not see
            from numba.core import types
            from numba.cuda import debuginfo, dispatcher
            from numba.cuda.core import ir as numba_ir
            from numba.cuda.core import typeinfer
            from numba.cuda.cpython import rangeobj
            from numba.cuda.cudadrv.error import NvvmSupportError
            from numba.cuda.extending import (
                core_models as models,
            )
            from numba.cuda.extending import (
                intrinsic,
                lower_builtin,
                register_model,
                typeof_impl,
            )
            from numba.cuda.typeconv import Conversion
            from numba.cuda.typing import templates
            from numba.cuda.typing.context import BaseContext
    except ImportError as error:
        raise MissingCompiler(
            f"numba-cuda cannot be imported ({error}); {installed_with(INSTALL)}"
        ) from error
    return SimpleNamespace(
        ir=ir,
        cuda=cuda,
        types=types,
        dispatcher=dispatcher,
        debuginfo=debuginfo,
        intrinsic=intrinsic,
        lower_builtin=lower_builtin,
        models=models,
        register_model=register_model,
        typeof_impl=typeof_impl,
        conversion=Conversion,
        typeinfer=typeinfer,
        numba_ir=numba_ir,
        rangeobj=rangeobj,
        templates=templates,
        typing_context=BaseContext,
        no_toolkit=(DynamicLibNotFoundError, NvvmSupportError),
    )


@cache
def _taught():
    """Add the types of ``unsigned.taught`` to numba-cuda, and their lowering to LLVM instructions.
    Numba converts the operands to the types of the signature."""
    numba = _numba()
    taught = unsigned.taught(
        numba.types,
        numba.conversion,
        numba.templates,
        numba.typeof_impl,
        numba.typing_context,
    )
    lower, word = numba.lower_builtin, taught.Unsigned

    @numba.register_model(word)
    class UnsignedModel(numba.models.IntegerModel):
        pass

    @numba.register_model(taught.RecordClass)
    @numba.register_model(taught.NamespaceType)
    class NoValueModel(numba.models.OpaqueModel):
        pass

    def binary(fn, emit):
        lower(fn, word, word)(lambda context, builder, signature, args: emit(builder)(*args))

    for fn, name in unsigned.ARITHMETIC.items():
        method = name + "_" if name in ("and", "or") else name
        binary(fn, lambda builder, method=method: getattr(builder, method))
    for fn, predicate in unsigned.COMPARISONS.items():
        binary(fn, lambda builder, predicate=predicate: partial(builder.icmp_unsigned, predicate))
    lower(operator.invert, word)(lambda context, builder, signature, args: builder.not_(*args))
    lower(operator.neg, word)(lambda context, builder, signature, args: builder.neg(*args))
    lower(operator.pos, word)(lambda context, builder, signature, args: args[0])

    @lower(operator.not_, word)
    def is_zero(context, builder, signature, args):
        return builder.icmp_unsigned("==", args[0], args[0].type(0))

    numba.types.number_domain |= {taught.u32, taught.u64}  # so that arrays may have them
    for number in (taught.u32, taught.u64):
        state = numba.types.RangeType(number)
        numba.rangeobj.make_range_impl(number, state, state.iterator_type)

    @lower(taught.RecordClass, numba.types.VarArg(numba.types.Any))
    def new_record(context, builder, signature, args):
        fields = [
            context.cast(builder, value, have, want)
            for value, have, want in zip(args, signature.args, signature.return_type)
        ]
        return context.make_tuple(builder, signature.return_type, fields)

    return taught


@cache
def language(line_info: bool = False) -> Language:
    """Return the kernel language. line_info: for kernels that are compiled with line numbers."""
    with _lock:
        numba = _numba()
        cuda, types, taught = numba.cuda, numba.types, _taught()
        ptx = ptx_module(make_intrinsic) if not line_info else language().ptx
        # forceinline leaves the inlining to LLVM. The machine code is the same as with
        # inline="always", and compilation takes a seventh of the time (ampere: 4.4 s, not 29 s).
        jit = cuda.jit(device=True, forceinline=True, **({"lineinfo": True} if line_info else {}))
        device = made_once((lambda function: jit(_plainly_named(function))) if line_info else jit)
        return Language(
            NAME,
            cuda,
            ptx,
            device,
            record_class,
            _shared_base(),
            types.uint16,
            taught.u32,
            taught.u64,
            types.int32,
            types.int64,
            types.float32,
        )


def to_ptx(
    function,
    parameters,
    target: Target,
    threads: int,
    blocks_per_sm: int = 1,
    line_info: bool = False,
    plain: bool = False,
) -> str:
    """Return the PTX of one kernel.

    parameters: as in a KernelDefinition.
    threads, blocks_per_sm: the launch bounds.
    line_info: .loc directives name the line and the inlined function of each instruction. The
        kernel's device functions must come from ``language(line_info=True)``.
    plain: use Numba's own types, as ``@cuda.jit`` does.
    Raises MissingCompiler if numba-cuda finds no CUDA toolkit: it installs none by itself.
    """
    numba = _numba()
    kinds = parameter_types(numba.types, _taught().u64, plain)
    signature = numba.types.void(*(kinds(kind) for _, kind in parameters))
    capability = target.capability + (("a",) if target.specific else ())
    options = {
        "device": False,
        "abi": "numba",
        "cc": capability,
        "launch_bounds": (threads, blocks_per_sm),
    }
    with (
        _lock,
        _toolkit_found(),
        _pretended_device(capability),
        swiftly(numba.types, numba.typing_context, plain),
        nullcontext()
        if plain
        else unsigned.counting_in(_taught().u32, numba.types, numba.typeinfer, numba.numba_ir),
    ):
        if not line_info:
            return numba.cuda.compile(function, signature, **options)[0]
        with _lines_only():
            return numba.cuda.compile(
                _plainly_named(function), signature, lineinfo=True, **options
            )[0]


def with_array_words(ptx: str, entry: str, parameters) -> str:
    """Return ``ptx``: this compiler already passes arrays in the form that launches use."""
    return ptx


def _plainly_named(function):
    """Remove the "<locals>" of closures from the function's qualified name, because libnvvm rejects
    debug information with such names. Returns the function."""
    function.__qualname__ = function.__name__
    return function


@contextmanager
def _toolkit_found():
    """In this context a missing libnvvm or nvrtc is a MissingCompiler."""
    try:
        yield
    except _numba().no_toolkit as error:
        said = str(error).partition("\n")[0]
        text = f"numba-cuda finds no CUDA toolkit ({said}); {installed_with(INSTALL)}"
        raise MissingCompiler(text) from error


@contextmanager
def _lines_only():
    """In this context numba-cuda emits debug information about lines but not about variables.
    libnvvm fails on that about arrays ("Symbol name with unsupported characters", numba-cuda
    0.30.4), and debug information must not change the code.
    """
    builder = _numba().debuginfo.CUDADIBuilder
    quiet = {name: getattr(builder, name) for name in ("mark_variable", "update_variable")}
    for name in quiet:
        setattr(builder, name, lambda *args, **kwargs: None)
    try:
        with warnings.catch_warnings():
            # warns about lambdas, although their lines are known
            warnings.filterwarnings("ignore", message="Could not find source for function")
            yield
    finally:
        for name, method in quiet.items():
            setattr(builder, name, method)


@contextmanager
def _pretended_device(capability):
    """In this context the current device has the target's capability. numba-cuda asks for it when
    it types a device function, even if it compiles for another target, which fails without a
    driver."""
    dispatcher = _numba().dispatcher
    real = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = real


def make_intrinsic(instruction: Instruction, *, plain: bool = False, **immediates):
    """Return the intrinsic that kernels call for ``instruction``. Its unsigned operands have the
    types of ``unsigned``; with ``plain``, Numba's own."""
    numba = _numba()
    ir, types = numba.ir, numba.types
    numba_types = {
        "u16": types.uint16,
        "u32": types.uint32 if plain else _taught().u32,
        "i32": types.int32,
        "u64": types.uint64 if plain else _taught().u64,
        "f32": types.float32,
    }
    llvm_types = {
        "u16": ir.IntType(16),
        "u32": ir.IntType(32),
        "i32": ir.IntType(32),
        "u64": ir.IntType(64),
        "f32": ir.FloatType(),
    }
    template, constraints = instruction.assembly(**immediates)
    instruction = instruction.resolved(**immediates)

    def python_type(operand):
        element = numba_types[operand.type]
        return element if operand.width == 1 else types.UniTuple(element, operand.width)

    returned = python_type(instruction.outputs[0]) if instruction.outputs else types.void
    expected = tuple(python_type(operand) for operand in instruction.inputs)
    outputs = [llvm_types[o.type] for o in instruction.outputs for _ in o.elements]
    inputs = [llvm_types[o.type] for o in instruction.inputs for _ in o.elements]
    result = (
        ir.VoidType()
        if not outputs
        else outputs[0]
        if len(outputs) == 1
        else ir.LiteralStructType(outputs)
    )
    # Without readnone, LLVM assumes that even a pure instruction may access memory. convergent
    # keeps warp-wide instructions in their branch.
    attributes = (("readnone", "nounwind") if instruction.pure else ()) + (
        ("convergent",) if instruction.convergent else ()
    )

    def codegen(context, builder, signature, arguments):
        # numba has already converted the arguments to the signature's types
        values = []
        for value, operand in zip(arguments, instruction.inputs):
            values += (
                [value]
                if operand.width == 1
                else [builder.extract_value(value, i) for i in range(operand.width)]
            )
        asm = ir.InlineAsm(
            ir.FunctionType(result, inputs), template, constraints, side_effect=not instruction.pure
        )
        answer = builder.call(asm, values, attrs=attributes)
        if not outputs:
            return context.get_dummy_value()
        if len(outputs) == 1:
            return answer
        return context.make_tuple(
            builder, returned, [builder.extract_value(answer, i) for i in range(len(outputs))]
        )

    def kind(t):
        if isinstance(t, types.BaseTuple):
            return [kind(element) for element in t]
        return (
            "integer"
            if isinstance(t, (types.Integer, types.Boolean))
            else "float"
            if isinstance(t, types.Float)
            else str(t)
        )

    def snippet(typingctx, *operands):
        check_operands(instruction, [kind(t) for t in operands])
        return returned(*expected), codegen

    snippet.__name__, snippet.__doc__, snippet.__signature__ = (
        instruction.name,
        instruction.summary,
        operand_signature(instruction),
    )
    return numba.intrinsic(snippet)


def _shared_base():
    """Return an intrinsic for the address of the dynamic shared memory. Numba's own shared.array(0)
    is aligned only to its elements, and reads its size at run time."""
    numba = _numba()
    ir = numba.ir

    def shared_base(typingctx):
        def codegen(context, builder, signature, arguments):
            module = builder.module
            symbol = module.globals.get(SHARED_SYMBOL)
            if symbol is None:
                symbol = ir.GlobalVariable(
                    module, ir.ArrayType(ir.IntType(8), 0), SHARED_SYMBOL, addrspace=3
                )
                symbol.linkage, symbol.align = "external", SHARED_ALIGNMENT
            word = ir.IntType(32)
            opaque = ir.InlineAsm(ir.FunctionType(word, [word]), *OPAQUE_WORD)
            return builder.call(
                opaque, [builder.ptrtoint(symbol, word)], attrs=("readnone", "nounwind")
            )

        return _taught().u32(), codegen

    return numba.intrinsic(shared_base)
