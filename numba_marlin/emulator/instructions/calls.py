"""Calls of functions that can come to call themselves, which ``text.calls`` does not inline, and
the way back.

https://docs.nvidia.com/cuda/parallel-thread-execution/#control-flow-instructions-call
"""

from __future__ import annotations

from numba_marlin.emulator.instructions import instruction
from numba_marlin.emulator.state.ends import Call, Return, Transfer
from numba_marlin.emulator.text.program import PREDICATE, Argument, Register


@instruction("call")
def call(ins, m):
    """#control-flow-instructions-call"""

    def transfer(argument: Argument, inwards: bool) -> Transfer:
        caller, callee = argument.caller, argument.callee
        if not isinstance(callee, Register):
            return Transfer(caller, callee, argument.size)
        kind = "pred" if callee.width == PREDICATE else f"b{callee.width}"
        source, target = (caller, callee) if inwards else (callee, caller)
        return Transfer(m.source(ins, source, kind), m.destination(ins, target, kind))

    site = ins.call
    return Call(
        ins,
        site,
        ins.target,
        tuple(transfer(each, True) for each in site.parameters),
        tuple(transfer(each, False) for each in site.results),
    )


@instruction("return")
def back(ins, m):
    """#control-flow-instructions-ret: of a function that was called."""
    return Return(ins, m.guard(ins))
