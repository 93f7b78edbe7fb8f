"""The sum over a token's experts, times their weights, in a fixed order: who comes last adds.

Every pair's row goes to ``sums`` fp32 [pairs, n], behind the partial results of shared tiles in the
workspace. Then each warp that finishes columns of a tile counts them in, at a counter of each row's
token, *part* (a tile of columns and a warp of it) and launch, behind the locks of shared tiles: the
last of a token's top_k experts to come multiplies all top_k rows by their weights, adds them up in
fp32 in the order of the token's slots, whichever expert came last, rounds once, and writes row
``token`` of c [m, n]. So the same input gives the same bits, and nobody waits. The last one puts
the counter back to zero.

``sum_verbs(lang, config, columns, at_once)`` -> namespace of device functions. columns: that a warp
finishes, the lane's being lane, lane + 32, ...; at_once: tokens whose loads are on their way
together. config: ``top_k``, ``partial_bytes`` and ``lock_bytes``, of shared tiles and a block.
``epilogue``: a record with c, partials, locks and weights.
"""

from numba_marlin.hardware.limits import WARP_LANES
from numba_marlin.kernels.experts.tables import WORD_BYTES
from numba_marlin.kernels.language.definition import ceil_div


def sum_verbs(lang, config, columns, at_once=1):
    cuda, ptx = lang.cuda, lang.ptx
    uint16, uint32, uint64, float32 = lang.uint16, lang.uint32, lang.uint64, lang.float32
    cfg = lang.constants(config)
    both_halves = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]
    turns, top_k = ceil_div(columns, WARP_LANES), config.top_k
    whole_turns = columns % WARP_LANES == 0
    value_count, weight_count = at_once * turns * top_k, at_once * top_k

    @lang.device
    def sums_of(epilogue):
        """Each pair's row in fp32. (Reckoned where it is needed: main loops have no register for
        it.)"""
        blocks = uint64(uint32(cuda.gridDim.x))
        return epilogue.partials + blocks * (2 * cfg.partial_bytes)

    @lang.device
    def counters_of(epilogue):
        """[token][part]"""
        return epilogue.locks + uint64(uint32(cuda.gridDim.x)) * cfg.lock_bytes

    @lang.device
    def exists(lane, turn, first_column, n):
        of_warp = lane + WARP_LANES * turn
        return (whole_turns or of_warp < columns) and first_column + of_warp < n

    @lang.device
    def count_in(epilogue, pair, part, parts):
        """A lane's row, after all lanes' rows are in ``sums`` and a barrier of the warp: whether it
        is its token's last. Another barrier of the warp must come before the sums are read."""
        counter = counters_of(epilogue) + uint64(pair // cfg.top_k * parts + part) * WORD_BYTES
        last = ptx.atom_add_acq_rel_gpu(counter, 1) == cfg.top_k - 1
        if last:
            ptx.st_global_b32(counter, 0)
        return last

    @lang.device
    def add_experts(epilogue, tokens, count, first_column, lane, n):
        """The warp's columns of ``count`` tokens, at most ``at_once``, whose rows are all there.
        All loads are on their way before the first is waited for: one after the other each would
        cost a round trip to L2, and half of what a tile of k = 2048 takes."""
        values = cuda.local.array(value_count, float32)
        weights = cuda.local.array(weight_count, float32)
        sums = sums_of(epilogue)
        for i in range(at_once):
            if at_once == 1 or i < count:
                first_pair = uint64(tokens[i]) * cfg.top_k
                for slot in range(cfg.top_k):
                    weights[cfg.top_k * i + slot] = ptx.ld_global_f32(
                        epilogue.weights + (first_pair + slot) * 4
                    )
                    for turn in range(turns):
                        v = turns * (cfg.top_k * i + slot) + turn
                        values[v] = float32(0)
                        if exists(lane, turn, first_column, n):
                            column = first_column + lane + WARP_LANES * turn
                            place = (first_pair + slot) * n + column
                            values[v] = ptx.ld_global_f32(sums + place * 4)
        for i in range(at_once):
            if at_once == 1 or i < count:
                for turn in range(turns):
                    total = float32(0)
                    for slot in range(cfg.top_k):
                        v = turns * (cfg.top_k * i + slot) + turn
                        total = ptx.fma_rn_f32(weights[cfg.top_k * i + slot], values[v], total)
                    if exists(lane, turn, first_column, n):
                        column = first_column + lane + WARP_LANES * turn
                        word = both_halves(total, total)
                        address = epilogue.c + (uint64(tokens[i]) * n + column) * 2
                        ptx.st_global_b16(address, uint16(word & 0xFFFF))

    return lang.namespace(
        "sums",
        sums_of=sums_of,
        counters_of=counters_of,
        count_in=count_in,
        add_experts=add_experts,
    )
