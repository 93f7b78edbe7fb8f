"""The epilogue of ``moe``: rows of a tile go to the pairs that they belong to.

``output_verbs(lang, config)`` -> namespace of device functions: those of ``decode.output``, where
``own`` and ``thread`` are explained, and the ways in which a complete tile leaves:

- ``scatter``: rows to c [pairs, n], rounded, row ``pair``.
- ``scatter_unrounded``, with ``combine``: the same in fp32.
- ``activate``: rows in fp32 to [pairs, n] behind the partial results of shared tiles in the
  workspace. Gate's 64 columns of a row block are one warp's, up's another's, perhaps of another
  block: who comes last, by a counter of both behind the locks of shared tiles, has both read, puts
  the counter back to zero, and stores activation(gate) * up of every row to c [pairs, n / 2]. (Both
  in one warp would want another order of W's columns, or two loads for one in the main loop.)
"""

from numba_marlin.hardware.limits import ALL_LANES, WARP_LANES
from numba_marlin.kernels.decode import output as decode
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.experts.activation import activation_verbs
from numba_marlin.kernels.experts.tables import GATED_STEP, WORD_BYTES
from numba_marlin.kernels.language.definition import ceil_div

ROWS_AT_ONCE = 8  # whose gates and ups are on their way together


def output_verbs(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint16, uint32, uint64 = lang.uint16, lang.uint32, lang.uint64
    float32 = lang.float32
    cfg = lang.constants(config)
    of_tile = decode.output_verbs(lang, config)
    both_halves = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]
    own_columns = 16 * config.own_column_blocks
    turns = ceil_div(own_columns, WARP_LANES)
    held_values = ROWS_AT_ONCE * turns
    activation = activation_verbs(lang, config) if config.gated else None

    @lang.device
    def first_column(tile, thread):
        """The first of the columns of C that the warp finishes."""
        return tile.n_tile * cfg.columns + thread.warp_n * COLUMNS + thread.warp_k * own_columns

    @lang.device
    def pair_of(pairs, tile, lane):
        """The pair of the tile's row ``lane``. To be called before the main loop, which hides the
        load: later lanes ask each other."""
        pair = 0
        if lane < tile.x_rows:
            pair = ptx.ld_global_b32(pairs + uint64(tile.row_first + lane) * WORD_BYTES)
        return pair

    @lang.device
    def scatter(epilogue, own, own_pair, tile, thread, sizes):
        """Columns from n on and rows from x_rows on are not stored."""
        lane_column = first_column(tile, thread) + thread.lane // 4
        for n8 in range(cfg.n8_blocks):
            for of_two in range(2):
                row = thread.lane % 4 * 2 + 8 * n8 + of_two
                pair = ptx.shfl_sync_idx(own_pair, row)
                if row < tile.x_rows:
                    for j in range(cfg.own_column_blocks):
                        for half in range(2):
                            column = lane_column + (16 * j + 8 * half)
                            if column < sizes.n:
                                value = own[4 * (cfg.n8_blocks * j + n8) + 2 * half + of_two]
                                word = both_halves(value, value)
                                address = epilogue.c + (uint64(pair) * sizes.n + column) * 2
                                ptx.st_global_b16(address, uint16(word & 0xFFFF))

    @lang.device
    def leave_rows(rows, own, own_pair, tile, thread, sizes):
        """``scatter`` to rows [pairs, n], in fp32."""
        lane_column = first_column(tile, thread) + thread.lane // 4
        for n8 in range(cfg.n8_blocks):
            for of_two in range(2):
                row = thread.lane % 4 * 2 + 8 * n8 + of_two
                pair = ptx.shfl_sync_idx(own_pair, row)
                if row < tile.x_rows:
                    for j in range(cfg.own_column_blocks):
                        for half in range(2):
                            column = lane_column + (16 * j + 8 * half)
                            if column < sizes.n:
                                value = own[4 * (cfg.n8_blocks * j + n8) + 2 * half + of_two]
                                address = rows + (uint64(pair) * sizes.n + column) * 4
                                ptx.st_global_b32(address, ptx.bits_of_f32(value))

    @lang.device
    def scatter_unrounded(epilogue, own, own_pair, tile, thread, sizes):
        leave_rows(epilogue.c, own, own_pair, tile, thread, sizes)

    @lang.device
    def rows_of(epilogue):
        """Each pair's gate and up in fp32. (Reckoned where it is needed: main loops have no
        register for it.)"""
        blocks = uint64(uint32(cuda.gridDim.x))
        return epilogue.partials + blocks * (2 * cfg.partial_bytes)

    @lang.device
    def both_are_there(epilogue, number, lane):
        """Whether another warp has counted at the counter of that number before this one: one for
        all rows of the tile, which come together."""
        # Orders all lanes' rows before the atomic, whose release publishes them.
        ptx.bar_warp_sync(ALL_LANES)
        last = 0
        if lane == 0:
            blocks = uint64(uint32(cuda.gridDim.x))
            counter = epilogue.locks + blocks * cfg.lock_bytes + uint64(number) * WORD_BYTES
            if ptx.atom_add_acq_rel_gpu(counter, 1) == 1:
                last = 1
                ptx.st_global_b32(counter, 0)
        last = ptx.shfl_sync_idx(last, 0)
        # Orders the lane's acquire before all lanes' reads of what the other warp has left.
        ptx.bar_warp_sync(ALL_LANES)
        return last != 0

    @lang.device
    def activate_rows(epilogue, own_pair, first_row, tile, column, lane, sizes):
        """ROWS_AT_ONCE of them, of columns of gate from ``column`` on."""
        gates = cuda.local.array(held_values, float32)
        ups = cuda.local.array(held_values, float32)
        half, first = sizes.n // 2, rows_of(epilogue)
        for i in range(ROWS_AT_ONCE):
            pair = ptx.shfl_sync_idx(own_pair, first_row + i)
            for turn in range(turns):
                of_warp = lane + WARP_LANES * turn
                if first_row + i < tile.x_rows and of_warp < own_columns:
                    address = first + (uint64(pair) * sizes.n + (column + of_warp)) * 4
                    gates[turns * i + turn] = ptx.ld_global_f32(address)
                    ups[turns * i + turn] = ptx.ld_global_f32(address + uint64(half) * 4)
        for i in range(ROWS_AT_ONCE):
            pair = ptx.shfl_sync_idx(own_pair, first_row + i)
            for turn in range(turns):
                of_warp = lane + WARP_LANES * turn
                if first_row + i < tile.x_rows and of_warp < own_columns:
                    gate = activation.rounded(gates[turns * i + turn])
                    up = activation.rounded(ups[turns * i + turn])
                    value = activation.activate(gate, up)
                    word = both_halves(value, value)
                    address = epilogue.c + (uint64(pair) * half + (column + of_warp)) * 2
                    ptx.st_global_b16(address, uint16(word & 0xFFFF))

    @lang.device
    def activate(epilogue, own, own_pair, tile, thread, sizes):
        panels = sizes.n // GATED_STEP  # of gate
        panel = tile.n_tile * cfg.warps_n + thread.warp_n
        if panel < 2 * panels:
            leave_rows(rows_of(epilogue), own, own_pair, tile, thread, sizes)
            number = (tile.row_first * panels + panel % panels) * cfg.owners + thread.warp_k
            if both_are_there(epilogue, number, thread.lane):
                column = panel % panels * COLUMNS + thread.warp_k * own_columns
                first_row = 0
                while first_row < tile.x_rows:
                    activate_rows(epilogue, own_pair, first_row, tile, column, thread.lane, sizes)
                    first_row += ROWS_AT_ONCE

    return lang.namespace(
        "output",
        pair_of=pair_of,
        share_out=of_tile.share_out,
        leave_partial=of_tile.leave_partial,
        count_in=of_tile.count_in,
        add_partials=of_tile.add_partials,
        apply_column_factors=of_tile.apply_column_factors,
        add_bias=of_tile.add_bias,
        write=(scatter_unrounded if config.combine else activate if config.gated else scatter),
    )
