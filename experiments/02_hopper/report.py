"""results.jsonl -> the tables and plots of this README, and the table of goals in the project's
README, between their markers.

Of every cell (k, n, m) the newest row of the heuristics' choice counts, and the newest rows of the
faithful kernel and the CUDA original beside it.
"""

import os

from numba_marlin.bench import rows as rows_module
from numba_marlin.bench.roofline import draw, pyplot
from numba_marlin.bench.tables import clocks, markdown, origin, replace_between

HERE_MARKERS = ("<!-- results:begin -->", "<!-- results:end -->")
PROJECT_MARKERS = ("<!-- results:02_hopper -->", "<!-- end:results:02_hopper -->")
NEAR = 0.005  # a goal counts as reached from half a percent below it: its own rounding


def newest(path, goals):
    """{(k, n): {m: {"ours": row, "ampere": row, "marlin_cuda": row}}} for the cells with a goal, in
    their order; SystemExit if there is none."""
    rows = rows_module.read(path) if path.exists() else []
    found = {size: {m: {} for m in batches} for size, batches in goals.items()}
    for row in rows:
        cell = found.get((row["k"], row["n"]), {}).get(row["m"])
        if (
            cell is None
            or row["group_size"] != 128
            or row.get("dtype", "float16") != "float16"
            or row.get("batch_invariant")
        ):
            continue
        if row.get("chosen"):
            cell["ours"] = row
        if row["kernel"] in ("ampere", "marlin_cuda"):
            cell[row["kernel"]] = row
    found = {
        size: {m: cell for m, cell in cells.items() if "ours" in cell}
        for size, cells in found.items()
    }
    if not any(found.values()):
        raise SystemExit(
            f"{path} holds no results: run `python experiments/02_hopper/run.py measure` on a GPU"
            " first"
        )
    return found


def reached(row, goal):
    return row["speedup"] >= goal * (1 - NEAR)


def overview(found, goals):
    """Shapes by batch sizes: the speed-up over cuBLAS, bold where the goal is reached, and the
    goal."""
    batches = sorted({m for cells in goals.values() for m in cells})
    lines = []
    for (k, n), cells in goals.items():
        line = [f"{k} x {n}"]
        for m in batches:
            row = found[k, n].get(m, {}).get("ours")
            if m not in cells:
                line.append("")
            elif row is None:
                line.append(f"not measured ({cells[m][0]:.2f})")
            else:
                said = f"{row['speedup']:.2f}"
                line.append(
                    f"{f'**{said}**' if reached(row, cells[m][0]) else said} ({cells[m][0]:.2f})"
                )
        lines.append(line)
    return markdown(["k x n", *(f"m={m}" for m in batches)], lines)


def details(found, goals):
    """One line a cell: times, rates, share of the limit, and everything it was timed beside."""
    header = [
        "k x n",
        "m",
        "kernel",
        "us",
        "+-",
        "TB/s",
        "TFLOP/s",
        "limit us",
        "of limit",
        "cuBLAS us",
        "speed-up",
        "goal",
        "best public",
        "faithful kernel",
        "Marlin CUDA",
    ]
    lines = []
    for (k, n), cells in found.items():
        for position, (m, cell) in enumerate(cells.items()):
            row = cell["ours"]
            goal, public = goals[k, n][m]
            low, high = row["us_spread"]
            lines.append(
                [
                    "" if position else f"{k} x {n}",
                    str(m),
                    row["kernel"],
                    f"{row['us']:.2f}",
                    f"{(high - low) / 2 / row['us']:.1%}",
                    f"{row['tb_per_s']:.2f}",
                    f"{row['tflops']:.0f}",
                    f"{row['limit_us']:.2f}",
                    f"{row['limit_share']:.0%}",
                    f"{row['cublas_us']:.2f}",
                    f"**{row['speedup']:.2f}**",
                    f"{goal:.2f}",
                    "" if public is None else f"{public:.2f}",
                    _speedup(cell.get("ampere")),
                    _speedup(cell.get("marlin_cuda")),
                ]
            )
    return markdown(header, lines)


def _speedup(row):
    return "" if row is None else f"{row['speedup']:.2f}"


def summary(found, goals):
    """What the tables say, in sentences."""
    cells = [
        (size, m, cell["ours"]) for size, by_batch in found.items() for m, cell in by_batch.items()
    ]
    total = sum(map(len, goals.values()))
    met = [(size, m) for size, m, row in cells if reached(row, goals[size][m][0])]
    public = [(row["speedup"] / goals[size][m][1]) for size, m, row in cells if goals[size][m][1]]
    lines = [
        f"The goal is reached in {len(met)} of {len(cells)} cells measured"
        + (f" ({total - len(cells)} are not measured)." if len(cells) < total else ".")
    ]
    if public:
        lines.append(
            "Beside the best public kernel of an earlier run of the same protocol: ahead in"
            f" {sum(each > 1 for each in public)} of {len(public)} cells ({min(public):.2f} to"
            f" {max(public):.2f} times its speed-up)."
        )
    short = [
        f"{size[0]} x {size[1]} m={m} ({row['speedup']:.2f} of {goals[size][m][0]:.2f},"
        f" {row['limit_share']:.0%} of the limit)"
        for size, m, row in cells
        if (size, m) not in met
    ]
    if short:
        lines.append(f"Short of it: {', '.join(short)}.")
    return " ".join(lines)


def ceilings(found):
    measured = [cell["ours"]["ceilings"] for cells in found.values() for cell in cells.values()]
    read, rate = [[each[name] for each in measured] for name in ("read_bytes", "matrix_flops")]

    def span(values, unit, digits):
        low, high = (f"{each / 1e12:.{digits}f}" for each in (min(values), max(values)))
        return f"{low if low == high else f'{low} to {high}'} {unit}"

    return (
        f"The limit is the larger of the bytes over {span(read, 'TB/s', 2)} (a sum over memory) and"
        f" the operations over {span(rate, 'TFLOP/s', 0)} (cuBLAS on square matrices), both"
        " measured in the same run."
    )


def plot(found, goals, path):
    plt = pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex=True, sharey=True)
    for axis, ((k, n), cells) in zip(axes.flat, found.items()):
        axis.axhline(1, color="0.5", linewidth=0.9)
        axis.plot(
            list(goals[k, n]),
            [goal for goal, _ in goals[k, n].values()],
            "_",
            color="0.35",
            markersize=12,
            label="goal",
        )
        for name, colour, label in (
            ("marlin_cuda", "tab:orange", "Marlin, CUDA C++"),
            ("ampere", "tab:green", "faithful kernel"),
            ("ours", "tab:blue", "this project's choice"),
        ):
            line = [(m, cell[name]["speedup"]) for m, cell in cells.items() if name in cell]
            if line:
                axis.plot(*zip(*line), "o-", color=colour, label=label, markersize=4)
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 16, 64, 256, 1024, 4096], ["1", "16", "64", "256", "1k", "4k"])
        axis.set_title(f"k={k}, n={n}", fontsize=10)
        axis.set_ylim(0, 4.1)
        axis.grid(color="0.92")
        axis.set_axisbelow(True)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    axes.flat[-1].axis("off")
    axes.flat[-1].legend(handles, labels, loc="center", fontsize=9)
    axes[1, 0].set_xlabel("batch size m")
    axes[1, 1].set_xlabel("batch size m")
    for axis in axes[:, 0]:
        axis.set_ylabel("times as fast as cuBLAS fp16")
    device = next(cell["ours"]["device"] for cells in found.values() for cell in cells.values())
    figure.suptitle(f"FP16 x INT4, groups of 128, cold L2, {device}", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(results, readme, project_readme, picture, roofline, goals):
    """Write tables and plots; prints the table of goals. All arguments but the last are paths."""
    found = newest(results, goals)
    ours = [cell["ours"] for cells in found.values() for cell in cells.values()]
    plot(found, goals, picture)
    draw(
        [
            row
            for cells in found.values()
            for cell in cells.values()
            for row in {id(row): row for row in cell.values()}.values()
        ],
        roofline,
    )
    table, said, source = overview(found, goals), summary(found, goals), origin(ours)

    def image(target, path, text):
        return f"![{text}]({os.path.relpath(target, path.parent)})"

    here = [
        table,
        said,
        details(found, goals),
        ceilings(found),
        clocks(ours),
        source,
        image(picture, readme, "Speed-up over cuBLAS by batch size"),
        image(roofline, readme, "Roofline"),
    ]
    there = [
        table,
        said,
        source,
        image(picture, project_readme, "Speed-up over cuBLAS by batch size"),
    ]
    replace_between(readme, HERE_MARKERS, "\n\n".join(each for each in here if each))
    replace_between(project_readme, PROJECT_MARKERS, "\n\n".join(each for each in there if each))
    print(f"{table}\n\n{said}")
