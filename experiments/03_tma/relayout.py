"""The relaid layout of Marlin's weights, and the results that the loaders of ``kernels`` must
leave. No side effects."""

import numpy as np
from loader_config import THREADS


def relaid(packed, rows, columns):
    """Rearrange weights in Marlin's layout [k/16, 2 n] (NumPy or torch) so that every tile of
    ``rows`` k16 rows by ``columns`` columns is contiguous. The tiles of a tile column follow each
    other."""
    k_rows, words = packed.shape
    tiles = packed.reshape(k_rows // rows, rows, words // (2 * columns), 2 * columns)
    return tiles.swapaxes(1, 2).swapaxes(0, 1).reshape(k_rows, words)


def expected_sinks(packed, x, config, blocks):
    """Return what the kernels must leave in c, uint32 [blocks, THREADS, 4]. packed: weights in
    Marlin's layout, also if the configuration is relaid; x: float16 [batch, k], ignored without a
    batch."""
    k_rows, words = packed.shape
    k, n = 16 * k_rows, words // 2
    units, k_units = config.units(n, k), k // config.stage_k
    stages = (
        relaid(packed, config.stage_rows, config.columns)
        .view(np.uint32)
        .reshape(units, -1, THREADS, 4)
    )
    values = np.bitwise_xor.reduce(stages, axis=1)
    if config.batch:
        for k_unit in range(k_units):
            piece = (
                np.ascontiguousarray(x[:, k_unit * config.stage_k : (k_unit + 1) * config.stage_k])
                .view(np.uint32)
                .reshape(-1, 4)
            )
            whole = np.zeros((-(-len(piece) // THREADS) * THREADS, 4), np.uint32)
            whole[: len(piece)] = piece
            values[k_unit::k_units] ^= np.bitwise_xor.reduce(whole.reshape(-1, THREADS, 4), axis=0)
    share, longer = divmod(units, blocks)
    ends = np.cumsum([share + (block < longer) for block in range(blocks)])
    return np.stack(
        [
            np.bitwise_xor.reduce(values[first:last], axis=0)
            for first, last in zip([0, *ends[:-1]], ends)
        ]
    )
