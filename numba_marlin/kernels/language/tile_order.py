"""How tiles of persistent kernels are numbered, so that a wave's rows and columns stay in L2
together: ``group_m`` row tiles, then the next column tile, and so on; then the next ``group_m``
rows."""

NO_TILE = 0xFFFFFFFF  # in place of a tile's number: there is no further tile


def tile_order_verb(lang, group_m, tile_m, tile_n):
    """-> device function (tile, row tiles, column tiles) -> (first row, first column) of a tile,
    all uint32."""
    uint32 = lang.uint32
    GROUP_M, TILE_M, TILE_N = group_m, tile_m, tile_n

    @lang.device
    def corner_of(tile, m_tiles, n_tiles):
        band = uint32(GROUP_M) * n_tiles
        first_m = uint32(tile // band * uint32(GROUP_M))
        rows = uint32(min(uint32(m_tiles - first_m), uint32(GROUP_M)))
        inside = uint32(tile % band)
        return uint32((first_m + inside % rows) * uint32(TILE_M)), uint32(
            inside // rows * uint32(TILE_N)
        )

    return corner_of
