"""What is taken from the faithful kernel, one technique at a time. ``EVERY``: {name: Ablation}, the
kernel as it is first, as ``intact``.

An ablation is a few lines of the kernel's source exchanged (``edited``), or a field of its
configuration, or both. Every result stays right: these are slower kernels, not wrong ones.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from edited import Edit, edited_kernel

from numba_marlin.kernels.ampere import KERNEL, AmpereConfig
from numba_marlin.kernels.language.definition import KernelDefinition


@dataclass(frozen=True)
class Ablation:
    """without: what it lacks, in words; config: AmpereConfig -> fields that change; plain: whether
    it reads weights that are not interleaved (``plain_layout``)."""

    name: str
    without: str
    edits: tuple[Edit, ...] = ()
    config: Callable[[AmpereConfig], dict] = lambda config: {}
    plain: bool = False

    @cached_property
    def kernel(self) -> KernelDefinition:
        return (
            edited_kernel(self.name, self.edits) if self.edits else replace(KERNEL, name=self.name)
        )

    def configured(self, config: AmpereConfig):
        """``config``, with the fields that change, of the kernel's own type."""
        return self.kernel.config_type(**{**asdict(config), **self.config(config)})


def stages(count: int) -> Callable[[AmpereConfig], dict]:
    return lambda config: {"stages": count}


ANY_STAGES = Edit("config", "if self.stages < 3:", "if self.stages < 1:")

STEP = """\
            # half 0 of this step's tile is in registers already
            fetch_to_registers(state, stage, 1)
            load.fetch_to_shared(state, slice_, before, step + (cfg.stages - 1))
            load.wait_for_stage(state, slice_, after, step + 1)
            matmul(state.fragments, 0)
            # in the slice's last step this brings zeros, which nothing multiplies
            fetch_to_registers(state, after, 0)
            matmul(state.fragments, 1)
"""

ONE_STAGE = (
    ANY_STAGES,
    Edit("load", "cp_async_wait_group(n=config.stages - 2)", "cp_async_wait_group(n=0)"),
    Edit("kernel", "for stage in range(cfg.stages - 1):", "for stage in range(1):"),
    Edit(
        "kernel",
        STEP,
        """\
            fetch_to_registers(state, stage, 1)
            cuda.syncthreads()  # both halves are in everybody's registers: the stage is free
            load.fetch_to_shared(state, slice_, stage, step + 1)
            matmul(state.fragments, 0)
            load.wait_for_stage(state, slice_, after, step + 1)
            fetch_to_registers(state, stage, 0)
            matmul(state.fragments, 1)
""",
    ),
)

SINGLE_REGISTERS = (
    Edit(
        "kernel",
        STEP,
        """\
            load.fetch_to_shared(state, slice_, before, step + (cfg.stages - 1))
            fetch_to_registers(state, stage, 0)
            matmul(state.fragments, 0)
            fetch_to_registers(state, stage, 1)
            matmul(state.fragments, 1)
            load.wait_for_stage(state, slice_, after, step + 1)
""",
    ),
    Edit("kernel", "            fetch_to_registers(state, 0, 0)  # half 0 of the first tile\n", ""),
)

NO_SWIZZLE = (
    Edit(
        "kernel",
        "place = (k_block * 2 + thread.lane // 16) ^ (row % 8)  #",
        "place = k_block * 2 + thread.lane // 16  #",
    ),
    Edit("kernel", "(chunk ^ row % 8)", "chunk"),
)

NO_LDMATRIX = (
    Edit(
        "kernel",
        """\
        row = thread.lane % 16
        place = (k_block * 2 + thread.lane // 16) ^ (row % 8)  # of the chunk, in its row
        a_read = shared.base + (row * cfg.a_row_chunks + place) * CHUNK + cfg.a_stage_bytes * stage
        for i in range(cfg.thread_m_blocks):
            a_words = ptx.ldmatrix_x4(a_read + 16 * i * cfg.a_row_chunks * CHUNK)
            for r in range(4):
                fragments.a[(half * cfg.thread_m_blocks + i) * 4 + r] = a_words[r]
""",
        """\
        row = thread.lane // 4
        a_read = shared.base + row * cfg.a_row_chunks * CHUNK + cfg.a_stage_bytes * stage
        for i in range(cfg.thread_m_blocks):
            for r in range(4):  # rows g and g + 8, then both again, 8 of k further on
                place = (k_block * 2 + r // 2) ^ row
                fragments.a[(half * cfg.thread_m_blocks + i) * 4 + r] = ptx.ld_shared_b32(
                    a_read
                    + place * CHUNK
                    + thread.lane % 4 * 4
                    + (16 * i + 8 * (r % 2)) * cfg.a_row_chunks * CHUNK
                )
""",
    ),
)

NO_EVICT_FIRST = (
    Edit("load", "ptx.cp_async_16_zfill_hint(", "ptx.cp_async_16_zfill("),
    Edit("load", "                state.source.policy,\n", ""),
)

PLAIN_LOADS = (
    Edit(
        "load",
        "    @lang.device\n    def slice_pointers(",
        """\
    uint32 = lang.uint32

    @lang.device
    def copy(target, source, byte_count):
        words = (uint32(0), uint32(0), uint32(0), uint32(0))
        if byte_count != 0:
            words = ptx.ld_global_v4_b32(source)
        ptx.st_shared_v4_b32(target, words)

    @lang.device
    def slice_pointers(""",
    ),
    Edit("load", "ptx.cp_async_16_zfill_hint(", "copy("),
    Edit("load", "                state.source.policy,\n", ""),
    Edit("load", "ptx.cp_async_16_zfill(", "copy(", times=2),
    Edit("load", "        ptx.cp_async_commit_group()\n", ""),
    Edit("load", "        wait_for_copy_groups()\n", ""),
)

NO_UNROLLING = (
    Edit(
        "kernel",
        """\
        next_steps = steps_from(stage + 1) if stage + 1 < config.stages else lap_done
        before, after = (stage - 1) % config.stages, (stage + 1) % config.stages

        @lang.device
        def steps(state, slice_, step):
""",
        """\

        @lang.device
        def steps(state, slice_, step, stage):
            before = uint32(cfg.stages - 1) if stage == 0 else stage - 1
            after = uint32(0) if stage == cfg.stages - 1 else stage + 1
""",
    ),
    Edit(
        "kernel",
        """\
            if step + 1 < slice_.end_step:
                next_steps(state, slice_, step + 1)
""",
        "",
    ),
    Edit(
        "kernel",
        """\
            step = slice_.first_step  # of the first tile of a lap
            while step < slice_.end_step:
                lap(state, slice_, step)
                step += cfg.stages
""",
        """\
            step, turn = slice_.first_step, uint32(0)
            while step < slice_.end_step:
                lap(state, slice_, step, turn)
                step += 1
                turn = uint32(0) if turn == cfg.stages - 1 else turn + 1
""",
    ),
)

BOTH = "first, second = numbers.dequantize(word), numbers.dequantize(word >> 8)"
MATMUL = "    @lang.device\n    def matmul(fragments, half):"

CONVERT = (
    Edit(
        "kernel",
        MATMUL,
        """\
    int32 = lang.int32

    @lang.device
    def number(word, nibble):
        return float32(int32(word >> 4 * nibble & 15)) - float32(8)

    @lang.device
    def convert(word):
        return (
            ptx.cvt_rn_f16x2_f32(number(word, 0), number(word, 4)),
            ptx.cvt_rn_f16x2_f32(number(word, 1), number(word, 5)),
        )

"""
        + MATMUL,
    ),
    Edit("kernel", BOTH, "first, second = convert(word), convert(word >> 8)"),
)

SHIFT_AND_MASK = (
    Edit(
        "kernel",
        MATMUL,
        """\
    @lang.device
    def pair(word):
        return ptx.sub_f16x2((word & 0x000F000F) | 0x64006400, 0x64086408)

    @lang.device
    def shift_and_mask(word):
        return pair(word), pair(word >> 4)

"""
        + MATMUL,
    ),
    Edit("kernel", BOTH, "first, second = shift_and_mask(word), shift_and_mask(word >> 8)"),
)

MULTIPLIES = """\
            multiply(fragments, first, half, 2 * j)
            multiply(fragments, second, half, 2 * j + 1)
"""

DEQUANTIZE_FIRST = (
    Edit(
        "kernel",
        "        for j in range(4):\n            word = ",
        "        pairs = cuda.local.array(16, uint32)\n"
        "        for j in range(4):\n            word = ",
    ),
    Edit(
        "kernel",
        MULTIPLIES,
        """\
            pairs[4 * j], pairs[4 * j + 1] = first
            pairs[4 * j + 2], pairs[4 * j + 3] = second
        ptx.bar_warp_sync(0xFFFFFFFF)  # what stands before it is not moved behind it
        for n8 in range(8):
            multiply(fragments, (pairs[2 * n8], pairs[2 * n8 + 1]), half, n8)
""",
    ),
)

PLAIN_LAYOUT = (
    Edit(
        "config",
        "def weight_words(self):\n        return HALVES * 4",
        "def weight_words(self):\n        return HALVES * 16",
    ),
    Edit(
        "kernel",
        """\
        weight_words = ptx.ld_shared_v4_b32(
            shared.own_chunk + cfg.b_at + cfg.b_stage_bytes * stage + THREADS * CHUNK * half
        )
        for r in range(4):
            fragments.weights[half * 4 + r] = weight_words[r]
""",
        """\
        # of the warp's 16 x 64 weights: two rows of words of 8 k, a word per column
        b_read = shared.own_chunk - thread.lane * CHUNK + thread.lane // 4 * 4
        for r in range(16):  # column g of n8 block r // 2, the first or the last 8 of k
            fragments.weights[half * 16 + r] = ptx.ld_shared_b32(
                b_read
                + (r % 2 * 64 + r // 2 * 8) * 4
                + cfg.b_at
                + cfg.b_stage_bytes * stage
                + THREADS * CHUNK * half
            )
""",
    ),
    Edit(
        "kernel",
        MATMUL,
        """\
    @lang.device
    def dequantize(word, shift):
        # nibbles 2 t and 2 t + 1, side by side, to the two halves of a register
        neighbours = word >> shift
        apart = (neighbours & 0xF) | (neighbours << 12 & 0xF0000)
        return ptx.sub_f16x2(apart | 0x64006400, 0x64086408)

    @lang.device
    def matmul(fragments, half, shift):""",
    ),
    Edit("kernel", "            word = fragments.weights[half * 4 + j]\n", ""),
    Edit(
        "kernel",
        BOTH,
        """\
at = half * 16 + 4 * j
            weights = fragments.weights
            first = dequantize(weights[at], shift), dequantize(weights[at + 1], shift)
            second = dequantize(weights[at + 2], shift), dequantize(weights[at + 3], shift)""",
    ),
    Edit(
        "kernel",
        "matmul(state.fragments, 0)",
        "matmul(state.fragments, 0, state.thread.lane % 4 * 8)",
    ),
    Edit(
        "kernel",
        "matmul(state.fragments, 1)",
        "matmul(state.fragments, 1, state.thread.lane % 4 * 8)",
    ),
)

FOUR_WARPS = (
    Edit("config", "THREADS = 256", "THREADS = 128"),
    Edit("config", "not in ((8, 8), (16, 4)):", "not in ((8, 4),):"),
)

EVERY = {
    each.name: each
    for each in (
        Ablation("intact", "nothing"),
        Ablation("intact_again", "nothing, once more (noise)"),
        Ablation("stages_1", "more than 1 stage", ONE_STAGE, stages(1)),
        Ablation("stages_2", "more than 2 stages", (ANY_STAGES,), stages(2)),
        Ablation("stages_3", "more than 3 stages", config=stages(3)),
        Ablation("stages_5", "nothing, but 5 stages", config=stages(5)),
        Ablation("stages_6", "nothing, but 6 stages", config=stages(6)),
        Ablation("plain_loads", "cp.async: ld.global, st.shared", PLAIN_LOADS),
        Ablation("no_evict_first", "the L2 policy evict_first", NO_EVICT_FIRST),
        Ablation("no_stripes", "stripes: whole tile columns", config=lambda _: {"whole": True}),
        Ablation("no_swizzle", "the XOR swizzle of A", NO_SWIZZLE),
        Ablation("no_ldmatrix", "ldmatrix: four 32-bit loads", NO_LDMATRIX),
        Ablation("single_registers", "the double buffer of registers", SINGLE_REGISTERS),
        Ablation("plain_layout", "the interleaved layout of W", PLAIN_LAYOUT, plain=True),
        Ablation("convert", "the fp16 trick: shift, mask, convert", CONVERT),
        Ablation("shift_and_mask", "lop3 and fma by name: and, or, shift", SHIFT_AND_MASK),
        Ablation("dequantize_first", "interleaving in the source", DEQUANTIZE_FIRST),
        Ablation("no_unrolling", "unrolled stages: addresses at run time", NO_UNROLLING),
        Ablation(
            "four_warps",
            "four of eight warps, half a tile",
            FOUR_WARPS,
            lambda config: {
                "thread_n_blocks": 8,
                "thread_k_blocks": 4,
                "stages": 2 * config.stages,
            },
        ),
    )
}
