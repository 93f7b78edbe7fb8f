"""The typing rules of unsigned integers with the arithmetic of C, and of records. Both compilers
share these rules; the lowering differs.

In Numba every sum of two ``uint32`` has 64 bits, and a ``uint32`` together with a Python int
becomes a float64. Therefore the kernel language has its own types ``u32`` and ``u64``, which do not
affect other kernels. ``numba_marlin.compiler.language`` describes their behaviour. Their
implementation:

- They are Numba ``Integer`` types, so that everything that accepts any integer (an index, a
  conversion, the element of an array, a condition) accepts them. Numba does not convert them to its
  own types, so that its concrete operators do not apply. Rules for other types might, so the rules
  of this module must take precedence: they have the target "cuda", those of Numba have any target.
- An operator converts both operands to the type of the result (``combined``), and then computes in
  that type.
- If a variable has values of two types, Numba asks the first type for a common one, and its own
  types would look for a NumPy type of our type's name. The replaced ``unify_pairs`` asks our type
  first.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from functools import reduce, wraps
from inspect import signature
from types import SimpleNamespace

from numba_marlin.compiler.language import Namespace, RecordType

ARITHMETIC = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "udiv",
    operator.mod: "urem",
    operator.and_: "and",
    operator.or_: "or",
    operator.xor: "xor",
    operator.lshift: "shl",
    operator.rshift: "lshr",
    operator.iadd: "add",
    operator.isub: "sub",
    operator.imul: "mul",
    operator.ifloordiv: "udiv",
    operator.imod: "urem",
    operator.iand: "and",
    operator.ior: "or",
    operator.ixor: "xor",
    operator.ilshift: "shl",
    operator.irshift: "lshr",
}
"""The supported binary operators, and the names of the LLVM instructions."""

SHIFTS = (operator.lshift, operator.rshift, operator.ilshift, operator.irshift)

FLOATING = (operator.truediv, operator.itruediv, operator.pow, operator.ipow)
"""The rejected binary operators: their results are floats."""

COMPARISONS = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}


def taught(types, conversion, templates, typeof_impl, context) -> SimpleNamespace:
    """Add the typing of operators, arrays, records and namespaces to one compiler. The caller adds
    the lowering.

    types, conversion (``Conversion``), templates, typeof_impl, context (the class ``BaseContext``):
    those of the compiler.

    Returns the classes ``Unsigned``, ``RecordClass`` (the type of a record class) and
    ``NamespaceType``; the types ``u32`` and ``u64``; and ``combined(operator, left, right)``, which
    returns the type in which an operation on two types is computed, or None if these rules do
    not apply.
    """

    class Unsigned(types.Integer):
        def __init__(self, bits):
            super().__init__(f"uint{bits}")

        def can_convert_from(self, typingctx, other):
            if isinstance(other, types.Integer) and not wider(other, self):
                return conversion.unsafe

        def unify(self, typingctx, other):
            return combined(operator.add, self, other)

    def wider(of, than):
        """Whether a conversion would lose bits. Signed 64-bit integers do not count, because they
        are Numba's type of Python ints."""
        return of.bitwidth > than.bitwidth and not of.signed

    u32, u64 = Unsigned(32), Unsigned(64)

    def combined(fn, left, right):
        integers = isinstance(left, types.Integer) and isinstance(right, types.Integer)
        if not integers or not (isinstance(left, Unsigned) or isinstance(right, Unsigned)):
            return None
        if fn in SHIFTS and isinstance(left, Unsigned):
            return left
        return u64 if wider(left, u32) or wider(right, u32) else u32

    def in_record(of):
        """Return the type of a record's field whose value has the type ``of``."""
        if not isinstance(of, types.Integer) or isinstance(of, Unsigned):
            return types.unliteral(of)
        return u64 if wider(of, u32) else u32

    def refuse_floats(fn, left, right):
        """Raise TypeError. Otherwise a rule of another type may apply: __nv_bfloat16 accepts any
        integer."""
        numbers = isinstance(left, types.Number) and isinstance(right, types.Number)
        if numbers and (isinstance(left, Unsigned) or isinstance(right, Unsigned)):
            raise TypeError(
                f"operator.{fn.__name__} of {left} and {right}: convert one of them explicitly, as"
                " in float32(x)"
            )

    # rules for this target precede those for any target
    first = {"target": "cuda"}

    def binary(fn, result=None):
        class Binary(templates.AbstractTemplate):
            metadata = first

            def generic(self, args, kws):
                if len(args) != 2 or kws:
                    return None
                inside = combined(fn, *args)
                if inside is not None and fn not in FLOATING:
                    return templates.signature(result or inside, inside, inside)
                refuse_floats(fn, *args)

        templates.infer_global(fn)(Binary)

    def unary(fn, result=None):
        class Unary(templates.AbstractTemplate):
            metadata = first

            def generic(self, args, kws):
                if len(args) == 1 and isinstance(args[0], Unsigned):
                    return templates.signature(result or args[0], *args)

        templates.infer_global(fn)(Unary)

    for fn in (*ARITHMETIC, *FLOATING):
        binary(fn)
    for fn in COMPARISONS:
        binary(fn, types.boolean)
    unary(operator.invert)
    unary(operator.neg)
    unary(operator.pos)
    unary(operator.not_, types.boolean)

    class Range(templates.AbstractTemplate):
        """range(stop), range(start, stop) and range(start, stop, step) of unsigned numbers."""

        metadata = first

        def generic(self, args, kws):
            inside = reduce(lambda left, right: left and combined(range, left, right), args)
            if isinstance(inside, Unsigned) and not kws:
                return templates.signature(types.RangeType(inside), *(inside,) * len(args))

    templates.infer_global(range, typing_key=range)(Range)

    class SetItem(templates.AbstractTemplate):
        """a[i] = x for an unsigned x, and an array of Numba's integers that are at least as
        wide."""

        metadata = first

        def generic(self, args, kws):
            array, index, value = args
            if (
                isinstance(array, types.Array)
                and isinstance(array.dtype, types.Integer)
                and not isinstance(array.dtype, Unsigned)
                and isinstance(value, Unsigned)
                and array.dtype.bitwidth >= value.bitwidth
            ):
                return self.context.resolve_setitem(array, index, array.dtype)

    templates.infer_global(operator.setitem)(SetItem)

    class RecordClass(types.NamedTupleClass):
        pass

    @typeof_impl.register(RecordType)
    def typeof_record(record, context):
        return RecordClass(record)

    class RecordClassAttribute(templates.AttributeTemplate):
        key = RecordClass

        def resolve___call__(self, record):
            pyclass = record.instance_class

            fields = signature(pyclass)

            def typer(*args, **kws):
                given = fields.bind(*args, **kws).args
                return types.BaseTuple.from_types(tuple(map(in_record, given)), pyclass)

            typer.pysig = fields
            return types.Function(templates.make_callable_template(record, typer))

    templates.infer_getattr(RecordClassAttribute)

    class NamespaceType(types.Module):
        pass

    @typeof_impl.register(Namespace)
    def typeof_namespace(namespace, context):
        return NamespaceType(namespace)

    class NamespaceAttribute(templates.AttributeTemplate):
        """A Python int in a namespace is a literal, like one in a closure, so that it may be the
        size of an array."""

        key = NamespaceType

        def generic_resolve(self, namespace, name):
            value = getattr(namespace.pymod, name)
            return types.literal(value) if type(value) is int else None

    templates.infer_getattr(NamespaceAttribute)

    real = context.unify_pairs

    @wraps(real)
    def unify_pairs(self, first, second):
        if isinstance(second, Unsigned):
            first, second = second, first
        if isinstance(first, Unsigned) and isinstance(second, (types.Float, types.Complex)):
            return None
        return real(self, first, second)

    context.unify_pairs = unify_pairs
    return SimpleNamespace(
        Unsigned=Unsigned,
        RecordClass=RecordClass,
        NamespaceType=NamespaceType,
        u32=u32,
        u64=u64,
        combined=combined,
    )


@contextmanager
def counting_in(u32, types, typeinfer, ir):
    """In this context, a variable to which Python ints are assigned in several places (a counter:
    ``i = 0`` before a loop and ``i += 1`` in it) is a u32. In Numba the variable, and everything
    computed from it, would have 64 bits. Numba's own functions are not affected.

    typeinfer, ir: the compiler's modules with these names.
    """
    inferer, propagate = typeinfer.TypeInferer, typeinfer.Propagate
    real = inferer.typeof_expr

    class Merge(propagate):
        def __call__(self, inference):
            source = inference.typevars[self.src]
            if source.defined and is_python_int(source.type):
                inference.add_type(self.dst, u32, loc=self.loc)
            else:
                super().__call__(inference)

    def is_python_int(of):
        return isinstance(of, types.Integer) and of.signed and of.bitwidth == 64

    def of_numba(inference):
        module = inference.func_id.func.__module__ or ""
        return module.split(".")[0] in ("numba", "numba_cuda", "numba_cuda_mlir")

    def typeof_expr(self, statement, target, expression):
        if expression.op != "phi" or of_numba(self):
            return real(self, statement, target, expression)
        for value in expression.incoming_values:
            if value is not ir.UNDEFINED:
                self.constraints.append(Merge(target.name, value.name, statement.loc))

    inferer.typeof_expr = typeof_expr
    try:
        yield
    finally:
        inferer.typeof_expr = real
