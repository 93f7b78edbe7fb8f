"""Kernels that load weights and do not multiply: they show the bandwidth of each way of copying.

``source`` is int32 [k/16, 2 n], in Marlin's layout or relaid (``relayout.relaid``). A *unit* is the
content of a stage: ``stage_rows`` k16 rows by ``columns`` columns, always ``STAGE_BYTES``. The
units of a tile column follow each other, then those of the next column. A persistent grid of one
block per SM divides them into equal stripes (stream-K). With ``batch``, each unit also copies its
rows of x [batch, k]. In all kernels the same threads read all copied data in the same order and
leave its XOR in ``c``, uint32 [blocks, THREADS, 4], which ``relayout.expected_sinks`` predicts.

The ways of copying (``loader_config.LoaderConfig.method``):
- cp_async  Every thread copies 16 bytes at a time and all threads wait for each other (Ampere's
            pipeline, as in Marlin); the same threads then read. The threads swizzle x.
- bulk      One thread of a producer warp issues cp.async.bulk: one copy per k16 row, or one per
            relaid stage. x takes one copy per row; rows are padded by 16 bytes.
- tensor    One thread of a producer warp issues one tensor copy (TMA) per stage, a box of weights.
            x is copied in boxes of 64 columns with the 128-byte swizzle.
"""

from loader_config import ALIGNMENT, CHUNK, STAGE_BYTES, SWIZZLE_COLUMNS, THREADS, LoaderConfig
from stripes import common_verbs

from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.layout.tensor_map import TensorMap

LINE = 256  # elements (uint64) of a box of relaid weights


def make_threads(lang, config):
    """Make the kernel of method cp_async: Ampere's pipeline. All threads wait for the oldest stage,
    refill the stage that they read before, and read."""
    cuda, ptx, uint32, uint64 = lang.cuda, lang.ptx, lang.uint32, lang.uint64
    shared_base = lang.shared_base
    stripe_of, next_unit, read_stage, x_chunk = common_verbs(lang, config)
    STAGES, PITCH, STAGE_ROWS, STAGE_K, RELAID = (
        config.stages,
        config.pitch,
        config.stage_rows,
        config.stage_k,
        config.relaid,
    )
    COPIES, ROW_CHUNKS = STAGE_BYTES // (CHUNK * THREADS), config.row_bytes // CHUNK
    ROWS_PER_COPY, X_CHUNKS = THREADS // ROW_CHUNKS, config.batch * config.stage_k // 8
    X_COPIES, X_ROW_CHUNKS = -(-X_CHUNKS // THREADS), config.stage_k // 8
    wait_for_copies = ptx.cp_async_wait_group(n=config.stages - 2)

    @lang.device
    def fetch(a, b, position, unit, stage, thread, lane, policy, n, a_stride):
        # A shuffle computes the sum, because the address of a copy with an L2 policy must not be in
        # a uniform register (see kernels.ampere).
        own = ptx.shfl_sync_idx(stage + thread * uint32(CHUNK), lane)
        if RELAID:
            source, step = (
                b + uint64(position) * uint64(STAGE_BYTES) + uint64(thread * uint32(CHUNK)),
                uint64(THREADS * CHUNK),
            )
        else:
            row = uint64(unit[1] * uint32(STAGE_ROWS) + thread // uint32(ROW_CHUNKS))
            source = (
                b
                + row * uint64(n) * uint64(8)
                + uint64(
                    (unit[0] * uint32(ROW_CHUNKS) + thread % uint32(ROW_CHUNKS)) * uint32(CHUNK)
                )
            )
            step = uint64(n) * uint64(8 * ROWS_PER_COPY)
        for i in range(COPIES):
            ptx.cp_async_16_hint(own + uint32(THREADS * CHUNK * i), source, policy)
            source += step
        for i in range(X_COPIES):
            index = uint32(thread + uint32(THREADS * i))
            if index < uint32(X_CHUNKS):
                row, chunk = (
                    uint32(index // uint32(X_ROW_CHUNKS)),
                    uint32(index % uint32(X_ROW_CHUNKS)),
                )
                ptx.cp_async_16(
                    stage + uint32(STAGE_BYTES) + x_chunk(row, chunk),
                    a
                    + uint64(row) * uint64(a_stride) * uint64(2)
                    + uint64(unit[1] * uint32(2 * STAGE_K) + chunk * uint32(CHUNK)),
                )

    def load_cp_async(a, b, c, n, k, a_stride):
        shared = uint32((shared_base() + uint32(ALIGNMENT - 1)) & uint32(2**32 - ALIGNMENT))
        thread = ptx.tid_x()
        lane = uint32(thread % uint32(32))
        policy = ptx.create_policy_evict_first()
        position, end, unit, k_units = stripe_of(uint32(n), uint32(k))
        ahead, filled, used = position, uint32(STAGES - 1), uint32(0)
        for i in range(STAGES - 1):
            if ahead < end:
                fetch(
                    a,
                    b,
                    ahead,
                    unit,
                    shared + uint32(i * PITCH),
                    thread,
                    lane,
                    policy,
                    uint32(n),
                    uint32(a_stride),
                )
            unit, ahead = next_unit(unit, k_units), uint32(ahead + uint32(1))
            ptx.cp_async_commit_group()
        sink = (uint32(0), uint32(0), uint32(0), uint32(0))
        while position < end:
            wait_for_copies()
            cuda.syncthreads()
            if ahead < end:
                fetch(
                    a,
                    b,
                    ahead,
                    unit,
                    shared + filled * uint32(PITCH),
                    thread,
                    lane,
                    policy,
                    uint32(n),
                    uint32(a_stride),
                )
            unit, ahead = next_unit(unit, k_units), uint32(ahead + uint32(1))
            ptx.cp_async_commit_group()
            filled = uint32(0) if filled == uint32(STAGES - 1) else uint32(filled + uint32(1))
            sink = read_stage(sink, shared + used * uint32(PITCH), thread)
            used = uint32(0) if used == uint32(STAGES - 1) else uint32(used + uint32(1))
            position = uint32(position + uint32(1))
        ptx.st_global_v4_b32(
            c + uint64(uint32(cuda.blockIdx.x) * uint32(THREADS) + thread) * uint64(CHUNK), sink
        )

    return load_cp_async


def bulk_verbs(lang, config):
    """Return (fetch_weights, fetch_x), which issue bulk copies."""
    ptx, uint32, uint64 = lang.ptx, lang.uint32, lang.uint64
    STAGE_ROWS, ROW, STAGE_K, RELAID, BATCH, X_PITCH = (
        config.stage_rows,
        config.row_bytes,
        config.stage_k,
        config.relaid,
        config.batch,
        config.x_pitch,
    )

    @lang.device
    def fetch_weights(b, position, unit, stage, barrier, policy, n):
        if RELAID:
            ptx.cp_async_bulk_g2s_hint(
                stage,
                b + uint64(position) * uint64(STAGE_BYTES),
                uint32(STAGE_BYTES),
                barrier,
                policy,
            )
        else:
            pitch = uint64(n) * uint64(8)
            source = (
                b + uint64(unit[1] * uint32(STAGE_ROWS)) * pitch + uint64(unit[0] * uint32(ROW))
            )
            for row in range(STAGE_ROWS):
                ptx.cp_async_bulk_g2s_hint(
                    stage + uint32(row * ROW), source, uint32(ROW), barrier, policy
                )
                source += pitch

    @lang.device
    def fetch_x(a, unit, stage, barrier, a_stride):
        source = a + uint64(unit[1] * uint32(2 * STAGE_K))
        row = uint32(0)
        while row < uint32(BATCH):
            ptx.cp_async_bulk_g2s(
                stage + uint32(STAGE_BYTES) + row * uint32(X_PITCH),
                source,
                uint32(2 * STAGE_K),
                barrier,
            )
            source += uint64(a_stride) * uint64(2)
            row = uint32(row + uint32(1))

    return fetch_weights, fetch_x


def tensor_verbs(lang, config):
    """Return (fetch_weights, fetch_x), which issue tensor copies; a and b are the addresses of
    tensor maps."""
    ptx, uint32, int32 = lang.ptx, lang.uint32, lang.int32
    STAGE_ROWS, COLUMNS, STAGE_K, RELAID, BATCH = (
        config.stage_rows,
        config.columns,
        config.stage_k,
        config.relaid,
        config.batch,
    )
    X_BOXES, LINES = (
        (config.stage_k // SWIZZLE_COLUMNS if config.batch else 0),
        STAGE_BYTES // (8 * LINE),
    )

    @lang.device
    def fetch_weights(b, position, unit, stage, barrier, policy, n):
        if RELAID:
            ptx.cp_async_bulk_tensor_2d_g2s_hint(
                stage, b, int32(0), int32(position * uint32(LINES)), barrier, policy
            )
        else:
            ptx.cp_async_bulk_tensor_2d_g2s_hint(
                stage,
                b,
                int32(unit[0] * uint32(COLUMNS)),
                int32(unit[1] * uint32(STAGE_ROWS)),
                barrier,
                policy,
            )

    @lang.device
    def fetch_x(a, unit, stage, barrier, a_stride):
        for box in range(X_BOXES):
            ptx.cp_async_bulk_tensor_2d_g2s(
                stage + uint32(STAGE_BYTES + 2 * SWIZZLE_COLUMNS * BATCH * box),
                a,
                int32(unit[1] * uint32(STAGE_K) + uint32(SWIZZLE_COLUMNS * box)),
                int32(0),
                barrier,
            )

    return fetch_weights, fetch_x


def make_ring(lang, config):
    """Make the kernel of methods bulk and tensor, with warp specialisation: one lane of a producer
    warp copies, and a ring of stages connects it to the warps that read (``kernels.pipeline``)."""
    cuda, ptx, uint32, uint64 = lang.cuda, lang.ptx, lang.uint32, lang.uint64
    shared_base = lang.shared_base
    stripe_of, next_unit, read_stage, _ = common_verbs(lang, config)
    fetch_weights, fetch_x = (bulk_verbs if config.method == "bulk" else tensor_verbs)(lang, config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=THREADS // 32)
    initialise, producer_start, consumer_start, advance = (
        ring.initialise,
        ring.producer_start,
        ring.consumer_start,
        ring.advance,
    )
    wait_empty, wait_full, expect, full, release = (
        ring.wait_empty,
        ring.wait_full,
        ring.expect,
        ring.full,
        ring.release,
    )
    PITCH, COPIED, BARRIERS_AT, BATCH = (
        config.pitch,
        config.copied_bytes,
        config.barriers_at,
        config.batch,
    )
    FULL_MASK = 0xFFFFFFFF

    @lang.device
    def produce(a, b, shared, barriers, stripe, n, a_stride):
        position, end, unit, k_units = stripe
        policy = ptx.create_policy_evict_first()
        place = producer_start()
        while position < end:
            wait_empty(barriers, place)
            expect(barriers, place, uint32(COPIED))
            stage = shared + place[0] * uint32(PITCH)
            fetch_weights(b, position, unit, stage, full(barriers, place), policy, n)
            if BATCH > 0:
                fetch_x(a, unit, stage, full(barriers, place), a_stride)
            unit, position, place = (
                next_unit(unit, k_units),
                uint32(position + uint32(1)),
                advance(place),
            )

    @lang.device
    def consume(c, shared, barriers, stripe, thread):
        position, end, unit, k_units = stripe
        place = consumer_start()
        sink = (uint32(0), uint32(0), uint32(0), uint32(0))
        while position < end:
            wait_full(barriers, place)
            sink = read_stage(sink, shared + place[0] * uint32(PITCH), thread)
            ptx.bar_warp_sync(uint32(FULL_MASK))
            if thread % uint32(32) == uint32(0):
                release(barriers, place)
            position, place = uint32(position + uint32(1)), advance(place)
        ptx.st_global_v4_b32(
            c + uint64(uint32(cuda.blockIdx.x) * uint32(THREADS) + thread) * uint64(CHUNK), sink
        )

    def load(a, b, c, n, k, a_stride):
        shared = uint32((shared_base() + uint32(ALIGNMENT - 1)) & uint32(2**32 - ALIGNMENT))
        barriers = shared + uint32(BARRIERS_AT)
        thread = ptx.tid_x()
        if thread == uint32(0):
            initialise(barriers)
        stripe = stripe_of(uint32(n), uint32(k))
        cuda.syncthreads()
        # A shuffle tells the compiler that all lanes agree on the warp's number.
        if ptx.shfl_sync_idx(thread // uint32(32), uint32(0)) == uint32(THREADS // 32):
            if ptx.elect_sync() != uint32(0):
                produce(a, b, shared, barriers, stripe, uint32(n), uint32(a_stride))
        else:
            consume(c, shared, barriers, stripe, thread)

    return load


def tensor_maps(config, m, n, k, a_stride):
    """Return the tensor maps: boxes of a stage in Marlin's layout, or lines of relaid weights; and
    swizzled boxes of x, 128 bytes by ``batch`` rows."""
    native = TensorMap(
        "uint64", (k // 16, n), (8 * n, 8), (config.stage_rows, config.columns), 0, 256
    )
    lines = TensorMap(
        "uint64",
        (k // 16 * n // LINE, LINE),
        (8 * LINE, 8),
        (STAGE_BYTES // (8 * LINE), LINE),
        0,
        256,
    )
    x = TensorMap(
        "float16",
        (max(8, config.batch), k),
        (2 * a_stride, 2),
        (max(8, config.batch), SWIZZLE_COLUMNS),
        128,
        256,
    )
    return {"a": ("a", x), "b": ("b", lines if config.relaid else native)}


def _definition(method, make, kind, maps):
    return KernelDefinition(
        name=f"load_{method}",
        summary=f"weights into shared memory by {method}, and nothing else",
        config_type=LoaderConfig,
        parameters=(
            ("a", kind),
            ("b", kind),
            ("c", "u64"),
            ("n", "i32"),
            ("k", "i32"),
            ("a_stride", "i32"),
        ),
        make=make,
        threads=lambda config: config.threads,
        shared_bytes=lambda config: config.shared_bytes,
        grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
        tensor_maps=maps,
        waits=False,
        min_arch="sm_80" if method == "cp_async" else "sm_90",
    )


def no_maps(config, m, n, k, a_stride):
    return {}


KERNELS = {
    "cp_async": _definition("cp_async", make_threads, "u64", no_maps),
    "bulk": _definition("bulk", make_ring, "u64", no_maps),
    "tensor": _definition("tensor", make_ring, "tensormap", tensor_maps),
}
