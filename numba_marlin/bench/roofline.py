"""Rows -> a roofline plot: operations per second over operations per byte, under the ceilings
measured in the same run. Needs matplotlib.

Bytes are those that must move at least once, so a point's position along the axis follows from the
problem alone, and its distance to the roof is the unused part of the ceiling. cuBLAS moves 16-bit
weights, so its points lie further left: same operations, more bytes.
"""

from __future__ import annotations

from pathlib import Path

from numba_marlin.errors import CapabilityMissing

MARKERS = "osD^vP*Xhd"


def pyplot():
    try:
        import matplotlib
    except ImportError as error:
        raise CapabilityMissing(
            f"a plot needs matplotlib: install numba-marlin[plot] ({error})"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def points(rows: list[dict]) -> dict[str, list[tuple[float, float, str]]]:
    """{"kernel" or "cublas": [(operations per byte, operations per second, shape)]}, in the order
    of the rows; cuBLAS once per cell."""
    found: dict[str, list[tuple[float, float, str]]] = {}
    seen = set()
    for row in rows:
        shape = f"{row['k']} x {row['n']}"
        found.setdefault(row["kernel"], []).append(
            (row["flops"] / row["bytes"], row["flops"] / row["us"] * 1e6, shape)
        )
        cell = (row["m"], row["n"], row["k"], row["dtype"])
        if row.get("cublas_us") and cell not in seen:
            seen.add(cell)
            nbytes = 2 * (row["m"] * row["k"] + row["k"] * row["n"] + row["m"] * row["n"])
            found.setdefault("cublas", []).append(
                (row["flops"] / nbytes, row["flops"] / row["cublas_us"] * 1e6, shape)
            )
    return found


def draw(rows: list[dict], path: str | Path) -> None:
    """Write the plot to ``path``, with the ceilings of the last row. ValueError if there are no
    rows."""
    if not rows:
        raise ValueError("rows must hold at least one measurement to draw")
    plt = pyplot()
    roof = rows[-1]["ceilings"]
    figure, axis = plt.subplots(figsize=(9, 5.5))
    series = points(rows)
    intensities = [x for each in series.values() for x, _, _ in each]
    ridge = roof["matrix_flops"] / roof["read_bytes"]
    low, high = min(intensities) / 2, max(*intensities, ridge) * 2
    axis.plot(
        [low, ridge, high],
        [low * roof["read_bytes"], roof["matrix_flops"], roof["matrix_flops"]],
        color="0.25",
        linewidth=1.2,
    )
    axis.annotate(
        f"reads {roof['read_bytes'] / 1e12:.2f} TB/s",
        (low, low * roof["read_bytes"]),
        xytext=(12, 16),
        textcoords="offset points",
        fontsize=8,
        rotation=33,
    )
    axis.annotate(
        f"{roof['matrix_flops'] / 1e12:.0f} TFLOP/s (cuBLAS, square)",
        (high, roof["matrix_flops"]),
        xytext=(0, 5),
        textcoords="offset points",
        fontsize=8,
        ha="right",
    )
    shapes = list(dict.fromkeys(shape for each in series.values() for _, _, shape in each))
    kernels = [name for name in series if name != "cublas"]
    colours = {name: f"C{position % 10}" for position, name in enumerate(kernels)} | {
        "cublas": "0.6"
    }
    for name in (["cublas"] if "cublas" in series else []) + kernels:
        for x, y, shape in series[name]:
            axis.plot(
                x,
                y,
                MARKERS[shapes.index(shape) % len(MARKERS)],
                color=colours[name],
                markersize=5,
                alpha=0.85,
            )
    handles = [
        plt.Line2D([], [], color=colours[name], marker="o", linestyle="", label=name)
        for name in [*kernels, *(["cublas"] if "cublas" in series else [])]
    ]
    handles += [
        plt.Line2D(
            [],
            [],
            color="0.3",
            marker=MARKERS[i % len(MARKERS)],
            linestyle="",
            fillstyle="none",
            label=shape,
        )
        for i, shape in enumerate(shapes)
    ]
    axis.legend(handles=handles, fontsize=7.5, loc="lower right")
    axis.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        xlabel="operations per byte that must move (2 m n k / bytes)",
        ylabel="operations per second",
    )
    axis.grid(color="0.92", which="major")
    axis.set_axisbelow(True)
    figure.suptitle(
        f"Roofline, {rows[-1]['device']}, ceilings measured in the same run, cold L2", fontsize=11
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
