"""The producer warp of ``decode``: one elected lane copies weights, scales, zero points and
activations into the ring of stages, in bulk (``cp.async.bulk``). What it does is called *copy*;
*fetch* is what consumer warps do, from shared memory to registers.

``load_verbs(lang, config, ring, schedule)`` -> ``produce``, a device function. ``copy_weights``:
another way to copy a stage's weights than ``copy_rows``. ``config`` has the map of a stage.

Of one elected lane the assembler keeps addresses in uniform registers, five instructions per copy;
with lane i copying row i it made a loop over the lanes, a dozen instructions each, and 4096 x 4096
at m = 1 took 8.1 us instead of 6.1. Copies of x by 16-byte cp.async of all lanes, and by all warps
for the first stages, measured the same.

A source is counted in elements, in 64 bits, before it becomes bytes: that is exact for the largest
weights, and takes fewer instructions than bytes of a row plus bytes of a column.
"""

from numba_marlin.kernels.decode.config import COLUMNS


def load_verbs(lang, config, ring, schedule, copy_weights=None):
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    # In global memory: addresses of what is copied, and the L2 policy of weights: evict_first, as
    # a tile of weights is read once per ``batch`` rows, and x again for each tile of columns
    Source = lang.record("Source", "a b scales zeros policy")
    # A stage that is being filled: its address, the barrier that counts its bytes, k16 rows,
    # columns and groups that the matrix has of it
    Filling = lang.record("Filling", "address barrier k16_rows columns groups")

    @lang.device
    def batch_of(step, sizes):
        """Rows of x of a tile."""
        return min(sizes.m - step.row_first, cfg.batch)

    @lang.device
    def first_group(step):
        """The group that the first k16 row of a stage belongs to."""
        return step.k_step * cfg.stage_rows // cfg.scale_blocks

    @lang.device
    def copy_rows(source, step, stage, sizes):
        """The weights of a stage, a copy per k16 row."""
        pitch = uint64(sizes.n_packed) * cfg.weight_column_bytes
        first = (
            uint64(step.k_step * cfg.stage_rows) * sizes.n_packed + step.tile_column * cfg.columns
        )
        row_source = source.b + first * cfg.weight_column_bytes
        for row in range(cfg.stage_rows):
            if not cfg.ragged or row < stage.k16_rows:
                ptx.cp_async_bulk_g2s_hint(
                    stage.address + row * cfg.weight_row_bytes,
                    row_source,
                    stage.columns * cfg.weight_column_bytes,
                    stage.barrier,
                    source.policy,
                )
            row_source += pitch

    @lang.device
    def copy_group_scales(source, step, stage, sizes):
        """A copy per group."""
        pitch = uint64(sizes.n_packed) * cfg.scale_column_bytes
        first = uint64(first_group(step)) * sizes.n_packed + step.tile_column * cfg.columns
        group_source = source.scales + first * cfg.scale_column_bytes
        for group in range(cfg.scale_rows):
            if not cfg.ragged or group < stage.groups:
                ptx.cp_async_bulk_g2s(
                    stage.address + (cfg.scales_at + group * cfg.scale_row_bytes),
                    group_source,
                    stage.columns * cfg.scale_column_bytes,
                    stage.barrier,
                )
            group_source += pitch

    @lang.device
    def copy_block_scales(source, step, stage, sizes):
        """Those of FP4: a copy per 64 columns, whose rows of scales follow each other."""
        k32_rows = (sizes.k + 31) // 32
        pitch = uint64(k32_rows) * cfg.scale_bytes
        first = uint64(step.tile_column * cfg.warps_n) * k32_rows + first_group(step)
        block_source = source.scales + first * cfg.scale_bytes
        for block in range(cfg.warps_n):
            if not cfg.ragged or block * COLUMNS < stage.columns:
                ptx.cp_async_bulk_g2s(
                    stage.address + (cfg.scales_at + block * cfg.scale_warp_bytes),
                    block_source,
                    stage.groups * cfg.scale_bytes,
                    stage.barrier,
                )
            block_source += pitch

    @lang.device
    def zero_groups(stage):
        """Groups of a stage that have zero points; one, where those are of columns."""
        return stage.groups if cfg.grouped else 1

    @lang.device
    def bytes_of_group_zeros(stage):
        """Of a group's zero points."""
        return stage.columns // COLUMNS * cfg.zero_bytes

    @lang.device
    def copy_group_zeros(source, step, stage, sizes):
        """A copy per group."""
        pitch = uint64(sizes.n_packed // COLUMNS) * cfg.zero_bytes
        first = uint64(step.tile_column * cfg.warps_n)
        if cfg.grouped:
            first += uint64(first_group(step)) * (sizes.n_packed // COLUMNS)
        group_source = source.zeros + first * cfg.zero_bytes
        for group in range(cfg.zero_rows):
            if not cfg.ragged or group < zero_groups(stage):
                ptx.cp_async_bulk_g2s(
                    stage.address + (cfg.zeros_at + group * cfg.zero_row_bytes),
                    group_source,
                    bytes_of_group_zeros(stage),
                    stage.barrier,
                )
            group_source += pitch

    @lang.device
    def copy_nothing(source, step, stage, sizes):
        pass

    copy_weights = copy_weights or copy_rows
    copy_scales = (
        copy_block_scales
        if config.block_scaled
        else copy_group_scales
        if config.grouped
        else copy_nothing
    )
    copy_zeros = copy_group_zeros if config.zeros else copy_nothing

    @lang.device
    def bytes_to_come(step, stage, sizes):
        """To a stage, x included."""
        other_bytes = batch_of(step, sizes) * stage.k16_rows * 32
        if cfg.zero_rows > 0:
            other_bytes += zero_groups(stage) * bytes_of_group_zeros(stage)
        column_bytes = (
            stage.k16_rows * cfg.weight_column_bytes + stage.groups * cfg.scale_column_bytes
        )
        return stage.columns * column_bytes + other_bytes

    @lang.device
    def copy_weights_and_scales(source, step, shared, place, sizes):
        """Of one stage, zero points too. First announces to the stage's barrier how many bytes will
        come, those of x included."""
        rows = schedule.k16_rows_of(step.k_step, sizes)
        stage = Filling(
            shared.base + place.stage * cfg.stage_bytes,
            ring.full(shared.barriers, place),
            rows,
            schedule.columns_of(step.tile_column, sizes),
            (rows + (cfg.scale_blocks - 1)) // cfg.scale_blocks if cfg.grouped else 0,
        )
        ring.expect(shared.barriers, place, bytes_to_come(step, stage, sizes))
        copy_weights(source, step, stage, sizes)
        copy_scales(source, step, stage, sizes)
        copy_zeros(source, step, stage, sizes)

    @lang.device
    def copy_x(source, step, shared, place, sizes):
        """x of one stage, a copy per row; its bytes are announced already."""
        pitch = uint64(sizes.a_stride) * 2
        batch = batch_of(step, sizes)
        row_bytes = schedule.k16_rows_of(step.k_step, sizes) * 32
        first = uint64(step.row_first) * sizes.a_stride + step.k_step * cfg.stage_k
        row_source = source.a + first * 2
        target = shared.base + place.stage * cfg.stage_bytes + cfg.x_at
        barrier = ring.full(shared.barriers, place)
        x_row = 0
        while x_row < batch:
            ptx.cp_async_bulk_g2s(target + x_row * cfg.x_pitch, row_source, row_bytes, barrier)
            row_source += pitch
            x_row += 1

    @lang.device
    def produce(a, b, scales, zeros, shared, stripe, sizes):
        """Weights do not depend on the kernel before this one, so a ring full of them is on its way
        before that one has ended; activations do, and wait for it (griddepcontrol.wait). The ring
        begins empty, so the first round waits for no consumer."""
        source = Source(a, b, scales, zeros, ptx.create_policy_evict_first())
        ahead = min(stripe.position + cfg.stages, stripe.end)
        first = schedule.first_step_of(schedule.item_at(stripe.position, stripe.end, sizes))
        step, position, place = first, stripe.position, ring.producer_start()
        while position < ahead:
            copy_weights_and_scales(source, step, shared, place, sizes)
            step, place = schedule.next_step(step, sizes), ring.advance(place)
            position += 1
        ptx.griddepcontrol_wait()
        step, position, place = first, stripe.position, ring.producer_start()
        while position < ahead:
            copy_x(source, step, shared, place, sizes)
            step, place = schedule.next_step(step, sizes), ring.advance(place)
            position += 1
        while position < stripe.end:
            ring.wait_empty(shared.barriers, place)
            copy_weights_and_scales(source, step, shared, place, sizes)
            copy_x(source, step, shared, place, sizes)
            step, place = schedule.next_step(step, sizes), ring.advance(place)
            position += 1

    return produce
