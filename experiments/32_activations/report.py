"""results.jsonl -> the tables of README.md. The newest row of every variant counts."""

import json

from numba_marlin.bench.tables import markdown, replace_between

KEY = ("method", "group_size", "smooth", "activations")
ACTIVATIONS = ("16 bits", "int8", "fp8")
# column -> (field, format) of each model
COLUMNS = {
    "synthetic": {
        "outputs": ("output_error", ".2%"),
        "KL, nats a token": ("kl", ".4f"),
        "same next token": ("same_top", ".1%"),
    },
    "sentences": {
        "outputs": ("output_error", ".2%"),
        "cosine": ("cosine", ".4f"),
        "worst": ("cosine_min", ".3f"),
        "rank": ("spearman", ".4f"),
    },
}


def newest(folder, model):
    """{(method, group size, smooth, activations): row}"""
    path = folder / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [row for row in map(json.loads, lines) if row["model"] == model]
    return {tuple(row[name] for name in KEY): row for row in rows}


def table(rows, columns):
    """A line for each weight, plain and smoothed; each column for the three activations."""
    lines = []
    for method, group_size, smooth in dict.fromkeys(key[:3] for key in rows):
        scales = "a scale per column" if group_size == -1 else f"groups of {group_size}"
        line = [method, scales, "smoothed" if smooth else ""]
        for field, form in columns.values():
            for kind in ACTIVATIONS:
                row = rows.get((method, group_size, smooth, kind))
                line.append("" if row is None else f"{row[field]:{form}}")
        lines.append(line)
    header = ["weights of 4 bits", "scales", "x"]
    header += [f"{name}: {kind}" for name in columns for kind in ACTIVATIONS]
    return markdown(header, lines, left=3)


def body(folder, model):
    rows = newest(folder, model)
    if not rows:
        return "Not measured yet."
    origins = {
        f"Measured {row['date']} on {row['device']}; "
        + ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        + f"; commit {row['commit']}."
        for row in rows.values()
    }
    return "\n\n".join([table(rows, COLUMNS[model]), *sorted(origins)])


def write(folder):
    for model in COLUMNS:
        marks = (f"<!-- {model}: begin -->", f"<!-- {model}: end -->")
        replace_between(folder / "README.md", marks, body(folder, model))
