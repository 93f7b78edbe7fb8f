"""Writes the tables and plots of README.md, between their markers, from results.jsonl and
accuracy.jsonl.

For every cell (k, n, m) and kind of weights the newest rows count, which are those of one run. The
configuration is the one that the heuristics choose today, if it was timed.
"""

import json
import statistics
from dataclasses import asdict

from numba_marlin import heuristics
from numba_marlin.bench import rows as rows_module
from numba_marlin.bench.roofline import pyplot
from numba_marlin.bench.tables import clocks, markdown, origin, replace_between
from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem

SPEED, ACCURACY = (
    ("<!-- weights:speed -->", "<!-- end:weights:speed -->"),
    ("<!-- weights:accuracy -->", "<!-- end:weights:accuracy -->"),
)
TITLES = {"nvfp4": "NVFP4", "mxfp4": "MXFP4", "int4-g128": "INT4, g=128", "int4-g32": "INT4, g=32"}
COLOURS = {
    "nvfp4": "tab:blue",
    "mxfp4": "tab:green",
    "int4-g128": "tab:orange",
    "int4-g32": "tab:red",
}
GOAL = 0.9


def newest(path, dtype):
    """{(k, n): {m: {kind: the row of today's choice}}}"""
    cells = {}
    for row in rows_module.read(path) if path.exists() else []:
        if row["dtype"] != dtype:
            continue
        timed = (
            cells.setdefault((row["k"], row["n"]), {})
            .setdefault(row["m"], {})
            .setdefault(row["weights"], {})
        )
        timed[row["kernel"], json.dumps(row["config"], sort_keys=True)] = row
    found = {
        size: {
            m: {kind: row for kind, timed in kinds.items() if (row := chosen(timed)) is not None}
            for m, kinds in sorted(batches.items())
        }
        for size, batches in cells.items()
    }
    return {
        size: {m: kinds for m, kinds in batches.items() if "int4-g128" in kinds}
        for size, batches in found.items()
    }


def chosen(timed):
    """Return the row of the configuration that the heuristics choose today, else of the one that
    they chose when the cell was measured; None if neither was timed."""
    some = next(iter(timed.values()))
    problem = Problem(
        *(some[name] for name in ("m", "n", "k", "group_size", "dtype")),
        codes=some["codes"],
        **({} if some["codes"] == "e2m1" else {"scale_dtype": some["scale_dtype"]}),
    )
    choice = next(
        each
        for each in heuristics.rank(problem, devices.device("H200"))
        if each.kernel in ("decode", "wgmma")
    )
    today = timed.get((choice.kernel, json.dumps(asdict(choice.config), sort_keys=True)))
    return today or next((row for row in timed.values() if row["chosen"]), None)


def share(row, int4):
    """Return bytes per second relative to INT4 with groups of 128."""
    return row["tb_per_s"] / int4["tb_per_s"]


def overview(found, kind):
    batches = sorted({m for cells in found.values() for m in cells})
    lines = []
    for (k, n), cells in found.items():
        line = [f"{k} x {n}"]
        for m in batches:
            kinds = cells.get(m, {})
            if kind not in kinds:
                line.append("")
                continue
            row, int4 = kinds[kind], kinds["int4-g128"]
            reached = share(row, int4)
            line.append(
                f"{row['speedup']:.2f}"
                f" ({f'**{reached:.0%}**' if reached >= GOAL else f'{reached:.0%}'})"
            )
        lines.append(line)
    return markdown(["k x n", *(f"m={m}" for m in batches)], lines)


def details(found):
    header = [
        "k x n",
        "m",
        *(f"{title}, us" for title in TITLES.values()),
        *(f"{title}, TB/s" for title in TITLES.values()),
        "cuBLAS, us",
        "NVFP4 runs on",
    ]
    lines = []
    for (k, n), cells in found.items():
        for position, (m, kinds) in enumerate(cells.items()):
            said = [
                ["" if kind not in kinds else f"{kinds[kind][name]:.2f}" for kind in TITLES]
                for name in ("us", "tb_per_s")
            ]
            nvfp4 = kinds.get("nvfp4")
            lines.append(
                [
                    "" if position else f"{k} x {n}",
                    str(m),
                    *said[0],
                    *said[1],
                    f"{kinds['int4-g128']['cublas_us']:.2f}",
                    "" if nvfp4 is None else nvfp4["kernel"],
                ]
            )
    return markdown(header, lines)


def sentence(found, kind):
    shares = {
        (k, n, m): share(kinds[kind], kinds["int4-g128"])
        for (k, n), cells in found.items()
        for m, kinds in cells.items()
        if kind in kinds
    }
    if not shares:
        return ""
    short = [
        f"{k} x {n} m={m} ({value:.0%})" for (k, n, m), value in shares.items() if value < GOAL
    ]
    return (
        f"{TITLES[kind]}: {sum(value >= GOAL for value in shares.values())} of {len(shares)} cells"
        " at 90% or more of INT4's bytes a second (g=128), the median cell at"
        f" {statistics.median(shares.values()):.0%}"
        + (f"; below it: {', '.join(short)}." if short else ".")
    )


def plot_speed(found, path):
    plt = pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex=True, sharey=True)
    for axis, ((k, n), cells) in zip(axes.flat, found.items()):
        for kind, title in TITLES.items():
            line = [(m, kinds[kind]["speedup"]) for m, kinds in cells.items() if kind in kinds]
            if line:
                axis.plot(
                    *zip(*line), "o-", color=COLOURS[kind], label=title, markersize=4, linewidth=1.2
                )
        axis.axhline(1, color="0.5", linewidth=0.9)
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 16, 64, 256, 1024, 4096], ["1", "16", "64", "256", "1k", "4k"])
        axis.set_title(f"k={k}, n={n}", fontsize=10)
        axis.set_ylim(0, 4.1)
        axis.grid(color="0.92")
        axis.set_axisbelow(True)
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    axes.flat[-1].legend(handles, labels, loc="center", fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("times as fast as cuBLAS fp16")
    for axis in axes[1]:
        axis.set_xlabel("batch size m")
    device = next(
        kinds["int4-g128"]["device"] for cells in found.values() for kinds in cells.values()
    )
    figure.suptitle(
        f"fp16 activations, 4-bit weights of four kinds, cold L2, {device}", fontsize=11
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def accuracy_table(rows):
    data = list(dict.fromkeys(row["data"] for row in rows))
    lines = []
    for name in dict.fromkeys(row["weights"] for row in rows):
        own = {row["data"]: row for row in rows if row["weights"] == name}
        lines.append(
            [
                name,
                f"{own[data[0]]['bits_per_weight']:.3f}",
                *(f"{own[each]['relative_rms']:.2%}" for each in data),
            ]
        )
    return markdown(["weights", "bits a weight", *data], lines)


def plot_accuracy(rows, path):
    plt = pyplot()
    data = list(dict.fromkeys(row["data"] for row in rows))
    names = list(dict.fromkeys(row["weights"] for row in rows))
    figure, axis = plt.subplots(figsize=(9, 3.6))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        own = {row["data"]: row["relative_rms"] for row in rows if row["weights"] == name}
        colour = COLOURS[next(kind for kind in COLOURS if name.startswith(kind))]
        plain = name in COLOURS
        axis.bar(
            [place + (number - len(names) / 2 + 0.5) * width for place in range(len(data))],
            [100 * own[each] for each in data],
            width * 0.92,
            color=colour,
            alpha=1 if plain else 0.45,
            label=(
                f"{name}"
                f" ({next(row['bits_per_weight'] for row in rows if row['weights'] == name):.2f}"
                " bits)"
            ),
        )
    axis.set_xticks(range(len(data)), data)
    axis.set_ylabel("rms error of weights, %")
    axis.legend(fontsize=8, ncols=2)
    axis.grid(axis="y", color="0.92")
    axis.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(results, accuracy, readme, speed_picture, accuracy_picture):
    """Write what was measured between the markers of ``readme``. All arguments are paths."""
    if accuracy.exists():
        rows = [json.loads(line) for line in accuracy.read_text(encoding="utf-8").splitlines()]
        plot_accuracy(rows, accuracy_picture)
        text = [
            accuracy_table(rows),
            (
                f"Rms error of the weights over their rms; k x n = {rows[0]['k']} x {rows[0]['n']},"
                f" seed {rows[0]['seed']}. Errors of products with normal activations are the same"
                " to a tenth of a percent."
            ),
            f"![Errors of weights]({accuracy_picture.name})",
        ]
        replace_between(readme, ACCURACY, "\n\n".join(text))
        print(text[0])
    found = newest(results, "float16")
    if found:
        plot_speed(found, speed_picture)
        used = [
            row for cells in found.values() for kinds in cells.values() for row in kinds.values()
        ]
        parts = []
        for kind in ("nvfp4", "mxfp4"):
            parts += [
                (
                    f"{TITLES[kind]}: times as fast as cuBLAS fp16, and in brackets its bytes a"
                    " second as a share of those of INT4 with groups of 128:"
                ),
                overview(found, kind),
                sentence(found, kind),
            ]
        wide = newest(results, "bfloat16")
        if wide:
            parts += [
                "The same of NVFP4 with bfloat16 activations, INT4 alike:",
                overview(wide, "nvfp4"),
                sentence(wide, "nvfp4"),
            ]
        parts += [
            details(found),
            clocks(used),
            origin(used),
            f"![Speed-up over cuBLAS by batch size]({speed_picture.name})",
        ]
        replace_between(readme, SPEED, "\n\n".join(each for each in parts if each))
        print("\n".join(parts[:6]))
