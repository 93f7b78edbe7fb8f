"""The producer of ``wgmma``: one thread that keeps the stages of the ring full.

A stage takes one tensor copy (TMA) each of x, weights, scales and zero points; of weights one per
box (``shared`` has the map of a stage). What lies outside a matrix arrives as zeros, and counts:
the announced bytes are those of whole boxes. (Measured: with a bulk copy per k16 row, and its tails
worked out by the same thread, that thread was the limit: about 1000 cycles per stage, 2.0 TB/s
whatever the batch and the consumers.)

All but x does not depend on the kernel before this one on the stream: a ring full of it is on its
way before that kernel has ended.

Coordinates of a tensor copy are the instruction's: the innermost dimension's first, so column, then
row of the map, in elements of the map.

The producer's state: ``item`` (``schedule``), what is left to be copied of this block's work, and
``place``, the stage to be filled next, with the parity to wait for on its *empty* (1 in the first
lap). Within an item: ``step``, the next step of k of the tile, and ``item_steps_left``, of both k
groups. In the first, ``ahead``: stages that are filled before the kernel before is complete;
``done``: how many of these have their weights, then how many their x; ``place_of_x``: the next to
get x.
"""

from numba_marlin.kernels.hopper.schedule import schedule_verbs


def load_verbs(lang, config, ring, copy_weights=None):
    """-> namespace of device functions and of a record. copy_weights: another way to copy a
    stage's weights than ``copy_boxes`` (experiments/03_tma compares some).

    ``fill_first(shared, place, item, plan, maps, sizes) -> (place, item)`` and ``fill_stages`` (the
    same) ``-> place``. place: the stage to be filled next, with the producer's parity. ``Maps``:
    addresses of the tensor maps of what is copied. ``filling_at(shared, place) -> Filling``.
    """
    ptx = lang.ptx
    cfg = lang.constants(config)
    schedule = schedule_verbs(lang, config)
    copies_scales, copies_zeros = not config.scales_columns, config.zeros is not None

    Maps = lang.record("Maps", "x weights scales zeros")
    # in shared memory: a stage that is being filled, and the barrier that counts its bytes
    Filling = lang.record("Filling", "address barrier")

    @lang.device
    def filling_at(shared, place):
        address = shared.base + place.stage * cfg.stage_bytes
        return Filling(address, ring.full(shared.barriers, place))

    @lang.device
    def copy_boxes(filling, weights, column, step, policy, sizes):
        """The weights of a stage, columns from ``column`` on, step ``step`` of k. If m fits one
        tile they are read once, and need not stay in L2: evict first."""
        for box in range(cfg.w_boxes):
            target = filling.address + (cfg.weights_at + box * cfg.w_box_bytes)
            inner = (column + box * cfg.w_box_columns) * cfg.w_elements
            k16_row, barrier = step * cfg.stage_k16_rows, filling.barrier
            if sizes.m <= cfg.tile_m:
                ptx.cp_async_bulk_tensor_2d_g2s_hint(
                    target, weights, inner, k16_row, barrier, policy
                )
            else:
                ptx.cp_async_bulk_tensor_2d_g2s(target, weights, inner, k16_row, barrier)

    copy_weights = copy_weights or copy_boxes

    @lang.device
    def fetch_weights(shared, place, column, step, maps, policy, sizes):
        """Weights, scales and zero points of a stage. First the stage's full mbarrier is told how
        many bytes are to come, x included."""
        filling = filling_at(shared, place)
        ring.expect(shared.barriers, place, cfg.copied_bytes)
        copy_weights(filling, maps.weights, column, step, policy, sizes)
        scale_row = step * cfg.stage_k16_rows // cfg.k16_per_scale_row if cfg.grouped else 0
        if copies_scales:
            # rows of the map: scale rows, or panels of FP4's scales
            inner = scale_row * cfg.scale_words if cfg.block_scaled else column
            outer = column // 64 if cfg.block_scaled else scale_row
            ptx.cp_async_bulk_tensor_2d_g2s(
                filling.address + cfg.scales_at, maps.scales, inner, outer, filling.barrier
            )
        if copies_zeros:
            ptx.cp_async_bulk_tensor_2d_g2s(
                filling.address + cfg.zeros_at,
                maps.zeros,
                column // cfg.z_element_columns,
                scale_row,
                filling.barrier,
            )

    @lang.device
    def fetch_x(shared, place, row, step, maps):
        """x of a stage: rows from ``row`` on. Its bytes are announced already."""
        filling = filling_at(shared, place)
        ptx.cp_async_bulk_tensor_2d_g2s(
            filling.address, maps.x, step * cfg.stage_k, row, filling.barrier
        )

    @lang.device
    def fill_first(shared, place, item, plan, maps, sizes):
        """As many stages of the block's first item as the ring has, the weights before and x after
        the kernel before this one is complete -> (place, the rest of the item). No wait for an
        empty mbarrier: the ring is empty."""
        tile = schedule.tile_of(item, plan)
        policy = ptx.create_policy_evict_first()
        ahead = min(item.steps, cfg.stages)
        done, place_of_x = 0, place
        while done < ahead:
            step = item.first_step + done
            fetch_weights(shared, place, tile.column_first, step, maps, policy, sizes)
            place = ring.advance(place)
            done += 1
        ptx.griddepcontrol_wait()
        done = 0
        while done < ahead:
            fetch_x(shared, place_of_x, tile.row_first, item.first_step + done, maps)
            place_of_x = ring.advance(place_of_x)
            done += 1
        rest = schedule.WorkItem(
            item.tile, item.first_step + ahead, item.steps - ahead, item.position, item.wave
        )
        return place, rest

    @lang.device
    def fill_stages(shared, place, item, plan, maps, sizes):
        """A stage for each step of an item, each when it is empty; where the first lap is not
        over yet, such a wait passes at once."""
        tile = schedule.tile_of(item, plan)
        policy = ptx.create_policy_evict_first()
        step, item_steps_left = item.first_step, item.steps
        while item_steps_left != 0:
            ring.wait_empty(shared.barriers, place)
            fetch_weights(shared, place, tile.column_first, step, maps, policy, sizes)
            fetch_x(shared, place, tile.row_first, step, maps)
            place = ring.advance(place)
            step += 1
            item_steps_left -= 1
        return place

    return lang.namespace(
        "load", Maps=Maps, filling_at=filling_at, fill_first=fill_first, fill_stages=fill_stages
    )
