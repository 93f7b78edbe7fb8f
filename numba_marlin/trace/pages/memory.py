"""Two sections: the memory hierarchy of the chosen device with the bytes that this run moved at
each level; and bytes and arithmetic intensity compared with 16-bit weights."""

from __future__ import annotations

from numba_marlin.counts.instructions import tensor_bits
from numba_marlin.counts.transactions import SECTOR_BYTES
from numba_marlin.hardware.devices import Device
from numba_marlin.hardware.devices import device as device_named
from numba_marlin.trace.pages import levels as probed
from numba_marlin.trace.pages.choice import Choice, size
from numba_marlin.trace.record import Trace
from numba_marlin.views import (
    COUNTED,
    MODELLED,
    SPEC,
    Bar,
    Bars,
    Facts,
    Level,
    Levels,
    Section,
    Table,
)


def section(trace: Trace, choice: Choice) -> Section:
    device = choice.device or device_named("H200")
    sm = device.architecture
    total = trace.counts["total"]
    tally = total["tally"]
    source = SPEC if device.memory_bytes else ""

    def of(value: int | None) -> str:
        return size(value) if value else "size unknown"

    buffers = tuple(
        (
            each["name"],
            (
                f"{size(each['nbytes'])}; {size(each['reads']['bytes'])} requested,"
                f" {size(each['writes']['bytes'])} written"
            ),
            COUNTED,
        )
        for each in trace.counts["buffers"]
    )
    copied = tally["copied"]
    levels = (
        Level(
            "Global memory",
            (
                f"{device.memory_bytes / 1e9:.0f} GB, {device.bandwidth_bytes / 1e12:.3g} TB/s"
                if device.memory_bytes and device.bandwidth_bytes
                else "size unknown"
            ),
            buffers + probed.rows_of(probed.GLOBAL),
            f"{size(total['sectors'] * SECTOR_BYTES)} in {total['sectors']:,} different sectors:"
            f" what an L2 cache that never evicts would request ({COUNTED})",
            "",
            source,
        ),
        Level(
            "L2 cache",
            of(device.l2_bytes) + ", shared by all SMs",
            (
                ("reuse", f"{ratio(total['l2_reuse'])} blocks touch each sector", COUNTED),
                *probed.rows_of(probed.L2),
            ),
            f"{size(total['block_sectors'] * SECTOR_BYTES)} in {total['block_sectors']:,} sectors,"
            f" each counted once per block that touches it ({COUNTED})",
            "",
            source,
        ),
        Level(
            "L1 and shared memory",
            f"{of(sm.l1_bytes_per_sm)} per SM, {of(sm.shared_bytes_per_sm)} of them shared",
            (
                (
                    "requested",
                    (
                        f"{size(tally['reads']['sectors'] * SECTOR_BYTES)} read,"
                        f" {size(tally['writes']['sectors'] * SECTOR_BYTES)} written, by requests"
                        " for sectors"
                    ),
                    COUNTED,
                ),
                ("shared", f"{size(trace.header['launch']['shared_bytes'])} per block", COUNTED),
                *(
                    (kind, f"{size(nbytes)} copied without passing registers", COUNTED)
                    for kind, nbytes in copied.items()
                ),
                (
                    "conflicts",
                    (
                        f"{tally['shared']['conflicts']:,} wavefronts more than the minimum of"
                        f" {tally['shared']['ideal']:,}"
                    ),
                    COUNTED,
                ),
                *probed.rows_of(probed.L1),
            ),
            f"{size(tally['shared']['bytes'])} between shared memory and registers"
            + (
                f", {size(tally['operand_bytes'])} to tensor cores by descriptor"
                if tally["operand_bytes"]
                else ""
            )
            + f" ({COUNTED})",
            "",
            source,
        ),
        Level(
            "Registers",
            f"{of(sm.register_bytes_per_sm)} per SM",
            (
                (
                    "live",
                    f"at most {tally['registers']} words of 32 bits per thread, in the PTX",
                    COUNTED,
                ),
                *(
                    (f"tensor memory, {kind}", size(nbytes), COUNTED)
                    for kind, nbytes in (tally.get("tensor_memory") or {}).items()
                ),
                *(
                    (("assigned", f"{trace.about['compiled']['registers']} per thread, by ptxas"),)
                    if (trace.about.get("compiled") or {}).get("registers")
                    else ()
                ),
                *probed.rows_of(probed.REGISTERS),
            ),
            f"operands of {tally['classes'].get('tensor', 0):,} tensor-core instructions"
            f" ({COUNTED})",
            "",
            source,
        ),
        Level(
            "Tensor cores",
            peak_words(trace, device),
            (
                ("operations", f"{tally['flops']:,} multiplications and additions", COUNTED),
                *probed.rows_of(probed.TENSOR),
            ),
            "",
            "",
            source,
        ),
    )
    title = (
        f"{device.name}: sizes from the data sheet, traffic of this run"
        if source
        else f"{device.name}: sizes unknown, traffic of this run"
    )
    note = (
        "Bytes are those of all blocks. A recording has no cache hits; it has their two bounds:"
        " what a cache that never evicts would let through."
    )
    drawn = Levels(levels, title=title, note=note)
    return Section("memory", "Memory hierarchy", (), (drawn, *probed.pictures()))


def peak_words(trace: Trace, device: Device) -> str:
    peak, bits = peak_of(trace, device)
    sums = "int32" if trace.activations == "int8" else "fp32"
    return (
        f"{peak / 1e12:,.0f} TFLOP/s, {bits}-bit, {sums} accumulators"
        if peak
        else f"peak of {bits}-bit products unknown"
    )


def peak_of(trace: Trace, device: Device) -> tuple[float | None, int]:
    """Return (dense operations per second, or None if unknown; bits of an operand's element) of
    the tensor-core instructions in the trace."""
    bits = tensor_bits(ins["text"] for ins in trace.instructions if ins["kind"] == "tensor")
    return device.peak_flops(bits), bits


def ratio(value: float | None) -> str:
    return "no" if value is None else f"{value:.2f}"


def intensity(trace: Trace, choice: Choice) -> Section:
    """Compare with 16-bit weights: the bytes that must move at least, and operations per byte."""
    problem = trace.about.get("problem")
    if problem and trace.block_scaled:
        return of_both(trace, choice)
    if not problem:
        return Section(
            "intensity",
            "Bytes and intensity",
            (
                (
                    "The problem of this run is not known: only kernels of this package declare m,"
                    " n and k."
                ),
            ),
        )
    n, k = problem["n"], problem["k"]
    weight = sum(
        trace.buffer(name)["nbytes"] for name in ("b", "scales", "zeros") if trace.buffer(name)
    )
    x, c = trace.buffer("a")["nbytes"], trace.buffer("c")["nbytes"]
    half, products = 2 * k * n, problem["m"]
    if trace.of_experts:  # those that a token goes to
        touched = len({each for ids in trace.about["routing"]["ids"] for each in ids})
        weight, half = weight * touched // problem["experts"], half * touched
        products *= problem["top_k"]
    flops, ours, theirs = 2 * products * n * k, x + weight + c, x + half + c
    moved = (
        sum(
            each["reads"]["sectors"] + each["writes"]["sectors"] for each in trace.counts["buffers"]
        )
        * SECTOR_BYTES
    )
    table = Table(
        ("bytes", "16-bit weights", f"{problem.get('bits', 4)}-bit weights", "ratio"),
        (
            ("activations", f"{x:,}", f"{x:,}", "1.00"),
            ("weights, scales", f"{half:,}", f"{weight:,}", f"{half / weight:.2f}"),
            ("result", f"{c:,}", f"{c:,}", "1.00"),
            ("together", f"{theirs:,}", f"{ours:,}", f"{theirs / ours:.2f}"),
            (
                "operations per byte",
                f"{flops / theirs:.1f}",
                f"{flops / ours:.1f}",
                f"{theirs / ours:.2f}",
            ),
        ),
        title=f"Bytes that must move at least once, and {flops:,} operations on them",
        source=MODELLED,
        note="From the shapes: every operand once, in its stored form"
        + (
            f"; weights of the {touched} experts that a token goes to." if trace.of_experts else "."
        ),
    )
    bars = Bars(
        (
            Bar("with 16-bit weights", theirs, f"{theirs:,}", "sixteen"),
            Bar("with packed weights", ours, f"{ours:,}", "packed"),
            Bar("this run requested", moved, f"{moved:,} ({COUNTED})", "asked"),
        ),
        title="Bytes",
        source=MODELLED,
        note=(
            "Activations and result are counted too. A run requests more bytes than its operands"
            " have, because blocks read the same activations; caches serve a part of these"
            " requests."
        ),
    )
    parts: list = [table, bars]
    device = choice.device or device_named("H200")
    peak, _ = peak_of(trace, device)
    if peak and device.matrix_flops and device.bandwidth_bytes:
        ridge = peak / device.bandwidth_bytes
        wide, packed = (
            max(nbytes / device.bandwidth_bytes, flops / rate)
            for nbytes, rate in ((theirs, device.matrix_flops), (ours, peak))
        )
        parts.append(
            Facts(
                (
                    (
                        "ridge",
                        (
                            f"{ridge:.0f} operations per byte: below it {device.name}'s memory"
                            " limits, above it its tensor cores do"
                        ),
                        SPEC,
                    ),
                    (
                        "at the limit",
                        f"{1e6 * wide:.3g} us for 16-bit weights, {1e6 * packed:.3g} us for packed"
                        " weights",
                        MODELLED,
                    ),
                ),
                title=f"On {device.name}",
            )
        )
    return Section(
        "intensity",
        "Bytes and intensity",
        (
            (
                "Packed weights have about a quarter of the bytes. If memory limits a kernel, its"
                " speed comes from that."
            ),
        ),
        tuple(parts),
    )


def of_both(trace: Trace, choice: Choice) -> Section:
    """Compare two block-scaled operands with fp16 operands of the same shapes."""
    problem, stored = (
        trace.about["problem"],
        {each["name"]: each["nbytes"] for each in trace.header["buffers"]},
    )
    m, n, k = (problem[name] for name in "mnk")
    flops, c, d = 2 * m * n * k, stored.get("c", 0), stored["d"] + stored.get("sfd", 0)
    rows, ours, theirs = [], c + d, c + d
    for name, rows_of in (("a", m), ("b", n)):
        half, packed = 2 * rows_of * k, stored[name] + rows_of * k // problem["group_size"]
        ours, theirs = ours + packed, theirs + half
        rows.append(
            (f"{name.upper()} with its scales", f"{half:,}", f"{packed:,}", f"{half / packed:.2f}")
        )
    rows += [
        (name, f"{value:,}", f"{value:,}", "1.00")
        for name, value in (("C", c), (f"D, {problem['result']}", d))
        if value
    ]
    rows += [
        ("together", f"{theirs:,}", f"{ours:,}", f"{theirs / ours:.2f}"),
        (
            "operations per byte",
            f"{flops / theirs:.1f}",
            f"{flops / ours:.1f}",
            f"{theirs / ours:.2f}",
        ),
    ]
    moved = (
        sum(
            each["reads"]["sectors"] + each["writes"]["sectors"] for each in trace.counts["buffers"]
        )
        * SECTOR_BYTES
    )
    kind = problem["format"]
    parts: list = [
        Table(
            ("bytes", "fp16", kind, "ratio"),
            tuple(rows),
            title=f"Bytes that must move at least once, and {flops:,} operations on them",
            source=MODELLED,
            note="From the shapes: every operand once, in its stored form.",
        ),
        Bars(
            (
                Bar("fp16 operands", theirs, f"{theirs:,}", "sixteen"),
                Bar(f"{kind} operands", ours, f"{ours:,}", "packed"),
                Bar("this run requested", moved, f"{moved:,} ({COUNTED})", "asked"),
            ),
            title="Bytes",
            source=MODELLED,
            note=(
                "A run requests more bytes than its operands have, because every tile reads its"
                " rows of A and of B again; caches serve a part of these requests."
            ),
        ),
    ]
    device = choice.device or device_named("H200")
    peak, bits = peak_of(trace, device)
    if peak and device.bandwidth_bytes:
        parts.append(
            Facts(
                (
                    (
                        "ridge",
                        (
                            f"{peak / device.bandwidth_bytes:,.0f} operations per byte: below it"
                            f" {device.name}'s memory limits, above it its {bits}-bit tensor cores"
                            " do"
                        ),
                        SPEC,
                    ),
                    (
                        "at the limit",
                        (
                            f"{1e6 * max(ours / device.bandwidth_bytes, flops / peak):.3g} us for"
                            " these operands"
                        ),
                        MODELLED,
                    ),
                ),
                title=f"On {device.name}",
            )
        )
    note = (
        "Operands of four bits and their scales have little more than a quarter of the bytes of"
        " fp16 operands."
        if problem["bits"] == 4
        else "Operands of eight bits have about half of the bytes of fp16 operands."
    )
    return Section(
        "intensity",
        "Bytes and intensity",
        (
            note
            + (
                " Their products take fp16's tensor cores here."
                if bits == 16
                else " Tensor cores multiply the codes as they are."
            ),
        ),
        tuple(parts),
    )
