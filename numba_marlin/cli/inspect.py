"""``numba-marlin inspect``: the contents of a checkpoint, from its headers alone; ``--data`` also
reads every layer and checks its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from numba_marlin.wording import natural_order

HELP = "show what a quantised checkpoint holds, and check it"
EXAMPLES = """  numba-marlin inspect llama-gptq/
  numba-marlin inspect model.safetensors --layers --data --json"""
_NAMES_SHOWN = 3  # of layers of which the same is said


def add_arguments(parser) -> None:
    parser.add_argument("source", metavar="SRC", help="a .safetensors file, or a directory of them")
    parser.add_argument("--layers", action="store_true", help="list every layer")
    parser.add_argument("--data", action="store_true", help="read all layers, not only the headers")
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        help=(
            "also say whether each layer would convert to this format without loss (reads all"
            " layers)"
        ),
    )


def execute(args, report) -> bool:
    from numba_marlin.checkpoints import load_checkpoint
    from numba_marlin.formats.files import find_stored

    target = None if args.to is None else find_stored(args.to)
    checkpoint = load_checkpoint(args.source)
    source = checkpoint.source
    nbytes = sum(file.size for file in source.files.values())
    report.row(
        "files",
        f"{args.source}: {len(source.files)} file(s), {len(source.entries)} tensors, {nbytes:,}"
        " bytes",
    )
    rows = [
        described(checkpoint.layers[name], source)
        for name in sorted(checkpoint.layers, key=natural_order)
    ]
    for (form, bits, group), number in Counter(
        (row["format"], row["bits"], row["group_size"]) for row in rows
    ).items():
        weights = sum(
            row["k"] * row["n"]
            for row in rows
            if (row["format"], row["bits"], row["group_size"]) == (form, bits, group)
        )
        groups = "one scale per column" if group == -1 else f"groups of {group}"
        report.row(
            "layers", f"{number} of format {form}, {bits} bits, {groups}: {weights:,} weights"
        )
    others = sum(source.entries[name].nbytes for name in checkpoint.others)
    report.row(
        "others",
        (
            f"{len(checkpoint.others)} tensors, {others:,} bytes"
            if rows
            else (
                f"{len(checkpoint.others)} tensors, {others:,} bytes; no quantised layer of a known"
                " format"
            )
        ),
    )
    said = source.quantization.get("quant_method")
    report.row("says", f"quant_method {said}" if said else "nothing about how it was quantised")
    for each in source.contradictions():
        report.row("believed", each)
    bad: list[tuple[str, str]] = []
    if args.data or target is not None:
        bad = _read(checkpoint, rows, target)
        report.row(
            "data",
            "every layer was read"
            if not bad
            else "\n".join(f"- {names}: {text}" for text, names in each_once(bad).items()),
        )
    if args.layers:
        for row in rows:
            name = row["name"] if row["name"].isprintable() else repr(row["name"])
            report.row(
                "layer",
                f"{name}: {row['format']}, {row['k']} x {row['n']}, {row['bits']} bits, groups of"
                f" {row['group_size']}",
            )
    report.data = {
        "path": str(args.source),
        "files": list(source.files),
        "bytes": nbytes,
        "layers": rows,
        "other_tensors": len(checkpoint.others),
        "other_bytes": others,
        "quant_method": said,
        "contradictions": source.contradictions(),
        "problems": [f"{name}: {text}" for name, text in bad],
    }
    return not bad


def described(layer, source) -> dict:
    geometry = layer.geometry
    nbytes = sum(source.entries[name].nbytes for name in layer.tensors.values())
    return {
        "name": layer.name,
        "format": layer.form.name,
        "k": geometry.k,
        "n": geometry.n,
        "bits": geometry.bits,
        "group_size": geometry.group,
        "scale_dtype": geometry.scale_dtype,
        "tensors": sorted(layer.tensors),
        "bytes": nbytes,
        "bits_per_weight": 8 * nbytes / (geometry.k * geometry.n),
    }


def each_once(problems: Iterable[tuple[str, str]]) -> dict[str, str]:
    """{what is said: the layers that it is said of, the first few by name}"""
    layers: dict[str, list[str]] = {}
    for name, text in problems:
        layers.setdefault(text, []).append(name)
    return {
        text: ", ".join(names[:_NAMES_SHOWN])
        + (f", ... ({len(names)} layers)" if len(names) > _NAMES_SHOWN else "")
        for text, names in layers.items()
    }


def _read(checkpoint, rows: list[dict], target) -> list[tuple[str, str]]:
    """Return (layer, text) for errors in values, and for what would be lost in format
    ``target``."""
    from numba_marlin.cli.progress import bar

    problems, done, total = [], 0, sum(row["bytes"] for row in rows)
    with bar("reading", "bytes", least=1.0) as advance:
        for row in rows:
            advance(done, total, row["name"])
            try:
                weight = checkpoint[row["name"]]
                if target is not None:
                    row["losses"] = list(target.losses(weight))
                    problems += [(row["name"], loss) for loss in row["losses"]]
            except ValueError as error:
                problems.append((row["name"], str(error)))
            done += row["bytes"]
        advance(done, total, "")
    return problems
