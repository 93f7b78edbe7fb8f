"""Compiles kernels to PTX with numba-cuda-mlir, without a GPU or a driver. Only this module and
``unsigned_mlir`` depend on its internals.

The module has the same functions as ``numba_cuda``: ``language`` and ``to_ptx``. The first call of
one of them imports numba-cuda-mlir, which requires Python 3.11.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace

from numba_marlin.compiler import unsigned, unsigned_mlir
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
from numba_marlin.compiler.plain.arrays import with_array_words  # noqa: F401 (as numba_cuda has)
from numba_marlin.compiler.plain.parameters import parameter_types
from numba_marlin.hardware.targets import Target
from numba_marlin.isa import Instruction

NAME = "numba-cuda-mlir"
IMPORT_NAME = "numba_cuda_mlir"
INSTALL = (
    'pip install "numba-marlin[cu13,mlir]" (or [cu12,mlir] for a driver of CUDA 12), on Python 3.11'
    " or later"
)

_lock = threading.RLock()


@cache
def _numba():
    """Import the modules used here. Raises MissingCompiler if numba-cuda-mlir cannot be
    imported."""
    try:
        with warnings.catch_warnings():
            # numba-cuda-mlir's typing rules, not ours, use time units that NumPy 2.5 deprecates
            warnings.filterwarnings(
                "ignore",
                message="The 'generic' unit for NumPy timedelta",
                category=DeprecationWarning,
            )
            from numba_cuda_mlir import cuda, tools, types
            from numba_cuda_mlir._mlir import ir
            from numba_cuda_mlir._mlir.dialects import arith, llvm, memref
            from numba_cuda_mlir._mlir.extras import types as mlir_types
            from numba_cuda_mlir.descriptor import mlir_target
            from numba_cuda_mlir.extending import (
                intrinsic,
                lower_builtin,
                register_model,
                typeof_impl,
            )
            from numba_cuda_mlir.lowering_utilities import RangeObject, convert, index_of
            from numba_cuda_mlir.mlir_lowering import MLIRLower
            from numba_cuda_mlir.models import IntegerModel, OpaqueModel
            from numba_cuda_mlir.numba_cuda import types as frontend_types
            from numba_cuda_mlir.numba_cuda.core import ir as numba_ir
            from numba_cuda_mlir.numba_cuda.core import typeinfer
            from numba_cuda_mlir.numba_cuda.typeconv import Conversion
            from numba_cuda_mlir.numba_cuda.typing import templates
            from numba_cuda_mlir.numba_cuda.typing.context import BaseContext
    except ImportError as error:
        raise MissingCompiler(
            f"numba-cuda-mlir cannot be imported ({error}); {installed_with(INSTALL)}"
        ) from error
    return SimpleNamespace(
        cuda=cuda,
        tools=tools,
        types=types,
        ir=ir,
        arith=arith,
        memref=memref,
        llvm=llvm,
        mlir_types=mlir_types,
        target=mlir_target,
        intrinsic=intrinsic,
        lower_builtin=lower_builtin,
        register_model=register_model,
        typeof_impl=typeof_impl,
        models=SimpleNamespace(integer=IntegerModel, opaque=OpaqueModel),
        frontend_types=frontend_types,
        conversion=Conversion,
        typeinfer=typeinfer,
        numba_ir=numba_ir,
        templates=templates,
        typing_context=BaseContext,
        convert=convert,
        index_of=index_of,
        range_object=RangeObject,
        lower=MLIRLower,
    )


@cache
def _taught():
    """Add the types of ``unsigned.taught`` to numba-cuda-mlir, and their lowering."""
    return unsigned_mlir.taught(_numba())


@cache
def language() -> Language:
    """Return the kernel language."""
    with _lock:
        numba = _numba()
        cuda, types, taught = numba.cuda, numba.types, _taught()
        ptx = ptx_module(make_intrinsic)
        # forceinline leaves the inlining to LLVM. The machine code is the same as with
        # inline="always", and compilation takes half of the time (ampere: 8 s, not 16 s). The PTX
        # still contains the functions, uncalled; ``module_text.tidy`` removes them.
        device = cuda.jit(device=True, forceinline=True)
        return Language(
            NAME,
            cuda,
            ptx,
            device,
            _record,
            _shared_base(),
            types.uint16,
            taught.u32,
            taught.u64,
            types.int32,
            types.int64,
            types.float32,
        )


@cache
def _record(name: str, fields: str) -> type:
    """Return ``record_class(name, fields)`` with a lowering of its constructor. Release 0.6 lacks
    that for every namedtuple, but can do everything else with one; it represents its value as the
    Python tuple of the fields' values."""
    made = record_class(name, fields)

    @_numba().lower_builtin(made, _numba().types.VarArg(_numba().types.Any))
    def constructed(builder, target, args, kwargs):
        given = dict(zip(made._fields, args)) | dict(kwargs)
        want = builder.get_numba_type(target.name)
        values = []
        for field, kind in zip(made._fields, want.types):
            have = builder.get_numba_type(given[field].name)
            value = builder.load_var(given[field])
            values.append(value if have == kind else builder.lower_cast(have, kind, value))
        builder.store_var(target, tuple(values))

    return made


def to_ptx(
    function,
    parameters,
    target: Target,
    threads: int,
    blocks_per_sm: int = 1,
    plain: bool = False,
) -> str:
    """Return the PTX of one kernel.

    parameters: as in a KernelDefinition.
    threads, blocks_per_sm: the launch bounds.
    plain: use the compiler's own types, as ``@cuda.jit`` does.
    """
    numba = _numba()
    kinds = parameter_types(numba.types, _taught().u64, plain)
    signature = numba.types.void(*(kinds(kind) for _, kind in parameters))
    with (
        _lock,
        _pretended_device(target.capability),
        _tuples_of_tuples(),
        nullcontext()
        if plain
        else unsigned.counting_in(_taught().u32, numba.types, numba.typeinfer, numba.numba_ir),
    ):
        # the contexts must be refreshed to know intrinsics that were created since the last
        # compilation
        numba.target.typing_context.refresh()
        numba.target.target_context.refresh()
        # the `cc` of cuda.compile silently drops the "a" of sm_90a, the `chip` of cuda.jit keeps it
        kernel = numba.cuda.jit(function, chip=target.name, launch_bounds=(threads, blocks_per_sm))
        return numba.cuda.compile(kernel, signature, device=False, abi="numba")[0]


@contextmanager
def _pretended_device(capability):
    """In this context the current device has the target's capability. numba-cuda-mlir asks the
    driver for it even if it compiles for another target, unless the answer is already cached."""
    tools = _numba().tools
    real = tools._cached_cc
    tools._cached_cc = capability
    try:
        yield
    finally:
        tools._cached_cc = real


@contextmanager
def _tuples_of_tuples():
    """In this context homogeneous tuples of tuples get stack space like mixed ones. A variable that
    is assigned more than once needs stack space. Release 0.6 can allocate it for mixed tuples only,
    but reads and writes the same form for both.
    """
    lower, types = _numba().lower, _numba().types
    real = lower.allocate_stack_space_for_vars_with_multiple_assigns

    def allocate(self, assignments):
        nested = [
            name
            for name, count in assignments.items()
            if count > 1 and _is_nested(self.get_numba_type(name), types)
        ]
        for name in nested:
            self.varmap[name] = self._allocate_stack_slot_for_type(self.get_numba_type(name))
        return real(
            self, {name: count for name, count in assignments.items() if name not in nested}
        )

    lower.allocate_stack_space_for_vars_with_multiple_assigns = allocate
    try:
        yield
    finally:
        lower.allocate_stack_space_for_vars_with_multiple_assigns = real


def _is_nested(numba_type, types):
    return isinstance(numba_type, types.UniTuple) and isinstance(numba_type.dtype, types.BaseTuple)


def make_intrinsic(instruction: Instruction, *, plain: bool = False, **immediates):
    """Return the intrinsic that kernels call for ``instruction``. Its unsigned operands have the
    types of ``unsigned``; with ``plain``, the compiler's own."""
    numba = _numba()
    types, llvm = numba.types, numba.llvm
    numba_types = {
        "u16": types.uint16,
        "u32": types.uint32 if plain else _taught().u32,
        "i32": types.int32,
        "u64": types.uint64 if plain else _taught().u64,
        "f32": types.float32,
    }
    template, constraints = instruction.assembly(**immediates)
    instruction = instruction.resolved(**immediates)

    def llvm_type(operand):  # needs the MLIR context of a running compilation
        return {
            "u16": numba.mlir_types.i16,
            "u32": numba.mlir_types.i32,
            "i32": numba.mlir_types.i32,
            "u64": numba.mlir_types.i64,
            "f32": numba.mlir_types.f32,
        }[operand.type]()

    def python_type(operand):
        element = numba_types[operand.type]
        return element if operand.width == 1 else types.UniTuple(element, operand.width)

    returned = python_type(instruction.outputs[0]) if instruction.outputs else types.void
    expected = tuple(python_type(operand) for operand in instruction.inputs)

    def codegen(builder, target, arguments, keywords):
        values = []
        for argument, operand in zip(arguments, instruction.inputs):
            value, have = builder.load_var(argument), builder.get_numba_type(argument.name)
            elements = list(zip(value, have.types)) if operand.width > 1 else [(value, have)]
            values += [
                numba.convert(v, llvm_type(operand), signed=getattr(t, "signed", None))
                for v, t in elements
            ]
        outputs = [llvm_type(o) for o in instruction.outputs for _ in o.elements]
        result = (
            None
            if not outputs
            else outputs[0]
            if len(outputs) == 1
            else llvm.StructType.get_literal(outputs)
        )
        # unlike the call in ``numba_cuda``, MLIR's llvm.inline_asm supports neither readnone nor
        # convergent
        answer = llvm.InlineAsmOp(
            result, values, template, constraints, has_side_effects=not instruction.pure
        )
        if not outputs:
            builder.store_var(target, None)
        elif len(outputs) == 1:
            builder.store_var(target, answer.results[0])
        else:
            builder.store_var(
                target,
                tuple(llvm.extractvalue(t, answer.results[0], [i]) for i, t in enumerate(outputs)),
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
    """Return an intrinsic for the address of the dynamic shared memory. The compiler's own
    shared.array(0) becomes a static variable of one byte."""
    numba = _numba()
    ir, llvm = numba.ir, numba.llvm

    def shared_base(typingctx):
        def codegen(builder, target, arguments, keywords):
            block = builder.mlir_gpu_module.bodyRegion.blocks[0]
            if not any(
                "sym_name" in op.attributes and op.attributes["sym_name"].value == SHARED_SYMBOL
                for op in block.operations
            ):
                declaration = ir.Operation.parse(
                    f"llvm.mlir.global external @{SHARED_SYMBOL}() {{addr_space = 3 : i32, "
                    f"alignment = {SHARED_ALIGNMENT} : i64}} : !llvm.array<0 x i8>"
                )
                ir.InsertionPoint.at_block_begin(block).insert(declaration)
            pointer = llvm.mlir_addressof(ir.Type.parse("!llvm.ptr<3>"), SHARED_SYMBOL)
            word = numba.mlir_types.i32()
            opaque = llvm.InlineAsmOp(word, [llvm.ptrtoint(word, pointer)], *OPAQUE_WORD)
            builder.store_var(target, opaque.results[0])

        return _taught().u32(), codegen

    return numba.intrinsic(shared_base)
