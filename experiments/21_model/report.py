"""Writes the tables of README.md: predictions, which need no rows, and results, from the newest row
of each cell.

    python experiments/21_model/report.py [DIRECTORY]   # of results.jsonl; default: this folder

DIRECTORY's rows are added to this folder's first.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import prediction
from sizes import LLAMA_8B, LLAMA_70B, MIXTURES

from numba_marlin.bench.tables import clocks, markdown, origin, replace_between

PREDICTED = ("<!-- prediction:begin -->", "<!-- prediction:end -->")
RESULTS = ("<!-- results:begin -->", "<!-- results:end -->")
BATCHES = (1, 4, 16, 64)
CONTEXT, TOKENS = 256, 2048
GOALS = {  # part -> rows of x -> how many times fp16
    "decode": {1: 2.6, 16: 2.2, 64: 1.4},
    "prefill": {TOKENS: 0.98},
}
DIVIDED_GOALS = {1: 1.7, 16: 1.7}  # on two GPUs, times one
LOAD_GOAL = 2.0  # GB/s, or the disk's own
CELL = ("part", "what", "shape", "contender", "where", "glue", "m", "context", "mode")
OTHERS = ("format", "state", "threads", "packed_on", "layer", "gpus")


def newest(rows) -> dict:
    """{cell: its last row}. The first rows of loading do not say that they were packed on the
    host, those of ``between`` not what glue and that it was one GPU's."""
    usual = {"packed_on": "host", "glue": "plain", "gpus": 1}
    return {tuple((usual | row).get(name) for name in (*CELL, *OTHERS)): row for row in rows}


def ms(us: float | None) -> str:
    return "" if us is None else f"{us / 1e3:.2f}"


def goal(value: float | None, wanted: float | None) -> str:
    """A speed-up, bold where the goal, in brackets, is reached."""
    if value is None or wanted is None:
        return "" if value is None else f"{value:.2f}"
    return f"{f'**{value:.2f}**' if value >= wanted else f'{value:.2f}'} ({wanted})"


# ---- predictions


def predicted() -> str:
    one = [["8B decode", str(m), *_cells(LLAMA_8B, m), goal_only("decode", m)] for m in BATCHES] + [
        ["70B decode", str(m), *_cells(LLAMA_70B, m), ""] for m in BATCHES
    ]
    found = [prediction.prefill(LLAMA_8B, TOKENS, kind) for kind in ("fp16", "int4")]
    one.append(["8B prefill", str(TOKENS), *_both(*found), "", goal_only("prefill", TOKENS)])
    header = ["", "m", "fp16 floor", "fp16 expected", "int4 floor", "int4 expected"]
    header += ["speed-up expected", "with fp16 logits", "goal"]
    two = []
    for m in BATCHES:
        alone = prediction.step(LLAMA_70B, m, CONTEXT, "int4")
        line = [str(m), ms(alone.expected * 1e6)]
        for how in prediction.REDUCE:
            shared = prediction.divided(LLAMA_70B.on(2), m, CONTEXT, "int4", how)
            line += [ms(shared.expected * 1e6), f"{alone.expected / shared.expected:.2f}"]
        two.append([*line, f"{DIVIDED_GOALS[m]}" if m in DIVIDED_GOALS else ""])
    names = [text for how in prediction.REDUCE for text in (f"two, {how}", "times")]
    return "\n\n".join(
        [
            "One GPU, ms:",
            markdown(header, one),
            "70B at 4 bits on one and two GPUs, ms:",
            markdown(["m", "one", *names, "goal"], two),
            "A block with a mixture of experts on one GPU, us:",
            predicted_mixtures(),
        ]
    )


def predicted_mixtures() -> str:
    header = ["", "m", "bf16 floor", "bf16 expected", "packed floor", "packed expected"]
    header.append("speed-up expected")
    lines = []
    for shape in MIXTURES:
        for what, m, context in (
            *(("decode", m, CONTEXT) for m in BATCHES),
            ("prefill", TOKENS, TOKENS),
        ):
            dense, packed = (
                prediction.mixture(shape, m, context, kind, what) for kind in ("bf16", shape.kind)
            )
            times = [dense.floor, dense.expected, packed.floor, packed.expected]
            lines.append(
                [
                    f"{shape.name} {what}",
                    f"{m}",
                    *(f"{each * 1e6:.0f}" for each in times),
                    f"{dense.expected / packed.expected:.2f}",
                ]
            )
    return markdown(header, lines)


def goal_only(part: str, m: int) -> str:
    wanted = GOALS[part].get(m)
    return "" if wanted is None else f"{wanted}"


def _both(dense, packed) -> list[str]:
    times = [each * 1e6 for each in (dense.floor, dense.expected, packed.floor, packed.expected)]
    return [*map(ms, times), f"{dense.expected / packed.expected:.2f}"]


def _cells(shape, m: int) -> list[str]:
    dense, packed = (prediction.step(shape, m, CONTEXT, kind) for kind in ("fp16", "int4"))
    mixed = prediction.step(shape, m, CONTEXT, "int4", "fp16")
    return [*_both(dense, packed), f"{dense.expected / mixed.expected:.2f}"]


# ---- results


def results(rows) -> str:
    found = list(newest(rows).values())
    names = (*TABLES, "check", "ceilings")
    parts = {part: [row for row in found if row["part"] == part] for part in names}
    said = [make(parts[part]) for part, make in TABLES.items() if parts[part]]
    if parts["check"]:
        said.insert(0, checked(parts["check"]))
    for row in parts["ceilings"]:
        read, work = row["read_bytes"] / 1e12, row["matrix_flops"] / 1e12
        said.insert(0, f"Ceilings in this run: {read:.2f} TB/s read, {work:.0f} TFLOP/s.")
    return "\n\n".join([*said, clocks(found), origin(found)])


def checked(rows) -> str:
    errors = [row for row in rows if "relative_error" in row]
    replays = [row["equal"] for row in rows if "equal" in row]
    said = []
    if errors:
        most = max(row["relative_error"] for row in errors)
        said.append(
            f"Logits of two layers, {len(errors)} cases: norm-wise error {most:.1e} at most, bound"
            f" {errors[0]['bound']:.0e}"
        )
    if replays:
        said.append(f"replayed steps equal to eager ones: {sum(replays)} of {len(replays)}")
    return "; ".join(said) + "."


def stepped(rows) -> str:
    """Decode and prefill."""
    header = ["", "m", "context", "glue", "contender", "ms", "quartiles", "tokens/s"]
    header += ["x fp16 (goal)", "expected, ms", "floor, ms"]
    lines = []
    for row in sorted(rows, key=lambda row: (row["glue"], row["m"], row["context"])):
        low, high = row["us_spread"]
        wanted = GOALS[row["part"]].get(row["m"]) if row["contender"] == "int4" else None
        lines.append(
            [
                f"{row['shape']} {row['part']}",
                f"{row['m']}",
                f"{row['context']}",
                row["glue"],
                row["contender"],
                ms(row["us"]),
                f"{ms(low)} to {ms(high)}",
                f"{row['tokens_per_s']:,.0f}",
                goal(row.get("speedup"), wanted),
                ms(row.get("expected_us")),
                ms(row.get("floor_us")),
            ]
        )
    return markdown(header, lines)


def divided(rows) -> str:
    header = ["70B", "m", "contender", "ms", "tokens/s", "a block, us", "logits, us", "x fp16"]
    header += ["x one GPU (goal)", "expected, ms", "floor, ms"]
    lines = []
    for row in sorted(rows, key=lambda row: (row["m"], row["gpus"], row["where"])):
        wanted = DIVIDED_GOALS.get(row["m"]) if row["contender"] == "int4" else None
        lines.append(
            [
                row["where"],
                f"{row['m']}",
                row["contender"],
                ms(row["us"]),
                f"{row['tokens_per_s']:,.0f}",
                f"{row['block_us']:.1f}",
                f"{row['head_us']:.1f}",
                goal(row.get("speedup"), None),
                goal(row.get("speedup_over_one_gpu"), wanted),
                ms(row["expected_us"]),
                ms(row["floor_us"]),
            ]
        )
    return markdown(header, lines)


def hosted(rows) -> str:
    header = ["an eager call, m=1, n x k", "mode", "best round, us", "median, us"]
    lines = [
        [
            f"{row['contender']}, {row['n']} x {row['k']}",
            row["mode"],
            f"{row['us_min']:.2f}",
            f"{row['us']:.2f}",
        ]
        for row in rows
    ]
    return markdown(header, lines)


def lone(rows) -> str:
    header = ["", "layer", "k x n", "m", "contender", "in a row, us", "behind a kernel of glue"]
    header.append("us more")
    lines = [
        [
            row["shape"],
            row["layer"],
            f"{row['k']} x {row['n']}",
            f"{row['m']}",
            row["contender"],
            f"{row['us']:.2f}",
            row.get("glue") or "plain",
            f"{row['added_us']:+.2f}",
        ]
        for row in rows
    ]
    return markdown(header, lines)


def loaded(rows) -> str:
    header = [
        "checkpoint",
        "files",
        "layers at once",
        "packed on the",
        "GB/s (goal)",
        "reading the files, GB/s",
    ]
    lines = [
        [
            row["format"],
            {"first": "not cached", "cached": "cached"}[row["state"]],
            f"{row['threads']}",
            row.get("packed_on", "host"),
            goal(row["gb_per_s"], min(LOAD_GOAL, row["disk_gb_per_s"])),
            f"{row['disk_gb_per_s']:.2f}",
        ]
        for row in rows
    ]
    return markdown(header, lines)


def mixed(rows) -> str:
    """Blocks with a mixture of experts."""
    header = ["a block", "m", "experts touched", "glue", "contender", "us", "quartiles", "x bf16"]
    header += ["expected, us", "floor, us"]
    lines = []
    for row in sorted(rows, key=lambda row: (row["shape"], row["glue"], row["m"])):
        low, high = row["us_spread"]
        lines.append(
            [
                f"{row['shape']} {row['what']}",
                f"{row['m']}",
                f"{row['touched']:.1f}",
                row["glue"],
                row["contender"],
                f"{row['us']:.1f}",
                f"{low:.1f} to {high:.1f}",
                goal(row.get("speedup"), None),
                *(
                    f"{row[name]:.0f}" if name in row else ""
                    for name in ("expected_us", "floor_us")
                ),
            ]
        )
    return markdown(header, lines)


def mixed_checked(rows) -> str:
    errors = [max(row["relative_error"], row["bf16_error"]) for row in rows]
    return (
        f"Blocks with a mixture of experts, {len(rows)} cases: norm-wise error"
        f" {max(errors):.1e} at most, bound {rows[0]['bound']:.1e}; replayed calls equal to eager"
        f" ones: {sum(row['equal'] for row in rows)} of {len(rows)}."
    )


def on_machine(rows) -> str:
    """Of the glue in Triton."""
    orders, triton = rows[0]["orders"], rows[0]["triton"]
    said = (
        f"The glue in Triton ({triton}), compiled for sm_90, on the PTX machine: {orders} orders of"
        " warps and blocks each, races looked for, none found. Errors as parts of their bounds, 0"
        " where the result is exact:"
    )
    lines = [[row["contender"], row["what"], f"{row['m']}", f"{row['worst']:.2f}"] for row in rows]
    return f"{said}\n\n{markdown(['kernel', 'case', 'rows', 'largest error'], lines)}"


def missing(rows) -> str:
    return "Left out: " + "; ".join(f"{row['contender']}: {row['left_out']}" for row in rows) + "."


TABLES = {
    "decode": stepped,
    "prefill": stepped,
    "seventy": divided,
    "between": lone,
    "host": hosted,
    "load": loaded,
    "mixture check": mixed_checked,
    "mixture": mixed,
    "glue": on_machine,
    "peer": missing,
}


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(folder: Path = HERE, more: Path | None = None) -> None:
    if more is not None:
        with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in read(more / "results.jsonl"))
    readme = folder / "README.md"
    replace_between(readme, PREDICTED, predicted())
    rows = read(folder / "results.jsonl")
    if rows:
        replace_between(readme, RESULTS, results(rows))


if __name__ == "__main__":
    main(more=Path(sys.argv[1]) if sys.argv[1:] else None)
