"""The producer warp of ``decode``: one elected lane copies weights, scales, zero points and x into
the ring of stages, in bulk (``cp.async.bulk``). What it does is called *copy*; *fetch* is what
consumer warps do, from shared memory to registers.

``load_verbs(lang, config, ring, schedule)`` -> ``produce``, a device function, made of
``copy_verbs``, which other producers use too (``kernels.experts.moe``). ``copy_weights``:
another way to copy a stage's weights than ``copy_rows`` (experiments/03_tma tries some). ``shared``
has the map of a stage, ``schedule`` says what a step, a stripe and a position are.

The state of the producer's loop, ``produce``:

``position``  of the step that it copies, among all steps of the launch (``schedule``), from the
              stripe's begin to its end
``step``      the same step as Step(n_tile, row_first, k_step), which ``next_step`` moves on
``place``     RingPlace(stage, parity): the stage that it fills, and the parity of the phase of that
              stage's empty mbarrier that it waits for
``ahead``     the position at which the first lap of the ring ends: steps before it wait for no
              empty mbarrier, as nobody has used their stages

One lane issues all copies, since a bulk copy takes its operands from uniform registers: with one
elected lane the assembler keeps addresses there, five instructions per copy. Where lane i was to
copy row i, it made a loop over the lanes, a dozen instructions per lane and copy. Copies of x by
16-byte cp.async of all lanes, and by all warps for the first stages, measured the same.

Where a copy begins is counted in elements of some size (``first``, its unit said at each), and then
multiplied by their bytes, all in 64 bits: an offset into b may not fit in 32.
That takes fewer instructions than bytes of a row plus bytes of a column.
"""

from numba_marlin.kernels.decode.config import COLUMNS


def copy_verbs(lang, config, ring, schedule, copy_weights=None):
    """-> namespace: ``Source``, and what copies a stage. schedule: of ``decode``, or another whose
    Step says how many ``x_rows_of`` it has."""
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    # In global memory: addresses of what is copied, and the L2 policy of weights: evict_first, so
    # that they do not drive out x, which has none. Weights are read once for every ``batch`` rows
    # of C, mostly once; x is read again for every n_tile. (With more rows than ``batch`` the next
    # ones may have to bring weights from memory again.)
    Source = lang.record("Source", "a b scales zeros policy")
    # A stage that is being filled: its address, its full mbarrier, which counts its bytes, and
    # what the matrix has of it: k16 rows, columns (padded to 64) and rows of scales (those of
    # groups, or FP4's of 32 rows of W; 0 with per-column scales). cfg.stage_rows, cfg.columns and
    # cfg.scale_rows are what there is room for.
    Filling = lang.record("Filling", "address barrier k16_rows columns scale_rows")

    @lang.device
    def first_scale_row(step):
        """The row of scales, of the whole matrix, that the first k16 row of a stage belongs to."""
        return step.k_step * cfg.stage_rows // cfg.k16_rows_per_scale_row

    @lang.device
    def copy_row(source, filling, row_source, row):
        """The weights of a k16 row of a stage."""
        ptx.cp_async_bulk_g2s_hint(
            filling.address + row * cfg.weight_pitch,
            row_source,
            filling.columns * cfg.weight_column_bytes,
            filling.barrier,
            source.policy,
        )

    @lang.device
    def copy_rows(source, step, filling, sizes):
        """The weights of a stage, a copy per k16 row. first: in columns of a k16 row, 16 weights
        each. A stage that k does not fill has a loop of its own: with a test before each copy the
        lane issued too slowly for tiles of 64 columns, whose copies have 512 bytes (on an H200 at
        m = 1, 6400 x 5120 took 14.4 us where 5120 x 5120 took 7.1)."""
        pitch = uint64(sizes.n_packed) * cfg.weight_column_bytes
        first = uint64(step.k_step * cfg.stage_rows) * sizes.n_packed + step.n_tile * cfg.columns
        row_source = source.b + first * cfg.weight_column_bytes
        if not cfg.ragged or filling.k16_rows == cfg.stage_rows:
            for row in range(cfg.stage_rows):
                copy_row(source, filling, row_source, row)
                row_source += pitch
        else:
            row = 0
            while row < filling.k16_rows:
                copy_row(source, filling, row_source, row)
                row_source += pitch
                row += 1

    @lang.device
    def copy_group_scales(source, step, filling, sizes):
        """Group scales [groups, n_packed]: a copy per group of the stage. first: in scales."""
        pitch = uint64(sizes.n_packed) * cfg.scale_column_bytes
        first = uint64(first_scale_row(step)) * sizes.n_packed + step.n_tile * cfg.columns
        row_source = source.scales + first * cfg.scale_column_bytes
        for row in range(cfg.scale_rows):
            if not cfg.ragged or row < filling.scale_rows:
                ptx.cp_async_bulk_g2s(
                    filling.address + (cfg.scales_at + row * cfg.scale_pitch),
                    row_source,
                    filling.columns * cfg.scale_column_bytes,
                    filling.barrier,
                )
            row_source += pitch

    @lang.device
    def copy_block_scales(source, step, filling, sizes):
        """FP4's scales [n_packed/64][ceil(k/32)][scale_bytes]: a copy per 64 columns, whose rows of
        scales follow each other. first: in such rows, scale_bytes each."""
        k32_rows = (sizes.k + 31) // 32
        pitch = uint64(k32_rows) * cfg.scale_bytes
        first = uint64(step.n_tile * cfg.warps_n) * k32_rows + first_scale_row(step)
        columns_source = source.scales + first * cfg.scale_bytes
        for warp_n in range(cfg.warps_n):
            if not cfg.ragged or warp_n * COLUMNS < filling.columns:
                ptx.cp_async_bulk_g2s(
                    filling.address + (cfg.scales_at + warp_n * cfg.scale_warp_pitch),
                    columns_source,
                    filling.scale_rows * cfg.scale_bytes,
                    filling.barrier,
                )
            columns_source += pitch

    @lang.device
    def zero_rows_of(filling):
        """Rows of zero points that the matrix has of a stage: one, where each column has one."""
        return filling.scale_rows if cfg.grouped else 1

    @lang.device
    def bytes_of_zero_row(filling):
        """Of a row of zero points, all columns."""
        return filling.columns // COLUMNS * cfg.zero_bytes

    @lang.device
    def copy_group_zeros(source, step, filling, sizes):
        """Zero points [groups][n_packed/64][zero_bytes]: a copy per group. Without groups, where
        each column has one, there is one row for all of k, copied with every stage. first: in zero
        points of 64 columns, zero_bytes each."""
        pitch = uint64(sizes.n_packed // COLUMNS) * cfg.zero_bytes
        first = uint64(step.n_tile * cfg.warps_n)
        if cfg.grouped:
            first += uint64(first_scale_row(step)) * (sizes.n_packed // COLUMNS)
        row_source = source.zeros + first * cfg.zero_bytes
        for row in range(cfg.zero_rows):
            if not cfg.ragged or row < zero_rows_of(filling):
                ptx.cp_async_bulk_g2s(
                    filling.address + (cfg.zeros_at + row * cfg.zero_pitch),
                    row_source,
                    bytes_of_zero_row(filling),
                    filling.barrier,
                )
            row_source += pitch

    @lang.device
    def copy_nothing(source, step, filling, sizes):
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
    def bytes_to_come(step, filling, sizes):
        """Of all copies to a stage, those of x included."""
        other_bytes = schedule.x_rows_of(step, sizes) * filling.k16_rows * cfg.x_row_bytes
        if cfg.zero_rows > 0:
            other_bytes += zero_rows_of(filling) * bytes_of_zero_row(filling)
        column_bytes = (
            filling.k16_rows * cfg.weight_column_bytes + filling.scale_rows * cfg.scale_column_bytes
        )
        return filling.columns * column_bytes + other_bytes

    @lang.device
    def copy_weights_and_scales(source, step, shared, place, sizes):
        """Of one stage, zero points too. First announces to the stage's full mbarrier how many
        bytes will come, those of x included."""
        k16_rows = schedule.k16_rows_of(step.k_step, sizes)
        # Rounded up: a stage may lie within a group, or end in the middle of 32 rows of FP4
        filling = Filling(
            shared.base + place.stage * cfg.stage_bytes,
            ring.full(shared.barriers, place),
            k16_rows,
            schedule.columns_of(step.n_tile, sizes),
            (k16_rows + (cfg.k16_rows_per_scale_row - 1)) // cfg.k16_rows_per_scale_row
            if cfg.grouped
            else 0,
        )
        ring.expect(shared.barriers, place, bytes_to_come(step, filling, sizes))
        copy_weights(source, step, filling, sizes)
        copy_scales(source, step, filling, sizes)
        copy_zeros(source, step, filling, sizes)

    @lang.device
    def copy_x(source, step, shared, place, sizes):
        """x of one stage, a copy per row; its bytes are announced already. first: in elements of
        x."""
        pitch = uint64(sizes.a_stride) * cfg.x_element_bytes
        x_rows = schedule.x_rows_of(step, sizes)
        row_bytes = schedule.k16_rows_of(step.k_step, sizes) * cfg.x_row_bytes
        first = uint64(step.row_first) * sizes.a_stride + step.k_step * cfg.stage_k
        row_source = source.a + first * cfg.x_element_bytes
        target = shared.base + place.stage * cfg.stage_bytes + cfg.x_at
        barrier = ring.full(shared.barriers, place)
        x_row = 0
        while x_row < x_rows:
            ptx.cp_async_bulk_g2s(target + x_row * cfg.x_pitch, row_source, row_bytes, barrier)
            row_source += pitch
            x_row += 1

    return lang.namespace(
        "copies", Source=Source, copy_weights_and_scales=copy_weights_and_scales, copy_x=copy_x
    )


def load_verbs(lang, config, ring, schedule, copy_weights=None):
    ptx, cfg = lang.ptx, lang.constants(config)
    copies = copy_verbs(lang, config, ring, schedule, copy_weights)

    @lang.device
    def produce(a, b, scales, zeros, shared, stripe, sizes):
        """Weights, scales and zero points do not depend on the launch before this one (``kernel``,
        parameters), so a ring full of them is on its way before that one has ended. x does, and
        waits for it (griddepcontrol.wait). The ring begins empty, so the first lap waits for no
        consumer."""
        source = copies.Source(a, b, scales, zeros, ptx.create_policy_evict_first())
        ahead = min(stripe.begin + cfg.stages, stripe.end)
        first_step = schedule.first_step_of(schedule.item_at(stripe.begin, stripe.end, sizes))
        step, position, place = first_step, stripe.begin, ring.producer_start()
        while position < ahead:
            copies.copy_weights_and_scales(source, step, shared, place, sizes)
            step, place = schedule.next_step(step, sizes), ring.advance(place)
            position += 1
        ptx.griddepcontrol_wait()
        step, position, place = first_step, stripe.begin, ring.producer_start()
        while position < ahead:
            copies.copy_x(source, step, shared, place, sizes)
            step, place = schedule.next_step(step, sizes), ring.advance(place)
            position += 1
        while position < stripe.end:
            ring.wait_empty(shared.barriers, place)
            copies.copy_weights_and_scales(source, step, shared, place, sizes)
            copies.copy_x(source, step, shared, place, sizes)
            step, place = schedule.next_step(step, sizes), ring.advance(place)
            position += 1

    return produce
