"""Writes the tables of this README from results.jsonl. The newest row of every variant counts."""

import json
from pathlib import Path

from numba_marlin.bench.tables import markdown, replace_between

HERE = Path(__file__).resolve().parent
RESULTS, README = HERE / "results.jsonl", HERE / "README.md"
ORDER = ("int8", "int4", "int4, zero points", "nvfp4", "mxfp4")
METHODS = ("rtn", "mse", "gptq", "gptq, act order", "gptq, calibrated on the bible")


def newest(path=RESULTS) -> list[dict]:
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        row = json.loads(line)
        rows[row["numbers"], row["method"], row["group_size"]] = row
    return list(rows.values())


def place(row: dict) -> tuple:
    """Where a variant stands in the table: coarse groups first, then the better methods."""
    size = row["group_size"]
    return ORDER.index(row["numbers"]), size > 0, -size, METHODS.index(row["method"])


def groups(row: dict) -> str:
    size = row["group_size"]
    what = "blocks" if "fp4" in row["numbers"] else "groups"
    return "a scale per column" if size == -1 else f"{what} of {size}"


def models(rows) -> str:
    lines = [
        [
            row["numbers"],
            groups(row),
            row["method"],
            f"{row['bits_per_weight']:.3f}",
            f"{row['output_error_calibration']:.2%}",
            f"{row['output_error']:.2%}",
            *(
                cell
                for name in ("reference", "bible")
                for cell in (
                    f"{row[name]['cosine']:.4f}",
                    f"{row[name]['cosine_min']:.3f}",
                    f"{row[name]['spearman']:.4f}",
                    f"{10 * row[name]['neighbours']:.1f}",
                )
            ),
        ]
        for row in sorted(rows, key=place)
    ]
    header = ["numbers", "scales", "method", "bits a weight", "outputs, calibrated", "held out"]
    for name in ("Python", "bible"):
        header += [f"{name}: cosine", "worst", "rank", "of 10"]
    return markdown(header, lines, left=3)


def agreement(rows) -> str:
    """What transformers reads, and what our layers serve: the worst of all variants."""
    types = sorted({str(row["agreement"]["rounded_to"]) for row in rows})
    before, after = (
        max(row["agreement"][name] for row in rows) for name in ("largest_difference", "unrounded")
    )
    return (
        f"{len(rows)} directories. transformers' weights are ours, rounded to {' or '.join(types)}:"
        f" bit for bit. Largest difference of an element of an embedding: {before:.1e}; with our"
        f" numbers unrounded in transformers' model {after:.1e}."
    )


def origin(rows) -> str:
    runs = {}
    for row in rows:
        versions = row["versions"] | row["packages"]
        said = ", ".join(f"{name} {version}" for name, version in versions.items())
        runs[
            f"Measured {row['date']} on {row['device']}; {said}; model.safetensors"
            f" {row['model_sha256'][:16]}; commit {row['commit']}."
        ] = None
    return "\n".join(runs)


def main():
    rows = newest()
    for name, body in (
        ("models", f"{origin(rows)}\n\n{models(rows)}"),
        ("agreement", agreement(rows)),
    ):
        replace_between(README, (f"<!-- {name}:begin -->", f"<!-- {name}:end -->"), body)


if __name__ == "__main__":
    main()
