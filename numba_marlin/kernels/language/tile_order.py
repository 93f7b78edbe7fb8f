"""How tiles of persistent kernels are numbered, so that a wave's rows and columns stay in L2
together: ``group_m`` row tiles, then the next column tile, and so on; then the next ``group_m``
rows."""

NO_TILE = 0xFFFFFFFF  # in place of a tile's number: there is no further tile


def tile_order_verb(lang, group_m, tile_m, tile_n):
    """-> device function (tile, row tiles, column tiles) -> (first row, first column) of a tile,
    all u32."""

    @lang.device
    def corner_of(tile, m_tiles, n_tiles):
        band, inside = tile // (group_m * n_tiles), tile % (group_m * n_tiles)
        first_m = band * group_m
        rows = min(m_tiles - first_m, group_m)
        return (first_m + inside % rows) * tile_m, inside // rows * tile_n

    return corner_of
