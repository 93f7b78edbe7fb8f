"""Three measures that halve compilation time without changing the output. Each avoids work that
Numba repeats.

``made_once(decorate)``: a decorator of device functions that returns the same object for functions
with the same code and the same constants, so that two configurations of a kernel share Numba's work
on their common verbs (libnvvm still compiles all of it, once per kernel).

``remembered_calls(...)``: a context in which the resolution of a call of a built-in function, an
operator or a number type is cached per combination of argument types: a kernel has thousands of
calls, of about two hundred kinds. ``without_collection()``: no
garbage collection; a compilation makes millions of objects, few of them garbage before its end, and
collecting walks through all of Numba each time. The last two are entered for one compilation, under
the lock of the compiler's module. (numba-cuda, six kernels of ampere, decode and wgmma: 18.2 s of
processor time became 11.7. numba-cuda-mlir spends its time elsewhere: no gain to be seen, so it
goes without.)
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import FunctionType

from numba_marlin.compiler.language import Namespace


@contextmanager
def remembered_calls(typing_context, function_type, number_type):
    """typing_context: the class whose ``resolve_function_type(func, args, kws)`` gives a signature;
    function_type: the class of types of functions, whose ``get_call_type(context, args, kws)``
    does, and notes under the signature's arguments which implementation belongs to it; number_type:
    that of number types, the calls of which are conversions. Failures are not cached."""
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

        # another object of an equal type may have asked before: this one is told as well
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
    """decorate: a decorator whose result depends only on a function's code and on what that refers
    to."""
    known = {}

    def once(function):
        if not isinstance(function, FunctionType):  # what has been decorated already
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
            # which is kept, so that nothing it refers to can die and leave its id to another
            known[key] = decorate(function), function
        return known[key][0]

    return once


def _value(constant):
    """What tells a constant from others: type and value of numbers (True is 1, and 1.0), the
    members of a namespace, the object otherwise."""
    if isinstance(constant, tuple):
        return tuple(map(_value, constant))
    if isinstance(constant, Namespace):
        return tuple((name, _value(member)) for name, member in vars(constant).items())
    return type(constant), (
        constant
        if isinstance(constant, (bool, int, float, str, bytes, type(None)))
        else id(constant)
    )
