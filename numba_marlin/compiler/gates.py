"""Static promises that every kernel keeps, checked on its PTX and its resources without running it.

``broken_promises(compiled) -> list[str]`` is empty for a good kernel. ``opcode_count(compiled, "mma.sync")`` counts in the PTX, whatever
``resources.opcodes`` was counted from.
"""
from __future__ import annotations

import re
from functools import lru_cache

from numba_marlin.compiler.compiled import CompiledKernel
from numba_marlin.compiler.resources import count_ptx

_count = lru_cache(maxsize=64)(count_ptx)


def opcode_count(compiled: CompiledKernel, prefix: str) -> int:
    """PTX instructions in the kernel whose opcode is ``prefix`` or goes on from it with a dot."""
    return sum(n for opcode, n in _count(compiled.ptx).items() if opcode == prefix or opcode.startswith(prefix + "."))


def broken_promises(compiled: CompiledKernel) -> list[str]:
    """What is wrong, a sentence each: local memory, double precision, calls, spills, a stack, static shared memory."""
    found = []
    opcodes = _count(compiled.ptx)
    if re.search(r"\.local\b", compiled.ptx):
        found.append("the PTX uses local memory (.local): an array did not become registers")
    doubles = sorted(opcode for opcode in opcodes if ".f64" in opcode)
    if doubles:
        found.append(f"the PTX computes in double precision ({', '.join(doubles)}): unsigned and signed numbers were mixed")
    calls = [opcode for opcode in opcodes if opcode.split(".")[0] == "call"]
    if calls or ".func" in compiled.ptx:
        found.append("the PTX calls functions: something was not inlined")
    if re.search(r"^\s*\.shared\b", compiled.ptx, re.MULTILINE):
        found.append("the PTX declares static shared memory, which kernels here never mix with the dynamic one")
    resources = compiled.resources
    for name in ("spill_stores", "spill_loads", "stack"):
        if getattr(resources, name):
            found.append(f"{getattr(resources, name)} bytes of {name.replace('_', ' ')}")
    return found
