"""agree.jsonl -> the section of README.md between its markers. The newest row of a problem, compiler and place counts."""
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
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), list(DATA).index(item[0][1]))))


def share(part, whole):
    return "all" if part == whole else f"{100 * part / whole:.2f}%"


def outputs_table(pairs):
    lines = ["| kernel | data | problems | fp16 outputs | bit-identical | furthest apart, fp16 steps | of what is allowed | |", "|---|---|---|---|---|---|---|---|"]
    for (kernel, data), group in grouped(pairs).items():
        rows = [machine for machine, _ in group]
        total = sum(row["outputs"] for row in rows)
        lines.append(f"| {kernel} | {DATA[data]} | {len(rows)} | {total} | {share(sum(row['identical'] for row in rows), total)} | {max(row['max_fp16_steps'] for row in rows)} | "
                     f"{max(row['max_over_allowed'] for row in rows):.2g} | {'agree' if all(row['within'] for row in rows) else '**too far apart**'} |")
    return lines


def partials_table(pairs):
    lines = ["| data | k | fp32 sums | bit-identical | furthest apart | of what is allowed | hardware's error: median / 99% / largest, mean towards zero | machine's | |",
             "|---|---|---|---|---|---|---|---|---|"]
    found = {}
    for machine, hardware in pairs:
        if machine.get("partials"):
            found.setdefault((list(DATA).index(machine["data"]), machine["k"]), []).append((machine, hardware))
    for (data, k), group in sorted(found.items()):
        rows = [machine for machine, _ in group]
        total = sum(row["partials"] for row in rows)
        errors = []
        for side in (1, 0):
            worst = {q: max(pair[side]["partials_error"][q] for pair in group) for q in ("0.5", "0.99", "1.0")}
            mean = sum(pair[side]["partials_mean_towards_zero"] * pair[side]["partials"] for pair in group) / total
            errors.append(f"{worst['0.5']:.2g} / {worst['0.99']:.2g} / {worst['1.0']:.2g}, {mean:+.2g}")
        lines.append(f"| {list(DATA.values())[data]} | {k} | {total} | {share(sum(row['partials_identical'] for row in rows), total)} | {max(row['partials_max_units'] for row in rows):.3g} | "
                     f"{max(row['partials_max_over_allowed'] for row in rows):.2g} | {errors[0]} | {errors[1]} | {'agree' if all(row['partials_within'] for row in rows) else '**too far apart**'} |")
    return lines


def section(rows):
    pairs = [(row, rows["hardware", case, by]) for (what, case, by), row in rows.items() if what == "machine" and ("hardware", case, by) in rows]
    if not pairs:
        raise SystemExit("no problem has been run on both sides: agree.py hardware on a GPU, then agree.py machine")
    stale = [machine["case"] for machine, hardware in pairs if (machine["operands_sha256"], machine["ptx_sha256"]) != (hardware["operands_sha256"], hardware["ptx_sha256"])]
    if stale:
        raise SystemExit(f"{stale[0]} (of {len(stale)}): the newest rows of hardware and machine are not of the same operands and PTX; run agree.py machine again")
    hardware = [row for (what, _, _), row in rows.items() if what == "hardware"]
    first, compilers = hardware[0], sorted({row["compiler"] for row in hardware})
    others = [row for row in hardware if row["compiler"] != row["same_bits_as"]]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    lines = [
        f"Hardware: {first['device']}, CUDA {first['driver']}, {first['date']}, commit {first['commit']}; {versions}; kernels from {' and '.join(compilers)}. "
        f"The machine ran the same PTX text on the same operands (SHA-256 of both compared) on {pairs[0][0]['date']}.",
        "" if not others else f"On the GPU both compilers gave the same bits in {sum(row['same_bits'] for row in others)} of {len(others)} problems.",
        "", *outputs_table(pairs), "",
        "A step is the distance to the neighbouring fp16 number. Allowed: nothing where all is exact; else twice the bound of `reference` for accumulating in fp32, and one step for "
        "the rounding of the output that falls the other way.",
        "", "The fp32 sums that blocks of the faithful kernel leave to each other (`partials`), in units of 2^-24 sum |x||w|:", "", *partials_table(pairs), "",
        "Error: distance to the float64 sum over the same fp16 weights; median and 99% are those of the worst problem. The machine adds 16 products and the accumulator exactly and rounds "
        "once; tensor cores align to the largest term and truncate, which shows as a mean towards zero.",
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
