"""What a lane of a consumer warp of ``decode`` reads of a stage: shared memory to registers.

``fetch_verbs(lang, config, weights)`` -> namespace of device functions, and ``at``: which element
of a lane's ``pointers`` is what. ``weights`` is the namespace that ``weights`` or ``fp4`` makes.

Weights, scales and zero points lie in the order of the lanes already: lane 4g + t reads 16 bytes
(or twice 16) of weights at its number, and at g the scales of its eight columns g + 8i. Rows of x
become B fragments of the transposed product (``activations``); ``ldmatrix.x4`` fetches those of a
pair (two k16 rows) and 8 rows of x at a time: lane i passes the address of row i % 8, the 16 bytes
from 16 (i // 8) on. For a single k16 row ``ldmatrix.x2`` takes the addresses of lanes 0 to 15 and
ignores the others. (8-bit x: half as many of either.)

*Offsets* are bytes from where a stage begins, and change with the tile; *pointers* are the same
with the stage's address added, and change with the stage. Their elements have names, ``at``.
"""

from numba_marlin.kernels.decode.activations import x_verbs


def fetch_verbs(lang, config, weights):
    cfg = lang.constants(config)
    at = pointer_names(lang, config)
    x = x_verbs(lang, config)

    @lang.device
    def stage_offsets(offsets, x_rows, thread):
        """Where this lane reads in a stage: its weights, its scales and zero points, and its row of
        x for every n8 block. x_rows: rows of x that the matrix has of the tile. Others were never
        copied: the last one that was stands in for them, and the rows of C that come of it are
        never written. (Lanes that read the same address get it by one broadcast.) scale_row: the
        row of scales, of the stage's, that the warp's first k16 row has; 0 if there is one, or
        none. An example: stage_k = 512, warps_k = 8, groups of 128: a warp has 4 k16 rows and a
        group 8, so the stage has 4 rows of scales, and warps 2i and 2i + 1 both begin at row i, the
        second one in the middle of its group."""
        first_k16_row = thread.warp_k * cfg.rows_per_warp
        scale_row = first_k16_row // cfg.k16_rows_per_scale_row if cfg.scale_rows > 1 else 0
        offsets[at.weights] = (
            first_k16_row * cfg.weight_pitch
            + thread.warp_n * cfg.warp_row_bytes
            + thread.lane * (cfg.warp_row_bytes // 32)
        )
        if cfg.row_words == 8:
            skipped = 16 if weights.reads_upper_first(thread.lane) else 0
            offsets[at.second_half] = offsets[at.weights] + (16 - skipped)
            offsets[at.weights] += skipped
        offsets[at.scales] = (
            cfg.scales_at
            + scale_row * cfg.scale_pitch
            + thread.warp_n * cfg.scale_warp_pitch
            + thread.lane // 4 * (cfg.scale_bytes // 8)
        )
        if cfg.zero_rows > 0:
            offsets[at.zeros] = (
                cfg.zeros_at
                + scale_row * cfg.zero_pitch
                + thread.warp_n * cfg.zero_bytes
                + thread.lane // 4 * (cfg.zero_bytes // 8)
            )
        for n8 in range(cfg.n8_blocks):
            x_row = min(thread.lane % 8 + 8 * n8, x_rows - 1)
            offsets[at.x + n8] = (
                cfg.x_at
                + x_row * cfg.x_pitch
                + first_k16_row * cfg.x_row_bytes
                + thread.lane // 8 * 16
            )

    @lang.device
    def fetch_row_words(registers, slot, pointers, row):
        """Weights of a k16 row, number ``row`` of the warp's."""
        offset = row * cfg.weight_pitch
        weights.fetch_words(
            registers.words,
            cfg.row_words * slot,
            pointers[at.weights] + offset,
            pointers[at.second_half] + offset,
        )

    @lang.device
    def fetch_pair(registers, buffer, pointers, number):
        """Weights, FP4's scales and activations of a pair of k16 rows: number ``number`` of the
        warp's, to slots 2 buffer and 2 buffer + 1."""
        for row in range(2):
            fetch_row_words(registers, 2 * buffer + row, pointers, 2 * number + row)
        for n8 in range(cfg.n8_blocks):
            x.fetch_pair(
                registers.x,
                cfg.x_words_per_n8 * n8 + 4 * buffer,
                pointers[at.x + n8] + 2 * cfg.x_row_bytes * number,
            )
        weights.block_scales_of_pair(
            registers.zeros_or_scales, buffer, pointers[at.scales] + cfg.scale_pitch * number
        )

    @lang.device
    def fetch_row(registers, pointers, row):
        """Weights and activations of a single k16 row, to slot 0."""
        fetch_row_words(registers, 0, pointers, row)
        for n8 in range(cfg.n8_blocks):
            x.fetch_row(
                registers.x, cfg.x_words_per_n8 * n8, pointers[at.x + n8] + row * cfg.x_row_bytes
            )

    @lang.device
    def fetch_pair_scales(registers, pointers, number):
        """FP4's scales of pair ``number``, whose rows are multiplied in turn, to buffer 0."""
        weights.block_scales_of_pair(
            registers.zeros_or_scales, 0, pointers[at.scales] + cfg.scale_pitch * number
        )

    @lang.device
    def fetch_row_scales(registers, pointers, row):
        """FP4's scales of a k16 row that comes alone, number ``row`` of the warp's."""
        weights.block_scales_of_row(
            registers.zeros_or_scales, row, pointers[at.scales] + row // 2 * cfg.scale_pitch
        )

    @lang.device
    def fetch_zeros(registers, pointers, group):
        """A group's integer zero points; group: its number, counted from the group that the warp's
        first k16 row of the stage is in, where ``at.zeros`` points. (Its scales, and float16 zero
        points, are fetched by ``promote``, at the end.)"""
        weights.unpack_zeros(registers.zeros_or_scales, pointers[at.zeros] + group * cfg.zero_pitch)

    return lang.namespace(
        "fetch",
        at=at,
        stage_offsets=stage_offsets,
        fetch_pair=fetch_pair,
        fetch_row=fetch_row,
        fetch_pair_scales=fetch_pair_scales,
        fetch_row_scales=fetch_row_scales,
        fetch_zeros=fetch_zeros,
    )


def pointer_names(lang, config):
    """-> namespace: places in a lane's ``pointers``, which are ``length`` long. x: the first of one
    for each n8 block; second_half: of 8-bit codes, what is loaded second. Where there are no zero
    points, or no second half, the name is element 0: an address is computed, nobody reads there."""
    x, zeros = 2, 2 + config.n8_blocks
    second_half = zeros + (config.zeros is not None)
    wide = config.row_words == 8
    return lang.namespace(
        "at",
        weights=0,
        scales=1,
        x=x,
        zeros=zeros if config.zeros else 0,
        second_half=second_half if wide else 0,
        length=second_half + wide,
    )
