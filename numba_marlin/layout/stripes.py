"""Marlin's striped partitioning: which block multiplies which weight tiles, and in which order sums
are added up.

The weight is ``k_tiles x n_tiles`` tiles, and with more rows of activations than a block can hold,
the whole problem is repeated ``parallel`` times side by side, once for each batch of rows. Tiles
are numbered down the columns: along k first, then to the next column. Every block takes the same
number of consecutive tiles, its stripe, so all blocks finish together, whatever the shape. 3 x 3
tiles over 5 blocks:

    0 1 3
    0 2 3
    1 2 4

A stripe crosses columns; the part of it in one column is a slice. The slices of a column hold
partial sums of the same outputs, which are added serially through a lock. Slices are numbered from
the bottom: the block that holds the last k tile of the column has index 0 and begins, the one with
the first k tile has index ``slice_count - 1`` and writes the result. A stripe begins with a bottom
part of a column (or all of it) and ends with a top part: a block hands on its sum for the bottom
part early, while others compute, and the turn to write comes to it when it has finished.

Why it is right, whatever the sizes and the schedule. Let there be C columns of K tiles, T = C K, B
blocks, and stripes of s = ceil(T / B) tiles.

1. *Every tile once.* Block b has the tiles of [b s, (b + 1) s) below T. These intervals do not
   overlap and B s >= T, so tile t belongs to block t // s alone.
2. *Turns.* The blocks that meet column c are top = c K // s to bottom = (c K + K - 1) // s, all of
   those between, for their stripes lie wholly in the column. So the turns bottom - b run from 0 to
   slice_count - 1, each once.
3. *A lock a block is enough.* If top < bottom, block top's stripe ends inside column c: c is the
   last column that it meets. So no two shared columns have the same top, and lock and partial sums
   number top belong to one column in a launch.
4. *Order.* The lock begins at 0. A block adds when it is bottom - b, and then sets it to bottom - b
   + 1: only the one whose turn it is changes it, so sums are added from the bottom to the top, one
   at a time. The top block sets it back to 0, after which no block waits for it.
5. *No deadlock.* In column c a block waits for blocks of higher numbers only. Each of these, b >
   top, begins its stripe in column c, so it waits nowhere before it comes there. The bottom block
   waits for no other; by induction upwards every turn comes, if all blocks run at once, or begin
   from the last to the first. From the first to the last, in fewer places than there are blocks,
   they may wait for one that cannot begin.

Kernels that count instead of waiting (decode, wgmma) share tiles by the same argument (1 to 3); the
last to come adds all parts in the order of the blocks, so the order is fixed there too.
``tests/layout/test_stripes.py`` and ``tests/kernels/test_partitions.py`` go through all sizes up to
a bound.

Pure integers. ``tile_multiple`` makes every slice begin at a multiple of that many k tiles: with
group scales a slice must not begin inside a group that spans several tiles.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """The part of a block's stripe in one column of tiles.

    first_k_tile .. first_k_tile + iterations - 1 of column n_tile, for batch of rows ``parallel``.
    slice_count blocks share the column; slice_index is this one's turn in the reduction, 0 first.
    """

    first_k_tile: int
    n_tile: int
    parallel: int
    iterations: int
    slice_count: int
    slice_index: int

    @property
    def is_first(self) -> bool:
        """Begins the reduction: waits for no partial sum."""
        return self.slice_index == 0

    @property
    def is_last(self) -> bool:
        """Ends the reduction and writes the result."""
        return self.slice_index == self.slice_count - 1


@dataclass(frozen=True)
class Stripe:
    """What one thread block does, slice after slice. Blocks beyond the work have no slices."""

    block: int
    slices: tuple[Slice, ...]

    @property
    def iterations(self) -> int:
        return sum(each.iterations for each in self.slices)


def iterations_per_block(
    k_tiles: int, n_tiles: int, parallel: int, blocks: int, tile_multiple: int = 1
) -> int:
    """Tiles of a full stripe: the work divided by the blocks, rounded up to a multiple of
    ``tile_multiple``."""
    sizes = {"k_tiles": k_tiles, "n_tiles": n_tiles, "parallel": parallel, "blocks": blocks}
    for name, value in {**sizes, "tile_multiple": tile_multiple}.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if k_tiles % tile_multiple:
        raise ValueError(f"k_tiles={k_tiles} must be a multiple of tile_multiple={tile_multiple}")
    share = -(-k_tiles * n_tiles * parallel // blocks)
    return -(-share // tile_multiple) * tile_multiple


def slice_order(column: int, block: int, k_tiles: int, iterations: int) -> tuple[int, int]:
    """(slice_count, slice_index) of ``block`` in ``column`` (parallel * n_tiles + n_tile).

    Tile t belongs to block t // iterations, and a column's tiles are consecutive: so are its
    blocks.
    """
    first_block = column * k_tiles // iterations
    last_block = ((column + 1) * k_tiles - 1) // iterations
    return last_block - first_block + 1, last_block - block


def stripes(
    k_tiles: int, n_tiles: int, parallel: int, blocks: int, tile_multiple: int = 1
) -> tuple[Stripe, ...]:
    """The stripes of all ``blocks``, in order. ValueError for sizes below 1 or k_tiles %
    tile_multiple != 0."""
    iterations = iterations_per_block(k_tiles, n_tiles, parallel, blocks, tile_multiple)
    total = k_tiles * n_tiles * parallel
    result = []
    for block in range(blocks):
        slices = []
        tile, end = block * iterations, min((block + 1) * iterations, total)
        while tile < end:
            column, first_k_tile = divmod(tile, k_tiles)
            count = min(end - tile, k_tiles - first_k_tile)
            slice_count, slice_index = slice_order(column, block, k_tiles, iterations)
            slices.append(
                Slice(
                    first_k_tile=first_k_tile,
                    n_tile=column % n_tiles,
                    parallel=column // n_tiles,
                    iterations=count,
                    slice_count=slice_count,
                    slice_index=slice_index,
                )
            )
            tile += count
        result.append(Stripe(block, tuple(slices)))
    return tuple(result)
