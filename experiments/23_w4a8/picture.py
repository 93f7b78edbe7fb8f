"""The rows of W4A8 as a picture: speed by batch size."""

from statistics import geometric_mean

from numba_marlin.bench.roofline import pyplot


def draw(found, entrants, path):
    """Of cells in which all ``entrants`` were timed: times as fast as cuBLAS in fp16, the geometric
    mean of the shapes, quantisation of x included; W4A16 in groups of 128."""
    times = {}
    for row in found:
        times.setdefault((row["k"], row["n"], row["group_size"], row["m"]), {})[row["kernel"]] = (
            row["us"]
        )
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.8))
    axis.axhline(1, color="0.5", linewidth=0.9)
    for name, group_size, label, style in (
        ("w4a16", 128, "W4A16, groups of 128", "o-"),
        ("int8", -1, "int8, a scale per column", "s-"),
        ("fp8", -1, "fp8, a scale per column", "^-"),
        ("fp8", 128, "fp8, groups of 128", "^--"),
        ("int8", 128, "int8, groups of 128", "s--"),
    ):
        by_m = {}
        for (_, _, groups, m), cell in times.items():
            if groups == group_size and set(entrants) <= set(cell):
                by_m.setdefault(m, []).append(cell["cublas"] / cell[name])
        batches = sorted(by_m)
        means = [geometric_mean(by_m[m]) for m in batches]
        axis.plot(batches, means, style, markersize=4, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks([1, 4, 16, 64, 256, 1024, 4096], ["1", "4", "16", "64", "256", "1k", "4k"])
    axis.set_xlabel("batch size m")
    axis.set_ylabel("times as fast as cuBLAS fp16")
    axis.set_ylim(0, None)
    axis.set_title("W4A8, x quantised on the way: mean of the layers", size=10)
    axis.grid(color="0.92")
    axis.set_axisbelow(True)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
