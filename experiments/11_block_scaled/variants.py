"""The block-scaled kernel without parts of its work: how fast each role would be if the others cost
nothing. Pipelines are complete; results are wrong.

loads       stages are filled, and freed unread
expand      B is also expanded
multiply    A is expanded and multiplied by whatever the expanded stages contain
products    the same without A's shifts and masks
cheap_a     everything except A's shifts and masks; cheap_b: except B's; cheap_ab: except both
"""

from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

from numba_marlin.kernels.language.tuples import repeat
from numba_marlin.kernels.nvfp4.block_scaled import KERNEL
from numba_marlin.kernels.nvfp4.block_scaled import expand as block_scaled_expand
from numba_marlin.kernels.nvfp4.block_scaled import kernel as block_scaled
from numba_marlin.kernels.nvfp4.block_scaled import multiply as block_scaled_multiply


def idle_expand_verbs(lang, config, schedule, packed, expanded):
    """Barriers only."""
    ptx, uint32 = lang.ptx, lang.uint32
    counts, fetch_together, start = schedule.counts, schedule.fetch_together, schedule.start
    BARRIERS, EXPANDED_BARRIERS = config.packed_barriers, config.expanded_barriers

    wait_empty, full, advance_expanded, producer_start = (
        expanded.wait_empty,
        expanded.full,
        expanded.advance,
        expanded.producer_start,
    )
    wait_full, release, advance, consumer_start = (
        packed.wait_full,
        packed.release,
        packed.advance,
        packed.consumer_start,
    )

    @lang.device
    def publish(shared, place, lane):
        wait_empty(shared + uint32(EXPANDED_BARRIERS), place)
        ptx.bar_warp_sync(uint32(0xFFFFFFFF))
        if lane == uint32(0):
            ptx.mbarrier_arrive(full(shared + uint32(EXPANDED_BARRIERS), place))
        return advance_expanded(place)

    @lang.device
    def expand_tiles(shared, sizes):
        lane = uint32(ptx.tid_x() % uint32(32))
        steps = counts(sizes).steps
        place, target = consumer_start(), producer_start()
        tile, next_tile = fetch_together(shared, start(), lane)
        while tile != uint32(0xFFFFFFFF):
            step = uint32(0)
            while step < steps:
                wait_full(shared + uint32(BARRIERS), place)
                target = publish(shared, target, lane)
                if lane == uint32(0):
                    release(shared + uint32(BARRIERS), place)
                place, target = advance(place), publish(shared, target, lane)
                step = uint32(step + uint32(1))
            tile, next_tile = fetch_together(shared, next_tile, lane)

    return lang.namespace("expand", expand_tiles=expand_tiles)


def idle_multiply_verbs(lang, config, packed, expanded):
    """Barriers only; accumulators are zeros."""
    ptx, uint32 = lang.ptx, lang.uint32
    BARRIERS, EXPANDED_BARRIERS = config.packed_barriers, config.expanded_barriers
    wait_full, release, advance = packed.wait_full, packed.release, packed.advance
    wait_expanded, release_expanded, advance_expanded = (
        expanded.wait_full,
        expanded.release,
        expanded.advance,
    )
    Places = lang.record("Places", "packed expanded")
    zero = repeat(lang, config.m64_blocks, ptx.zero_f32(width=config.accumulators))

    @lang.device
    def pass_by(shared, target, leader):
        wait_expanded(shared + uint32(EXPANDED_BARRIERS), target)
        if leader:
            release_expanded(shared + uint32(EXPANDED_BARRIERS), target)
        return advance_expanded(target)

    @lang.device
    def multiply_steps(shared, places, steps, thread):
        place, target = places
        leader = thread.lane == 0
        while steps != uint32(0):
            wait_full(shared + uint32(BARRIERS), place)
            target = pass_by(shared, target, leader)
            if leader:
                release(shared + uint32(BARRIERS), place)
            place, target = advance(place), pass_by(shared, target, leader)
            steps = uint32(steps - uint32(1))
        return Places(place, target), zero()

    return lang.namespace("multiply", multiply_steps=multiply_steps)


def plain_numbers(lang):
    Pairs = lang.record("Pairs", "first second")
    same = lang.device(lambda word: Pairs(word, word))
    return lang.namespace("numbers", odd_nibbles=same, even_nibbles=same)


IDLE_EXPAND, IDLE_MULTIPLY = (
    (block_scaled, "expand_verbs", idle_expand_verbs),
    (
        block_scaled,
        "multiply_verbs",
        idle_multiply_verbs,
    ),
)
PLAIN_B = (block_scaled_expand, "number_verbs", plain_numbers)
PLAIN = (block_scaled_multiply, "number_verbs", plain_numbers)


def variant(name, *patches):
    def make(lang, config):
        with ExitStack() as stack:
            for where, what, by in patches:
                stack.enter_context(mock.patch.object(where, what, by))
            return block_scaled.make(lang, config)

    return replace(KERNEL, name=f"block_scaled_{name}", make=make)


VARIANTS = {
    "whole": KERNEL,
    "loads": variant("loads", IDLE_EXPAND, IDLE_MULTIPLY),
    "expand": variant("expand", IDLE_MULTIPLY),
    "multiply": variant("multiply", IDLE_EXPAND),
    "products": variant("products", IDLE_EXPAND, PLAIN),
    "cheap_a": variant("cheap_a", PLAIN),
    "cheap_b": variant("cheap_b", PLAIN_B),
    "cheap_ab": variant("cheap_ab", PLAIN, PLAIN_B),
}
