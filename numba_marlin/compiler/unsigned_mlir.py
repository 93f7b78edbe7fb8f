"""The types of ``unsigned`` for numba-cuda-mlir, with their lowering to operations of MLIR's
``arith`` dialect.

Unlike numba-cuda, numba-cuda-mlir does not convert the operands of an operator. The lowering here
converts them to the type of the operation (``combined``).
"""

from __future__ import annotations

import operator
from functools import partial
from itertools import product

from numba_marlin.compiler import unsigned


def taught(numba):
    """Add the types to the compiler. numba: the modules of ``numba_cuda_mlir._numba()``. Returns
    the same as ``unsigned.taught``."""
    found = unsigned.taught(
        numba.frontend_types,
        numba.conversion,
        numba.templates,
        numba.typeof_impl,
        numba.typing_context,
    )
    arith, lower = numba.arith, numba.lower_builtin
    word, integer = found.Unsigned, numba.types.Integer
    numba.register_model(word)(numba.models.integer)
    for without_value in (found.RecordClass, found.NamespaceType):
        numba.register_model(without_value)(numba.models.opaque)

    def binary(fn, emit):
        def lowered(builder, target, args, kwargs):
            have = [builder.get_numba_type(argument.name) for argument in args]
            inside = found.combined(fn, *have)
            operands = [
                builder.lower_cast(kind, inside, builder.load_var(argument))
                for kind, argument in zip(have, args)
            ]
            builder.store_var(target, emit(*operands))

        for left, right in ((word, word), (word, integer), (integer, word)):
            lower(fn, left, right)(lowered)

    def unary(fn, emit):
        @lower(fn, word)
        def lowered(builder, target, args, kwargs):
            value = builder.load_var(args[0])
            builder.store_var(target, emit(value, lambda n: arith.constant(value.type, n)))

    operations = {
        **{name: name + "i" for name in ("add", "sub", "mul", "and", "or", "xor")},
        **{"udiv": "divui", "urem": "remui", "shl": "shli", "lshr": "shrui"},
    }
    for fn, name in unsigned.ARITHMETIC.items():
        binary(fn, getattr(arith, operations[name]))
    binary(min, arith.minui)
    binary(max, arith.maxui)
    predicates = {"<": "ult", "<=": "ule", ">": "ugt", ">=": "uge", "==": "eq", "!=": "ne"}
    for fn, sign in unsigned.COMPARISONS.items():
        binary(fn, partial(arith.cmpi, getattr(arith.CmpIPredicate, predicates[sign])))
    unary(operator.invert, lambda value, constant: arith.xori(value, constant(-1)))
    unary(operator.neg, lambda value, constant: arith.subi(constant(0), value))
    unary(operator.pos, lambda value, constant: value)
    unary(
        operator.not_,
        lambda value, constant: arith.cmpi(arith.CmpIPredicate.eq, value, constant(0)),
    )

    class Range(numba.range_object):
        """A range of unsigned numbers. The compiler's own class computes the number of iterations
        with signed 64-bit numbers."""

        def __init__(self, builder, start, stop, step):
            kind = start.type
            zero, one = arith.constant(kind, 0), arith.constant(kind, 1)
            span = arith.addi(arith.subi(stop, start), arith.subi(step, one))
            some = arith.cmpi(arith.CmpIPredicate.ult, start, stop)
            count = arith.select(some, arith.divui(span, step), zero)
            memref = numba.memref
            with builder.alloca_insertion_point():
                self._memref = memref.alloca(numba.mlir_types.memref(5, kind), [], [])
            for place, value in enumerate((start, stop, step, count, start)):
                memref.store(value, self._memref, [numba.index_of(place)])

    def lowered_range(builder, target, args, kwargs):
        kind = builder.get_numba_type(target.name).dtype
        values = [
            builder.lower_cast(builder.get_numba_type(a.name), kind, builder.load_var(a))
            for a in args
        ]
        zero, one = (arith.constant(values[0].type, n) for n in (0, 1))
        start, stop, step = {1: [zero, *values, one], 2: [*values, one], 3: values}[len(values)]
        builder.store_var(target, Range(builder, start, stop, step))

    for count in (1, 2, 3):
        for kinds in product((word, integer), repeat=count):
            if word in kinds:
                lower(range, *kinds)(lowered_range)
    return found
