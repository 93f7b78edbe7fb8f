"""results.jsonl -> the table and the plot of README.md, between its markers. The newest measurement of a cell counts."""
import json

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def newest(path):
    """{(shape, m): row} of the faithful kernel as the heuristic configures it; later lines replace earlier ones."""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["compiler"] == "numba-cuda":
            rows[row["shape"], row["m"]] = row
    return rows


def table(rows, shapes, published):
    lines = ["| k x n | m | this kernel | TB/s | TFLOP/s | cuBLAS fp16 | speed-up | Marlin CUDA's | |", "|---|---|---|---|---|---|---|---|---|"]
    for label, (k, n) in shapes.items():
        for (shape, m), row in sorted(rows.items(), key=lambda item: item[0][1]):
            if shape != label:
                continue
            cuda = published[label].get(m)
            verdict = "" if cuda is None else "ahead" if row["speedup"] >= cuda * 1.01 else "level" if row["speedup"] >= cuda * 0.99 else "behind"
            lines.append(f"| {k} x {n} | {m} | {row['us']:.1f} us | {row['tb_per_s']:.2f} | {row['tflops']:.0f} | {row['cublas_us']:.1f} us | "
                         f"**{row['speedup']:.2f}** | {'' if cuda is None else f'{cuda:.2f}'} | {verdict} |")
    return "\n".join(lines)


def plot(rows, shapes, published, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharey=True)
    for axis, (label, (k, n)) in zip(axes.flat, shapes.items()):
        mine = sorted((m, row["speedup"]) for (shape, m), row in rows.items() if shape == label)
        theirs = sorted(published[label].items())
        axis.axhline(1, color="0.6", linewidth=0.8)
        axis.axhline(16 / 4.125, color="0.6", linewidth=0.8, linestyle=":")
        axis.plot(*zip(*theirs), "s--", color="tab:orange", label="Marlin CUDA", markersize=4)
        if mine:
            axis.plot(*zip(*mine), "o-", color="tab:blue", label="numba_marlin, ampere", markersize=4)
        axis.set_xscale("log", base=2)
        axis.set_title(f"k={k}, n={n}", fontsize=9)
        axis.set_ylim(0, 4)
    axes[0, 0].legend(fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("batch size m")
    for axis in axes[:, 0]:
        axis.set_ylabel("speed-up over cuBLAS fp16")
    figure.suptitle("Faithful Marlin on an H200, group size 128, cold L2 (dotted: ideal 3.88)", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(here, shapes, published):
    rows = newest(here / "results.jsonl")
    readme = here / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    first = next(iter(rows.values()))
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    origin = f"Measured {first['date']} on {first['device']}, driver {first['driver']}; {versions}; commit {first['commit']}."
    readme.write_text(f"{before}{BEGIN}\n{origin}\n\n{table(rows, shapes, published)}\n{END}{after}", encoding="utf-8")
    plot(rows, shapes, published, here / "speedup.png")
    print(table(rows, shapes, published))
