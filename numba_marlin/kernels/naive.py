"""Rung 1: a thread per output. What the product *is*, with no idea about how to make it fast.

Every thread walks down one column of the packed weights and one row of the activations:
``C[row, col] = sum_k A[row, k] * (code(k, col) - 8) * scale(group of k, col)``, summed in fp32 in the order of k.
The only thing to learn here is where Marlin keeps a weight; the closed form is that of ``formats.marlin``.

Parameters: a fp16 [m, k], b int32 [k/16, 2n] (Marlin), c fp16 [m, n], scales fp16 [groups, n] (Marlin's order); raw addresses.
k is a multiple of 16, n of 64, m any.
"""
from dataclasses import dataclass

from numba_marlin.kernels.definition import KernelDefinition, ceil_div


@dataclass(frozen=True)
class NaiveConfig:
    """group_size: weights along k that share a scale, a multiple of 16; -1 for one scale a column."""
    group_size: int = 128

    def __post_init__(self):
        if self.group_size != -1 and (self.group_size < 16 or self.group_size % 16):
            raise ValueError(f"group_size={self.group_size} must be -1 or a positive multiple of 16")


THREADS = 128


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64, int32, float32 = lang.uint32, lang.uint64, lang.int32, lang.float32
    per_column = config.group_size == -1
    group_rows = 0 if per_column else config.group_size // 16

    @lang.device
    def load_half(address, index):
        return ptx.cvt_f32_f16(ptx.ld_global_b16(address + uint64(index) * uint64(2)))

    @lang.device
    def load_scale(scales, group, col, n):
        inside = col % uint32(32 if per_column else 64)
        if per_column:
            position = uint32(8) * (inside % uint32(8) // uint32(2)) + uint32(2) * (inside // uint32(8)) + inside % uint32(2)
        else:
            position = uint32(8) * (inside % uint32(8)) + inside // uint32(8)
        return load_half(scales, uint64(group) * uint64(n) + uint64(col - inside + position))

    @lang.device
    def load_weight(b, k_row, k_inside, col, n):
        """code - 8 of W[16 * k_row + k_inside, col]"""
        inside = col % uint32(64)
        lane = inside % uint32(8) * uint32(4) + k_inside % uint32(8) // uint32(2)
        word = uint32(4) * lane + inside // uint32(16)
        nibble = uint32(4) * (k_inside % uint32(2)) + uint32(2) * (inside // uint32(8) % uint32(2)) + k_inside // uint32(8)
        index = uint64(k_row) * uint64(uint32(2) * n) + uint64(col // uint32(64) * uint32(128) + word)
        packed = ptx.ld_global_b32(b + index * uint64(4))
        return float32(int32(packed >> (uint32(4) * nibble) & uint32(15)) - int32(8))

    def naive(a, b, c, scales, m, n, k):
        output = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        row = uint32(output // uint64(n))
        col = uint32(output % uint64(n))
        if row < uint32(m):
            width = uint32(n)
            total = float32(0)
            scale = load_scale(scales, uint32(0), col, width)
            for k_row in range(uint32(k) // uint32(16)):
                if not per_column:
                    scale = load_scale(scales, uint32(k_row) // uint32(group_rows), col, width)
                for inside in range(16):
                    x = load_half(a, uint64(row) * uint64(k) + uint64(k_row) * uint64(16) + uint64(inside))
                    weight = load_weight(b, uint32(k_row), uint32(inside), col, width)
                    total += x * (weight if per_column else weight * scale)
            if per_column:
                total *= scale
            ptx.st_global_b16(c + output * uint64(2), ptx.cvt_rn_f16_f32(total))

    return naive


KERNEL = KernelDefinition(
    name="naive",
    summary="a thread per output",
    config_type=NaiveConfig,
    parameters=(("a", "u64"), ("b", "u64"), ("c", "u64"), ("scales", "u64"), ("m", "i32"), ("n", "i32"), ("k", "i32")),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: (ceil_div(m * n, THREADS), 1, 1),
    min_arch="sm_80",
)
