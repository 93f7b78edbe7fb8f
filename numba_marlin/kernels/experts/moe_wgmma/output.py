"""The epilogue of ``moe_wgmma``: rows of a tile go to the pairs that they belong to.

``output_verbs(lang, config, schedule)`` -> namespace of device functions: those of
``hopper.output`` (blocks that share a tile, factors and bias of columns), and ``write``, the way in
which a complete tile leaves:

- ``scatter``: rounded, transposed through shared memory as in ``hopper.output``, each warp its own
  columns; then 16 bytes a lane to c [pairs, n], row ``pair``.
- ``activate``: the same with gate and up laid down by two warps of a warpgroup, ``half_panels``
  apart; both then read both, every other row, and store activation(gate) * up to c [pairs, n / 2].
- ``scatter_unrounded``, with ``combine``: fp32, from accumulators to c [pairs, n], row ``pair``.

A *turn*: rows that a warp's lanes store together, 16 bytes each.
"""

from numba_marlin.hardware.limits import ALL_LANES, WARP_LANES
from numba_marlin.kernels.experts.activation import activation_verbs
from numba_marlin.kernels.experts.tables import WORD_BYTES
from numba_marlin.kernels.hopper import output as hopper
from numba_marlin.kernels.hopper.output import FIRST_BARRIER
from numba_marlin.kernels.hopper.shared import WARPGROUP
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.tuples import numbered_each

PLACE_BYTES = 8 * 4  # of 8 numbers of fp32


def output_verbs(lang, config, schedule, first_barrier=FIRST_BARRIER):
    """first_barrier: the named barrier of warpgroup 0; the next is warpgroup 1's."""
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64 = lang.uint32, lang.uint64
    cfg = lang.constants(config)
    of_tile = hopper.output_verbs(lang, config, schedule)
    chunks = 2 * config.strips  # of 16 bytes, in a row of a warp's columns
    rows_per_turn = WARP_LANES // chunks
    turns = config.tile_m // rows_per_turn
    groups = ceil_div(config.tile_m, WARP_LANES)  # of rows, one for each lane

    # In global memory: what the epilogue reads and writes. column_scales, bias: of one expert
    Result = lang.record("MoeResult", "c column_scales bias partials locks pairs")
    # of rows of fp32: the lane's first column, in c and its number, and where rows begin, a lane
    # each, in units of 8 numbers: 32 bits suffice for 128 GiB
    Leaving = lang.record("Leaving", "c column places rows lane n")

    @lang.device
    def pair_at(result, tile, row):
        """0 for a row that the tile does not have."""
        pair = 0
        if row < tile.rows:
            pair = ptx.ld_global_b32(result.pairs + uint64(tile.row_first + row) * WORD_BYTES)
        return pair

    @lang.device
    def find_pairs(pairs, result, tile, lane):
        """Of a lane's rows. Before anything else: all loads are in flight at once."""
        for turn in range(turns):
            pairs[turn] = pair_at(result, tile, turn * rows_per_turn + lane // chunks)

    @lang.device
    def chunk_at(box, row, chunk):
        """As ``hopper.output.lay_down`` has put it."""
        swizzled = chunk ^ row // cfg.line_rows % chunks
        return box + row * cfg.result_row_bytes + swizzled * 16

    @lang.device
    def first_column(tile, thread):
        return schedule.panel_column(tile, thread.panel) + thread.first_strip * 16

    # ---- rows of 16 bits ----

    @lang.device
    def scatter(acc, shared, result, tile, thread, sizes):
        pairs = cuda.local.array(turns, uint32)
        find_pairs(pairs, result, tile, thread.lane)
        box = of_tile.box_of(shared, thread)
        ptx.bar_warp_sync(ALL_LANES)  # all lanes have read the tile before
        of_tile.lay_down(acc, box, thread.lane)
        ptx.bar_warp_sync(ALL_LANES)
        chunk = thread.lane % chunks
        column = first_column(tile, thread) + chunk * 8
        for turn in range(turns):
            row = turn * rows_per_turn + thread.lane // chunks
            if row < tile.rows and column < sizes.n:
                address = result.c + (uint64(pairs[turn]) * sizes.n + column) * 2
                ptx.st_global_v4_b32(address, ptx.ld_shared_v4_b32(chunk_at(box, row, chunk)))

    activated = activated_pair(lang, config) if config.gated else None

    @lang.device
    def activate(acc, shared, result, tile, thread, sizes):
        # the warp's turns: even ones if it has gate, odd ones if it has up. A turn's pair is on its
        # way during the turn before. (The loop is not unrolled: no array of pairs.)
        of_up = thread.panel // cfg.half_panels
        first, chunk = of_up * rows_per_turn, thread.lane % chunks
        pair = pair_at(result, tile, first + thread.lane // chunks)
        box = of_tile.box_of(shared, thread)
        barrier = thread.warpgroup + first_barrier
        ptx.bar_sync(barrier, WARPGROUP)  # all lanes of both warps have read the tile before
        of_tile.lay_down(acc, box, thread.lane)
        ptx.bar_sync(barrier, WARPGROUP)
        other = cfg.half_panels * cfg.result_warp_bytes
        gate_box = box - of_up * other
        column = (
            tile.column_first
            + thread.panel % cfg.half_panels * 64
            + thread.first_strip * 16
            + chunk * 8
        )
        while first < tile.rows:
            row = first + thread.lane // chunks
            first += 2 * rows_per_turn
            following = pair_at(result, tile, first + thread.lane // chunks)
            if row < tile.rows and column < tile.columns:
                at = chunk_at(gate_box, row, chunk)
                gate, up = ptx.ld_shared_v4_b32(at), ptx.ld_shared_v4_b32(at + other)
                address = result.c + (uint64(pair) * tile.columns + column) * 2
                ptx.st_global_v4_b32(
                    address,
                    (
                        activated(gate[0], up[0]),
                        activated(gate[1], up[1]),
                        activated(gate[2], up[2]),
                        activated(gate[3], up[3]),
                    ),
                )
            pair = following

    # ---- rows of fp32 ----

    def leave_quad_of(number):
        """Of a quad's four accumulators, (row, column g), (row + 1, g), and the same of g + 8."""
        first_row = 8 * number

        @lang.device
        def leave_quad(acc, leaving):
            for of_two in range(2):
                row = leaving.lane % 4 * 2 + (first_row + of_two)
                place = ptx.shfl_sync_idx(leaving.places[first_row // WARP_LANES], row % WARP_LANES)
                address = leaving.c + uint64(place) * PLACE_BYTES
                for half in range(2):
                    # one predicate for both: a branch for each takes longer than the stores
                    rows = leaving.rows if leaving.column + 8 * half < leaving.n else 0
                    if row < rows:
                        value = ptx.bits_of_f32(acc[2 * half + of_two])
                        ptx.st_global_b32(address + 32 * half, value)

        return leave_quad

    leave_strip = numbered_each(lang, config.accumulators, 4, leave_quad_of)

    def leave_from(strips):
        """-> device function (accumulators, Leaving): strip after strip, 16 columns on."""

        @lang.device
        def leave_one(acc, leaving):
            leave_strip(acc[0], leaving)

        if strips == 1:
            return leave_one
        rest = leave_from(strips - 1)

        @lang.device
        def leave_more(acc, leaving):
            leave_one(acc[:1], leaving)
            rest(
                acc[1:],
                Leaving(
                    leaving.c + 16 * 4,
                    leaving.column + 16,
                    leaving.places,
                    leaving.rows,
                    leaving.lane,
                    leaving.n,
                ),
            )

        return leave_more

    leave_strips = leave_from(config.strips)

    @lang.device
    def scatter_unrounded(acc, shared, result, tile, thread, sizes):
        places = cuda.local.array(groups, uint32)
        lane, column = thread.lane, first_column(tile, thread) + thread.lane // 4
        for i in range(groups):
            places[i] = pair_at(result, tile, lane + WARP_LANES * i) * (sizes.n // 8)
        c = result.c + uint64(column) * 4
        leave_strips(acc, Leaving(c, column, places, tile.rows, lane, sizes.n))

    return lang.namespace(
        "output",
        Result=Result,
        combine=of_tile.combine,
        finish_columns=of_tile.finish_columns,
        write=(scatter_unrounded if config.combine else activate if config.gated else scatter),
    )


def activated_pair(lang, config):
    """-> device function of two registers, two gates and two ups of 16 bits, -> two results."""
    ptx = lang.ptx
    activate = activation_verbs(lang, config).activate
    pair_of, low_of, high_of = {
        "float16": (ptx.cvt_rn_f16x2_f32, ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_rn_bf16x2_f32, ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]

    @lang.device
    def of_pair(gate, up):
        low = activate(low_of(gate), low_of(up))
        return pair_of(low, activate(high_of(gate), high_of(up)))

    return of_pair
