"""The sum over a token's experts, times their weights: a pass of its own behind the launch that has
multiplied them. No rung of a ladder: ``PASS`` follows a kernel of experts that was configured with
``combine`` (``KernelDefinition.behind``).

    c[token] = sum over slots of weights[token, slot] * rows[token * k + slot]

In fp32, fused multiply-adds in the order of the slots, from zero, rounded once: the bits of c are a
function of those of the rows. Parameters, in this order; addresses are raw, multiples of 16 bytes
those of rows and c:

rows      fp32 [m k, n], of the launch before: a row for each slot, those of a token together
weights   fp32 [m, k]
c         [m, n] of ``dtype``
n, k      int32; n a multiple of 8; k: a token's experts, top_k elsewhere. m is the grid's

A thread has COLUMNS of a token, 16 bytes of each row and 8 of c, so that a warp reads 512 bytes in
a row; it asks for AT_ONCE rows before it waits for the first. A block has a token's THREADS *
COLUMNS columns, the last one of a token what is left. All memory may be written by the launch
before: nothing is read before ``griddepcontrol.wait``.

Why it is no part of the launch: it was. The last of a token's experts to come, found by a counter
of the token in every tile of columns, added up its rows. The fences of those counters, and loads
behind which nothing multiplies, took longer than the products (experiments/26_experts).
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.kernels.language.about import About, MachineCost
from numba_marlin.kernels.language.definition import KernelDefinition, ceil_div

THREADS, COLUMNS = 128, 4
BLOCK_COLUMNS = THREADS * COLUMNS
AT_ONCE = 8  # rows of a token whose loads are in flight together
DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class SumConfig:
    """What is to be chosen: nothing. What the product says: its type."""

    #: Of the result: "float16" or "bfloat16".
    dtype: str = "float16"

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        blocks = m * ceil_div(n, BLOCK_COLUMNS)
        if n % 8:
            raise ValueError(f"n={n} must be a multiple of 8: rows are read 16 bytes at a time")
        if blocks >= 2**31:
            raise ValueError(f"m={m}, n={n} are {blocks} blocks, must be less than 2**31")
        return (blocks, 1, 1)


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    halves_of = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]

    def adder(most, all_there):
        """-> device function that adds ``count`` rows, at most ``most``, the first at ``row`` and
        its weight at ``weight``. all_there: count is most. (Else each load has a predicate, of
        which there are seven: an eighth load would wait for the first.)"""
        value_count = most * COLUMNS

        @lang.device
        def add(total, weight, row, row_bytes, count):
            values = cuda.local.array(value_count, float32)
            factors = cuda.local.array(most, float32)
            for i in range(most):
                if all_there or i < count:
                    factors[i] = ptx.ld_global_f32(weight)
                    part = ptx.ld_global_v4_f32(row)
                    for j in range(COLUMNS):
                        values[COLUMNS * i + j] = part[j]
                # stepped on: a product for each address takes more instructions than the sum
                weight += 4
                row += row_bytes
            for i in range(most):
                if all_there or i < count:
                    for j in range(COLUMNS):
                        total[j] = ptx.fma_rn_f32(factors[i], values[COLUMNS * i + j], total[j])

        return add

    add_all, add_rest = adder(AT_ONCE, True), adder(AT_ONCE - 1, False)

    def sum_experts(rows, weights, c, n, k):
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        columns, slots = uint32(n), uint32(k)
        blocks_of_token = (columns + (BLOCK_COLUMNS - 1)) // BLOCK_COLUMNS
        block = uint32(cuda.blockIdx.x)
        token = block // blocks_of_token
        column = block % blocks_of_token * BLOCK_COLUMNS + ptx.tid_x() * COLUMNS
        if column < columns:
            total = cuda.local.array(COLUMNS, float32)
            for j in range(COLUMNS):
                total[j] = float32(0)
            first_row, row_bytes = uint64(token) * slots, uint64(columns) * 4
            weight, row = weights + first_row * 4, rows + first_row * row_bytes + column * 4
            while slots >= AT_ONCE:
                add_all(total, weight, row, row_bytes, slots)
                weight += AT_ONCE * 4
                row += AT_ONCE * row_bytes
                slots -= AT_ONCE
            if slots > 0:
                add_rest(total, weight, row, row_bytes, slots)
            address = c + (uint64(token) * columns + column) * 2
            words = (halves_of(total[0], total[1]), halves_of(total[2], total[3]))
            ptx.st_global_v2_b32(address, words)

    return sum_experts


PASS = KernelDefinition(
    name="sum_experts",
    summary="the sum over a token's experts, times their weights",
    config_type=SumConfig,
    parameters=(
        ("rows", "u64"),
        ("weights", "u64"),
        ("c", "u64"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: config.grid(m, n),
    dependent=lambda config: True,
    reads_early=(),
    waits=False,
    min_arch="sm_90",
    about=About(machine_cost=MachineCost(weight=0.1, result=2, warp=1)),
)
