"""The epilogue of ``moe``: rows of a tile go to the pairs that they belong to, or, with
``combine``, are added up over the experts of their token.

``output_verbs(lang, config)`` -> namespace of device functions: those of ``decode.output``, where
``own`` and ``thread`` are explained, and the two ways in which a complete tile leaves:

- ``scatter``: rows to c [pairs, n], rounded, row ``pair``.
- ``combine``: rows to ``sums`` fp32 [pairs, n]. Then each owner warp counts its columns of the tile
  in, at a counter of each row's token: the last of a token's top_k experts to come multiplies all
  top_k rows by their weights, adds them up in fp32 in the order of the token's slots, whichever
  expert came last, rounds once, and writes row ``token`` of c [m, n]. So the same input gives the
  same bits, and nobody waits. The last one puts the counter back to zero.
"""

from numba_marlin.hardware.limits import ALL_LANES, WARP_LANES
from numba_marlin.kernels.decode import output as decode
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.experts.moe.config import WORD_BYTES
from numba_marlin.kernels.language.definition import ceil_div


def output_verbs(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint16, uint32, uint64, float32 = lang.uint16, lang.uint32, lang.uint64, lang.float32
    cfg = lang.constants(config)
    of_tile = decode.output_verbs(lang, config)
    both_halves = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]
    own_columns = 16 * config.own_column_blocks
    turns = ceil_div(own_columns, WARP_LANES)
    top_k, value_count = config.top_k, turns * config.top_k

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
    def column_of(turn, tile, thread):
        """A lane's column of those that the warp finishes; beyond them one that C does not have."""
        of_warp = thread.lane + WARP_LANES * turn
        column = first_column(tile, thread) + of_warp
        return column if of_warp < own_columns else ALL_LANES

    @lang.device
    def sums_of(epilogue):
        """Each pair's row in fp32, behind the partial results of shared tiles. (Reckoned where it
        is needed: the main loop has no register for it.)"""
        blocks = uint64(uint32(cuda.gridDim.x))
        return epilogue.partials + blocks * (2 * cfg.partial_bytes)

    @lang.device
    def counters_of(epilogue):
        """[token][tile of columns][owner warp], behind the locks of shared tiles."""
        return epilogue.locks + uint64(uint32(cuda.gridDim.x)) * (4 * cfg.consumers)

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
        sums = sums_of(epilogue)
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
                                address = sums + (uint64(pair) * sizes.n + column) * 4
                                ptx.st_global_b32(address, ptx.bits_of_f32(value))

    @lang.device
    def add_experts(epilogue, token, tile, thread, sizes):
        """The warp's columns of a token whose rows are all there. All loads are on their way before
        the first is waited for: one after the other each would cost a round trip to L2, and half
        of what a tile of k = 2048 takes."""
        values = cuda.local.array(value_count, float32)
        weights = cuda.local.array(top_k, float32)
        sums, first_pair = sums_of(epilogue), uint64(token) * cfg.top_k
        for slot in range(cfg.top_k):
            weights[slot] = ptx.ld_global_f32(epilogue.weights + (first_pair + slot) * 4)
            for turn in range(turns):
                column = column_of(turn, tile, thread)
                values[turns * slot + turn] = float32(0)
                if column < sizes.n:
                    place = (first_pair + slot) * sizes.n + column
                    values[turns * slot + turn] = ptx.ld_global_f32(sums + place * 4)
        for turn in range(turns):
            total = float32(0)
            for slot in range(cfg.top_k):
                total = ptx.fma_rn_f32(weights[slot], values[turns * slot + turn], total)
            column = column_of(turn, tile, thread)
            if column < sizes.n:
                word = both_halves(total, total)
                address = epilogue.c + (uint64(token) * sizes.n + column) * 2
                ptx.st_global_b16(address, uint16(word & 0xFFFF))

    @lang.device
    def combine(epilogue, own, own_pair, tile, thread, sizes):
        leave_rows(epilogue, own, own_pair, tile, thread, sizes)
        # Orders all lanes' rows before the lanes' atomics, whose release publishes them.
        ptx.bar_warp_sync(ALL_LANES)
        token, last = 0, 0
        if thread.lane < tile.x_rows:
            token = own_pair // cfg.top_k
            number = (token * sizes.n_tiles + tile.n_tile) * cfg.owner_warps + thread.warp
            counter = counters_of(epilogue) + uint64(number) * WORD_BYTES
            if ptx.atom_add_acq_rel_gpu(counter, 1) == cfg.top_k - 1:
                last = 1
                ptx.st_global_b32(counter, 0)
        # Orders the lanes' acquires before all lanes' reads of what other blocks have left.
        ptx.bar_warp_sync(ALL_LANES)
        row = 0
        while row < tile.x_rows:
            if ptx.shfl_sync_idx(last, row) != 0:
                add_experts(epilogue, ptx.shfl_sync_idx(token, row), tile, thread, sizes)
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
