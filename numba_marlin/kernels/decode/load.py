"""The producer of the decode kernel (``decode``): one elected lane that copies weights, scales and
activations into the ring of stages.

``load_verbs(lang, config, ring, schedule)`` -> ``produce``, a device function; ``copy_weights``:
another way to copy a stage's weights than ``copy_rows``. A stage holds its weights, k16 row by k16
row, then its groups' scales and zero points, then the rows of x, each a little apart. Of one
elected lane the assembler keeps addresses in uniform registers, five instructions a copy; with lane
i copying row i it made a loop over the lanes, a dozen instructions each, and 4096 x 4096 at m = 1
took 8.1 us instead of 6.1. Copies of x by 16-byte cp.async of all lanes, and by all warps for the
first stages, measured the same.
"""

from numba_marlin.kernels.decode.config import COLUMNS


def load_verbs(lang, config, ring, schedule, copy_weights=None):
    ptx, uint32, uint64 = lang.ptx, lang.uint32, lang.uint64
    columns_of, rows_of, next_unit, tile_at = (
        schedule.columns_of,
        schedule.rows_of,
        schedule.next_unit,
        schedule.tile_at,
    )
    producer_start, advance, wait_empty, expect, full = (
        ring.producer_start,
        ring.advance,
        ring.wait_empty,
        ring.expect,
        ring.full,
    )
    BATCH, STAGES, STAGE_K, STAGE_ROWS, STAGE_BYTES = (
        config.batch,
        config.stages,
        config.stage_k,
        config.stage_rows,
        config.stage_bytes,
    )
    grouped, ragged, SCALE_BLOCKS, SCALE_COLUMN = (
        config.grouped,
        config.ragged,
        config.scale_blocks,
        config.scale_bytes // COLUMNS,
    )
    WEIGHT_ROW, SCALE_ROW, SCALE_ROWS, X_PITCH = (
        config.weight_row_bytes,
        config.scale_row_bytes,
        config.scale_rows,
        config.x_pitch,
    )
    SCALES_AT, X_AT, TILE_COLUMNS = config.scales_at, config.x_at, config.columns
    ZERO_ROW, ZERO_ROWS, ZEROS_AT, ZERO_BYTES = (
        config.zero_row_bytes,
        config.zero_rows,
        config.zeros_at,
        config.zero_bytes,
    )
    block_scaled, WARPS_N, SCALE_BYTES, WARP_SCALES = (
        config.block_scaled,
        config.warps_n,
        config.scale_bytes,
        config.scale_warp_bytes,
    )
    COLUMN_BYTES = config.row_bytes // COLUMNS  # of weights, a column of 16 of k

    @lang.device
    def copy_rows(target, b, unit, rows, columns, barrier, policy, problem):
        """The weights of a stage, a copy a k16 row."""
        pitch = uint64(problem[1]) * uint64(COLUMN_BYTES)
        source = (
            b + uint64(unit[2] * uint32(STAGE_ROWS)) * pitch + uint64(unit[0] * uint32(WEIGHT_ROW))
        )
        for row in range(STAGE_ROWS):
            if not ragged or uint32(row) < rows:
                ptx.cp_async_bulk_g2s_hint(
                    target + uint32(row * WEIGHT_ROW),
                    source,
                    columns * uint32(COLUMN_BYTES),
                    barrier,
                    policy,
                )
            source += pitch

    copy_weights = copy_weights or copy_rows

    @lang.device
    def fetch_weights(b, scales, zeros, unit, shared, barriers, place, policy, problem):
        """Weights, scales and zero points of one stage, after the word to the barrier how many
        bytes are to come, activations included."""
        column, row_first, k_unit = unit
        m, n_packed, k = problem[0], problem[1], problem[2]
        rows, columns = rows_of(k_unit, k), columns_of(column, n_packed)
        groups = (rows + uint32(SCALE_BLOCKS - 1)) // uint32(SCALE_BLOCKS) if grouped else uint32(0)
        x_bytes = uint32(min(uint32(m - row_first), uint32(BATCH))) * rows * uint32(32)
        if ZERO_ROWS > 0:
            zero_groups, zero_row_bytes = (
                groups if grouped else uint32(1),
                columns // uint32(COLUMNS) * uint32(ZERO_BYTES),
            )
            x_bytes += zero_groups * zero_row_bytes
        stage, barrier = shared + place[0] * uint32(STAGE_BYTES), full(barriers, place)
        expect(
            barriers,
            place,
            columns * (rows * uint32(COLUMN_BYTES) + groups * uint32(SCALE_COLUMN)) + x_bytes,
        )
        copy_weights(stage, b, unit, rows, columns, barrier, policy, problem)
        if block_scaled:
            pitch = uint64((k + uint32(31)) // uint32(32)) * uint64(SCALE_BYTES)
            source = (
                scales
                + uint64(column * uint32(WARPS_N)) * pitch
                + uint64(k_unit * uint32(STAGE_ROWS // SCALE_BLOCKS * SCALE_BYTES))
            )
            for block in range(WARPS_N):
                if not ragged or uint32(block * COLUMNS) < columns:
                    ptx.cp_async_bulk_g2s(
                        stage + uint32(SCALES_AT + block * WARP_SCALES),
                        source,
                        groups * uint32(SCALE_BYTES),
                        barrier,
                    )
                source += pitch
        elif grouped:
            pitch = uint64(n_packed) * uint64(SCALE_COLUMN)
            source = (
                scales
                + uint64(k_unit * uint32(STAGE_ROWS) // uint32(SCALE_BLOCKS)) * pitch
                + uint64(column * uint32(SCALE_COLUMN * TILE_COLUMNS))
            )
            for group in range(SCALE_ROWS):
                if not ragged or uint32(group) < groups:
                    ptx.cp_async_bulk_g2s(
                        stage + uint32(SCALES_AT + group * SCALE_ROW),
                        source,
                        columns * uint32(SCALE_COLUMN),
                        barrier,
                    )
                source += pitch
        if ZERO_ROWS > 0:
            pitch = uint64(n_packed // uint32(COLUMNS)) * uint64(ZERO_BYTES)
            source = zeros + uint64(column * uint32(ZERO_ROW))
            if grouped:
                source += uint64(k_unit * uint32(STAGE_ROWS) // uint32(SCALE_BLOCKS)) * pitch
            for group in range(ZERO_ROWS):
                if not ragged or uint32(group) < zero_groups:
                    ptx.cp_async_bulk_g2s(
                        stage + uint32(ZEROS_AT + group * ZERO_ROW), source, zero_row_bytes, barrier
                    )
                source += pitch

    @lang.device
    def fetch_x(a, unit, shared, barriers, place, problem):
        """Activations of one stage, a copy a row."""
        column, row_first, k_unit = unit
        pitch = uint64(problem[3]) * uint64(2)
        batch, row_bytes = (
            uint32(min(uint32(problem[0] - row_first), uint32(BATCH))),
            rows_of(k_unit, problem[2]) * uint32(32),
        )
        source = a + uint64(row_first) * pitch + uint64(k_unit * uint32(2 * STAGE_K))
        stage, barrier = shared + place[0] * uint32(STAGE_BYTES), full(barriers, place)
        row = uint32(0)
        while row < batch:
            ptx.cp_async_bulk_g2s(
                stage + uint32(X_AT) + row * uint32(X_PITCH), source, row_bytes, barrier
            )
            source += pitch
            row = uint32(row + uint32(1))

    @lang.device
    def produce(a, b, scales, zeros, shared, barriers, position, end, problem):
        """Weights do not depend on the kernel before this one, so a ring full of them is on its way
        before that one has ended; activations do."""
        policy = ptx.create_policy_evict_first()
        ahead = uint32(min(uint32(position + uint32(STAGES)), end))
        tile = tile_at(position, end, problem)
        first = (tile[0], tile[1], tile[3])
        unit, at, place = first, position, producer_start()
        while at < ahead:
            fetch_weights(b, scales, zeros, unit, shared, barriers, place, policy, problem)
            unit, at, place = next_unit(unit, problem), uint32(at + uint32(1)), advance(place)
        ptx.griddepcontrol_wait()
        unit, at, place = first, position, producer_start()
        while at < ahead:
            fetch_x(a, unit, shared, barriers, place, problem)
            unit, at, place = next_unit(unit, problem), uint32(at + uint32(1)), advance(place)
        while at < end:
            wait_empty(barriers, place)
            fetch_weights(b, scales, zeros, unit, shared, barriers, place, policy, problem)
            fetch_x(a, unit, shared, barriers, place, problem)
            unit, at, place = next_unit(unit, problem), uint32(at + uint32(1)), advance(place)

    return produce
