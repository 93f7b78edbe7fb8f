"""Writes the tables, the plot and the verdict of this README, between their markers, from
results.jsonl. The newest row of a cell counts."""

import json

from cells import BATCHES, X_COLUMNS
from faithful import FAITHFUL

from numba_marlin.bench import rows as rows_module
from numba_marlin.bench.roofline import pyplot
from numba_marlin.bench.tables import clocks, markdown, origin, replace_between

MARKERS = {
    part: (f"<!-- {part}:begin -->", f"<!-- {part}:end -->")
    for part in ("verdict", "loaders", "x", "kernels", "counts", "faithful")
}
WAYS = {"cp_async": "cp.async", "bulk": "bulk", "tensor": "TMA"}
WINS = (
    1.05  # a relayout must be faster than the best on Marlin's layout by this factor to be useful
)


def newest(rows):
    """-> (loaders, kernels): {(k, n): {configuration as a sorted tuple: row}}, {(k, n): {m: {name:
    row}}}, in order of first appearance."""
    loaders, kernels = {}, {}
    for row in rows:
        if row.get("part") == "loader":
            loaders.setdefault((row["k"], row["n"]), {})[
                json.dumps(row["config"], sort_keys=True)
            ] = row
        elif row.get("part") == "kernel":
            kernels.setdefault((row["k"], row["n"]), {}).setdefault(row["m"], {})[row["kernel"]] = (
                row
            )
    return loaders, kernels


def picked(found, **wanted):
    """Return {stages: row} of a shape's loaders whose configuration has these values."""
    return sorted(
        (
            row
            for row in found.values()
            if all(row["config"][name] == value for name, value in wanted.items())
        ),
        key=lambda row: row["config"]["stages"],
    )


def best(rows):
    return max(rows, key=lambda row: row["tb_per_s"], default=None)


def loader_table(loaders):
    """TB/s of weights, for every depth of the ring."""
    depths = sorted(
        {
            row["config"]["stages"]
            for found in loaders.values()
            for row in found.values()
            if not row["config"]["batch"]
        }
    )
    lines = []
    for (k, n), found in loaders.items():
        layouts = [
            (f"tiles of {columns}", {"relaid": False, "columns": columns})
            for columns in (64, 128, 256)
        ] + [("relaid", {"relaid": True})]
        for position, (label, layout) in enumerate(layouts):
            line = ["" if position else f"{k} x {n}", label]
            for method in WAYS:
                by_depth = {
                    row["config"]["stages"]: f"{row['tb_per_s']:.2f}"
                    for row in picked(found, method=method, batch=0, **layout)
                }
                line.append(" / ".join(by_depth.get(depth, "-") for depth in depths))
            lines.append(line)
    return f"TB/s with {' / '.join(map(str, depths))} stages of 16 KB:\n\n" + markdown(
        ["k x n", "weights", *WAYS.values()], lines, left=2
    )


def x_table(loaders):
    """TB/s of weights, x beside them."""
    ways = {
        f"{label}, native": {"method": method, "relaid": False} for method, label in WAYS.items()
    } | {
        "bulk, relaid": {"method": "bulk", "relaid": True},
        "TMA, relaid": {"method": "tensor", "relaid": True},
    }
    lines = []
    for (k, n), found in loaders.items():
        for batch in sorted({row["config"]["batch"] for row in found.values()} - {0}):
            cells = {
                name: best(picked(found, batch=batch, columns=X_COLUMNS, **way))
                for name, way in ways.items()
            }
            lines.append(
                [
                    f"{k} x {n}",
                    str(batch),
                    *("-" if row is None else f"{row['tb_per_s']:.2f}" for row in cells.values()),
                ]
            )
    return "TB/s of weights:\n\n" + markdown(["k x n", "rows of x", *ways], lines)


def kernel_table(kernels):
    """Table of microseconds, with the fastest on Marlin's layout in bold, and the gain of the best
    relaid kernel over it."""
    names = list(
        dict.fromkeys(
            name for cells in kernels.values() for cell in cells.values() for name in cell
        )
    )
    about = {
        name: next(
            cell[name] for cells in kernels.values() for cell in cells.values() if name in cell
        )
        for name in names
    }
    lines = []
    for (k, n), cells in kernels.items():
        for position, m in enumerate(each for each in BATCHES if each in cells):
            cell, line = cells[m], []
            fastest = min((row["us"] for row in cell.values() if not row["relaid"]), default=None)
            for name in names:
                said = f"{cell[name]['us']:.1f}" if name in cell else "-"
                line.append(
                    f"**{said}**"
                    if name in cell and not cell[name]["relaid"] and cell[name]["us"] == fastest
                    else said
                )
            win = gain(cell)
            lines.append(
                [
                    "" if position else f"{k} x {n}",
                    str(m),
                    *line,
                    "-" if win is None else f"{win - 1:+.1%}",
                ]
            )
    return "Microseconds:\n\n" + markdown(
        [
            "k x n",
            "m",
            *(f"{about[name]['engine']}: {about[name]['way']}" for name in names),
            "best relaid over best native",
        ],
        lines,
        left=1,
    )


def gain(cell, engine=None):
    """Return the best time on Marlin's layout divided by the best time on relaid weights; of one
    engine if it is named; None unless both were measured."""
    rows = [row for row in cell.values() if engine in (None, row["engine"])]
    native, relaid = (
        [row["us"] for row in rows if row["relaid"] is which] for which in (False, True)
    )
    return min(native) / min(relaid) if native and relaid else None


def loader_gain(found):
    """Return the best relaid loader's rate divided by the best native one's, without x; None unless
    both were measured."""
    native, relaid = (best(picked(found, relaid=which, batch=0)) for which in (False, True))
    return relaid["tb_per_s"] / native["tb_per_s"] if native and relaid else None


# of the faithful kernel, in the order of its work; the rest belongs to the loop
COUNTED = {
    "copy": ("slice_pointers", "fetch_to_shared", "fetch_scales"),
    "wait": ("wait_for_stage",),
    "load registers": ("fetch_to_registers",),
    "dequantise": ("dequantize", "matmul", "scale_pair"),
    "multiply": ("multiply",),
}


def count_table(rows):
    """Warp instructions of a tile, from the rows of ``count``."""
    lines = []
    for row in rows:
        verbs = row["verbs"]
        parts = [sum(verbs.get(verb, 0) for verb in named) for named in COUNTED.values()]
        total = sum(verbs.values())
        cells = [str(row["m"]), row["way"]]
        cells += [f"{count:,.0f}" for count in (*parts, total - sum(parts), total)]
        lines.append([*cells, str(row["registers"])])
    head = ["rows", "tiles by", *COUNTED, "the loop", "together", "registers"]
    return (
        "Warp instructions of a tile, 256 columns and 64 of k, by a block of eight warps:\n\n"
        + (markdown(head, lines, left=2))
    )


def newest_faithful(rows):
    """-> {(k, n): {m: {(kernel, stages): row}}}"""
    found = {}
    for row in rows:
        if row.get("part") == "faithful":
            by_batch = found.setdefault((row["k"], row["n"]), {})
            by_batch.setdefault(row["m"], {})[row["kernel"], row["config"]["stages"]] = row
    return found


def faithful_table(found):
    """Microseconds of each way for every number of stages, and what TMA gains, each with the stages
    that are best for it."""
    depths = sorted(
        {depth for by in found.values() for cell in by.values() for _, depth in cell.keys()}
    )
    lines = []
    for (k, n), by_batch in found.items():
        for m, cell in by_batch.items():
            best_of = {}
            line = [f"{k} x {n}", str(m)]
            for name in FAITHFUL:
                times = {
                    depth: cell[name, depth]["us"] for depth in depths if (name, depth) in cell
                }
                best_of[name] = min(times.values(), default=None)
                line.append(
                    " / ".join(f"{times[each]:.1f}" if each in times else "-" for each in depths)
                )
            _, aligned, tensor = best_of.values()
            lines.append([*line, f"{aligned / tensor - 1:+.1%}" if aligned and tensor else "-"])
    return f"Microseconds with {' / '.join(map(str, depths))} stages:\n\n" + markdown(
        ["k x n", "m", *(each.way for each in FAITHFUL.values()), "TMA over aligned, best of each"],
        lines,
        left=1,
    )


def verdict(loaders, kernels):
    """Return sentences, the first of which says whether a relayout wins more than 5% somewhere."""
    cells = [(size, m, cell) for size, by_batch in kernels.items() for m, cell in by_batch.items()]
    gains = {(size, m): gain(cell) for size, m, cell in cells if gain(cell) is not None}
    wins = [
        f"{k} x {n} m={m} ({gains[(k, n), m] - 1:+.1%})"
        for (k, n), m in gains
        if gains[(k, n), m] > WINS
    ]
    said = []
    if gains:
        where = max(gains, key=gains.get)
        at_most = f"at most {gains[where] - 1:+.1%}, {where[0][0]} x {where[0][1]} m={where[1]}"
        said.append(
            "**A relayout wins more than 5% somewhere:"
            f" {'yes, ' + ', '.join(wins) if wins else f'no ({at_most})'}**, the fastest kernel on"
            f" relaid weights against the fastest on Marlin's, in {len(gains)} cells."
        )
    for engine in ("decode", "wgmma"):
        own = {
            (size, m): value for size, m, cell in cells if (value := gain(cell, engine)) is not None
        }
        if own:
            low, high = min(own, key=own.get), max(own, key=own.get)
            said.append(
                f"Within {engine}: {own[low] - 1:+.1%} ({low[0][0]} x {low[0][1]} m={low[1]}) to"
                f" {own[high] - 1:+.1%} ({high[0][0]} x {high[0][1]} m={high[1]})."
            )
    bounds = {
        size: value for size, found in loaders.items() if (value := loader_gain(found)) is not None
    }
    if bounds:
        said.append(
            "Of loading alone, the best relaid loader over the best native one: "
            + ", ".join(f"{k} x {n} {value - 1:+.1%}" for (k, n), value in bounds.items())
            + "."
        )
    return " ".join(said)


def plot(loaders, path):
    plt = pyplot()
    figure, axes = plt.subplots(
        1, len(loaders), figsize=(4 * len(loaders), 3.6), sharey=True, squeeze=False
    )
    for axis, ((k, n), found) in zip(axes.flat, loaders.items()):
        axis.axhline(
            next(iter(found.values()))["ceilings"]["read_bytes"] / 1e12,
            color="0.5",
            linewidth=0.9,
            label="a sum over memory",
        )
        for method, colour in zip(WAYS, ("tab:green", "tab:orange", "tab:blue")):
            for label, style, layout in (
                ("64 columns", ":", {"relaid": False, "columns": 64}),
                ("256 columns", "-", {"relaid": False, "columns": 256}),
                ("relaid", "--", {"relaid": True}),
            ):
                line = [
                    (row["config"]["stages"], row["tb_per_s"])
                    for row in picked(found, method=method, batch=0, **layout)
                ]
                if line:
                    axis.plot(
                        *zip(*line),
                        style,
                        marker=".",
                        color=colour,
                        label=f"{WAYS[method]}, {label}",
                    )
        axis.set_title(f"k={k}, n={n}", fontsize=10)
        axis.set_xlabel("stages of 16 KB in the ring")
        axis.set_ylim(0)
        axis.grid(color="0.92")
        axis.set_axisbelow(True)
    axes[0, 0].set_ylabel("TB/s of weights, nothing else done")
    axes.flat[-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def show(rows):
    """Print the tables that have rows."""
    loaders, kernels = newest(rows)
    faithful = newest_faithful(rows)
    with_x = {
        size: found
        for size, found in loaders.items()
        if any(row["config"]["batch"] for row in found.values())
    }
    print(
        "\n\n".join(
            text
            for text in (
                loaders and loader_table(loaders),
                with_x and x_table(with_x),
                kernels and kernel_table(kernels),
                faithful and faithful_table(faithful),
                verdict(loaders, kernels),
            )
            if text
        )
    )


def write(results, readme, picture):
    """Write README.md and the plot from results.jsonl, and counts.jsonl beside it. Parts without
    rows are not changed. Raises SystemExit if there are no rows at all."""
    every = rows_module.read(results) if results.exists() else []
    counted = results.with_name("counts.jsonl")
    if counted.exists():
        lines = counted.read_text(encoding="utf-8").splitlines()
        replace_between(readme, MARKERS["counts"], count_table(map(json.loads, lines)))
    if faithful := newest_faithful(every):
        replace_between(readme, MARKERS["faithful"], faithful_table(faithful))
    rows = [row for row in every if row.get("part") in ("loader", "kernel")]
    if not rows:
        raise SystemExit(
            f"{results} holds no results: run `python experiments/03_tma/run.py measure` on a GPU"
            " first"
        )
    loaders, kernels = newest(rows)
    used = [row for found in loaders.values() for row in found.values()] + [
        row for by_batch in kernels.values() for cell in by_batch.values() for row in cell.values()
    ]
    replace_between(
        readme,
        MARKERS["verdict"],
        "\n\n".join(
            each for each in (verdict(loaders, kernels), clocks(used), origin(used)) if each
        ),
    )
    if loaders:
        plot(loaders, picture)
        replace_between(
            readme,
            MARKERS["loaders"],
            f"{loader_table(loaders)}\n\n![TB/s of the loaders by stages]({picture.name})",
        )
        if any(row["config"]["batch"] for found in loaders.values() for row in found.values()):
            replace_between(readme, MARKERS["x"], x_table(loaders))
    if kernels:
        replace_between(readme, MARKERS["kernels"], kernel_table(kernels))
    show(rows)
