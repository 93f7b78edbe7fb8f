"""Tables and pictures of README.md, from what was counted and measured."""

from ablations import EVERY
from picture import slowdowns, units

from numba_marlin.bench import rows
from numba_marlin.bench.tables import clocks, markdown, origin, replace_between

UNITS = ("copies", "shared", "integer", "fp16", "convert", "tensor", "control")


def markers(name):
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write(folder, results, counted, machine_code):
    """Into README.md of ``folder``, and by-unit.svg and slowdown.svg; what has no rows is left as
    it is."""
    readme = folder / "README.md"
    if results:
        found = list(rows.newest(results).values())
        parts = times_table(found), "![Times as long](slowdown.svg)", clocks(found), origin(found)
        body = "\n\n".join(each for each in parts if each)
        replace_between(readme, markers("table"), body)
        (folder / "slowdown.svg").write_text(slowdowns(found), encoding="utf-8")
    if counted:
        replace_between(readme, markers("counts"), counts_table(counted))
    if machine_code:
        replace_between(readme, markers("sass"), sass_table(machine_code))
        (folder / "by-unit.svg").write_text(units(machine_code), encoding="utf-8")


def times_table(found):
    """Microseconds of the intact kernel, and how many times as long the others take."""
    cells = {(row["kernel"], row["shape"], row["m"]): row for row in found}
    columns = list(dict.fromkeys((row["shape"], row["m"]) for row in found))
    lines = []
    for name, ablation in EVERY.items():
        cell = [cells.get((name, *column)) for column in columns]
        if name == "intact":
            lines.append(["**intact, us**", *(f"{row['us']:.1f}" for row in cell)])
        elif any(cell):
            shown = [f"{row['times_intact']:.2f}" if row else "-" for row in cell]
            lines.append([ablation.without, *shown])
    return markdown(["without", *(f"{shape} m={m}" for shape, m in columns)], lines)


def counts_table(counted):
    """Of the problem with fewer rows and of the other: what differs from the intact kernel."""
    parts = []
    for m in dict.fromkeys(row["m"] for row in counted):
        mine = [row for row in counted if row["m"] == m]
        first = mine[0]
        lines = [
            [
                EVERY[row["name"]].without,
                *(
                    f"{value:,}"
                    for value in (
                        row["instructions"],
                        row["classes"].get("integer", 0) + row["classes"].get("logic", 0),
                        row["classes"].get("convert", 0),
                        row["barriers"],
                        sum(row["wavefronts"].values()),
                        sum(row["conflicts"].values()),
                        row["buffers"]["a"]["asked"] >> 10,
                        row["buffers"].get("partials", {}).get("asked", 0) >> 10,
                        row["busiest_bytes"] >> 10,
                    )
                ),
            ]
            for row in mine
            if row["name"] != "intact_again"
        ]
        heads = [
            "without",
            "instructions",
            "integer, logic",
            "conversions",
            "barriers",
            "wavefronts",
            "conflicts",
            "A asked, KiB",
            "sums read, KiB",
            "busiest block, KiB",
        ]
        parts.append(
            f"m={m}, n={first['n']}, k={first['k']}, {first['sms']} SMs: instructions of warps,"
            " wavefronts of shared memory, bytes of W that the busiest block multiplies.\n\n"
            + markdown(heads, lines)
        )
    return "\n\n".join(parts)


def sass_table(machine_code):
    """Instructions of one step of a warp, by unit; how dequantisation and HMMA are interleaved."""
    parts = []
    for count in dict.fromkeys(row["rows"] for row in machine_code):
        lines = [
            [
                EVERY[row["name"]].without,
                *(f"{row['units'][unit]:.0f}" for unit in UNITS),
                f"{row['instructions']:.0f}",
                f"{row['lop3']:.0f}",
                f"{100 * row['filled'] / row['gaps']:.0f}%",
                f"{row['together']}",
                f"{row['registers']}",
            ]
            for row in machine_code
            if row["rows"] == count and row["name"] != "intact_again"
        ]
        heads = [
            "without",
            *UNITS,
            "all",
            "LOP3 that dequantise",
            "gaps filled",
            "run",
            "registers",
        ]
        parts.append(f"Tiles of {count} rows:\n\n{markdown(heads, lines)}")
    found = machine_code[0]
    parts.append(f"Of {found['target']}, by {found['assembler']}.")
    return "\n\n".join(parts)
