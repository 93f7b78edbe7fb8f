"""Rung 1: a thread per output. What the product *is*, with no idea about how to make it fast, for every type there is.

Every thread walks down one column of the packed weights and one row of the activations:
``C[row, col] = bias(col) + sum_k A[row, k] * (code(k, col) - zero(group of k, col)) * scale(group of k, col)``, summed in fp32 in the
order of k and rounded once, at the end. The only thing to learn here is where Marlin keeps a weight, its scale and its zero point;
the closed forms are those of ``formats.marlin_order``.

Parameters: a [m, k] of ``dtype``, rows a_stride elements apart; b int32 [k/16, n_packed * bits/2] and scales [groups, n_packed] (Marlin's
order; n_packed is n, completed to a multiple of 64); zeros int32 [groups, n_packed * bits/32] or fp16 [groups, n_packed]; bias [n] and
c [m, n] of ``dtype``; all raw addresses, 0 where there is none. m and n are any, k a multiple of 16.
"""
from dataclasses import dataclass

from numba_marlin.kernels.definition import KernelDefinition, Takes, ceil_div

THREADS = 128
MIDDLE = {4: 8, 8: 128}  # the zero point of symmetric weights


@dataclass(frozen=True)
class NaiveConfig:
    """group_size: weights along k that share a scale, a multiple of 16; -1 for one scale a column. dtype: of activations, bias and
    result; scale_dtype: of scales; bits: of a code; zeros: None, "integer" (packed like codes) or "float16"; bias: whether one is added."""
    group_size: int = 128
    dtype: str = "float16"
    bits: int = 4
    zeros: str | None = None
    scale_dtype: str = "float16"
    bias: bool = False

    def __post_init__(self):
        if self.group_size != -1 and (self.group_size < 16 or self.group_size % 16):
            raise ValueError(f"group_size={self.group_size} must be -1 or a positive multiple of 16")
        for name, allowed in (("dtype", ("float16", "bfloat16")), ("scale_dtype", ("float16", "bfloat16")), ("bits", (4, 8)), ("zeros", (None, "integer", "float16"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {allowed}")


def half_verbs(lang, dtype):
    """-> (load(address, index) -> float32, store(address, index, float32)) of 16-bit floats."""
    ptx, uint16, uint32, uint64 = lang.ptx, lang.uint16, lang.uint32, lang.uint64

    @lang.device
    def load_float16(address, index):
        return ptx.cvt_f32_f16(ptx.ld_global_b16(address + uint64(index) * uint64(2)))

    @lang.device
    def store_float16(address, index, value):
        ptx.st_global_b16(address + uint64(index) * uint64(2), ptx.cvt_rn_f16_f32(value))

    @lang.device
    def load_bfloat16(address, index):
        return ptx.cvt_f32_bf16_low(uint32(ptx.ld_global_b16(address + uint64(index) * uint64(2))))

    @lang.device
    def store_bfloat16(address, index, value):
        ptx.st_global_b16(address + uint64(index) * uint64(2), uint16(ptx.cvt_rn_bf16x2_f32(value, value)))

    return (load_float16, store_float16) if dtype == "float16" else (load_bfloat16, store_bfloat16)


def weight_verbs(lang, config):
    """-> (load_code, load_scale, load_zero), float32 each, of a column."""
    ptx, uint32, uint64, int32, float32 = lang.ptx, lang.uint32, lang.uint64, lang.int32, lang.float32
    bits, zeros, per_column = config.bits, config.zeros, config.group_size == -1
    words_per_lane = bits  # of a block of 16 x 64: 4 with 8 codes, or 8 with 4 codes
    last_code = (1 << bits) - 1
    middle = MIDDLE[bits]
    load_scale_value = half_verbs(lang, config.scale_dtype)[0]
    load_zero_value = half_verbs(lang, "float16")[0]

    @lang.device
    def extract(address, word, number):
        """Code ``number`` of a word."""
        return float32(int32(ptx.ld_global_b32(address + word * uint64(4)) >> (uint32(bits) * number) & uint32(last_code)))

    @lang.device
    def load_code(b, k_row, k_inside, col, n_packed):
        """The code of W[16 * k_row + k_inside, col]: its lane holds 2 rows side by side, of each half of the 16, in one column of each n8 tile."""
        inside, tile = col % uint32(64), col % uint32(64) // uint32(8)
        lane = inside % uint32(8) * uint32(4) + k_inside % uint32(8) // uint32(2)
        if bits == 4:  # a word serves two tiles
            number = uint32(4) * (k_inside % uint32(2)) + uint32(2) * (tile % uint32(2)) + k_inside // uint32(8)
            tile = tile // uint32(2)
        else:
            number = uint32(2) * (k_inside % uint32(2)) + k_inside // uint32(8)
        word = col // uint32(64) * uint32(32 * words_per_lane) + lane * uint32(words_per_lane) + tile
        return extract(b, uint64(k_row) * uint64(uint32(bits // 2) * n_packed) + uint64(word), number)

    @lang.device
    def load_scale(scales, group, col, n_packed):
        inside = col % uint32(32 if per_column else 64)
        if per_column:
            position = uint32(8) * (inside % uint32(8) // uint32(2)) + uint32(2) * (inside // uint32(8)) + inside % uint32(2)
        else:
            position = uint32(8) * (inside % uint32(8)) + inside // uint32(8)
        return load_scale_value(scales, uint64(group) * uint64(n_packed) + uint64(col - inside + position))

    @lang.device
    def load_zero(address, group, col, n_packed):
        """Beside each other stand those of the 8 tiles, as floats or packed so that a dequantised register holds two neighbours."""
        inside, tile = col % uint32(64), col % uint32(64) // uint32(8)
        if zeros is None:
            return float32(middle)
        if zeros == "float16":
            return load_zero_value(address, uint64(group) * uint64(n_packed) + uint64(col - inside + uint32(8) * (inside % uint32(8)) + tile))
        row = uint64(group) * uint64(n_packed // uint32(32 // bits))
        if bits == 4:
            word, number = inside % uint32(8), tile // uint32(2) + uint32(4) * (tile % uint32(2))
        else:
            word = uint32(2) * (inside % uint32(8)) + tile // uint32(4)
            number = tile % uint32(4) // uint32(2) + uint32(2) * (tile % uint32(2))
        return extract(address, row + uint64(col // uint32(64) * uint32(2 * bits) + word), number)

    return load_code, load_scale, load_zero


def make(lang, config):
    cuda = lang.cuda
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    per_column, has_bias = config.group_size == -1, config.bias
    group_rows = 0 if per_column else config.group_size // 16
    load, store = half_verbs(lang, config.dtype)
    load_code, load_scale, load_zero = weight_verbs(lang, config)

    def naive(a, b, c, scales, zeros, bias, m, n, k, a_stride):
        output = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        row = uint32(output // uint64(n))
        col = uint32(output % uint64(n))
        if row < uint32(m):
            n_packed = (uint32(n) + uint32(63)) // uint32(64) * uint32(64)
            total = float32(0)
            scale = load_scale(scales, uint32(0), col, n_packed)
            zero = load_zero(zeros, uint32(0), col, n_packed)
            for k_row in range(uint32(k) // uint32(16)):
                if not per_column:
                    scale = load_scale(scales, uint32(k_row) // uint32(group_rows), col, n_packed)
                    zero = load_zero(zeros, uint32(k_row) // uint32(group_rows), col, n_packed)
                for inside in range(16):
                    x = load(a, uint64(row) * uint64(a_stride) + uint64(k_row) * uint64(16) + uint64(inside))
                    weight = load_code(b, uint32(k_row), uint32(inside), col, n_packed) - zero
                    total += x * (weight if per_column else weight * scale)
            if per_column:
                total *= scale
            if has_bias:
                total += load(bias, col)
            store(c, output, total)

    return naive


KERNEL = KernelDefinition(
    name="naive",
    summary="a thread per output",
    config_type=NaiveConfig,
    parameters=(("a", "u64"), ("b", "u64"), ("c", "u64"), ("scales", "u64"), ("zeros", "u64"), ("bias", "u64"),
                ("m", "i32"), ("n", "i32"), ("k", "i32"), ("a_stride", "i32")),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: (ceil_div(m * n, THREADS), 1, 1),
    min_arch="sm_80",
    takes=Takes(dtypes=tuple((dtype, scales) for dtype in ("float16", "bfloat16") for scales in ("float16", "bfloat16")), bits=(4, 8),
                zeros=(None, "integer", "float16"), bias=True, column_step=8, group_sizes=None),
    method=lambda config: "sums",
)
