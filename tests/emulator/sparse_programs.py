"""Sparse operands and programs that multiply by them, for tests: written from the ISA's notation
and formulas, not from ``layout.sparsity``."""

import numpy as np

from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.layout import wgmma
from tests.emulator.number_cases import small_values
from tests.emulator.ptx_cases import launch
from tests.emulator.wgmma_programs import COMMIT, FENCE, FILL, WAIT, names, stored

CHUNK = {32: 2, 16: 4, 8: 4, 4: 8}
"""Elements of a row, by their bits, of which half are stored."""
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
PAIRS = [first | second << 2 for first in range(4) for second in range(4) if first != second]
ASCENDING = [code for code in PAIRS if code & 3 < code >> 2]
WORDS = [0b0100, 0b1110]
# Of the figures of metadata, by (bits, k): of the lanes that a selector names, (which of them, its
# lowest bit, first row, first column); the part of a register goes on for rows of the same group.
FIGURES = {
    (16, 16): ((0, 0, 0, 0), (0, 16, 8, 0)),
    (16, 32): ((0, 0, 0, 0), (0, 16, 8, 0), (1, 0, 0, 16), (1, 16, 8, 16)),
    (32, 8): ((0, 0, 0, 0), (0, 16, 8, 0)),
    (32, 16): ((0, 0, 0, 0), (0, 16, 8, 0), (1, 0, 0, 8), (1, 16, 8, 8)),
    (8, 32): ((0, 0, 0, 0), (1, 0, 8, 0)),
    (8, 64): ((0, 0, 0, 0), (1, 0, 8, 0), (2, 0, 0, 32), (3, 0, 8, 32)),
    (4, 64): ((0, 0, 0, 0), (1, 0, 8, 0)),
    (4, 128): ((0, 0, 0, 0), (1, 0, 8, 0), (2, 0, 0, 64), (3, 0, 8, 64)),
}


def selectors(bits, k):
    return 4 // (1 + max(cell[0] for cell in FIGURES[bits, k]))


def metadata(codes, bits, k, selector, random):
    """The registers of a warp, uint32 [32], of codes [16, chunks]; what no selector names is any
    word."""
    words = random.integers(0, 1 << 32, 32, np.uint32)
    width = 4 // selectors(bits, k)
    wide = 16 if bits >= 16 else 32
    for lane, low, first_row, first_column in FIGURES[bits, k]:
        for group in range(8):
            found = 0
            for i in range(wide // 4):
                found |= int(codes[first_row + group, first_column // CHUNK[bits] + i]) << 4 * i
            at = 4 * group + width * selector + lane
            kept = int(words[at]) & ~((1 << wide) - 1 << low)
            words[at] = kept | found << low
    return words


def expanded(stored_values, codes, bits):
    """Numbers [rows, k] of those stored [rows, k / 2]: zeros where the codes [rows, chunks] name
    no place."""
    rows, half = stored_values.shape
    dense = np.zeros((rows, 2 * half), stored_values.dtype)
    chunk = CHUNK[bits]
    for row in range(rows):
        for number, code in enumerate(codes[row]):
            start, at = number * chunk, number * chunk // 2
            if bits == 32:
                dense[row, start + (code == 0b1110)] = stored_values[row, at]
                continue
            wide = chunk // 4  # elements of a cell
            for j, place in enumerate((code & 3, code >> 2)):
                for i in range(wide):
                    dense[row, start + place * wide + i] = stored_values[row, at + j * wide + i]
    return dense


def draw(kind, shape, random):
    """(small integers, their elements as bytes of rows)"""
    if kind in ("e4m3", "e5m2"):
        values = small_values(kind)
        codes = np.flatnonzero(np.isin(values, (-2, -1, 0, 1, 2)))[random.integers(0, 6, shape)]
        return values[codes], codes.astype(np.uint8)
    low, high = {"s4": (-8, 8), "u4": (0, 16), "s8": (-128, 128), "u8": (0, 256)}.get(kind, (-8, 9))
    values = random.integers(low, high, shape)
    if BITS[kind] == 4:
        return values, (values[:, ::2] & 15 | (values[:, 1::2] & 15) << 4).astype(np.uint8)
    if kind == "f16":
        return values, values.astype(np.float16).view(np.uint8)
    if kind in ("bf16", "tf32"):
        words = values.astype(np.float32).view(np.uint32)
        if kind == "bf16":
            words = (words >> 16).astype(np.uint16)
        return values, words.view(np.uint8)
    return values, (values & 255).astype(np.uint8)


def held(rows, lines):
    """Registers [32, many] of bytes of 8 or 16 ``lines``: 32-bit word i of line g + 8 (i % (lines /
    8)) is in lane 4 g + t, t and t + 4 and so on along the line."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    tall = lines // 8
    found = np.empty((32, words.size // 32), np.uint32)
    for lane in range(32):
        group, member = divmod(lane, 4)
        for register in range(found.shape[1]):
            line, column = group + 8 * (register % tall), member + 4 * (register // tall)
            found[lane, register] = words[line, column]
    return found


def of_c(c):
    """Registers [32, 4, or 2 of halves] of c [16, 8]."""
    found = np.empty((32, 4), c.dtype)
    for lane in range(32):
        group, member = divmod(lane, 4)
        for i in range(4):
            found[lane, i] = c[group + 8 * (i // 2), 2 * member + i % 2]
    return found


def mma_program(opcode, widths, selector):
    """A warp loads a, b, c and e of these widths and stores d like c."""
    body = ""
    for name, width in widths.items():
        body += f".reg .b32 %x{name}<{width}>;\n"
    for position, (name, width) in enumerate(widths.items()):
        body += f"mad.wide.u32 %rd0, %t, {4 * width}, %p{position};\n" + "".join(
            f"ld.global.b32 %x{name}{i}, [%rd0 + {4 * i}];\n" for i in range(width)
        )
    a, b, c = ("{" + ", ".join(f"%x{name}{i}" for i in range(widths[name])) + "}" for name in "abc")
    body += f"{opcode} {c}, {a}, {b}, {c}, %xe0, {selector};\n"
    body += f"mad.wide.u32 %rd0, %t, {4 * widths['c']}, %p2;\n"
    return body + "".join(f"st.global.b32 [%rd0 + {4 * i}], %xc{i};\n" for i in range(widths["c"]))


def mma(opcode, a, b, c, words, selector):
    """c [16, 8] + ... by ``opcode``, of bytes of rows a [16, ...], b [8, ...] and metadata
    uint32 [32]."""
    arrays = {
        "a": held(a, 16),
        "b": held(b, 8),
        "c": np.ascontiguousarray(of_c(c)).view(np.uint32),
        "e": words[:, None].copy(),
    }
    launch(mma_program(opcode, {n: x.shape[1] for n, x in arrays.items()}, selector), arrays)
    found = arrays["c"].view(c.dtype)
    result = np.empty_like(c)
    for lane in range(32):
        group, member = divmod(lane, 4)
        for i in range(4):
            result[group + 8 * (i // 2), 2 * member + i % 2] = found[lane, i]
    return result


def wgmma_program(image_size, types, columns, k, operands, more, before="", behind=""):
    """One wgmma.mma_async.sp of a warpgroup: %a0..3, %e and %d are loaded; ``operands``: (a, b) as
    text or numbers, ``more``: what stands behind the metadata. ``before`` and ``behind`` the
    product."""
    half = columns // (4 if types.startswith("f16") else 2)  # registers of D
    a, b = operands
    body = FILL.format(size=image_size, chunks=image_size // 16)
    body += f".reg .b32 %d<{half}>, %a<4>, %e;\n"
    body += f"""mad.wide.u32 %rd1, %t, 16, %p1; mad.wide.u32 %rd2, %t, {4 * half}, %p2;
mad.wide.u32 %rd3, %t, 4, %p3; ld.global.b32 %e, [%rd3]; mov.u64 %rd40, {b};
"""
    body += "".join(f"ld.global.b32 %a{i}, [%rd1 + {4 * i}];\n" for i in range(4))
    body += "".join(f"ld.global.b32 %d{i}, [%rd2 + {4 * i}];\n" for i in range(half))
    if a is None:
        left = "{%a0, %a1, %a2, %a3}"
    else:
        body, left = body + f"mov.u64 %rd41, {a};\n", "%rd41"
    body += FENCE + before
    body += (
        f"wgmma.mma_async.sp.sync.aligned.m64n{columns}k{k}.{types}"
        f" {{{', '.join(names('d', half))}}}, {left}, %rd40, %e, {more};\n"
    )
    body += COMMIT + behind + WAIT
    return body + "".join(f"st.global.b32 [%rd2 + {4 * i}], %d{i};\n" for i in range(half))


def wgmma_sp(types, a, b, c, codes, swizzle=128, in_registers=True, selector=0, turned=0, **texts):
    """c [64, n] + ..., of bytes of rows a [64, 32] and b [n, 64], codes [64, chunks] of A;
    ``turned``: B, of 16 bits, lies MN-major."""
    kind = types.split(".")[-2]
    bits, columns = BITS[kind], len(b)
    k = 512 // bits
    tile, b_descs = stored(b, swizzle, turned)
    start = SHARED_BASE + -SHARED_BASE % 1024

    def encoded(named, at):
        return wgmma.Descriptor(
            named.address + at, named.stride_bytes, named.leading_bytes, named.swizzle
        ).encode()

    at = -(-tile.size // 1024) * 1024
    a_tile, a_descs = stored(a, 32, 0)
    image = np.concatenate([tile, np.zeros(at - tile.size, np.uint8), a_tile])
    image = np.concatenate([image, np.zeros(-image.size % 2048, np.uint8)])
    random = np.random.default_rng(9)
    words = [metadata(codes[16 * w : 16 * w + 16], bits, k, selector, random) for w in range(4)]
    fragment = wgmma.accumulator(columns)
    sums = np.ascontiguousarray(fragment.gather(c)).view(np.uint32)
    arrays = {
        "image": image,
        "a": np.concatenate([held(a[16 * w : 16 * w + 16], 16) for w in range(4)]),
        "c": sums.copy(),
        "e": np.concatenate(words),
    }
    more = f"{selector}, 1" + ("" if c.dtype == np.int32 else ", 1, 1")
    if bits == 16:
        more += f", {turned}" if in_registers else f", 0, {turned}"
    operands = None if in_registers else encoded(a_descs[0], start + at), encoded(b_descs[0], start)
    text = wgmma_program(image.size, types, columns, k, operands, more, **texts)
    launch(text, arrays, block=128, directives=".maxntid 128")
    return fragment.scatter(arrays["c"].view(c.dtype))
