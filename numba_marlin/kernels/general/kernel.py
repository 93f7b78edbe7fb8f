"""The kernel for every type there is: a thread per output, with no idea about how to make it fast.
It takes the problems that other kernels refuse, as a last resort (a kernel's ``takes``, a ``Takes``
of kernels/language/definition.py, says what it refuses). To launch it: ``nm.matmul(x, p,
kernel="general")``, with p of any kind: ``nm.pack(nm.quantize(w, bits=8, symmetric=False))``, or
FP4 of a checkpoint. matmul checks sizes and types, calls ``make`` (``lang`` is the language of
compiler/language.py), compiles what it returns, and passes it the addresses of the arrays. Files
are named from numba_marlin/; declare.py is beside this one.

    c[row, col] = bias[col] + sum over k of
        a[row, k] * (code[k, col] - zero[group, col]) * scale[group, col],  group = k // group_size
                                                                           (-1: group 0)

    a          [m, k] of ``dtype``; row i begins at element i * a_stride
    b          int32 [k / 16, n_packed * bits / 2]: codes. n_packed is n completed to a multiple of
               64, by columns of weight 0, which nobody reads here
    c          [m, n] of ``dtype``, contiguous
    scales     [groups, n_packed] of ``scale_dtype``; FP4: words, see below
    zeros      int32 [groups, n_packed * bits / 32], or float16 [groups, n_packed]. None: every zero
               is 8 (4 bits), 128 (8 bits) or 0 (FP4)
    bias       [n] of ``dtype``
    m, n, k    m is any number; n is a multiple of 8 (that is the format's rule, not the kernel's);
               k is a multiple of 16 and of group_size; FP4: of 16, and the last group may end
               beyond k. ``pack`` and ``takes`` (declare.py) check that
    a_stride   elements from one row of a to the next
    factors    FP4 only: float32 [n_packed]

These are the parameters in the order of the launch. Arrays are raw addresses (u64), 0 where there
is none; numbers are int32 and count elements. x, qweight, y are called a, b, c in the other
kernels over ``lang`` too, after A, B, C of Marlin.

**Work.** Thread threadIdx.x of block blockIdx.x makes output 128 * blockIdx.x + threadIdx.x of c,
row by row; there are ceil(m n / 128) blocks, and threads past m n return. A thread adds up its
output alone, in fp32, k after k, then applies scale (if there is one per column) and factor, adds
the bias, and rounds once to ``dtype``. So every run gives the same bits. There is no shared memory,
and nothing is in flight: all is read from global memory when it is used. A round is one row of b,
that is 16 rows of W: load scale and zero (again, although a group may be longer; before the loop if
there is one per column); then, for each of the 16, load a's element, load the word, extract the
code, subtract the zero, multiply by the scale and by a's element, add. Nothing overlaps by design,
only what the compiler reorders. State of the main loop: ``total``, the sum; ``scale`` and ``zero``,
of the current group and col; ``k16_row``, a row of b (16 rows of W); ``k_inside``, which of these.

**Codes** are in Marlin's order, that of B fragments of ``mma.m16n8k16`` (formats/marlin_order.py
derives it; ``load_code`` in kernels/dequantize/lookup.py goes from k, n to the place). Code W[k, n]
is in row k0 / 16 of b. k0 is a multiple of 16, n0 of 64; g: 0 to 7; t, j: 0 to 3; h: 0, 1:

    4 bits: word 2 n0 + 4 (4 g + t) + j, nibble p:      k = k0 + 2 t + p // 4 + 8 (p % 2)
                                                        n = n0 + 16 j + g + 8 (p // 2 % 2)
    8 bits: word 4 n0 + 8 (4 g + t) + 2 j + h, byte p:  k = k0 + 2 t + p // 2 + 8 (p % 2)
                                                        n = n0 + 16 j + g + 8 h
    FP4:    word, k and n of code p are those of nibble p of 4 bits, but its bits are not side by
            side: a word becomes four registers (in another way for float16 than for bfloat16: the
            table of kernels/dequantize/expand_fp4.py), and code p is half p // 4 (0: low) of
            register p % 4

**Scales** of a group are in one row. That of column n0 + c, c = 0 to 63, is at n0 + 8 (c % 8) +
c // 8. A scale per column (group_size -1, which a single group of k rows becomes on the host)
multiplies the sum, not each weight, and is in another
order: that of column n1 + c, n1 a multiple of 32, c = 0 to 31, is at n1 + 8 (c % 8 // 2) +
2 (c // 8) + c % 2, because a lane of the fast kernels has the sums of columns 2 t and 2 t + 1 of
each 8.

**Zeros** as float16 are in the order of group scales, also if group_size is -1. As integers they
are packed, 64 columns in 8 words (4 bits) or 16 (8 bits). That of column n0 + g + 8 i, i = 0 to 7,
is in

    4 bits: word n0 / 8 + g, nibble i // 2 + 4 (i % 2)
    8 bits: word n0 / 4 + 2 g + i // 4, byte i % 4 // 2 + 2 (i % 2)

**FP4** (codes "e2m1"; kernels/dequantize/lookup_fp4.py). A weight is code * scale * global scale.
Scales come as E4M3 (NVFP4) or as E8M0 (MXFP4, powers of two; there ``largest`` is the largest scale
of the column). With 2**-14 * 2**7 * 2**7 = 1 and 2**-14 * 2**15 / 2 = 1, the product of these is
the weight, exactly:

    code      float16: code * 2**-14; bfloat16: code * 2**-126, so that the code 0.5 is a subnormal
              number, in fp32 too. Nothing here flushes subnormals to zero
    scale     stored: scale * 2**7 (E4M3) or scale / largest * 2**15 (E8M0), as eight bits "e5m3": a
              float16 without its sign and its last seven bits. Read for float16 as it is stored,
              for bfloat16 times 2**112, which makes up for the code's other power of two (except
              0, whose codes are all 0). ``pack`` refuses an E8M0 scale below largest * 2**-24,
              which is far from a subnormal. Words [n_packed / 64, ceil(k / 32), 8, s] of
              two pairs each (bits: expand_fp4.py).
              group_size 16: s = 4, and word [n // 64, k // 32, n % 8, n % 64 // 16] has the scales
              of columns n and n ^ 8 (n % 16 < 8 in the low half): its first pair has those of the
              rows with k % 32 < 16, its second those of the others. group_size 32: s = 2, and word
              [n // 64, k // 32, n % 8, n % 64 // 32] has those of the columns with n % 32 // 8 = 0
              (low half) and 1 (high half) in its first pair, of 2 and 3 in its second
    factors   global scale * 2**7 (E4M3) or global scale * largest / 2 (E8M0). It multiplies the sum
              of column col and is number col // 16 * 16 + 2 (col % 8) + col % 16 // 8
"""

from dataclasses import dataclass

from numba_marlin.kernels.dequantize import lookup_fp4
from numba_marlin.kernels.dequantize.lookup import half_verbs, weight_verbs
from numba_marlin.kernels.language.definition import CODES

THREADS = 128


@dataclass(frozen=True)
class GeneralConfig:
    """group_size: weights along k that share a scale, a multiple of 16; -1: one scale per column.
    dtype: of activations, bias and result, "float16" or "bfloat16"; scale_dtype: of scales, one of
    these; bits: of a code, 4 or 8; zeros: None, "integer" (packed codes) or "float16"; bias:
    whether one is added; codes: "integer", or "e2m1" for block-scaled FP4 in groups of 16 or 32,
    whose scale_dtype is "e5m3" (five bits of exponent, three of significand, no sign).
    """

    group_size: int = 128
    dtype: str = "float16"
    bits: int = 4
    zeros: str | None = None
    scale_dtype: str = "float16"
    bias: bool = False
    codes: str = "integer"

    def __post_init__(self):
        fp4 = self.codes == "e2m1"
        if self.group_size != -1 and (self.group_size < 16 or self.group_size % 16):
            raise ValueError(
                f"group_size={self.group_size} must be -1 or a positive multiple of 16"
            )
        halves = ("float16", "bfloat16")
        allowed = {
            "codes": CODES,  # "integer", "e2m1"
            "dtype": halves,
            "scale_dtype": halves,
            "bits": (4, 8),
            "zeros": (None, "integer", "float16"),
        }
        if fp4:
            allowed |= {
                "scale_dtype": ("e5m3",),
                "bits": (4,),
                "zeros": (None,),
                "group_size": (16, 32),
            }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {values}")


def make(lang, config):
    cuda = lang.cuda
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    per_column, has_bias = config.group_size == -1, config.bias
    # rows of b (16 rows of W each) that share a scale; not used with a scale per column
    group_k16_rows = 0 if per_column else config.group_size // 16
    load, store = half_verbs(lang, config.dtype)
    fp4 = config.codes == "e2m1"
    if fp4:
        load_code, load_scale, load_factor = lookup_fp4.weight_verbs(lang, config)
        load_zero = lang.device(lambda zeros, group, col, n_packed: float32(0))
    else:
        load_code, load_scale, load_zero = weight_verbs(lang, config)
        load_factor = lang.device(lambda factors, col: float32(1))  # never called

    def general(a, b, c, scales, zeros, bias, m, n, k, a_stride, factors):
        # in 64 bits, for m n may be more than 2**32; row and col, less than 2**31, need only 32
        output = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        row = uint32(output // uint64(n))
        col = uint32(output % uint64(n))
        if row < uint32(m):
            n_packed = (uint32(n) + 63) // 64 * 64
            total = float32(0)
            # of group 0: with a scale per column the only one, otherwise to be loaded again below
            scale = load_scale(scales, 0, col, n_packed, uint32(k))
            zero = load_zero(zeros, 0, col, n_packed)
            for k16_row in range(uint32(k) // 16):
                if not per_column:  # once per 16 k, whatever the group's length: simple, not fast
                    group = k16_row // group_k16_rows
                    scale = load_scale(scales, group, col, n_packed, uint32(k))
                    zero = load_zero(zeros, group, col, n_packed)
                for k_inside in range(16):
                    activation = load(
                        a,  # in elements; 64 bits, as row * a_stride may not fit 32
                        uint64(row) * uint64(a_stride)
                        + uint64(k16_row) * uint64(16)
                        + uint64(k_inside),
                    )
                    # uint32: the index of range(16) is a 64-bit int, and so would be its quotients
                    weight = load_code(b, k16_row, uint32(k_inside), col, n_packed) - zero
                    total += activation * (weight if per_column else weight * scale)
            if per_column:
                total *= scale
            if fp4:
                total *= load_factor(factors, col)
            if has_bias:
                total += load(bias, col)
            store(c, output, total)  # rounds to dtype

    return general
