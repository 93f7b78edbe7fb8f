"""Where compute-sanitizer is; what a tool of it said, as numbers; and the record of what all said,
as Markdown."""

import os
import re
import shutil

from numba_marlin.bench.tables import markdown
from numba_marlin.compiler.assemble import disassemble

MARKERS = ("<!-- sanitizer:begin -->", "<!-- sanitizer:end -->")
# machine instructions that copy while the thread goes on
ASYNCHRONOUS = ("UBLKCP", "UTMALDG", "UTMASTG")
SASS_LINE = re.compile(r"(?m)^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


def find_sanitizer():
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [
        shutil.which("compute-sanitizer"),
        *(os.path.join(root, "bin", "compute-sanitizer") for root in roots if root),
    ]
    found = next((path for path in candidates if path and os.access(path, os.X_OK)), None)
    if found is None:
        raise SystemExit(
            "compute-sanitizer is not on PATH nor in CUDA_HOME; it comes with the CUDA toolkit"
        )
    return found


def parse_summary(text):
    """(errors, warnings) of a tool's last words; None where it said none."""
    race = re.search(
        r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)", text
    )
    if race:
        return int(race[1]), int(race[2])
    error = re.search(r"ERROR SUMMARY: (\d+) errors?", text)
    return (int(error[1]), 0) if error else None


# what a tool heads a finding with, without where it was
HEADLINE = re.compile(
    r"(?m)^=+ (?:(?:Error|Warning): )?"
    r"(Race reported between (?:Read|Write) access|(?:Possible )?(?:WAR|WAW|RAW) hazard"
    r"|Invalid __\w+__ \w+ of size \d+ bytes|Barrier error detected\. [^.\n]+"
    r"|Warpgroup MMA[^.\n]*|Uninitialized __\w+__ memory read of size \d+ bytes"
    r"|Address .* is (?:misaligned|out of bounds)|Leaked .* bytes)"
)


def headlines(text):
    """Kinds of findings in the order in which they came, each once."""
    return list(dict.fromkeys(each.strip() for each in HEADLINE.findall(text)))


RACE = re.compile(
    r"(Error|Warning): Race reported between (?:Read|Write) access at"
    r" .*\+(0x[0-9a-f]+)(?:.*\n=+\s+and (?:Read|Write) access at .*\+0x[0-9a-f]+.*)+"
)
PLACE = re.compile(r" access at .*?\+0x([0-9a-f]+)")


def races(text, opcodes):
    """[("Error" or "Warning", opcodes at both ends, sorted)] of what racecheck reported; opcodes:
    {place: opcode} of the one kernel that ran."""
    return [
        (
            race[1],
            tuple(sorted({opcodes.get(int(place, 16), "?") for place in PLACE.findall(race[0])})),
        )
        for race in RACE.finditer(text)
    ]


def is_asynchronous(ends):
    """A race of which one end is an asynchronous copy: the tool gives its write to the thread that
    asked for it, and to the moment it did."""
    return any(opcode.startswith(ASYNCHRONOUS) for opcode in ends)


def opcodes_of(cubin):
    """{offset in the kernel: opcode}; {} without a disassembler."""
    return {int(place, 16): opcode for place, opcode in SASS_LINE.findall(disassemble(cubin) or "")}


def add_up(rows):
    """The row of a tool from those of its processes."""
    ended = all(row["errors"] is not None for row in rows)
    pairs = {
        name: sum(row["races"].get(name, 0) for row in rows)
        for row in rows
        for name in row["races"]
    }
    return {
        "errors": sum(row["errors"] for row in rows) if ended else None,
        "warnings": sum(row["warnings"] for row in rows) if ended else None,
        "aside": sum(row["aside"] for row in rows),
        "launches": sum(row["launches"] for row in rows),
        "processes": len(rows),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "races": pairs,
    }


def is_clean(row):
    return (
        row["errors"] == 0
        and row["warnings"] == 0
        and row["launches"] > 0
        and all(each["found"] for each in row["planted"] if each["must"])
    )


def section(record):
    """The record as Markdown."""
    stated = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        (
            f"{record['device']}, CUDA {record['driver']}, {record['date']}, commit"
            f" {record['commit']}; {stated}; kernels from {' and '.join(record['compilers'])}."
        ),
        "",
    ]
    tools = record["tools"]
    lines += [
        markdown(
            ["tool", "launches", "errors", "warnings", "set aside", ""],
            [
                [
                    tool,
                    str(row["launches"]),
                    *(
                        "did not end" if row[name] is None else str(row[name])
                        for name in ("errors", "warnings")
                    ),
                    str(row["aside"]),
                    "clean" if is_clean(row) else "**not clean**",
                ]
                for tool, row in tools.items()
            ],
        ),
        "",
    ]
    lines += [
        markdown(
            ["tool", "kernel", "planted error", ""],
            [
                [
                    tool,
                    each["kernel"],
                    each["what"],
                    (
                        f"{each['found']} found"
                        if each["found"]
                        else "**not found**"
                        if each["must"]
                        else "not seen"
                    ),
                ]
                for tool, row in tools.items()
                for each in row["planted"]
            ],
            left=3,
        ),
        "",
    ]
    pairs = {name: count for row in tools.values() for name, count in row["races"].items()}
    if pairs:
        lines += [
            "Races reported, by the instructions at both ends: "
            + "; ".join(f"{name} ({count})" for name, count in sorted(pairs.items()))
            + ".",
            "",
        ]
    lines.append(f"Problems: {'; '.join(dict.fromkeys(record['problems']))}.")
    return "\n".join(lines)
