"""The kernel for every type there is: a thread per output, with no idea about how to make it fast.
It runs what the others refuse.

Every thread walks down one column of the packed weights and one row of the activations: ``C[row,
col] = bias(col) + sum_k A[row, k] * (code(k, col) - zero(group of k, col)) * scale(group of k,
col)``, summed in fp32 in the order of k and rounded once, at the end. Where
Marlin keeps a weight, its scale and its zero point says ``lookup``. Of block-scaled FP4 code -
zero is the number that the code means (``lookup_fp4``), and a factor of the column multiplies the
sum.

Parameters: a [m, k] of ``dtype``, rows a_stride elements apart; b int32 [k/16, n_packed * bits/2]
and scales [groups, n_packed] (Marlin's order; n_packed is n, completed to a multiple of 64); zeros
int32 [groups, n_packed * bits/32] or fp16 [groups, n_packed]; bias [n] and c [m, n] of ``dtype``;
all raw addresses, 0 where there is none. m and n are any, k a multiple of 16.
"""

from dataclasses import dataclass

from numba_marlin.kernels.dequantize import lookup_fp4
from numba_marlin.kernels.dequantize.lookup import half_verbs, weight_verbs
from numba_marlin.kernels.language.definition import CODES

THREADS = 128


@dataclass(frozen=True)
class GeneralConfig:
    """group_size: weights along k that share a scale, a multiple of 16; -1 for one scale a column.
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
    group_rows = 0 if per_column else config.group_size // 16
    load, store = half_verbs(lang, config.dtype)
    fp4 = config.codes == "e2m1"
    if fp4:
        load_code, load_scale, load_factor = lookup_fp4.weight_verbs(lang, config)
        load_zero = lang.device(lambda address, group, col, n_packed: float32(0))
    else:
        load_code, load_scale, load_zero = weight_verbs(lang, config)
        load_factor = lang.device(lambda address, col: float32(1))

    def general(a, b, c, scales, zeros, bias, m, n, k, a_stride, factors):
        output = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        row = uint32(output // uint64(n))
        col = uint32(output % uint64(n))
        if row < uint32(m):
            n_packed = (uint32(n) + 63) // 64 * 64
            total = float32(0)
            # the distance between scales depends on it
            columns_or_rows = uint32(k) if fp4 else n_packed
            scale = load_scale(scales, 0, col, columns_or_rows)
            zero = load_zero(zeros, 0, col, n_packed)
            for k_row in range(uint32(k) // 16):
                if not per_column:
                    scale = load_scale(
                        scales, uint32(k_row) // uint32(group_rows), col, columns_or_rows
                    )
                    zero = load_zero(zeros, uint32(k_row) // uint32(group_rows), col, n_packed)
                for inside in range(16):
                    x = load(
                        a,
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
            store(c, output, total)

    return general
