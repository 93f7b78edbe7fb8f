"""What does a kernel between two products cost? Each linear layer of the shape, as often in a graph
as a decoder has blocks, each time with other weights: in a row, and with a small elementwise kernel
of torch before each, whose own time is measured alone and taken off.

In a row, programmatic dependent launch lets a product begin while the one before it ends. Behind
another kernel, which triggers nothing, it pays its launch and its first copies in full.
"""

from __future__ import annotations

from collections.abc import Callable

import clock
import numpy as np
import torch
from decoder import Place, four_bit, half
from sizes import GROUP, Shape
from whole import FLOAT, INT, in_rounds

MAKERS: dict[str, Callable] = {FLOAT: half, INT: four_bit}
ALONE = "the small kernel alone"
BEHIND = "behind a small kernel"
IN_A_ROW = "in a row"


def between(options, rows) -> None:
    place = Place(options.device, torch.float16 if options.device == "cuda" else torch.float32)
    for layer, (k, n) in options.shape.linears().items():
        made = {
            name: [make(k, n, place) for _ in range(options.shape.layers)]
            for name, make in MAKERS.items()
        }
        for m in options.batches:
            x = torch.randn(m, k, device=place.device, dtype=place.dtype)
            timers = {
                (name, how): clock.timer(options.device, call)
                for name, layers in made.items()
                for how, call in chains(layers, x).items()
            }
            timers[None, ALONE] = clock.timer(
                options.device, chains([None] * options.shape.layers, x)[BEHIND]
            )
            add_rows(options, rows, layer, m, in_rounds(options, timers))


def chains(layers: list, x: torch.Tensor) -> dict[str, Callable]:
    """The two orders of work, as calls. A layer that is None is left out."""
    given = torch.empty_like(x)

    def multiply(layer, x):
        return x if layer is None else layer(x)

    def in_a_row(index):
        for layer in layers:
            done = multiply(layer, x)
        return done

    def behind(index):
        for layer in layers:
            torch.add(x, 1, out=given)
            done = multiply(layer, given)
        return done

    return {IN_A_ROW: in_a_row, BEHIND: behind}


def add_rows(options, rows, layer: str, m: int, times: dict) -> None:
    shape: Shape = options.shape
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
            "shape": shape.name,
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
