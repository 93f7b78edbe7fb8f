"""The section of a profile that a reader sees first: times, shares of ceilings, the bottleneck,
findings and the roofline."""

from __future__ import annotations

from numba_marlin.profile.sources import rules, verdict
from numba_marlin.profile.sources.verdict import is_bound, recorded_words
from numba_marlin.views import (
    Bar,
    Bars,
    Ceiling,
    Cell,
    Facts,
    Point,
    Roofline,
    Section,
    Table,
    Text,
)

TONES = {"busy": "good", "high": "good", "none": "good", "little": "good", "much": "bad"}
URGENCY = (rules.BAD, rules.WARN, rules.GOOD)  # what should be looked at stands first


def summary(data: dict) -> Section:
    what, why = verdict.bottleneck(data)
    time, rates, problem = data["time"], data["rates"], data["problem"]
    source, bound = time["source"], is_bound(data)
    least, most = ("at least ", "at most ") if bound else ("", "")
    rows = [
        ("time of a launch", f"{least}{time['us']:.2f} us", source),
        *(
            [
                (
                    "compared with",
                    (
                        f"cuBLAS fp16 {time['cublas_us']:.2f} us: this kernel is"
                        f" {time['cublas_us'] / time['us']:.2f} times as fast"
                    ),
                    "measured",
                )
            ]
            if "cublas_us" in time
            else []
        ),
        (
            "the model predicts",
            f"{time['modelled_us']:.2f} us"
            + (
                f"; {time['model_error']['text']}"
                if time["model_error"]
                else ""
                if time["fitted"]
                else ", a lower bound: latency is not modelled, no time of this kernel was fitted"
            ),
            "modelled",
        ),
        *([] if "measured_elsewhere" in data else known_times(time)),
        *([("measured", *data["measured_elsewhere"])] if "measured_elsewhere" in data else []),
        (
            "tokens per second",
            f"{most}{problem['m'] / time['us'] * 1e6:,.0f} through this layer",
            source,
        ),
        (
            "bytes that must move",
            f"{rates['least_bytes'] / 1e6:.2f} MB: {most}{rates['bytes_per_s'] / 1e12:.2f} TB/s",
            source,
        ),
        (
            "operations",
            f"{rates['flops'] / 1e9:.2f} GFLOP: {most}{rates['flops_per_s'] / 1e12:.1f} TFLOP/s",
            source,
        ),
    ]
    bars = tuple(
        Bar(name, value, f"{value:.0%}", "", 1.0) for name, value in verdict.shares(data).items()
    )
    found = tuple(
        (
            Cell({"good": "ok", "hot": "look", "bad": "bad"}[each.tone], tone=each.tone),
            each.text,
            Cell(each.rule, tone="dim"),
        )
        for each in sorted(rules.findings(data), key=lambda each: URGENCY.index(each.tone))
    )
    ceilings = data["ceilings"]
    parts: list = [
        Facts(tuple(rows), title="Performance"),
        Bars(
            bars,
            title="Share of each ceiling",
            source=source,
            note="At most: the time is a lower bound." if bound else "",
        ),
        Text(f"Bottleneck: {what}. {why[:1].upper()}{why[1:]}."),
        Table(
            ("", "share", "verdict"),
            tuple(
                (name, f"{share:.1%}", Cell(word, tone=TONES.get(word, "")))
                for name, share, word in verdict.verdicts(data)
            ),
            title="Verdicts, one by one",
            note=(
                f"Low: below {verdict.LOW:.0%}; busy, or high: from {verdict.HIGH:.0%} on. A low"
                " share is no fault: only one of them can be the limit."
            ),
        ),
        Table(("", "what the numbers imply", "rule"), found, title="Findings"),
    ]
    if ceilings["read_bytes"] and ceilings["matrix_flops"]:
        points = [
            Point(
                f"{data['kernel']} m={problem['m']}{', at most' * bound}",
                rates["intensity"],
                rates["flops_per_s"],
                data["kernel"],
            )
        ]
        if "cublas_us" in time:
            nbytes = 2 * (
                problem["m"] * problem["k"]
                + problem["k"] * problem["n"]
                + problem["m"] * problem["n"]
            )
            points.append(
                Point(
                    "cuBLAS fp16",
                    rates["flops"] / nbytes,
                    rates["flops"] / time["cublas_us"] * 1e6,
                    "cublas",
                )
            )
        parts.append(
            Roofline(
                (
                    Ceiling(
                        f"reads {ceilings['read_bytes'] / 1e12:.2f} TB/s", ceilings["read_bytes"]
                    ),
                ),
                (
                    Ceiling(
                        f"{ceilings['matrix_flops'] / 1e12:.0f} TFLOP/s", ceilings["matrix_flops"]
                    ),
                ),
                tuple(points),
                title="Roofline",
                note=f"Ceilings: {ceilings['source']}; the point: {source}.",
                source=ceilings["source"],
            )
        )
    return Section("summary", "Summary", (), tuple(parts))


def known_times(time: dict) -> list[tuple[str, str, str]]:
    """Rows that say where a time comes from that this run did not measure, or that of the nearest
    product if there is only a bound."""
    if time.get("recorded"):
        return [("recorded", f"{recorded_words(time['recorded'])}, not now", "measured")]
    if time.get("nearest"):
        row = time["nearest"]
        size = f"m={row['m']} n={row['n']} k={row['k']}"
        return [("nearest measured", f"{recorded_words(row)}: {size}", "measured")]
    return []
