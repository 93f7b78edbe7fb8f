"""agree.jsonl -> the section of README.md between its markers. The newest row of a problem,
compiler and place counts."""

import json

BEGIN, END = "<!-- agree:begin -->", "<!-- agree:end -->"
DATA = {"exact": "exact", "gaussian": "normal", "spread": "x spread over 2^16"}


def newest(path):
    """{(what, case, compiler): row}"""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["what"], row["case"], row["compiler"]] = row
    return rows


def grouped(pairs):
    """{(kernel, data): [(machine row, hardware row)]} in the order of the ladder."""
    found = {}
    for machine, hardware in pairs:
        found.setdefault((machine["kernel"], machine["data"]), []).append((machine, hardware))
    order = ["naive", "tiled", "ampere"]
    return dict(
        sorted(
            found.items(), key=lambda item: (order.index(item[0][0]), list(DATA).index(item[0][1]))
        )
    )


def share(part, whole):
    return "all" if part == whole else f"{100 * part / whole:.2f}%"


def outputs_table(pairs):
    lines = [
        "| kernel | data | problems | fp16 outputs | bit-identical | furthest apart, fp16 steps |",
        "|---|---|---|---|---|---|",
    ]
    for (kernel, data), group in grouped(pairs).items():
        rows = [machine for machine, _ in group]
        total = sum(row["outputs"] for row in rows)
        lines.append(
            f"| {kernel} | {DATA[data]} | {len(rows)} | {total} |"
            f" {share(sum(row['identical'] for row in rows), total)} |"
            f" {max(row['max_fp16_steps'] for row in rows)} |"
        )
    return lines


def partials_table(pairs):
    lines = [
        (
            "| data | k | fp32 sums | bit-identical | error of both: median / 99% / largest, mean"
            " towards zero |"
        ),
        "|---|---|---|---|---|",
    ]
    found = {}
    for machine, hardware in pairs:
        if machine.get("partials"):
            found.setdefault((list(DATA).index(machine["data"]), machine["k"]), []).append(
                (machine, hardware)
            )
    for (data, k), group in sorted(found.items()):
        rows = [machine for machine, _ in group]
        total = sum(row["partials"] for row in rows)
        worst = {
            q: max(hardware["partials_error"][q] for _, hardware in group)
            for q in ("0.5", "0.99", "1.0")
        }
        mean = (
            sum(
                hardware["partials_mean_towards_zero"] * hardware["partials"]
                for _, hardware in group
            )
            / total
        )
        lines.append(
            f"| {list(DATA.values())[data]} | {k} | {total} |"
            f" {share(sum(row['partials_identical'] for row in rows), total)} | {worst['0.5']:.2g}"
            f" / {worst['0.99']:.2g} / {worst['1.0']:.2g}, {mean:+.2g} |"
        )
    return lines


def section(rows):
    pairs = [
        (row, rows["hardware", case, by])
        for (what, case, by), row in rows.items()
        if what == "machine" and ("hardware", case, by) in rows
    ]
    if not pairs:
        raise SystemExit(
            "no problem has been run on both sides: agree.py hardware on a GPU, then agree.py"
            " machine"
        )
    stale = [
        machine["case"]
        for machine, hardware in pairs
        if (machine["operands_sha256"], machine["ptx_sha256"])
        != (hardware["operands_sha256"], hardware["ptx_sha256"])
    ]
    if stale:
        raise SystemExit(
            f"{stale[0]} (of {len(stale)}): the newest rows of hardware and machine are not of the"
            " same operands and PTX; run agree.py machine again"
        )
    hardware = [row for (what, _, _), row in rows.items() if what == "hardware"]
    first, compilers = hardware[0], sorted({row["compiler"] for row in hardware})
    others = [row for row in hardware if row["compiler"] != row["same_bits_as"]]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    lines = [
        (
            f"Hardware: {first['device']}, CUDA {first['driver']}, {first['date']}, commit"
            f" {first['commit']}; {versions}; kernels from {' and '.join(compilers)}. The machine"
            " ran the same PTX text on the same operands (SHA-256 of both compared) on"
            f" {pairs[0][0]['date']}."
        ),
        (
            ""
            if not others
            else (
                "On the GPU both compilers gave the same bits in"
                f" {sum(row['same_bits'] for row in others)} of {len(others)} problems."
            )
        ),
        "",
        *outputs_table(pairs),
        "",
        (
            "The fp32 sums that blocks of the faithful kernel leave to each other (`partials`), and"
            " how far they are from float64 sums over the same fp16 weights, in units of 2^-24 sum"
            " |x||w|:"
        ),
        "",
        *partials_table(pairs),
        "",
        (
            "Median and 99% are those of the worst problem. Tensor cores align to the largest term"
            " and truncate, which shows as a mean towards zero; the machine does the same"
            " (`emulator.tensor.tensor_sums`, found by the probes of"
            " [05_hardware](../05_hardware))."
        ),
    ]
    return "\n".join(lines)


def write_section(readme, begin, end, text):
    """Put ``text`` between the markers; they are added at the end where they are missing."""
    old = readme.read_text(encoding="utf-8") if readme.exists() else ""
    if begin not in old:
        old += f"{'' if old.endswith(chr(10)) or not old else chr(10)}\n{begin}\n{end}\n"
    before, after = old.split(begin)[0], old.split(end)[1]
    readme.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def report(path, readme):
    text = section(newest(path))
    write_section(readme, BEGIN, END, text)
    print(text)
    return 0
