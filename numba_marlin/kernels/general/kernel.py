"""The kernel for every type there is: a thread per output, with no idea about how to make it fast.
It takes the problems that the other kernels refuse (``Takes.refusals``), as a last resort. Launch
it by ``nm.matmul(x, p, kernel="general")``: that builds it with ``compiler.build``, which calls
``make`` with its ``lang`` (``compiler/language.py``), and passes the addresses.

    c[row, col] = bias[col] + sum over k of
        a[row, k] * (code[k, col] - zero[group, col]) * scale[group, col],  group = k // group_size

Thread threadIdx.x of block blockIdx.x makes output 128 * blockIdx.x + threadIdx.x of c, row by row;
there are ceil(m n / 128) blocks, and threads past m n return. Its fp32 sum takes k after k, nobody
else adds (every run gives the same), then bias, and is rounded to ``dtype``. A scale per column
(group_size -1) multiplies the sum, not each weight. No shared memory, no stages: codes, scales and
activations are read from global memory when they are used, scales and zeros once for 16 k, although
a group may be longer.

Parameters, in the order of the launch. Arrays are raw addresses (u64), 0 where there is none; sizes
are int32 and count elements.

    a          [m, k] of ``dtype``; row i begins at element i * a_stride
    b          int32 [k / 16, n_packed * bits / 2], n_packed being n completed to a multiple of 64
    c          [m, n] of ``dtype``, contiguous
    scales     [groups, n_packed] of ``scale_dtype``; FP4: words, see below
    zeros      int32 [groups, n_packed * bits / 32], or float16 [groups, n_packed], if there are any
    bias       [n] of ``dtype``
    m, n, k    m is any number, n a multiple of 8, k of 16 and of group_size (FP4: group_size may
               end past k). ``pack`` and ``Takes`` check that.
    a_stride   elements from one row of a to the next
    factors    FP4 only: float32 [n_packed]

Where a code, scale or zero stands in Marlin's order: ``kernels/dequantize/lookup.py``, whose
``weight_verbs`` are used here (``formats/marlin_order.py`` derives it). Scales of group_size -1
stand in an order of 32 columns, all others, and float16 zeros always, in one of 64.

FP4 (codes "e2m1"): code(k, col) is the FP4 number and scale its scale, each in a unit of a power of
two (bfloat16: subnormal fp32, which is not flushed to zero) that the column's factor undoes; zero
is 0. Scales are words [n_packed / 64, ceil(k / 32), 8, 4 or 2], addressed with k, where the others'
rows are n_packed apart. Number 2 (col % 8) + col // 8 % 2 of every 16 factors multiplies column
col's sum (``lookup_fp4``, layout in ``formats/fp4_marlin.py``; its bits, ``formats/fp4_words.py``).
"""

from dataclasses import dataclass

from numba_marlin.kernels.dequantize import lookup_fp4
from numba_marlin.kernels.dequantize.lookup import half_verbs, weight_verbs
from numba_marlin.kernels.language.definition import CODES

THREADS = 128


@dataclass(frozen=True)
class GeneralConfig:
    """group_size: weights along k that share a scale, a multiple of 16; -1: one scale per column.
    dtype: of activations, bias and result; scale_dtype: of scales; bits: of a code; zeros: None,
    "integer" (packed like codes) or "float16"; bias: whether one is added; codes: "integer", or
    "e2m1" for block-scaled FP4 in groups of 16 or 32, whose scale_dtype is "e5m3".
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
            "codes": CODES,
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
    # rows of packed words, each 16 rows of W, that share a scale
    group_k16_rows = 0 if per_column else config.group_size // 16
    load, store = half_verbs(lang, config.dtype)
    fp4 = config.codes == "e2m1"
    if fp4:
        load_code, load_scale, load_factor = lookup_fp4.weight_verbs(lang, config)
        load_zero = lang.device(lambda address, group, col, n_packed: float32(0))
    else:
        load_code, load_scale, load_zero = weight_verbs(lang, config)
        load_factor = lang.device(lambda address, col: float32(1))

    def general(a, b, c, scales, zeros, bias, m, n, k, a_stride, factors):
        # in 64 bits, for m n may be more than 2**32
        output = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        row = uint32(output // uint64(n))
        col = uint32(output % uint64(n))
        if row < uint32(m):
            n_packed = (uint32(n) + 63) // 64 * 64
            total = float32(0)
            # what the distance between rows of scales depends on: FP4's on k, the others' on n
            columns_or_rows = uint32(k) if fp4 else n_packed
            scale = load_scale(scales, 0, col, columns_or_rows)
            zero = load_zero(zeros, 0, col, n_packed)
            for k_row in range(uint32(k) // 16):
                if not per_column:  # once per 16 k, whatever the group's length: simple, not fast
                    scale = load_scale(
                        scales, uint32(k_row) // uint32(group_k16_rows), col, columns_or_rows
                    )
                    zero = load_zero(zeros, uint32(k_row) // uint32(group_k16_rows), col, n_packed)
                for inside in range(16):
                    x = load(
                        a,  # in elements; 64 bits, as row * a_stride may not fit 32
                        uint64(row) * uint64(a_stride)
                        + uint64(k_row) * uint64(16)
                        + uint64(inside),
                    )
                    weight = load_code(b, uint32(k_row), uint32(inside), col, n_packed) - zero
                    total += x * (weight if per_column else weight * scale)
            if per_column:
                total *= scale
            if fp4:
                total *= load_factor(factors, col)
            if has_bias:
                total += load(bias, col)
            store(c, output, total)  # rounds to dtype

    return general
