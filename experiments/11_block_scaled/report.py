"""Writes the tables of this README, between their markers, from results.jsonl. The newest row of a
cell counts."""

import json
from pathlib import Path

from cells import EPILOGUES, FEW, LARGE, LAYERS
from variants import VARIANTS

from numba_marlin.bench import rows as rows_module
from numba_marlin.bench.tables import clocks, markdown, origin, replace_between
from numba_marlin.kernels.nvfp4.block_decode.choose import choose_few_rows

HERE = Path(__file__).resolve().parent
MARKERS = {
    part: (f"<!-- {part}:begin -->", f"<!-- {part}:end -->")
    for part in ("speed", "few", "roles", "epilogues", "tried", "arrangements")
}
PLAIN = {"result": "float16", "source": False, "bias": False, "activation": None}
EPILOGUE_FIELDS = tuple(PLAIN)


def newest(rows):
    """{(shape, kernel or what is left of it, epilogue as text): row}"""
    found = {}
    for row in rows:
        if row["part"] not in VARIANTS:  # one of earlier kernels
            continue
        epilogue = json.dumps({name: row["config"][name] for name in EPILOGUE_FIELDS})
        found[
            (row["m"], row["n"], row["k"]),
            row["kernel"] if row["part"] == "whole" else row["part"],
            epilogue,
        ] = row
    return found


def key_of(epilogue=None):
    return json.dumps(PLAIN | (epilogue or {}))


def speed_table(found):
    lines = []
    for shape in (*LARGE, *LAYERS):
        row = found.get((shape, "block_scaled", key_of()))
        if row:
            config = row["config"]
            lines.append(
                [
                    " x ".join(map(str, shape)),
                    f"{config['tile_m']} x {config['tile_n']}",
                    f"{row['us']:.1f}",
                    f"{row['tflops']:.0f}",
                    f"{row['cublas_us']:.1f}",
                    f"{row['speedup']:.3f}",
                ]
            )
    return markdown(
        ["m x n x k", "tile", "us", "TFLOP/s", "cuBLAS fp16, us", "speed-up"], lines, left=2
    )


def few_table(found):
    """TB/s: of B's codes and scales."""
    lines = []
    for shape in FEW:
        row, other = (
            found.get((shape, kernel, key_of())) for kernel in ("block_decode", "block_scaled")
        )
        if row:
            m, n, k = shape
            config = row["config"]
            lines.append(
                [
                    f"{n} x {k}",
                    str(m),
                    f"{config['tokens']} tokens, k by {config['k_warps']} x {config['split']}",
                    f"{row['us']:.1f}",
                    f"{n * k * 9 / 16 / row['us'] / 1e6:.2f}",
                    f"{row['cublas_us']:.1f}",
                    f"{row['speedup']:.2f}",
                    f"{other['us']:.1f}" if other else "",
                ]
            )
    return markdown(
        [
            "n x k",
            "m",
            "block_decode",
            "us",
            "TB/s",
            "cuBLAS fp16, us",
            "speed-up",
            "block_scaled, us",
        ],
        lines,
        left=3,
    )


def tried_table(rows):
    """Table of kernel variants that were measured once, each compared with others in the same run,
    and no longer exist."""
    lines = [
        [
            row["what"],
            " x ".join(str(row[name]) for name in "mnk"),
            f"{row['us']:.1f}",
            f"{row['cublas_us']:.1f}",
            f"{row['speedup']:.3f}",
        ]
        for row in rows
    ]
    return markdown(["what", "m x n x k", "us", "cuBLAS fp16, us", "speed-up"], lines, left=2)


def arrangements_line(rows):
    """Return how far the chosen arrangement is from the best, by (m, n, k). If the chosen one was
    not measured, one with another number of stages represents it."""
    measured = {}
    for row in rows:
        measured.setdefault((row["m"], row["n"], row["k"]), []).append(
            (row["us"], (row["config"]["k_warps"], row["config"]["split"]), row["config"]["stages"])
        )
    losses = {}
    for (m, n, k), found in measured.items():
        chosen = choose_few_rows(m, n, 132)
        same = [
            (stages != chosen.stages, us)
            for us, arrangement, stages in found
            if arrangement == (chosen.k_warps, chosen.split)
        ]
        losses[m, n, k] = min(same)[1] / min(found)[0] - 1
    worst = max(losses, key=losses.get)
    return (
        f"Of {len(losses)} shapes with k = 8192 and n from {min(n for _, n, _ in losses)} to"
        f" {max(n for _, n, _ in losses)}, all arrangements measured, the chosen one is"
        f" {losses[worst]:.0%} slower than the best at most (m = {worst[0]}, n = {worst[1]}), and"
        f" within 9.5% in {sum(loss <= 0.095 for loss in losses.values())}."
    )


def roles_table(found):
    lines = []
    for part in VARIANTS:
        row = found.get((LARGE[1], "block_scaled" if part == "whole" else part, key_of()))
        if row:
            tiles = -(-row["m"] // row["config"]["tile_m"]) * -(
                -row["n"] // row["config"]["tile_n"]
            )
            lines.append(
                [
                    part,
                    f"{row['us']:.0f}",
                    f"{row['us'] * 1e3 / (-(-tiles // 132) * row['k'] / 128):.0f}",
                ]
            )
    return markdown(["what is left of the kernel", "us", "ns for 128 of k"], lines)


def epilogue_table(found):
    plain = found.get((LARGE[0], "block_scaled", key_of()))
    lines = []
    for epilogue in ({}, *EPILOGUES):
        row = found.get((LARGE[0], "block_scaled", key_of(epilogue)))
        if row and plain:
            lines.append(
                [
                    ", ".join(f"{name} {value}" for name, value in epilogue.items()) or "float16",
                    f"{row['us']:.1f}",
                    f"{100 * (row['us'] / plain['us'] - 1):+.1f}%",
                ]
            )
    return markdown(["epilogue", "us", "beside float16"], lines)


def show(rows):
    found = newest(rows)
    return {
        "speed": "\n\n".join([speed_table(found), clocks(found.values()), origin(found.values())]),
        "few": few_table(found),
        "roles": roles_table(found),
        "epilogues": epilogue_table(found),
        "tried": tried_table(rows_module.read(HERE / "tried.jsonl")),
        "arrangements": arrangements_line(rows_module.read(HERE / "arrangements.jsonl")),
    }


def write(results, readme):
    for part, text in show(rows_module.read(results)).items():
        replace_between(readme, MARKERS[part], text)
        print(text)
