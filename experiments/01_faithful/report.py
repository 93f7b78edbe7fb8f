"""results.jsonl -> the table and the plot of this README, and the same table in the project's
README, between their markers.

Of every (shape, m) the newest row counts that numba-cuda compiled with the configuration the
heuristic chose. The CUDA original's time is shown where it was measured in the same rounds
(``marlin_cuda_us``); elsewhere its speed-up of an earlier run of the same protocol stands in, in
italics.
"""

import json
import os

from numba_marlin.bench.tables import origin, replace_between

HERE_MARKERS = ("<!-- results:begin -->", "<!-- results:end -->")
PROJECT_MARKERS = ("<!-- results:01_faithful -->", "<!-- end:results -->")
LEVEL = 0.01  # nearer than this counts as the same speed
WRONG = 2e-3  # norm-wise relative error beyond which a result is wrong, as in run.py


def newest(path):
    """{(shape, m): row}; SystemExit if there is none."""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        row = json.loads(line)
        if (
            row["kernel"] == "ampere"
            and row["compiler"] == "numba-cuda"
            and row.get("chosen", True)
        ):
            rows[row["shape"], row["m"]] = row
    if not rows:
        raise SystemExit(
            f"{path} holds no results: run `python experiments/01_faithful/run.py measure` on a GPU"
            " first"
        )
    return rows


def original(row, published):
    """The CUDA original: (its time in us or None, its speed-up over cuBLAS or None, measured in the
    same rounds)."""
    if "marlin_cuda_us" in row:
        return row["marlin_cuda_us"], row["cublas_us"] / row["marlin_cuda_us"], True
    return None, published[row["shape"]].get(row["m"]), False


def ratio(row, published):
    """How many times faster than the CUDA original this kernel is; None where that was never
    measured."""
    us, speedup, measured = original(row, published)
    return us / row["us"] if measured else row["speedup"] / speedup if speedup else None


def table(rows, shapes, published):
    lines = [
        (
            "| k x n | m | this kernel | TB/s | TFLOP/s | cuBLAS fp16 | speed-up over cuBLAS |"
            " Marlin CUDA | its speed-up | ours : its |"
        ),
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for label, (k, n) in shapes.items():
        first = True
        for row in (
            row
            for (shape, _), row in sorted(rows.items(), key=lambda item: item[0][1])
            if shape == label
        ):
            us, speedup, measured = original(row, published)
            theirs = "" if speedup is None else f"{speedup:.2f}" if measured else f"*{speedup:.2f}*"
            times = ratio(row, published)
            lines.append(
                f"| {f'{k} x {n}' if first else ''} | {row['m']} | {row['us']:.1f} us |"
                f" {row['tb_per_s']:.2f} | {row['tflops']:.0f} | {row['cublas_us']:.1f} us |"
                f" **{row['speedup']:.2f}** | {f'{us:.1f} us' if measured else ''} | {theirs} |"
                f" {'' if times is None else f'{times:.2f}'} |"
            )
            first = False
    return "\n".join(lines)


def summary(rows, published):
    """What the table says, in sentences: how many cells are ahead, level and behind, and what has
    to be known about them."""
    times = [each for each in (ratio(row, published) for row in rows.values()) if each is not None]
    lines = []
    if times:
        ahead, behind = (
            sum(each > 1 + LEVEL for each in times),
            sum(each < 1 - LEVEL for each in times),
        )
        lines.append(
            f"Beside the CUDA original, in {len(times)} cells: faster in {ahead}, within"
            f" {LEVEL:.0%} in {len(times) - ahead - behind}, slower in {behind} "
            f'("ours : its": {min(times):.2f} to {max(times):.2f}, above 1 is faster).'
        )
    if any(
        not original(row, published)[2] and original(row, published)[1] for row in rows.values()
    ):
        lines.append(
            "Italics: an earlier run of the same protocol on an H200, not the same rounds."
        )
    wrong = [
        f"{row['shape']} m={row['m']} ({row['marlin_cuda_relative_error']:.1e})"
        for row in rows.values()
        if not row.get("marlin_cuda_relative_error", 0) < WRONG
    ]
    if wrong:
        lines.append(
            f"The CUDA original's own result was off by more than {WRONG:g} (norm-wise) in:"
            f" {', '.join(wrong)}."
        )
    return " ".join(lines)


def plot(rows, shapes, published, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex=True, sharey=True)
    for axis, (label, (k, n)) in zip(axes.flat, shapes.items()):
        cells = sorted((m, row) for (shape, m), row in rows.items() if shape == label)
        axis.axhline(1, color="0.5", linewidth=0.9)
        axis.axhline(16 / 4.125, color="0.5", linewidth=0.9, linestyle=":")
        theirs = [
            (m, original(row, published)[1]) for m, row in cells if original(row, published)[1]
        ]
        if theirs:
            axis.plot(
                *zip(*theirs), "s--", color="tab:orange", label="Marlin, CUDA C++", markersize=5
            )
        if cells:
            axis.plot(
                [m for m, _ in cells],
                [row["speedup"] for _, row in cells],
                "o-",
                color="tab:blue",
                label="this kernel, Python",
                markersize=4,
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 16, 64, 256, 1024, 4096], ["1", "16", "64", "256", "1k", "4k"])
        axis.set_title(f"k={k}, n={n}", fontsize=10)
        axis.set_ylim(0, 4.1)
        axis.grid(color="0.92")
        axis.set_axisbelow(True)
    axes[0, 0].legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.92))
    for axis in axes[1]:
        axis.set_xlabel("batch size m")
    for axis in axes[:, 0]:
        axis.set_ylabel("times as fast as cuBLAS fp16")
    device = next(iter(rows.values()))["device"]
    figure.suptitle(
        f"FP16 x INT4, groups of 128, cold L2, {device} (dotted: 3.88, the ratio of the weights'"
        " bytes)",
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(results, readme, project_readme, picture, shapes, published):
    """Write both tables and the plot; prints the table. All arguments but the last two are
    paths."""
    rows = newest(results)
    plot(rows, shapes, published, picture)
    text = table(rows, shapes, published)
    for path, markers in ((readme, HERE_MARKERS), (project_readme, PROJECT_MARKERS)):
        image = f"![Speed-up over cuBLAS by batch size]({os.path.relpath(picture, path.parent)})"
        replace_between(
            path,
            markers,
            "\n\n".join(
                [
                    each
                    for each in (text, summary(rows, published), origin(rows.values()), image)
                    if each
                ]
            ),
        )
    print(text)
