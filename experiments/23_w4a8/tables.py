"""Rows of experiment 23 as tables."""

from statistics import geometric_mean

from layers import ENTRANTS, HUMMING, KINDS, cells, expected_us, quantized

from numba_marlin.bench.tables import markdown


def times_of(found):
    """{(k, n, group size, m): {entrant: us}}"""
    times = {}
    for row in found:
        key = row["k"], row["n"], row["group_size"], row["m"]
        times.setdefault(key, {})[row["kernel"]] = row["us"]
    return times


def beside_humming(found):
    """In how many cells each type is ahead of Humming's, in words; empty if it was not timed."""
    said = []
    for kind in KINDS:
        ratios = [
            cell[HUMMING[kind]] / cell[kind]
            for cell in times_of(found).values()
            if {kind, HUMMING[kind]} <= set(cell)
        ]
        if ratios:
            said.append(
                f"{kind} is ahead of Humming's {kind} in {sum(each >= 1 for each in ratios)} of"
                f" {len(ratios)} cells, {min(ratios):.2f} to {max(ratios):.2f} times as fast,"
                f" geometric mean {geometric_mean(ratios):.2f}."
            )
    return " ".join(said)


def table(found, device):
    """A line for each cell that has all ENTRANTS."""
    times, lines = times_of(found), []
    for problem in cells(sorted({row["m"] for row in found})):
        cell = times.get((problem.k, problem.n, problem.group_size, problem.m), {})
        if set(cell) < set(ENTRANTS):
            continue
        int8, fp8 = (cell[kind] for kind in KINDS)
        theirs = [cell.get(HUMMING[kind]) for kind in KINDS]
        lines.append(
            [
                f"{problem.k} x {problem.n}",
                "columns" if problem.group_size == -1 else str(problem.group_size),
                str(problem.m),
                *(f"{cell[name]:.1f}" for name in ENTRANTS),
                *("" if us is None else f"{us:.1f}" for us in theirs),
                *(f"{cell[other] / us:.2f}" for us in (int8, fp8) for other in ENTRANTS[:2]),
                *(
                    "" if us is None else f"{us / cell[kind]:.2f}"
                    for kind, us in zip(KINDS, theirs)
                ),
                *(f"{problem.flops / us * 1e-6:.0f}" for us in (int8, fp8)),
                *(f"{expected_us(quantized(problem, kind), device):.1f}" for kind in KINDS),
            ]
        )
    header = ["k x n", "groups", "m", *(f"{name}: us" for name in (*ENTRANTS, *HUMMING.values()))]
    header += [f"{kind} of {other}" for kind in KINDS for other in ("cuBLAS", "W4A16")]
    header += [f"{kind} of Humming's" for kind in KINDS]
    header += [f"{kind}: TFLOP/s" for kind in KINDS]
    header += [f"{kind}: expected us (modelled)" for kind in KINDS]
    return markdown(header, lines)
