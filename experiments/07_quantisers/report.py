"""Writes the tables and the plot of this README from results.jsonl. The newest row of every
measurement counts.

python experiments/07_quantisers/report.py
"""

import json
from pathlib import Path
from statistics import geometric_mean

from numba_marlin.bench.tables import markdown, replace_between

HERE = Path(__file__).resolve().parent
RESULTS, README, PLOT = HERE / "results.jsonl", HERE / "README.md", HERE / "layers.png"
KEYS = (
    "kind",
    "variant",
    "bits",
    "group_size",
    "symmetric",
    "layer",
    "judge",
    "seed",
    "sums",
    "what",
    "k",
    "n",
)
SHOWN = ("rtn", "mse", "gptq", "gptq, act order")
COLOURS = {"rtn": "#9a9a9a", "mse": "#d98c3f", "gptq": "#3f72b5", "gptq, act order": "#1d3557"}


def newest(path=RESULTS):
    """Return the newest row of each measurement, in the order of their first rows."""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        row = json.loads(line)
        rows[tuple(row.get(key) for key in KEYS)] = row
    return list(rows.values())


def grid_name(row):
    groups = "a scale per column" if row["group_size"] == -1 else f"groups of {row['group_size']}"
    return groups + ("" if row["symmetric"] else ", zero points")


def grid_key(row):
    return row["group_size"], row["symmetric"]


def models(rows):
    layers = {}
    for row in rows:
        if row["kind"] == "layer":
            layers.setdefault((row["variant"], grid_key(row)), []).append(row["output_error"])
    lines = []
    for row in rows:
        if row["kind"] == "model":
            errors = layers[row["variant"], grid_key(row)]
            lines.append(
                [
                    grid_name(row),
                    row["variant"],
                    f"{geometric_mean(errors):.2%}",
                    f"{max(errors):.2%}",
                    f"{row['logits_error']:.2%}",
                    f"{row['kl']:.4f}",
                    f"{row['same_top']:.1%}",
                    f"{row['cpu_seconds']:.1f}",
                ]
            )
    return markdown(
        [
            "grid",
            "quantiser",
            "output error of a layer, mean",
            "of the worst",
            "of the logits",
            "KL, nats a token",
            "same likeliest token",
            "CPU s",
        ],
        lines,
        left=2,
    )


def per_layer(rows, grid=(128, True)):
    found = {}
    for row in rows:
        if row["kind"] == "layer" and grid_key(row) == grid:
            found.setdefault(row["layer"], {})[row["variant"]] = row
    lines = []
    for name, variants in found.items():
        first = variants["rtn"]
        gain = first["output_error"] / variants["gptq, act order"]["output_error"]
        lines.append(
            [
                name,
                f"{first['k']} x {first['n']}",
                *(f"{variants[each]['output_error']:.2%}" for each in SHOWN),
                f"{gain:.1f}",
            ]
        )
    return markdown(["layer", "k x n", "before: rtn", *SHOWN[1:], "rtn / act order"], lines, left=2)


def clipping(rows):
    found = {}
    for row in rows:
        if row["kind"] == "clipping":
            found.setdefault(row["judge"], []).append(row["loss"])
    return markdown(
        ["grids compared by", "loss, in units of rtn's, seed after seed", "mean"],
        [
            [judge, ", ".join(f"{each:.4f}" for each in losses), f"{geometric_mean(losses):.4f}"]
            for judge, losses in found.items()
        ],
        left=2,
    )


def precision(rows):
    lines = [
        [
            row["sums"],
            str(row["seed"]),
            f"{row['largest_error']:.1e}",
            f"{row['codes_changed']:.2e}",
            f"{row['loss'] - 1:+.1e}",
            f"{row['cpu_seconds']:.1f}",
        ]
        for row in rows
        if row["kind"] == "hessian"
    ]
    return markdown(["x^T x in", "seed", "largest error", "codes changed", "loss", "CPU s"], lines)


def costs(rows):
    lines = [
        [
            row["what"],
            f"{row['cpu_seconds']:.2f}",
            f"{row['seconds']:.1f}",
            f"{row['peak_mib']:,}",
            f"{row['loss']:.4f}" if "loss" in row else "",
        ]
        for row in rows
        if row["kind"] == "cost"
    ]
    return markdown(["step", "CPU s", "s", "peak MiB so far", "loss, in units of rtn's"], lines)


def origin(rows):
    runs = {
        f"Measured {row['date']} on a {row['device']};"
        f" {', '.join(f'{name} {version}' for name, version in row['versions'].items())}; commit"
        f" {row['commit']}."
        for row in rows
    }
    return "\n".join(sorted(runs))


def plot(rows, grid=(128, True)):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = [row for row in rows if row["kind"] == "layer" and grid_key(row) == grid]
    names = list(dict.fromkeys(row["layer"] for row in chosen))
    figure, axes = plt.subplots(figsize=(10, 4.2))
    for variant in SHOWN:
        errors = {row["layer"]: row["output_error"] for row in chosen if row["variant"] == variant}
        kl = next(
            row["kl"]
            for row in rows
            if row["kind"] == "model" and row["variant"] == variant and grid_key(row) == grid
        )
        axes.plot(
            range(len(names)),
            [100 * errors[name] for name in names],
            "o-",
            color=COLOURS[variant],
            markersize=4,
            linewidth=1.2,
            label=f"{variant}  (KL {kl:.3f} nats a token)",
        )
    axes.set_yscale("log")
    axes.set_yticks(
        (4, 5, 6, 8, 10, 13, 16, 20), labels=("4", "5", "6", "8", "10", "13", "16", "20")
    )
    axes.set_yticks((), minor=True)
    axes.set_xticks(range(len(names)), names, rotation=60, fontsize=8)
    axes.set_ylabel("relative output error of the layer, %")
    axes.set_title(
        "A synthetic transformer at 4 bits, groups of 128: its linear layers on text that"
        " calibration has not seen",
        fontsize=10,
        loc="left",
    )
    axes.grid(axis="y", alpha=0.25)
    axes.legend(
        frameon=False,
        fontsize=8,
        loc="lower left",
        bbox_to_anchor=(0, 1.06),
        ncols=4,
        columnspacing=1.2,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(PLOT, dpi=130)
    plt.close(figure)


def main():
    rows = newest()
    kinds = {row["kind"] for row in rows}
    for kind, name, table in (
        ("model", "models", models),
        ("layer", "layers", per_layer),
        ("clipping", "clipping", clipping),
        ("hessian", "hessian", precision),
        ("cost", "costs", costs),
    ):
        if kind in kinds:
            own = [row for row in rows if row["kind"] == kind]
            replace_between(
                README,
                (f"<!-- {name}:begin -->", f"<!-- {name}:end -->"),
                f"{origin(own)}\n\n{table(rows)}",
            )
    if "layer" in kinds:
        plot(rows)


if __name__ == "__main__":
    main()
