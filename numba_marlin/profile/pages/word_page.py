"""The page of words of packed codes (``words``): the layer, each word bit by bit, and the part of
the weight around it."""

from __future__ import annotations

from numba_marlin.profile.sources.words import Layer, Word
from numba_marlin.views import BitRow, Bits, Cell, Facts, Grid, Page, Section, Step, Table

ROWS, COLUMNS = 16, 16  # size of the part of the weight that is shown around a word


def page(
    layer: Layer, words: tuple[Word, ...], source: str, chosen: tuple[int, int] | None = None
) -> Page:
    """Build the page. source: the name of the layer's file; chosen: (k, n) of the requested code,
    which is marked with an arrow."""
    tensor = words[0].tensor
    form, geometry = layer.form, layer.geometry
    groups = "one scale per column" if geometry.group == -1 else f"groups of {geometry.group}"
    array = layer.tensors[tensor]
    facts = Facts(
        (
            ("format", f"{form.name}: {form.title}"),
            ("layer", f"{source}: k={geometry.k}, n={geometry.n}, {geometry.bits} bits, {groups}"),
            (
                "tensors",
                ", ".join(
                    f"{name} {each.dtype} {list(each.shape)}"
                    for name, each in layer.tensors.items()
                ),
            ),
            (
                "shown",
                f"{tensor}, {array.shape[0]} x {array.shape[1]} words of {words[0].bits} bits",
            ),
            ("layout from", form.source),
        )
    )
    steps = tuple(Step(title_of(word), tuple(parts(layer, word, chosen))) for word in words)
    notes = (
        (
            "Bit 0 is the lowest. The bits of a code follow from the format's closed form; they are"
            " compared with what the format's own reader finds."
        ),
    )
    return Page(
        f"Packed codes of format {form.name}",
        (
            Section("word", "Word by word", notes, (), steps),
            Section("layer", "The layer", (), (facts,)),
        ),
    )


def title_of(word: Word) -> str:
    return f"{word.tensor}[{word.row}, {word.column}] = {word.value:#0{2 + word.bits // 4}x}"


def parts(layer: Layer, word: Word, chosen: tuple[int, int] | None) -> list:
    names = [f"code {number}" for number in range(len(word.fields))]
    kinds = [""] * word.bits
    for name, field in zip(names, word.fields):
        kinds[word.bits - 1 - field.high : word.bits - field.low] = [name] * field.width
    found = [
        Bits(
            (BitRow("word", word.value, word.bits, tuple(kinds)),),
            title=f"Bits {word.bits - 1} to 0",
        )
    ]
    found.append(table(layer, word, names, chosen))
    if layer.is_codes(word.tensor):
        found.append(grid(layer, word, names))
    if word.holder is not None:
        found.append(registers(word, names))
    return found


def table(layer: Layer, word: Word, names: list[str], chosen: tuple[int, int] | None) -> Table:
    codes = layer.is_codes(word.tensor)
    whole = all(field.width == layer.geometry.bits for field in word.fields)
    permuted = any(field.row != field.k for field in word.fields)
    integers = layer.plain is not None
    heads = [
        "",
        "bits",
        "binary",
        *(() if whole else ("of the code",)),
        "code",
        "k" if codes else "group",
        "n",
    ]
    heads += (
        [
            *(("row",) if permuted else ()),
            *(("- zero", "x scale") if integers else ("number", "x scale")),
            "= value",
        ]
        if codes
        else ["zero point"]
    )
    rows = []
    for name, field in zip(names, word.fields):
        seen = word.value >> field.low & (1 << field.width) - 1
        asked = (field.k, field.n) == chosen
        key = f"{field.k},{field.n}"
        cells = [
            Cell(name + " <-" * asked, name, "hot" * asked, key=key),
            f"{field.high}-{field.low}",
            Cell(f"{seen:0{field.width}b}", name, key=key),
        ]
        if not whole:
            cells.append(
                f"bits {field.skip + field.width - 1}-{field.skip}"
                + ("" if field.width == layer.geometry.bits else " *")
            )
        cells += [str(field.code) + ("" if field.agrees else " WRONG"), str(field.k), str(field.n)]
        if codes:
            cells += [str(field.row)] if permuted else []
            cells += [
                (
                    f"{field.zero:g}"
                    if integers
                    else f"{field.value / field.scale:g}"
                    if field.scale
                    else "0"
                ),
                f"{field.scale:.6g}",
                f"{field.value:.6g}",
            ]
        else:
            cells.append(f"{field.value:g}" if field.value is not None else "")
        rows.append(tuple(cells))
    note = "" if whole else "* the rest of this code's bits are in a neighbouring word."
    return Table(tuple(heads), tuple(rows), title="What they mean", note=note)


def grid(layer: Layer, word: Word, names: list[str]) -> Grid:
    """Draw the codes around the word in hexadecimal, with those of the word highlighted."""
    matrix = layer.unpacked(word.tensor)
    mine = {(field.k, field.n): name for name, field in zip(names, word.fields)}
    first_k = min(k for k, _ in mine) // ROWS * ROWS
    first_n = min(n for _, n in mine) // COLUMNS * COLUMNS
    last_k = max(first_k + ROWS, max(k for k, _ in mine) + 1)
    last_n = max(first_n + COLUMNS, max(n for _, n in mine) + 1)
    ks, ns = (
        range(first_k, min(last_k, matrix.shape[0])),
        range(first_n, min(last_n, matrix.shape[1])),
    )
    digits = 1 if layer.geometry.bits <= 4 else 2
    cells = tuple(
        tuple(
            Cell(
                f"{matrix[k, n]:0{digits}x}",
                mine.get((k, n), ""),
                "hot" if (k, n) in mine else "dim",
                f"k={k} n={n}: code {matrix[k, n]}",
                f"{k},{n}",
            )
            for n in ns
        )
        for k in ks
    )
    return Grid(
        cells,
        tuple(f"k {k}" for k in ks),
        tuple(str(n) for n in ns),
        "n",
        title="Where they are in the weight (codes in hexadecimal)",
    )


def registers(word: Word, names: list[str]) -> Table:
    lane, number, places = word.holder
    rows = []
    for name, field, (tile, register, half) in zip(names, word.fields, places):
        rows.append(
            (
                Cell(name, name, key=f"{field.k},{field.n}"),
                f"{tile}",
                f"b{register}",
                ("low", "high")[half],
                f"{field.k % 16}",
                f"{field.n % 8}",
            )
        )
    return Table(
        ("", "n8 tile of the block", "register of B", "half", "k in the fragment", "n in it"),
        tuple(rows),
        title=f"Dequantised by lane {lane}, its word {number}",
        note=(
            "B of mma.m16n8k16:"
            " https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"
        ),
    )
