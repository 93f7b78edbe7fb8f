"""What does a kernel between two products cost? Each linear layer of the shape, as often in a graph
as a decoder has blocks, each time with other weights: in a row, and with a small kernel before
each, whose own time is measured alone and taken off. With several GPUs the layers are one GPU's of
70B shape, ``MOST`` of each.

In a row, programmatic dependent launch lets a product begin while the one before it ends. Behind
another kernel, which triggers nothing, it pays its launch and its first copies in full. The small
kernel is torch's addition, or with glue *fused* its RMSNorm, which lets the product begin first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import clock
import numpy as np
import torch
from decoder import Place, four_bit, glue_named, half
from sizes import GROUP, Shape
from whole import FLOAT, INT, in_rounds

MAKERS: dict[str, Callable] = {FLOAT: half, INT: four_bit}
ALONE = "the small kernel alone"
BEHIND = "behind a small kernel"
IN_A_ROW = "in a row"
MOST = 16  # layers of one size, of 70B: several times the L2 cache at 4 bits too


def shape_of(options) -> Shape:
    """What is measured: the shape of one GPU, or one GPU's part of 70B."""
    if options.gpus == 1:
        return options.shape
    shape = options.seventy.on(options.gpus)
    return replace(shape, layers=min(shape.layers, MOST))


def small_kernel(options, place: Place) -> tuple[str, Callable]:
    """(glue, function x -> what is multiplied). Fused glue has before a product of a layer's width
    a norm, before one of another width the gate."""
    if options.glue[-1] == "fused" and options.device == "cuda":
        glue = glue_named("fused")

        def fused(x):
            rows, width = x.shape
            if width & (width - 1):
                both = torch.randn(rows, 2 * width, device=place.device, dtype=place.dtype)
                return lambda: glue.gated(both)
            weight = torch.ones(width, device=place.device, dtype=place.dtype)
            return lambda: glue.norm(x, weight)

        return "fused", fused

    def plain(x):
        given = torch.empty_like(x)
        return lambda: torch.add(x, 1, out=given)

    return "plain", plain


def between(options, rows) -> None:
    place = Place(options.device, torch.float16 if options.device == "cuda" else torch.float32)
    shape = shape_of(options)
    glue, small = small_kernel(options, place)
    for layer, (k, n) in shape.linears().items():
        wanted = [
            m
            for m in options.batches
            if ("between", glue, m, options.gpus, layer) not in options.done
        ]
        if not wanted:
            continue
        made = {
            name: [make(k, n, place) for _ in range(shape.layers)] for name, make in MAKERS.items()
        }
        for m in wanted:
            x = torch.randn(m, k, device=place.device, dtype=place.dtype)
            timers = {
                (name, how): clock.timer(options.device, call)
                for name, layers in made.items()
                for how, call in chains(layers, x, small(x)).items()
            }
            timers[None, ALONE] = clock.timer(
                options.device, chains([None] * shape.layers, x, small(x))[BEHIND]
            )
            add_rows(options, rows, (layer, glue, m), in_rounds(options, timers))


def chains(layers: list, x: torch.Tensor, small: Callable) -> dict[str, Callable]:
    """The two orders of work, as calls. A layer that is None is left out."""

    def multiply(layer, x):
        return x if layer is None else layer(x)

    def in_a_row(index):
        for layer in layers:
            done = multiply(layer, x)
        return done

    def behind(index):
        for layer in layers:
            done = multiply(layer, small())
        return done

    return {IN_A_ROW: in_a_row, BEHIND: behind}


def add_rows(options, rows, cell: tuple, times: dict) -> None:
    layer, glue, m = cell
    shape = shape_of(options)
    k, n = shape.linears()[layer]
    alone = times.pop((None, ALONE))
    clocks = options.watch.summary()
    options.watch.clear()
    for name in MAKERS:
        row_times, behind = times[name, IN_A_ROW], times[name, BEHIND]
        each = [(b - a - r) / shape.layers for r, b, a in zip(row_times, behind, alone)]
        low, median, high = np.quantile(each, (0.25, 0.5, 0.75)).tolist()
        row = {
            "part": "between",
            "shape": shape.name if shape.world == 1 else f"{shape.name} / {shape.world}",
            "gpus": shape.world,
            "glue": glue,
            "contender": name,
            "layer": layer,
            "m": m,
            "n": n,
            "k": k,
            "group_size": GROUP,
            "kernel": "cublas" if name == FLOAT else options.chosen(k, n, m),
            "layers": shape.layers,
            **clock.spread([t / shape.layers for t in row_times]),
            "added_us": round(median, 3),
            "added_us_spread": [round(low, 3), round(high, 3)],
            "alone_us": clock.spread([t / shape.layers for t in alone])["us"],
            "clocks": clocks,
        }
        said = f"{layer:8} m={m:3} {name:24} {row['us']:7.2f} us, behind another kernel"
        rows.add(row, f"{said} {row['added_us']:+.2f}")
