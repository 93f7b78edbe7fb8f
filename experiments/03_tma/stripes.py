"""Device functions that the loading kernels share: a block's stripe of units, the order of its
units, and the reading of all copied data."""

from loader_config import CHUNK, STAGE_BYTES, THREADS


def common_verbs(lang, config):
    """Return (stripe_of, next_unit, read_stage, x_chunk): the stripe of a block, the step to its
    next unit, the reading of a stage, and the place of a chunk of x."""
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    COLUMNS, STAGE_K, BATCH, X_PITCH = config.columns, config.stage_k, config.batch, config.x_pitch
    READS, X_CHUNKS = STAGE_BYTES // (CHUNK * THREADS), config.batch * config.stage_k // 8
    X_READS, X_ROW_CHUNKS = -(-X_CHUNKS // THREADS), config.stage_k // 8

    @lang.device
    def stripe_of(n, k):
        """-> (first unit, the one after the last, (its tile column, its stage of k), stages of
        k)"""
        k_units = uint32(k // uint32(STAGE_K))
        units, blocks, block = (
            uint32(n // uint32(COLUMNS) * k_units),
            uint32(cuda.gridDim.x),
            uint32(cuda.blockIdx.x),
        )
        share, longer = uint32(units // blocks), uint32(units % blocks)
        first = uint32(block * share + min(block, longer))
        end = uint32(first + share + (uint32(1) if block < longer else uint32(0)))
        return first, end, (uint32(first // k_units), uint32(first % k_units)), k_units

    @lang.device
    def next_unit(unit, k_units):
        stage = uint32(unit[1] + uint32(1))
        around = stage == k_units
        return uint32(unit[0] + uint32(1)) if around else unit[0], uint32(0) if around else stage

    if config.method == "bulk":

        @lang.device
        def x_chunk(row, chunk):
            return row * uint32(X_PITCH) + chunk * uint32(CHUNK)

    elif config.method == "tensor":

        @lang.device
        def x_chunk(row, chunk):
            box = chunk // uint32(8)
            return (box * uint32(BATCH) + row) * uint32(128) + (
                (chunk % uint32(8)) ^ (row % uint32(8))
            ) * uint32(CHUNK)

    else:

        @lang.device
        def x_chunk(row, chunk):
            return row * uint32(X_PITCH) + (chunk ^ (row % uint32(8))) * uint32(CHUNK)

    @lang.device
    def mixed(sink, words):
        return sink[0] ^ words[0], sink[1] ^ words[1], sink[2] ^ words[2], sink[3] ^ words[3]

    @lang.device
    def read_stage(sink, stage, thread):
        """Read the whole stage, one vector per lane at a time."""
        for i in range(READS):
            sink = mixed(
                sink, ptx.ld_shared_v4_b32(stage + (thread + uint32(THREADS * i)) * uint32(CHUNK))
            )
        for i in range(X_READS):
            index = uint32(thread + uint32(THREADS * i))
            if index < uint32(X_CHUNKS):
                sink = mixed(
                    sink,
                    ptx.ld_shared_v4_b32(
                        stage
                        + uint32(STAGE_BYTES)
                        + x_chunk(index // uint32(X_ROW_CHUNKS), index % uint32(X_ROW_CHUNKS))
                    ),
                )
        return sink

    return stripe_of, next_unit, read_stage, x_chunk
