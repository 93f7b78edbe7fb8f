"""What a lane of a consumer warp of ``decode`` reads of a stage: shared memory to registers.

``fetch_verbs(lang, config, weights)`` -> namespace of device functions, and ``at``: which element
of a lane's ``pointers`` is what.

Weights, scales and zero points lie in the order of the lanes already: lane 4g + t reads 16 bytes
(or twice 16) of weights at its number, and the scales of its columns at g. Rows of x are B
fragments of the transposed product; ``ldmatrix`` fetches those of two k16 rows and 8 rows of x at a
time.
"""


def fetch_verbs(lang, config, weights):
    ptx = lang.ptx
    cfg = lang.constants(config)
    at = pointer_names(lang, config)

    @lang.device
    def stage_offsets(offsets, x_rows, thread):
        """Where this lane reads in a stage: its weights, its scales and zero points, and its row of
        x for every n8 block. x_rows: rows of x that the tile has. Those below the matrix were never
        copied: the last one that was stands in for them, and the columns of the product that it
        spoils are never written."""
        first_k16_row = thread.warp_k * cfg.rows_per_warp
        group = first_k16_row // cfg.scale_blocks if cfg.scale_rows > 1 else 0
        offsets[at.weights] = (
            first_k16_row * cfg.weight_row_bytes
            + thread.warp_n * cfg.row_bytes
            + thread.lane * (cfg.row_bytes // 32)
        )
        if cfg.row_words == 8:
            skipped = 16 if weights.upper_first(thread.lane) else 0
            offsets[at.second_half] = offsets[at.weights] + (16 - skipped)
            offsets[at.weights] += skipped
        offsets[at.scales] = (
            cfg.scales_at
            + group * cfg.scale_row_bytes
            + thread.warp_n * cfg.scale_warp_bytes
            + thread.lane // 4 * (cfg.scale_bytes // 8)
        )
        if cfg.zero_rows > 0:
            offsets[at.zeros] = (
                cfg.zeros_at
                + group * cfg.zero_row_bytes
                + thread.warp_n * cfg.zero_bytes
                + thread.lane // 4 * (cfg.zero_bytes // 8)
            )
        for b in range(cfg.batch_blocks):
            x_row = min(thread.lane % 8 + 8 * b, x_rows - 1)
            offsets[at.x + b] = (
                cfg.x_at + x_row * cfg.x_pitch + first_k16_row * 32 + thread.lane // 8 * 16
            )

    @lang.device
    def fetch_row_words(registers, slot, pointers, row):
        offset = row * cfg.weight_row_bytes
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
        for b in range(cfg.batch_blocks):
            d = ptx.ldmatrix_x4(pointers[at.x + b] + 64 * number)
            for r in range(4):
                registers.x[cfg.x_row_words * b + 4 * buffer + r] = d[r]
        weights.fetch_pair_scales(
            registers.corrections, buffer, pointers[at.scales] + cfg.scale_row_bytes * number
        )

    @lang.device
    def fetch_row(registers, pointers, row):
        """Weights and activations of a single k16 row, to slot 0."""
        fetch_row_words(registers, 0, pointers, row)
        for b in range(cfg.batch_blocks):
            d = ptx.ldmatrix_x2(pointers[at.x + b] + row * 32)
            for r in range(2):
                registers.x[cfg.x_row_words * b + r] = d[r]

    @lang.device
    def fetch_pair_scales(registers, pointers, number):
        """Of FP4: those of pair ``number``, whose rows come one after the other."""
        weights.fetch_pair_scales(
            registers.corrections, 0, pointers[at.scales] + cfg.scale_row_bytes * number
        )

    @lang.device
    def fetch_row_scales(registers, pointers, row):
        """Of FP4: those of a row that comes alone."""
        weights.fetch_row_scales(
            registers.corrections, row, pointers[at.scales] + row // 2 * cfg.scale_row_bytes
        )

    @lang.device
    def fetch_group(registers, pointers, group):
        """Integer zero points."""
        weights.fetch_group(registers.corrections, pointers[at.zeros] + group * cfg.zero_row_bytes)

    return lang.namespace(
        "fetch",
        at=at,
        stage_offsets=stage_offsets,
        fetch_pair=fetch_pair,
        fetch_row=fetch_row,
        fetch_pair_scales=fetch_pair_scales,
        fetch_row_scales=fetch_row_scales,
        fetch_group=fetch_group,
    )


def pointer_names(lang, config):
    """-> namespace: places in a lane's ``pointers``, which are ``number`` long. x: the first of
    one for each n8 block; second_half: of 8-bit codes."""
    x, zeros = 2, 2 + config.batch_blocks
    second_half = zeros + (config.zeros is not None)
    wide = config.row_words == 8
    return lang.namespace(
        "at",
        weights=0,
        scales=1,
        x=x,
        zeros=zeros if config.zeros else 0,
        second_half=second_half if wide else 0,
        number=second_half + wide,
    )
