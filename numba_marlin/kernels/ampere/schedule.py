"""Which block multiplies what in ``ampere``: stream-K, in stripes of whole tiles.

All tiles of a launch are numbered, by their *position*: down a tile column (along k), then down the
next one to the right (along n), and after the last one of W from the first again, for the next
tile_m rows of A. They are cut into *stripes* of share = ceil(tiles / blocks) tiles, one per block:
block b has positions [b share, (b + 1) share). So all blocks have the same work, but the last ones,
which have what is left, or nothing. A *slice* is the part of a stripe in one tile column: what a
block does for one output tile. 3 x 3 tiles (k downwards, n to the right; up to tile_m rows of A),
five blocks, share = 2; which block has which tile::

          n ->
      k   0 1 3
      |   0 2 3       tile column 0: blocks 0 (top) and 1 (bottom) add up to one output tile
      v   1 2 4       tile column 1: blocks 1 and 2; tile column 2: blocks 3 and 4

With ``whole``, share is a number of whole tile columns: every slice is one, and no output tile is
shared. There are blocks_per_sm blocks per SM, or fewer (``AmpereConfig.grid``). Why it is right:
``layout.stripes``.

``schedule_verbs(lang, config)`` -> namespace of device functions, and the records:

``Sizes``       of a launch; unsigned 32-bit numbers
``Stripe``      of a block: positions [position, end); share: tiles of a whole stripe
``OutputTile``  n_tile: its number along n, from 0 in every row of output tiles; row_first: its
                first row; rows: how many of its tile_m rows exist, are < m
``Slice``       output_tile; steps [first_step, end_step), tiles of the tile column counted from its
                top (k = 0); following: position of the first tile after the tile column; top,
                bottom: numbers of the blocks that have the tile column's first and last tile, equal
                if it is not shared
"""


def schedule_verbs(lang, config):
    cuda, uint32 = lang.cuda, lang.uint32
    cfg = lang.constants(config)

    Sizes = lang.record("Sizes", "m n k")
    Stripe = lang.record("Stripe", "position end share")
    OutputTile = lang.record("OutputTile", "n_tile row_first rows")
    Slice = lang.record("Slice", "output_tile first_step end_step following top bottom")

    @lang.device
    def tiles_of(size, tile):
        return (size + (tile - 1)) // tile

    @lang.device
    def own_stripe(sizes):
        """This block's. A block that no tile is left for gets position >= end: it does nothing and
        touches no lock."""
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        k_tiles, n_tiles = tiles_of(sizes.k, cfg.tile_k), tiles_of(sizes.n, cfg.tile_n)
        tiles = k_tiles * n_tiles * tiles_of(sizes.m, cfg.tile_m)
        share = (tiles + blocks - 1) // blocks
        if cfg.whole:
            share = (tiles // k_tiles + blocks - 1) // blocks * k_tiles
        position = block * share
        return Stripe(position, min(position + share, tiles), share)

    @lang.device
    def own_slice(position, stripe, sizes):
        """The slice that begins at ``position``."""
        k_tiles, n_tiles = tiles_of(sizes.k, cfg.tile_k), tiles_of(sizes.n, cfg.tile_n)
        tile_column = position // k_tiles
        start = tile_column * k_tiles
        row_first = tile_column // n_tiles * cfg.tile_m
        n_tile = tile_column % n_tiles
        output_tile = OutputTile(n_tile, row_first, min(sizes.m - row_first, cfg.tile_m))
        end_step = min(stripe.end - start, k_tiles)
        top, bottom = start // stripe.share, (start + k_tiles - 1) // stripe.share
        return Slice(output_tile, position - start, end_step, start + k_tiles, top, bottom)

    return lang.namespace("schedule", Sizes=Sizes, own_stripe=own_stripe, own_slice=own_slice)
