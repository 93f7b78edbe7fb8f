"""The epilogue of ``moe``: rows of a tile go to the pairs that they belong to, or, with
``combine``, are added up over the experts of their token.

``output_verbs(lang, config)`` -> namespace of device functions: those of ``decode.output``, where
``own`` and ``thread`` are explained, and the two ways in which a complete tile leaves:

- ``scatter``: rows to c [pairs, n], rounded, row ``pair``.
- ``combine``: rows to ``sums`` fp32 [pairs, n], added up by who comes last (``experts.sums``).
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.decode import output as decode
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.experts.sums import sum_verbs
from numba_marlin.kernels.experts.tables import WORD_BYTES


def output_verbs(lang, config):
    ptx, uint16, uint64 = lang.ptx, lang.uint16, lang.uint64
    cfg = lang.constants(config)
    of_tile = decode.output_verbs(lang, config)
    both_halves = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]
    own_columns = 16 * config.own_column_blocks
    sums = sum_verbs(lang, config, own_columns)

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
    def leave_rows(epilogue, own, own_pair, tile, thread, sizes):
        """``scatter`` to ``sums``, in fp32."""
        first_row = sums.sums_of(epilogue)
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
                                address = first_row + (uint64(pair) * sizes.n + column) * 4
                                ptx.st_global_b32(address, ptx.bits_of_f32(value))

    @lang.device
    def combine(epilogue, own, own_pair, tile, thread, sizes):
        leave_rows(epilogue, own, own_pair, tile, thread, sizes)
        # Orders all lanes' rows before the lanes' atomics, whose release publishes them.
        ptx.bar_warp_sync(ALL_LANES)
        token, last = 0, 0
        if thread.lane < tile.x_rows:
            token = own_pair // cfg.top_k
            part = tile.n_tile * cfg.owner_warps + thread.warp
            if sums.count_in(epilogue, own_pair, part, sizes.n_tiles * cfg.owner_warps):
                last = 1
        # Orders the lanes' acquires before all lanes' reads of what other blocks have left.
        ptx.bar_warp_sync(ALL_LANES)
        column, row = first_column(tile, thread), 0
        while row < tile.x_rows:
            if ptx.shfl_sync_idx(last, row) != 0:
                tokens = (ptx.shfl_sync_idx(token, row),)
                sums.add_experts(epilogue, tokens, 1, column, thread.lane, sizes.n)
            row += 1

    return lang.namespace(
        "output",
        pair_of=pair_of,
        share_out=of_tile.share_out,
        leave_partial=of_tile.leave_partial,
        count_in=of_tile.count_in,
        add_partials=of_tile.add_partials,
        apply_column_factors=of_tile.apply_column_factors,
        add_bias=of_tile.add_bias,
        write=combine if config.combine else scatter,
    )
