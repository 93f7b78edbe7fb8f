"""The producer of ``moe_wgmma``, a warpgroup: one of its threads starts the tensor copies of
weights, scales and zero points, as that of ``wgmma``, all of them gather x.

A tensor copy takes a box of rows that follow each other, and sm_90 has no gather of others
(``.tile::gather4`` wants sm_100). So each thread copies 16 bytes of every 16th row by ``cp.async``
to where a tensor copy would have put them: chunk c of row r at c ^ (r % 8) of the row's 128 bytes
(``hopper.shared``). Eight threads copy a row's 128 bytes, which are neighbours in memory too. Rows
beyond the tile's are filled with zeros: nothing reads a row's products but the row itself.

A stage is full when all threads' copies have landed (``cp.async.mbarrier.arrive``; no thread waits
for its own) and the tensor copies' bytes have come. cp.async writes as an ordinary store does, and
``wgmma`` reads through the asynchronous proxy: a consumer fences between its wait and its product.
(A producer that waits for its copies of three stages ago, fences and arrives, so that no consumer
has to: no difference beyond that between two runs, experiments/26_experts.)

Where rows begin is looked up once per tile, and kept in registers. Nothing is copied before
``griddepcontrol.wait``: the routing may come from the launch before.
"""

from numba_marlin.kernels.experts.tables import WORD_BYTES
from numba_marlin.kernels.experts.tiles import CHUNK_BYTES, CHUNKS_PER_ROW, ROWS_AT_ONCE
from numba_marlin.kernels.hopper import load as hopper

ROW_BYTES = CHUNKS_PER_ROW * CHUNK_BYTES
ARRIVALS = CHUNKS_PER_ROW * ROWS_AT_ONCE + 1  # of the producer at a full barrier: threads, and TMA
NO_ROW = 2**32 - 1


def load_verbs(lang, config, ring, schedule):
    """-> ``produce``, a device function for all threads of the producer; ``Maps``, a record."""
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64 = lang.uint32, lang.uint64
    cfg = lang.constants(config)
    copies = hopper.load_verbs(lang, config, ring)
    pairs_per_row = 1 if config.x_of_pairs else config.top_k
    own_rows = config.gathered_rows
    copies_scales, copies_zeros = not config.scales_columns, config.zeros is not None
    half_scale_bytes = config.s_row_bytes // config.halves
    # FP4's scales lie panel by panel, both rows together
    scale_copies = 1 if config.block_scaled or not config.gated else config.scale_rows

    @lang.device
    def find_rows(places, pairs, tile, a_stride, number):
        """Where the thread's rows of x begin, in units of 16 bytes: 32 bits suffice for 64 GiB of
        x."""
        for i in range(own_rows):
            row = number // CHUNKS_PER_ROW + ROWS_AT_ONCE * i
            places[i] = NO_ROW
            if row < tile.rows:
                pair = ptx.ld_global_b32(pairs + uint64(tile.row_first + row) * WORD_BYTES)
                places[i] = pair // pairs_per_row * (a_stride // cfg.chunk_elements)

    @lang.device
    def gather_x(x, places, filling, step, number):
        row, chunk = number // CHUNKS_PER_ROW, number % CHUNKS_PER_ROW
        # (ROWS_AT_ONCE is a multiple of 8: all rows of a thread have the same swizzle)
        target = filling.address + row * ROW_BYTES + (chunk ^ row % 8) * CHUNK_BYTES
        source = x + uint64(step * CHUNKS_PER_ROW + chunk) * CHUNK_BYTES
        for i in range(own_rows):
            exists = places[i] != NO_ROW
            ptx.cp_async_16_zfill(
                target + i * (ROWS_AT_ONCE * ROW_BYTES),
                source + uint64(places[i] if exists else 0) * CHUNK_BYTES,
                CHUNK_BYTES if exists else 0,
            )
        ptx.cp_async_mbarrier_arrive_noinc(filling.barrier)

    @lang.device
    def copy_weights(filling, maps, tile, k16_row):
        for box in range(cfg.w_boxes):
            half, of_half = box // cfg.boxes_per_half, box % cfg.boxes_per_half
            column = tile.column_first + half * tile.columns + of_half * cfg.w_box_columns
            ptx.cp_async_bulk_tensor_2d_g2s(
                filling.address + (cfg.weights_at + box * cfg.w_box_bytes),
                maps.weights,
                column * cfg.w_elements,
                k16_row,
                filling.barrier,
            )

    @lang.device
    def scale_row_of(step):
        return step * cfg.stage_k16_rows // cfg.k16_per_scale_row if cfg.grouped else 0

    @lang.device
    def copy_scales(filling, maps, tile, step, sizes):
        """Of the map's rows, those of expert e begin at e times as many as one has."""
        if cfg.block_scaled:
            scale_row = scale_row_of(step)
            panels = (sizes.n + 63) // 64
            for half in range(cfg.halves):
                column = tile.column_first + half * tile.columns
                ptx.cp_async_bulk_tensor_2d_g2s(
                    filling.address + (cfg.scales_at + half * (half_scale_bytes * cfg.scale_rows)),
                    maps.scales,
                    scale_row * cfg.scale_words,
                    tile.expert * panels + column // 64,
                    filling.barrier,
                )
        else:
            first = tile.expert * (sizes.k // 16 // cfg.k16_per_scale_row)
            scale_row = first + scale_row_of(step)
            for row in range(scale_copies):
                for half in range(cfg.halves):
                    ptx.cp_async_bulk_tensor_2d_g2s(
                        filling.address
                        + (cfg.scales_at + row * cfg.s_row_bytes + half * half_scale_bytes),
                        maps.scales,
                        tile.column_first + half * tile.columns,
                        scale_row + row,
                        filling.barrier,
                    )

    @lang.device
    def copy_zeros(filling, maps, tile, step, sizes):
        groups = sizes.k // 16 // cfg.k16_per_scale_row if cfg.grouped else 1
        ptx.cp_async_bulk_tensor_2d_g2s(
            filling.address + cfg.zeros_at,
            maps.zeros,
            tile.column_first // cfg.z_element_columns,
            tile.expert * groups + scale_row_of(step),
            filling.barrier,
        )

    @lang.device
    def produce(x, pairs, shared, maps, plan, sizes, number):
        places = cuda.local.array(own_rows, uint32)
        place = ring.producer_start()
        item = schedule.first_item(plan)
        while item.tile != schedule.NO_TILE:
            tile = schedule.tile_of(item, plan)
            find_rows(places, pairs, tile, sizes.a_stride, number)
            step, item_steps_left = item.first_step, item.steps
            while item_steps_left != 0:
                ring.wait_empty(shared.barriers, place)
                filling = copies.filling_at(shared, place)
                if number == 0:
                    ring.expect(shared.barriers, place, cfg.tma_bytes)
                    k16_row = tile.expert * (sizes.k // 16) + step * cfg.stage_k16_rows
                    copy_weights(filling, maps, tile, k16_row)
                    if copies_scales:
                        copy_scales(filling, maps, tile, step, sizes)
                    if copies_zeros:
                        copy_zeros(filling, maps, tile, step, sizes)
                gather_x(x, places, filling, step, number)
                place = ring.advance(place)
                step += 1
                item_steps_left -= 1
            item = schedule.next_item(plan, item)
        ptx.cp_async_wait_all()  # no thread ends before its copies

    return lang.namespace("load", Maps=copies.Maps, produce=produce)
