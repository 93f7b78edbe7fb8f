"""Tiles that several blocks share along k in equal parts (split-K), and add up through the
workspace (``output``): what follows for sizes. Pure."""

from numba_marlin.hardware.limits import THREAD_REGISTERS

PARTS = (2, 3, 4, 6, 8)  # how many parts along k a tile may be cut into
SPARE_REGISTERS = 16  # of a consumer's thread, for all but accumulators while parts are added up


class SharedTiles:
    """Properties of a configuration with the field ``parts``, and ``wgmma``'s of tiles."""

    def check_parts(self):
        if self.parts != 1 and self.parts not in PARTS:
            raise ValueError(f"parts={self.parts} must be 1 or one of {PARTS}")

    @property
    def parts_at_once(self):
        """Whether a thread's accumulators of all parts of a tile fit its registers together, beside
        those that they are added to: the loads of all parts are then in flight at once."""
        registers = self.consumer_registers or THREAD_REGISTERS
        accumulators = self.strips * self.accumulators
        return (self.parts + 1) * accumulators + SPARE_REGISTERS <= registers

    def parts_workspace(self, m, n):
        """Bytes of partials, a slot for each part of each tile, and of locks, one for each
        warpgroup and tile; none without parts."""
        if self.parts == 1:
            return 0, 0
        tiles = self.tiles(m, n)
        return tiles * self.parts * self.partial_bytes, 4 * tiles * self.warpgroups
