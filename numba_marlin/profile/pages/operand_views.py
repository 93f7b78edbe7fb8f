"""Views of a profile's data: how a word of weights is packed, and the work of the tensor cores."""

from __future__ import annotations

from numba_marlin.views import Bar, Bars, BitRow, Bits, Cell, Facts, Grid, Section, Table

MOST_DRAWN = 64  # rows or columns of a drawing of the matrix


def packing(data: dict) -> Section:
    word = data["word"]
    if word is None:
        return Section(
            "packing",
            "Packing",
            (
                (
                    "Not shown, because this weight is padded to whole blocks or has float zero"
                    " points: numba-marlin unpack shows words of any format."
                ),
            ),
        )
    names = [f"code {number}" for number in range(len(word["codes"]))]
    kinds = [""] * word["bits"]
    for name, each in zip(names, word["codes"]):
        kinds[word["bits"] - 1 - each["high"] : word["bits"] - each["low"]] = [name] * (
            each["high"] - each["low"] + 1
        )
    rows = tuple(
        (
            Cell(name, name),
            f"{each['high']}-{each['low']}",
            str(each["code"]),
            str(each["k"]),
            str(each["n"]),
            *(() if "element" in word else (f"{each['zero']:g}",)),
            f"{each['scale']:.6g}",
            f"{each['value']:.6g}",
        )
        for name, each in zip(names, word["codes"])
    )
    note = (
        "In Marlin's order the codes of a word are those that one lane multiplies, which are not"
        " neighbours in the weight. `numba-marlin unpack` decodes any word of any format."
    )
    if "element" in word:
        note = (
            "Codes are side by side along k, the first in the lowest bits. Each is a number of type"
            f" {word['element']}, multiplied by the scale of its block and the matrix's global"
            " scale. `numba-marlin trace --phase unpack` follows a word through the kernel."
        )
    return Section(
        "packing",
        "Packing",
        (note,),
        (
            Bits(
                (BitRow("word", word["value"], word["bits"], tuple(kinds)),),
                title=(
                    f"The first word of {'B' if 'element' in word else 'the weights'} that ran,"
                    f" {word['hex']}"
                ),
                source="recorded",
            ),
            Table(
                (
                    "",
                    "bits",
                    "code",
                    "k",
                    "n",
                    *(() if "element" in word else ("- zero",)),
                    "x scale",
                    "= value",
                ),
                rows,
                title="What it holds",
                source="recorded",
            ),
            *where_they_go(word, names),
        ),
    )


def where_they_go(word: dict, names: list[str]) -> tuple[Grid, ...]:
    """Draw where a word's codes belong in the matrix: whole steps of 16 along k and n. Nothing if
    they are too far apart to draw."""
    codes = word["codes"]
    first_k, first_n = (min(each[axis] for each in codes) // 16 * 16 for axis in ("k", "n"))
    rows, columns = (
        max(each[axis] for each in codes) // 16 * 16 + 16 - first
        for axis, first in (("k", first_k), ("n", first_n))
    )
    if max(rows, columns) > MOST_DRAWN:
        return ()
    at = {(each["k"] - first_k, each["n"] - first_n): number for number, each in enumerate(codes)}

    def cell(place: tuple[int, int]) -> Cell:
        if place not in at:
            return Cell(".", tone="dim")
        each = codes[at[place]]
        return Cell(str(at[place]), names[at[place]], "", f"k {each['k']}, n {each['n']}")

    grid = Grid(
        tuple(tuple(cell((row, column)) for column in range(columns)) for row in range(rows)),
        tuple(f"k {first_k + row}" for row in range(rows)),
        tuple(str(first_n + column) for column in range(columns)),
        "n",
        title="Where its codes belong in the matrix",
        source="recorded",
        note=(
            "A number is that of the code in the word, 0 in its lowest bits. The dots are the codes"
            " of other words."
        ),
    )
    return (grid,)


def tensor(data: dict) -> Section:
    counts, rates, time = data["counts"], data["rates"], data["time"]
    if not counts["flops"]:
        return Section("tensor", "Tensor cores", ("This kernel does not use them.",))
    useful, bits = rates["flops"], data.get("tensor_bits", 16)
    source = time["source"]
    sample = (data["state"].get("samples") or [{}])[-1]
    bars = []
    if rates["tensor_share"] is not None:
        bars.append(
            Bar(
                "issued, of the ceiling",
                rates["tensor_share"],
                f"{rates['tensor_share']:.1%}: {counts['flops'] / time['us'] / 1e6:.1f} of"
                f" {data['ceilings']['matrix_flops'] / 1e12:.0f} TFLOP/s",
                "",
                1.0,
            )
        )
        bars.append(
            Bar(
                "useful, of the ceiling",
                rates["compute_share"],
                f"{rates['compute_share']:.1%}",
                "",
                1.0,
            )
        )
    if "tensor" in sample:
        bars.append(
            Bar(
                "active, by NVML's GPM",
                sample["tensor"] / 100,
                f"{sample['tensor']:.0f}% of the time (measured)",
                "",
                1.0,
            )
        )
    facts = Facts(
        (
            (
                "instructions",
                (
                    f"{counts['tensor_instructions']:,} of {counts['instructions']:,} warp"
                    " instructions"
                ),
                "counted",
            ),
            ("operations", f"{counts['flops']:,}", "counted"),
            ("of which useful", f"{useful / counts['flops']:.0%}: 2 m n k = {useful:,}", "counted"),
            (
                "ceiling",
                (
                    f"{(data['ceilings']['matrix_flops'] or 0) / 1e12:.0f} TFLOP/s,"
                    f" {'fp16' if bits == 16 else f'{bits}-bit operands'}"
                    if data["ceilings"]["matrix_flops"]
                    else "not known"
                ),
                data["ceilings"]["source"],
            ),
            *(
                (
                    (
                        "by GPM",
                        (
                            "not known: " + data["state"].get("missing", {}).get("tensor", "no GPU")
                            if isinstance(data["state"].get("missing"), dict)
                            else "not known: no GPU was used"
                        ),
                    ),
                )
                if "tensor" not in sample
                else ()
            ),
        ),
        title="Work",
    )
    blocks = [len(row["blocks"]) for row in data["placement"]["rows"]]
    each = counts["flops"] / data["launch"]["blocks"]
    spread = Facts(
        (
            ("an average block", f"{each / 1e6:.1f} MFLOP", "counted"),
            (
                "the fullest SM",
                f"{max(blocks)} block(s), {max(blocks) * each / 1e6:.1f} MFLOP",
                data["placement"]["source"],
            ),
            (
                "SMs with work",
                f"{len(blocks)} of {data['placement']['sms']}",
                data["placement"]["source"],
            ),
        ),
        title="By SM",
    )
    return Section(
        "tensor",
        "Tensor cores",
        (),
        ((Bars(tuple(bars), title="Activity", source=source),) if bars else ()) + (facts, spread),
    )
