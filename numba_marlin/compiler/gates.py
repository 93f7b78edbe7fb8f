"""Static checks that every kernel must pass. They read its PTX and its resources and do not run it.

``broken_promises`` lists violations. ``opcode_count`` counts instructions of the PTX,
``machine_count`` those of the machine code, which needs nvdisasm and takes as long as assembling.
"""

from __future__ import annotations

import re
from functools import lru_cache

from numba_marlin.compiler.assemble import disassemble
from numba_marlin.compiler.compiled import CompiledKernel
from numba_marlin.compiler.resources import count_ptx, count_sass
from numba_marlin.hardware.targets import target_named

_count = lru_cache(maxsize=64)(count_ptx)
_listing = lru_cache(maxsize=4)(disassemble)

# ptxas (seen with 13.0 and 13.4) may fold a uniform shared-memory offset and an L2 cache policy
# into one pair of uniform registers, so that the descriptor's register number is odd. On an H200
# such a copy is an illegal instruction. To avoid it, keep the address out of uniform registers.
_FOLDED_POLICY = re.compile(r"LDGSTS\S*\s+\[R\d+\+UR\d+[^\]]*\], desc\[UR\d*[13579]\]")


def opcode_count(compiled: CompiledKernel, prefix: str) -> int:
    """Count the kernel's PTX instructions whose opcode is ``prefix``, such as "mma.sync", possibly
    with modifiers."""
    return _matching(_count(compiled.ptx), prefix)


def machine_count(compiled: CompiledKernel, prefix: str) -> int | None:
    """Count the instructions of the machine code whose opcode is ``prefix``, such as "HMMA",
    possibly with modifiers. None without a cubin or an nvdisasm that supports it."""
    listing = _listing(compiled.cubin) if compiled.cubin else None
    return None if listing is None else _matching(count_sass(listing), prefix)


def _matching(counts, prefix):
    return sum(
        n for opcode, n in counts.items() if opcode == prefix or opcode.startswith(prefix + ".")
    )


def broken_promises(compiled: CompiledKernel) -> list[str]:
    """List violations, one text for each; empty for a good kernel. Checked are local memory, double
    precision, calls, spills, a stack, static in addition to dynamic shared memory, serialised
    wgmma, and copies that are illegal on Hopper."""
    found = []
    opcodes = _count(compiled.ptx)
    if re.search(r"\.local\b", compiled.ptx):
        found.append("the PTX uses local memory (.local): an array did not become registers")
    doubles = sorted(opcode for opcode in opcodes if ".f64" in opcode)
    if doubles:
        found.append(
            f"the PTX computes in double precision ({', '.join(doubles)}): unsigned and signed"
            " numbers were mixed"
        )
    calls = [opcode for opcode in opcodes if opcode.split(".")[0] == "call"]
    if calls or ".func" in compiled.ptx:
        found.append("the PTX calls functions: something was not inlined")
    static = re.search(r"^\s*(?!\.extern)(\.\w+\s+)?\.shared\b", compiled.ptx, re.MULTILINE)
    if static and (compiled.shared_bytes or ".extern .shared" in compiled.ptx):
        found.append(
            "the PTX declares both static and dynamic shared memory: a compiler may let them"
            " overlap"
        )
    resources = compiled.resources
    for name in ("spill_stores", "spill_loads", "stack"):
        if getattr(resources, name):
            found.append(f"{getattr(resources, name)} bytes of {name.replace('_', ' ')}")
    if resources.serialized:
        found.append(f"the assembler serialised wgmma: {resources.serialized}")
    hopper_or_later = target_named(compiled.target).supports("sm_90")
    listing = (
        _listing(compiled.cubin)
        if compiled.cubin and "cache_hint" in compiled.ptx and hopper_or_later
        else None
    )
    found += [
        f"an asynchronous copy is an illegal instruction on Hopper: {copy}"
        for copy in refused_copies(listing or "")[:1]
    ]
    return found


def refused_copies(listing: str) -> list[str]:
    """Return the asynchronous copies in an nvdisasm listing that are illegal on Hopper."""
    return _FOLDED_POLICY.findall(listing)
