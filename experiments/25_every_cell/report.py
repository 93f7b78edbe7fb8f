"""results.jsonl -> the tables of README.md. Of every cell the newest row counts, and of its
configurations today's choice, if it was timed (``of_today``)."""

from statistics import geometric_mean, mean

import shapes

from numba_marlin.bench.roofline import pyplot
from numba_marlin.bench.tables import clocks, markdown, origin, replace_between

MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
BANDS = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096))
REGRET_GOALS = (0.05, 0.02)  # at most, in every cell and on average
WORST = 25  # cells of the regret's table
CUBLAS = "cuBLAS fp16"


def newest(found):
    """{(layer, m): row} of the table's cells, in its order; rows of other problems are left out."""
    last = {(row["k"], row["n"], row["m"]): row for row in found if row["group_size"] == 128}
    return {
        (layer, m): last[layer.k, layer.n, m]
        for layer in shapes.layers()
        for m in shapes.BATCHES
        if (layer.k, layer.n, m) in last
    }


def of_today(cells, choices):
    """The cells with today's choice in the place of that of their rows, where it was timed in the
    same rounds; ``then``: whether it was not, and the choice of then stands. choices: {(layer, m):
    (kernel, {field: value})}."""
    return {key: _rechosen(row, *choices[key]) for key, row in cells.items()}


def _rechosen(row, kernel, config):
    timed = [(row["kernel"], row["config"]), *map(whole_config(row), row["others"])]
    if (kernel, config) not in timed:
        return row | {"then": True}
    at = timed.index((kernel, config))
    if at == 0:
        return row
    others = [
        {"kernel": name, "config": each, "us": other["us"], "predicted_us": other["predicted_us"]}
        for (name, each), other in zip(timed, (row, *row["others"]))
    ]
    chosen = others.pop(at)
    limit_share = row["limit_share"] * row["us"] / chosen["us"]
    return row | chosen | {"limit_share": limit_share, "others": others, "then": False}


def whole_config(row):
    """-> function: another configuration of the row, of which the row has what differs."""

    def whole(other):
        same = row["config"] if other["kernel"] == row["kernel"] else {}
        return other["kernel"], same | other["config"]

    return whole


def names_of_peers(cells):
    """Everything that some cell was timed beside."""
    timed = (name for row in cells.values() for name, each in row["peers"].items() if "us" in each)
    return [CUBLAS, *dict.fromkeys(timed)]


def ratio(row, name):
    """A peer's time over ours, or None if it was not timed: above 1 we are ahead."""
    us = row["cublas_us"] if name == CUBLAS else row["peers"].get(name, {}).get("us")
    return None if us is None else us / row["us"]


def best_other(row):
    """The fastest other configuration, if it was faster than the choice."""
    return min(
        (each for each in row["others"] if each["us"] < row["us"]),
        key=lambda each: each["us"],
        default=None,
    )


def regret(row):
    """The time of the choice over that of the best configuration, less 1."""
    best = best_other(row)
    return 0.0 if best is None else row["us"] / best["us"] - 1


def overview(cells):
    """By bands of m and beside each: the geometric mean of the ratios, and in how many cells we
    are ahead; the mean and largest regret."""
    names, lines = names_of_peers(cells), []
    for low, high in (*BANDS, (1, BANDS[-1][1])):
        band = [row for (_, m), row in cells.items() if low <= m <= high]
        if not band:
            continue
        line = [f"{low} to {high}", str(len(band))]
        for name in names:
            ratios = [each for row in band if (each := ratio(row, name)) is not None]
            ahead = sum(each >= 1 for each in ratios)
            line.append(
                f"{geometric_mean(ratios):.2f} ({ahead} of {len(ratios)})" if ratios else ""
            )
        regrets = [regret(row) for row in band]
        lines.append([*line, f"{mean(regrets):.1%}", f"{max(regrets):.1%}"])
    return markdown(["m", "cells", *names, "mean regret", "largest"], lines)


def speedups(cells, name):
    """Layers by m: the peer's time over ours, bold where we are behind."""
    lines = []
    for layer in shapes.layers():
        found = [
            ratio(cells[layer, m], name) if (layer, m) in cells else None for m in shapes.BATCHES
        ]
        if any(each is not None for each in found):
            lines.append([f"{layer.k} x {layer.n}", *map(_bold_below_one, found)])
    return markdown(["k x n", *(f"m={m}" for m in shapes.BATCHES)], lines)


def _bold_below_one(value):
    return "" if value is None else f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"


def lost(cells):
    """A line for each cell in which somebody is ahead, the worst first."""
    names = names_of_peers(cells)
    lines = []
    for (layer, m), row in cells.items():
        ratios = [ratio(row, name) for name in names]
        least = min(each for each in ratios if each is not None)
        if least < 1:
            lines.append(
                (
                    least,
                    [
                        f"{layer.k} x {layer.n}",
                        str(m),
                        f"{row['us']:.2f}",
                        *map(_bold_below_one, ratios),
                        f"{row['limit_share']:.0%}",
                        f"{row['us'] / row['predicted_us']:.2f}",
                        f"{regret(row):.1%}",
                        described(row["kernel"], row["config"]),
                    ],
                )
            )
    if not lines:
        return "No cell is lost."
    header = ["k x n", "m", "us", *names, "of the limit", "over its prediction", "regret", "choice"]
    return markdown(header, [line for _, line in sorted(lines, key=lambda each: each[0])])


def regrets(cells):
    """The cells that the choice loses most in, and what would have been better."""
    ranked = sorted(cells.items(), key=lambda each: -regret(each[1]))
    lines = []
    for (layer, m), row in ranked[:WORST]:
        best = best_other(row)
        if best is None:
            break
        lines.append(
            [
                f"{layer.k} x {layer.n}",
                str(m),
                f"{regret(row):.1%}",
                f"{row['us']:.2f}",
                f"{row['predicted_us']:.2f}",
                described(row["kernel"], row["config"]),
                f"{best['us']:.2f}",
                f"{best['predicted_us']:.2f}",
                instead(row, best),
            ]
        )
    header = ["k x n", "m", "regret", "us", "predicted", "choice", "best: us", "predicted", "best"]
    return markdown(header, lines)


# the fields that tell configurations apart, in every kernel's own words
SHOWN = {
    "wgmma": ("tile_m", "tile_n", "warpgroups", "k_groups", "parts", "split", "stages"),
    "decode": ("batch", "warps_n", "warps_k", "stage_k", "resident", "whole"),
    "ampere": ("thread_m_blocks", "thread_n_blocks", "thread_k_blocks"),
}


def described(kernel, config):
    shown = [each for each in SHOWN.get(kernel, ()) if each in config] or list(config)
    return f"{kernel} {', '.join(f'{name}={config[name]}' for name in shown)}"


def instead(row, best):
    """What the best configuration has otherwise."""
    if best["kernel"] != row["kernel"]:
        return described(best["kernel"], best["config"])
    there = row["config"]
    differs = {name: each for name, each in best["config"].items() if there.get(name, ...) != each}
    return ", ".join(f"{name}={value}" for name, value in differs.items())


def sentences(cells):
    values = [regret(row) for row in cells.values()]
    most, average = REGRET_GOALS
    within = sum(each <= most for each in values)
    total = len(shapes.layers()) * len(shapes.BATCHES)
    said = [f"{len(cells)} of {total} cells measured."]
    for name in names_of_peers(cells):
        ratios = [each for row in cells.values() if (each := ratio(row, name)) is not None]
        said.append(
            f"Beside {name}: ahead in {sum(each >= 1 for each in ratios)} of {len(ratios)} cells,"
            f" {min(ratios):.2f} to {max(ratios):.2f} times as fast, geometric mean"
            f" {geometric_mean(ratios):.2f}."
        )
    said.append(
        f"The choice's regret is {mean(values):.1%} on average (goal {average:.0%}) and"
        f" {max(values):.1%} at most; {within} of {len(values)} cells are within {most:.0%}."
    )
    other = sum(not row.get("then", True) for row in cells.values())
    lost_sight = sum(row.get("then", False) for row in cells.values())
    if other:
        said.append(
            f"In {other} cells the choice is another than when they were timed, in the same rounds."
        )
    if lost_sight:
        said.append(f"In {lost_sight} today's choice was not timed, and that of then stands.")
    for name, why in failures(cells).items():
        said.append(f"{name} failed in {len(why)} cells; the first says: {why[0]}")
    return " ".join(said)


def failures(cells):
    """{peer: [why it was left out of a cell, ...]}"""
    found = {}
    for row in cells.values():
        for name, each in row["peers"].items():
            if "failed" in each:
                found.setdefault(name, []).append(each["failed"])
    return found


def versions(cells):
    """The versions of the peers, in words."""
    found = {
        f"{name} {each['version']}": None
        for row in cells.values()
        for name, each in row["peers"].items()
        if each.get("version")
    }
    return f"Peers: {', '.join(found)}." if found else ""


def sources():
    """The table of layers."""
    return markdown(
        ["k x n", "layer", "sizes from"],
        [[f"{each.k} x {each.n}", each.name, shapes.source(each)] for each in shapes.layers()],
        left=3,
    )


def body(cells):
    """What stands between the markers."""
    if not cells:
        return f"Not measured yet.\n\n### The layers\n\n{sources()}"
    picture = "![Times as fast as cuBLAS and the peers, by batch size](speed.png)"
    parts = [sentences(cells), overview(cells), picture]
    for name in names_of_peers(cells):
        parts += [f"### {name}: its time over ours, bold where it is ahead", speedups(cells, name)]
    parts += ["### Cells that are lost", lost(cells)]
    parts += ["### Where the choice could have been better", regrets(cells)]
    parts += ["### The layers", sources()]
    parts += [clocks(cells.values()), versions(cells), origin(cells.values())]
    return "\n\n".join(each for each in parts if each)


def plot(cells, path):
    """By m, each peer's time over ours: the geometric mean of the layers, and all of them."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.8))
    axis.axhline(1, color="0.5", linewidth=0.9)
    for name, colour in zip(names_of_peers(cells), ("tab:blue", "tab:orange", "tab:green")):
        by_m = {}
        for (_, m), row in cells.items():
            if (value := ratio(row, name)) is not None:
                by_m.setdefault(m, []).append(value)
        batches = sorted(by_m)
        low, high = ([pick(by_m[m]) for m in batches] for pick in (min, max))
        axis.fill_between(batches, low, high, color=colour, alpha=0.15, linewidth=0)
        means = [geometric_mean(by_m[m]) for m in batches]
        axis.plot(batches, means, "o-", color=colour, markersize=3, label=f"than {name}")
    axis.set_xscale("log", base=2)
    axis.set_xticks([1, 4, 16, 64, 256, 1024, 4096], ["1", "4", "16", "64", "256", "1k", "4k"])
    axis.set_xlabel("batch size m")
    axis.set_ylabel("times as fast")
    axis.set_ylim(0, None)
    axis.set_title(f"W4A16, {len({layer for layer, _ in cells})} layers: mean and range", size=10)
    axis.grid(color="0.92")
    axis.set_axisbelow(True)
    axis.legend(fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(cells, readme):
    replace_between(readme, MARKERS, body(cells))
    if cells:
        plot(cells, readme.parent / "speed.png")
    print(f"{sentences(cells)}\n\n{overview(cells)}" if cells else "no rows")
