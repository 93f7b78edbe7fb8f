"""Three measures that shorten compilation without changing its output. Each avoids work that Numba
repeats.

``made_once`` returns the same object for device functions with the same code and the same
constants, so that two configurations of a kernel share Numba's work on their common verbs. (libnvvm
still compiles all of it, once per kernel.)

``remembered_calls`` is a context that caches the resolution of calls of built-in functions,
operators and number types, per combination of argument types. A kernel has thousands of calls, but
only about two hundred combinations.

``without_collection`` is a context without garbage collection. A compilation creates millions of
objects, few of which are garbage before its end, and each collection visits all of Numba.

Both contexts are entered for one compilation, under the lock of the compiler's module. Measured
with numba-cuda on six kernels of ampere, decode and wgmma: 18.2 s of processor time became 11.7 s.
numba-cuda-mlir spends its time elsewhere and showed no gain, so it does not use them.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import FunctionType

from numba_marlin.compiler.language import Namespace


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
            constants = tuple(_value(cell.cell_contents) for cell in function.__closure__ or ())
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
