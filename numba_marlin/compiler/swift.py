"""What makes a compilation a third faster without a change to what it makes: two things that Numba does over and over.

``remembered_calls(...)``: while it lasts, how a call of a built-in function, an operator or a number type resolves is found out once for each combination of argument
types, not at every place of the kernel: a body has thousands of them, of some two hundred kinds. ``without_collection()``: no garbage collection; a compilation
makes millions of objects, few of them garbage before its end, and collecting walks through all of Numba each time.
Both are entered for one compilation, under the lock of the compiler's module. (numba-cuda, six kernels of ampere, decode and wgmma: 18.2 s of processor time
became 11.7. numba-cuda-mlir spends its time elsewhere: no gain to be seen, so it goes without.)
"""
from __future__ import annotations

import gc
from contextlib import contextmanager


@contextmanager
def remembered_calls(typing_context, function_type, number_type):
    """typing_context: the class whose ``resolve_function_type(func, args, kws)`` gives a signature; function_type: the class of types of functions,
    whose ``get_call_type(context, args, kws)`` does, and notes under the signature's arguments which implementation belongs to it; number_type:
    that of number types, the calls of which are conversions. Failures are not remembered."""
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
        return once((self, func, tuple(args), tuple(sorted(kws.items()))), lambda: real_resolve(self, func, args, kws))

    def get_call_type(self, context, args, kws):
        def find():
            signature = real_call_type(self, context, args, kws)
            return signature, self._impl_keys[signature.args]

        # another object of an equal type may have asked before: this one is told as well
        signature, implementation = once((context, self, tuple(args), tuple(sorted(kws.items()))), find)
        self._impl_keys[signature.args] = implementation
        return signature

    typing_context.resolve_function_type, function_type.get_call_type = resolve_function_type, get_call_type
    try:
        yield
    finally:
        typing_context.resolve_function_type, function_type.get_call_type = real_resolve, real_call_type


@contextmanager
def without_collection():
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
