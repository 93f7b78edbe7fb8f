"""ld, st, ldu, prefetch: all spaces, widths and vectors.

Memory is sequentially consistent on this machine, so cache and ordering qualifiers (acquire,
release, volatile, the scopes) are accepted and change nothing here; ``ordering`` looks at them.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.asynchronous.tensor_copies import map_at
from numba_marlin.emulator.errors import Misaligned, OutOfBounds, PtxSyntaxError
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.state.memory import PARAMETER_BASE
from numba_marlin.emulator.state.registers import POISON, SIGNED
from numba_marlin.emulator.text.program import TYPE_BITS, Register, Symbol, Vector

SPACES = {
    "param": "param",
    "param::entry": "param",
    "global": "global",
    "const": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared::cluster",
    "local": "local",
}
ORDER = (
    "weak volatile relaxed acquire release acq_rel mmio cta cluster gpu sys nc ca cg cs cv lu wb wt"
    " L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate"
    " L2::cache_hint L2::64B L2::128B L2::256B L2::evict_normal L2::evict_first L2::evict_last"
).split()


HINT = "L2::cache_hint"  # then an operand more


def space_of(ins) -> str:
    return next((SPACES[mod] for mod in ins.modifiers if mod in SPACES), "generic")


def vector(operand) -> tuple:
    return operand.items if isinstance(operand, Vector) else (operand,)


def check(ins, items: tuple) -> str:
    """Modifiers are known and the vector is as long as they say; returns the element type."""
    allow(ins, *SPACES, *ORDER, "v2", "v4", "v8")
    count = next((int(mod[1]) for mod in ins.modifiers if mod in ("v2", "v4", "v8")), 1)
    if len(items) != count:
        raise unsupported(ins, f"{len(items)} values do not fit .v{count}")
    if not ins.types or ins.types[-1] == "pred":
        raise unsupported(ins, "needs a type of whole bytes")
    return ins.types[-1]


@instruction("ld", "ldu")
def load(ins, m):
    """#data-movement-and-conversion-instructions-ld; a narrow value is extended to its register by
    its type."""
    target, address = operands(ins, 3 if HINT in ins.modifiers else 2)[:2]
    items = vector(target)
    kind = check(ins, items)
    bits, size = TYPE_BITS[kind], TYPE_BITS[kind] // 8
    kind = kind if kind[0] == "s" else f"u{bits}"
    space = space_of(ins)
    targets = [m.extended(ins, item, kind) for item in items]
    signed = SIGNED[bits] if kind[0] == "s" else None
    if space == "param":
        return load_parameter(ins, m, targets, address, kind)
    at = m.address(ins, address)
    memory, count = m.memory, len(items)

    def step(lanes):
        values = memory.load(ins, lanes, space, at(lanes), size, count)
        if signed is not None:
            values = values.view(signed)
        s = lanes.sel
        for i, d in enumerate(targets):
            d[s] = values[..., i]

    return step


def load_parameter(ins, m, targets, address, kind):
    """#parameter-state-space: the same for all lanes, so a name plus offset is a constant."""
    dtype = m.dtype(kind)
    size = np.dtype(dtype).itemsize
    data = m.parameters
    most = len(data) - size * len(targets)  # where an access may begin
    at = m.address(ins, address)
    if isinstance(address.base, Register):

        def step(lanes):
            start = at(lanes)
            beyond = (start < PARAMETER_BASE) | (start > most)
            if beyond.any():
                raise lanes.fault(
                    OutOfBounds,
                    f"the parameters have {len(data) - PARAMETER_BASE} bytes",
                    ins,
                    beyond,
                )
            where = start[..., None] + np.arange(size)
            for i, d in enumerate(targets):
                d[lanes.sel] = data[where + i * size].view(dtype)[..., 0]

        return step
    if not isinstance(address.base, Symbol):
        raise unsupported(ins, "a parameter has a name, or an address in a register")
    start = m.address_of(Symbol(address.base.name, address.offset))
    if not PARAMETER_BASE <= start <= most:
        raise PtxSyntaxError(
            f"byte {address.offset} of {address.base.name} is no parameter's",
            line=ins.line,
            text=ins.text,
        )
    values = [
        data[start + i * size : start + (i + 1) * size].view(dtype)[0] for i in range(len(targets))
    ]

    def step(lanes):
        s = lanes.sel
        for d, value in zip(targets, values):
            d[s] = value

    return step


@instruction("st")
def store(ins, m):
    """#data-movement-and-conversion-instructions-st; of a wider register the low part is stored."""
    address, origin = operands(ins, 3 if HINT in ins.modifiers else 2)[:2]
    items = vector(origin)
    kind = check(ins, items)
    bits = TYPE_BITS[kind]
    sources = [m.source(ins, item, f"u{bits}") for item in items]
    space = space_of(ins)
    if space == "param":
        raise unsupported(ins, "parameters of a kernel cannot be written")
    at, memory, dtype = m.address(ins, address), m.memory, np.dtype(f"u{bits // 8}")

    def step(lanes):
        s = lanes.sel
        values = np.empty(lanes.shape + (len(sources),), dtype)
        for i, source in enumerate(sources):
            values[..., i] = source[s]
        memory.store(ins, lanes, space, at(lanes), values)

    return step


@instruction("st.bulk")
def store_zeros(ins, m):
    """#data-movement-and-conversion-instructions-st-bulk: zeros into shared memory, as many bytes
    as said, a multiple of 8."""
    allow(ins, "weak", "shared::cta")
    address, nbytes, _ = operands(ins, 3)
    if m.immediate(ins, 2) != 0:
        raise unsupported(ins, "stores zeros")
    at, source, space = m.address(ins, address), m.source(ins, nbytes, "u64"), space_of(ins)

    def step(lanes):
        where = at(lanes)
        sizes = np.broadcast_to(source[lanes.sel], lanes.shape).astype(np.int64)
        bad = sizes % 8 != 0
        if bad.any():
            raise lanes.fault(
                Misaligned, f"{sizes[bad][0]} bytes must be a multiple of 8", ins, bad
            )
        for offset in range(0, int(sizes.max()), 8):
            active = sizes > offset
            part = lanes.narrow(active)
            there = (where[active] + offset).reshape(part.shape)
            m.memory.store(ins, part, space, there, np.zeros((*part.shape, 1), np.uint64))

    return step


@instruction("prefetch", "prefetchu", "applypriority")
def prefetch(ins, m):
    """#data-movement-and-conversion-instructions-prefetch-prefetchu: a hint, nothing to do. A
    tensor map must be one."""
    if "tensormap" in ins.modifiers:
        allow(ins, "tensormap", "param", "const")
        at = m.address(ins, ins.operands[0])

        def step(lanes):
            for address in np.unique(at(lanes)).tolist():
                map_at(ins, m, lanes, address)

        return step
    allow(ins, "global", "local", "L1", "L2", "L2::evict_last", "L2::evict_normal")
    return lambda lanes: None


DISCARDED = 128  # bytes, always


@instruction("discard")
def discard(ins, m):
    """#data-movement-and-conversion-instructions-discard: 128 bytes of global memory are
    undefined from here on; on this machine each of them becomes POISON."""
    allow(ins, "global", "L2")
    at = m.address(ins, operands(ins, 2)[0])
    if m.immediate(ins, 1) != DISCARDED:
        raise unsupported(ins, f"discards {DISCARDED} bytes")
    space = space_of(ins)

    def step(lanes):
        values = np.full(
            (*lanes.shape, DISCARDED // 8), int.from_bytes([POISON] * 8, "little"), "u8"
        )
        m.memory.store(ins, lanes, space, at(lanes), values)

    return step


@instruction("createpolicy")
def createpolicy(ins, m):
    """#data-movement-and-conversion-instructions-createpolicy: an opaque value for cache hints,
    which this machine ignores."""
    allow(
        ins,
        *("fractional", "range", "cvt", "L2", "global"),
        "L2::evict_first",
        "L2::evict_last",
        "L2::evict_normal",
        "L2::evict_unchanged",
    )
    d = m.destination(ins, ins.operands[0], "b64")

    def step(lanes):
        d[lanes.sel] = np.uint64(0x12F0000000000000)

    return step
