"""Views of a profile's data: the bytes that each level of memory holds and moves, and the
transactions that move them."""

from __future__ import annotations

from numba_marlin.profile.sources.verdict import is_bound
from numba_marlin.views import Bar, Bars, Cell, Facts, Level, Levels, Section, Table

ROWS = 16


def size(nbytes: float | None) -> str:
    if nbytes is None:
        return "unknown"
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return (
                f"{nbytes / unit:.3g} {name}"
                if nbytes / unit < 1000
                else f"{nbytes / unit:,.0f} {name}"
            )
    return f"{nbytes:,.0f} bytes"


def scaled(data: dict) -> str:
    counts = data["counts"]
    if counts["factor"] == 1:
        return "Counted on the PTX machine for the whole launch."
    part = counts["part"]
    return (
        f"Counted on the PTX machine for m={part['m']} n={part['n']} k={part['k']} on"
        f" {counts['sms']} SMs, multiplied by {counts['factor']:g}."
    )


def parts_of(data: dict) -> dict[str, int]:
    """Return {name: bytes} of the operands and the result. Also reads files of profiles from before
    profiles stored these names."""
    if "bytes" in data:
        return data["bytes"]
    problem = data["problem"]
    weights, x, y = (
        problem["k"] * problem["n"] * problem["bits"] // 8,
        2 * problem["m"] * problem["k"],
        2 * problem["m"] * problem["n"],
    )
    return {
        "weights": weights,
        "scales and zero points": data["rates"]["least_bytes"] - weights - x - y,
        "activations": x,
        "result": y,
    }


def rate_of(data: dict, nbytes: int) -> str:
    """The bytes of a launch per second, and per cycle of an SM where the clock is known, in
    words."""
    most, us, clock = (
        "at most " if is_bound(data) else "",
        data["time"]["us"],
        data["limits"]["clock_mhz"],
    )
    per_second = nbytes / us * 1e6
    cycles = us * clock * data["device"]["sms"] if clock else 0
    return f"{most}{per_second / 1e12:.2f} TB/s" + (
        f", {nbytes / cycles:.1f} bytes per cycle of an SM" if cycles else ""
    )


def share_of(used: float | None, whole: float | None) -> float | None:
    return None if used is None or not whole else min(used / whole, 1.0)


def resident(data: dict) -> int:
    """Blocks that an SM holds at a time in this launch."""
    per_sm = -(-data["launch"]["blocks"] // data["device"]["sms"])
    return min(data["occupancy"]["blocks"], per_sm)


def by_use(data: dict) -> tuple[Bars, ...]:
    """Draw what a thread's registers are for; nothing for profiles of earlier versions."""
    found = data.get("registers")
    if not found:
        return ()
    total = sum(found["words"].values())
    return (
        Bars(
            tuple(Bar(use, words, f"{words}", use, total) for use, words in found["words"].items()),
            title=f"What a thread's registers are for, where {total} words are live",
            source="counted",
            note=(
                f"At {found['at'] or 'the fullest place'} of the PTX. Sums: accumulators of tensor"
                " cores; fragments: what these multiply; loaded words: not yet unpacked; other"
                " values: scales, counters, what is computed in between. The assembler assigns"
                " registers anew, so the machine code's differ."
            ),
        ),
    )


def memory(data: dict) -> Section:
    problem, limits, counts, rates, shape = (
        data[name] for name in ("problem", "limits", "counts", "rates", "launch")
    )
    source = rates["source"]
    sample = (data["state"].get("samples") or [{}])[-1]
    used = f"{size(sample['memory_used'])} in use of " if "memory_used" in sample else ""
    capacity = limits["l2_bytes"]
    share = "" if rates["memory_share"] is None else f", {rates['memory_share']:.0%} of the ceiling"
    reuse = counts["asked_bytes"] / max(1, counts["distinct_bytes"])
    levels = (
        Level(
            "device memory",
            f"{used}{size(limits['memory_bytes'])}",
            tuple(
                (
                    name,
                    size(nbytes)
                    + (
                        f", {problem['bits']} bits each"
                        if name in ("weights", "A, codes", "B, codes")
                        else ""
                    ),
                )
                for name, nbytes in parts_of(data).items()
            ),
            down=(
                f"{size(rates['least_bytes'])} must move: {rates['bytes_per_s'] / 1e12:.2f}"
                f" TB/s{share} ({source})"
            ),
            source=limits["source"],
            filled=share_of(sample.get("memory_used"), limits["memory_bytes"]),
        ),
        Level(
            "L2",
            size(capacity),
            (
                ("requested by all blocks", size(counts["asked_bytes"]), "counted"),
                ("different sectors", size(counts["distinct_bytes"]), "counted"),
                ("hit rate at most", f"{1 - 1 / reuse:.0%}: requests after the first", "counted"),
                (
                    "the problem fits",
                    (
                        "yes"
                        if capacity and rates["least_bytes"] <= capacity
                        else "no"
                        if capacity
                        else "unknown"
                    ),
                    "modelled",
                ),
            ),
            down=(
                f"{size(counts['asked_bytes'])} in {counts['asked_bytes'] // 32:,} sectors,"
                f" {counts['coalescing']:.1f}% of them needed (counted):"
                f" {rate_of(data, counts['asked_bytes'])} ({source})"
            ),
            source=limits["source"],
            filled=share_of(rates["least_bytes"], capacity),
        ),
        Level(
            "shared memory, L1",
            f"{size(limits['shared_bytes'])} per SM",
            (
                ("used per block", size(shape["shared_bytes"])),
                *(
                    (f"filled by {name}", size(value), "counted")
                    for name, value in counts["copied"].items()
                ),
                (
                    "accesses",
                    (
                        f"{counts['wavefronts']:,} wavefronts, {counts['conflicts']:,} of them due"
                        " to bank conflicts"
                    ),
                    "counted",
                ),
                *(
                    (("read by tensor cores themselves", size(counts["operand_bytes"]), "counted"),)
                    if counts["operand_bytes"]
                    else ()
                ),
            ),
            down=(
                f"{size(counts['shared_bytes'])} to and from registers (counted):"
                f" {rate_of(data, counts['shared_bytes'])} ({source})"
            ),
            source=limits["source"],
            filled=share_of(resident(data) * shape["shared_bytes"], limits["shared_bytes"]),
        ),
        Level(
            "registers",
            f"{size(4 * limits['registers'])} per SM",
            (
                (
                    "per thread",
                    (
                        "unknown"
                        if shape["registers"] is None
                        else f"{shape['registers']} at compile time"
                    ),
                ),
                ("maximum live in the PTX", f"{counts['live_registers']} words", "counted"),
                *(
                    (f"tensor memory, {kind}", size(nbytes), "counted")
                    for kind, nbytes in counts.get("tensor_memory", {}).items()
                ),
                (
                    "spilled, or in local arrays",
                    size(counts["local_bytes"]) if counts["local_bytes"] else "nothing",
                    "counted",
                ),
            ),
            source=limits["source"],
            filled=share_of(
                None
                if shape["registers"] is None
                else resident(data) * shape["threads"] * shape["registers"],
                limits["registers"],
            ),
        ),
    )
    rows = tuple(
        (
            each["name"],
            f"{each['read']:,}" if each["read"] else "",
            f"{each['written']:,}" if each["written"] else "",
        )
        for each in counts["buffers"]
    )
    return Section(
        "memory",
        "Memory hierarchy",
        (scaled(data),),
        (
            Levels(
                levels,
                title="What each level holds, and what moves between them",
                note=(
                    "Bars: the share that is in use: of device memory as the driver says; of L2,"
                    " what the problem would take; of shared memory and registers, what the blocks"
                    " take that an SM holds at a time."
                ),
            ),
            *by_use(data),
            Table(
                ("buffer", "bytes read, in sectors", "bytes written"),
                rows,
                title="By buffer",
                source="counted",
            ),
        ),
    )


def transactions(data: dict) -> Section:
    counts = data["counts"]
    rows = []
    for each in data["accesses"][:ROWS]:
        share = None if not each["sectors"] else each["needed"] / each["sectors"]
        conflicts = each["wavefronts"] - each["ideal"]
        rows.append(
            (
                each["verb"],
                each["opcode"],
                f"{each['from']} > {each['to']}",
                f"{each['bytes']:,}",
                (
                    ""
                    if share is None
                    else Cell(f"{share:.0%}", tone="good" if share > 0.99 else "bad")
                ),
                "" if share is None else f"{32 * (each['sectors'] - each['needed']):,}",
                Cell(f"{conflicts:,}", tone="bad") if conflicts else "",
            )
        )
    first = tuple(
        (
            str(number),
            f"{each['opcode']}" + (f" x {each['times']}" if each["times"] > 1 else ""),
            f"{each['from']} > {each['to']}",
            "-".join(dict.fromkeys(map(str, each["warps"]))),
            f"{each['bytes']:,}",
            (
                ""
                if not each["sectors"]
                else Cell(
                    (
                        "yes"
                        if each["sectors"] == each["needed"]
                        else f"no: {each['needed']} of {each['sectors']}"
                    ),
                    tone="good" if each["sectors"] == each["needed"] else "bad",
                )
            ),
        )
        for number, each in enumerate(data["first_accesses"], 1)
    )
    wasted = counts["asked_bytes"] - counts["needed_bytes"]
    facts = Facts(
        (
            (
                "sectors of 32 bytes",
                (
                    f"{counts['asked_bytes'] // 32:,} touched, {counts['needed_bytes'] // 32:,}"
                    " would suffice"
                ),
                "counted",
            ),
            ("coalesced", f"{counts['coalescing']:.1f}%", "counted"),
            (
                "wasted",
                (
                    f"{size(wasted)}, {100 * wasted / max(1, counts['asked_bytes']):.1f}% of what"
                    " is requested"
                    if wasted
                    else "nothing"
                ),
                "counted",
            ),
            (
                "shared memory",
                (
                    f"{counts['wavefronts']:,} wavefronts, {counts['conflicts']:,} of them due to"
                    " bank conflicts"
                ),
                "counted",
            ),
        ),
        title="Total",
    )
    return Section(
        "transactions",
        "Memory transactions",
        (scaled(data),),
        (
            facts,
            Table(
                ("verb", "instruction", "way", "bytes", "coalesced", "wasted", "conflicts"),
                tuple(rows),
                title="By verb",
                source="counted",
            ),
            Table(
                ("", "instruction", "way", "warps", "bytes", "coalesced"),
                first,
                title="Block 0, the first accesses",
                source="recorded",
                note="In the order in which the PTX machine executed them.",
            ),
            *around_products(data),
        ),
    )


def around_products(data: dict) -> tuple[Table, ...]:
    """List what a warp executed around its first products; nothing for profiles of earlier
    versions, and kernels without tensor cores."""
    found = data.get("first_products")
    if not found:
        return ()
    rows = tuple(
        (
            f"{row['clock']:,}",
            Cell(
                row["what"] + (f" x {row['times']:,}" if row["times"] > 1 else ""),
                row["kind"],
                "hot" if row["kind"] == "product" else "",
            ),
            f"{row['from']} > {row['to']}",
        )
        for row in found
    )
    return (
        Table(
            ("clock", "what", "way"),
            rows,
            title=f"Block 0, warp {found[0]['warp']}: loads, dequantisation and first products",
            source="recorded",
            note=(
                "The clock counts the warp instructions that the PTX machine had executed, of all"
                " warps: an order of events, not time. Integers, addresses and branches are not"
                " listed."
            ),
        ),
    )
