"""Measures that shorten compilation without changing its output. Each avoids work that Numba
repeats.

``made_once`` returns the same object for device functions with the same code and the same
constants, so that two configurations of a kernel share Numba's work on their common verbs. (libnvvm
still compiles all of it, once per kernel.)

``any_integer`` is a context in which a device function is compiled once for all integers that it is
called with. Numba compiles it again for each literal (``fetch(stage=0)``, ``fetch(stage=1)`` ...),
although LLVM, which inlines it, knows them anyway.

``remembered_calls`` is a context that caches the resolution of calls of built-in functions,
operators and number types, per combination of argument types. A kernel has thousands of calls, but
only about two hundred combinations.

``without_collection`` is a context without garbage collection. A compilation creates millions of
objects, few of which are garbage before its end, and each collection visits all of Numba.

The contexts are entered for one compilation, under the lock of the compiler's module. Measured with
numba-cuda: the last two, and ``made_once``, on six kernels of ampere, decode and wgmma: 18.2 s of
processor time became 11.7 s. ``any_integer``, and the members of ``made_once``, on five
configurations of ampere and four of decode: 43.6 s became 22.6 s. numba-cuda-mlir spends its time
elsewhere and showed no gain, so it does not use them.
"""

from __future__ import annotations

import dis
import gc
from contextlib import contextmanager, nullcontext
from functools import cache
from types import CodeType, FunctionType

from numba_marlin.compiler.language import Namespace


@contextmanager
def swiftly(types, typing_context, plain: bool):
    """The contexts below, for one compilation.

    types, typing_context: numba's module of types, and the class that resolves calls.
    plain: a kernel of Numba's own types, whose device functions are compiled as Numba does.
    """
    any_of = (
        nullcontext()
        if plain
        else any_integer(types.Dispatcher, types.IntegerLiteral, types.unliteral)
    )
    calls = remembered_calls(typing_context, types.BaseFunction, types.NumberClass)
    with without_collection(), calls, any_of:
        yield


@contextmanager
def remembered_calls(typing_context, function_type, number_type):
    """In this context the signatures of calls are cached. Failures are not cached.

    typing_context: the class whose ``resolve_function_type(func, args, kws)`` returns a signature.
    function_type: the class of function types. Its ``get_call_type(context, args, kws)`` returns a
        signature and records the implementation that belongs to the signature's arguments.
    number_type: the class of number types, whose calls are conversions.
    """
    real_resolve, real_call_type = typing_context.resolve_function_type, function_type.get_call_type
    known = {}

    def once(key, find):
        if key not in known:
            signature = find()
            if signature is None:
                return None
            known[key] = signature
        return known[key]

    def resolve_function_type(self, func, args, kws):
        if not isinstance(func, number_type):
            return real_resolve(self, func, args, kws)
        return once(
            (self, func, tuple(args), tuple(sorted(kws.items()))),
            lambda: real_resolve(self, func, args, kws),
        )

    def get_call_type(self, context, args, kws):
        def find():
            signature = real_call_type(self, context, args, kws)
            return signature, self._impl_keys[signature.args]

        # The cached signature may come from another object of an equal type, so the implementation
        # must also be recorded in this one.
        signature, implementation = once(
            (context, self, tuple(args), tuple(sorted(kws.items()))), find
        )
        self._impl_keys[signature.args] = implementation
        return signature

    typing_context.resolve_function_type, function_type.get_call_type = (
        resolve_function_type,
        get_call_type,
    )
    try:
        yield
    finally:
        typing_context.resolve_function_type, function_type.get_call_type = (
            real_resolve,
            real_call_type,
        )


@contextmanager
def any_integer(device_function_type, literal_type, plain_type):
    """In this context a call of a device function is typed with the types of its integers, not with
    their values; with their values where that fails (they are the size of an array, for instance).

    device_function_type: the class of device functions, whose ``get_call_type(context, args, kws)``
        compiles the function for the types of its arguments and returns a signature.
    literal_type: the class of the types of integer literals.
    plain_type: function of a literal's type that returns the type of its value.
    """
    real = device_function_type.get_call_type
    refused = set()

    def get_call_type(self, context, args, kws):
        plain = tuple(plain_type(a) if isinstance(a, literal_type) else a for a in args)
        key = self, plain, tuple(sorted(kws.items()))
        if plain != tuple(args) and key not in refused:
            try:
                return real(self, context, plain, kws)
            except Exception:  # what Numba raises depends on the pass; the second call raises it
                refused.add(key)
        return real(self, context, args, kws)

    device_function_type.get_call_type = get_call_type
    try:
        yield
    finally:
        device_function_type.get_call_type = real


@contextmanager
def without_collection():
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def made_once(decorate):
    """Return a decorator that caches the results of ``decorate``, which must depend only on a
    function's code and on what the code refers to."""
    known = {}

    def once(function):
        if not isinstance(function, FunctionType):  # it is already decorated
            return decorate(function)
        try:
            constants = tuple(
                _read(cell.cell_contents, name, function.__code__)
                for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())
            )
        except ValueError:  # a constant that has no value yet
            return decorate(function)
        key = (
            id(function.__globals__),
            function.__code__,
            tuple(map(_value, function.__defaults__ or ())),
            constants,
        )
        if key not in known:
            # The function is kept alive, so that the ids of what it refers to stay unique.
            known[key] = decorate(function), function
        return known[key][0]

    return once


def _read(constant, name, code):
    """Return a key that identifies what ``code`` reads of a constant that it calls ``name``: of a
    namespace of which it only names members, those members. So a device function that reads one
    number of a configuration is compiled once for all configurations with that number."""
    if isinstance(constant, Namespace):
        members = _members(code, name)
        if members is not None:
            # a branch that is not taken may name a member that there is not
            there = vars(constant)
            return tuple((each, _value(there[each])) for each in members if each in there)
    return _value(constant)


@cache
def _members(code, name) -> tuple[str, ...] | None:
    """Return the attributes of the variable ``name`` of an enclosing function that ``code`` and the
    functions in it load; None if they use the variable in any other way."""
    found = set()
    for inner in _with_inner(code):
        following = [*dis.get_instructions(inner)]
        for load, then in zip(following, [*following[1:], None]):
            if load.argval != name or load.opname in ("LOAD_CLOSURE", "COPY_FREE_VARS"):
                continue
            if load.opname != "LOAD_DEREF" or then is None or then.opname not in _ATTRIBUTE_LOADS:
                return None
            found.add(then.argval)
    return tuple(sorted(found))


_ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD")


def _with_inner(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _value(constant):
    """Return a key that identifies a constant: type and value for a number (True equals 1 and 1.0),
    the members for a namespace, else the object's id."""
    if isinstance(constant, tuple):
        return tuple(map(_value, constant))
    if isinstance(constant, Namespace):
        return tuple((name, _value(member)) for name, member in vars(constant).items())
    return type(constant), (
        constant
        if isinstance(constant, (bool, int, float, str, bytes, type(None)))
        else id(constant)
    )
