"""What ``numba-marlin run`` says of each step, whatever is multiplied: a row for people, and
``report.data`` for programs."""

from __future__ import annotations

import time


def multiplying(report, problem, plan):
    """The progress of the product."""
    where = {"reference": "the CPU", "emulator": "the PTX machine"}.get(plan.backend)
    what = f"multiplying {problem.m} x {problem.k} activations on {where or plan.device.name}"
    if plan.backend != "emulator":
        return report.step(what)
    from numba_marlin.cli.progress import machine_bar

    return machine_bar(what, report.data["expected"]["instructions"])


def report_quantised(report, w, q, method: str) -> None:
    import numpy as np

    from numba_marlin.quantizers import dequantize

    relative, largest = _lost(dequantize(q, np.float32), w)
    groups = "one scale per column" if q.group_size == -1 else f"groups of {q.group_size}"
    zeros = "" if q.zeros is None else f"{q.zeros_kind} zero points, "
    report.row(
        "quantised",
        f"{q.bits} bits, {zeros}{groups}: rms error {relative:.2%} of the weights' rms,"
        f" largest {largest:.3g}",
    )
    report.data["quantised"] = {
        "bits": q.bits,
        "group_size": q.group_size,
        "zeros": q.zeros_kind,
        "scale_dtype": q.scale_dtype,
        "method": method,
        "relative_rms_error": relative,
        "max_error": largest,
    }


def report_activations(report, x, q) -> None:
    """x: before it was quantised."""
    import numpy as np

    relative, largest = _lost(q.dequantized(np.float32), x)
    report.row(
        "",
        f"x {q.kind}, one scale per row: rms error {relative:.2%} of x's rms, largest"
        f" {largest:.3g}",
    )
    report.data["activations"] = {
        "kind": q.kind,
        "relative_rms_error": relative,
        "max_error": largest,
    }


def _lost(found, given) -> tuple[float, float]:
    """(root mean square of the error, as a share of what was given; the largest error)"""
    import numpy as np

    error = found - given.astype(np.float32)
    root_mean_square = float(np.sqrt(np.mean(np.square(given, dtype=np.float64))))
    relative = (
        float(np.sqrt(np.mean(np.square(error, dtype=np.float64)))) / root_mean_square
        if root_mean_square
        else 0.0
    )
    return relative, float(np.abs(error).max())


def report_packed(report, p, count: int = 1) -> None:
    """count: packed weights that p is of."""
    half_bytes = 2 * p.k * p.n * count
    report.row(
        "packed",
        f"Marlin layout, {p.nbytes:,} bytes, {16 * p.nbytes / half_bytes:.3f} bits per weight,"
        f" {half_bytes / p.nbytes:.2f} times less than fp16",
    )
    report.data["packed"] = {
        "layout": p.layout,
        "bytes": p.nbytes,
        "bits_per_weight": 16 * p.nbytes / half_bytes,
        "fp16_bytes": half_bytes,
    }


def compiled(report, plan, compiler: str) -> None:
    candidate = plan.candidate
    started, start = time.time(), time.perf_counter()
    with report.step(
        f"compiling {candidate.kernel} for {plan.target} with {compiler} (or reading the cache)"
    ):
        compiled = plan.compile(compiler)
    seconds = time.perf_counter() - start
    cached = _is_cached(compiled, started)
    used = compiled.resources
    if used.registers is None:
        costs = "registers unknown (no ptxas)"
    else:
        spilled = (
            used.spill_stores + used.spill_loads
            if used.spill_stores is not None and used.spill_loads is not None
            else None
        )
        costs = (
            f"{used.registers} registers,"
            f" {'spills unknown' if spilled is None else f'{spilled} bytes spilled'}"
        )
    shared = compiled.shared_bytes + (used.static_shared or 0)
    made = f"{candidate.kernel} for {compiled.target} with {_by_whom(compiled, cached, seconds)}"
    report.row("compiled", f"{made}\n{costs}, {shared / 1024:g} KiB shared memory")
    for reason in candidate.reasons:
        report.row("", f"- {reason}")
    report.data["compiled"] = {
        "kernel": candidate.kernel,
        "target": compiled.target,
        "compiler": compiled.compiler,
        "registers": used.registers,
        "spill_stores": used.spill_stores,
        "spill_loads": used.spill_loads,
        "shared_bytes": compiled.shared_bytes,
        "cached": cached,
        "shipped": compiled.shipped,
        "seconds": round(seconds, 4),
    }


def _by_whom(compiled, cached: bool, seconds: float) -> str:
    from numba_marlin.compiler.shipped import made_with

    if compiled.shipped:
        return f"{made_with(compiled.versions)}, beforehand: its PTX comes with the package"
    return f"{compiled.compiler} {'(from the cache)' if cached else f'in {seconds:.1f} s'}"


def _is_cached(compiled, started: float) -> bool:
    """Whether the kernel was in the disk cache before ``started``."""
    from numba_marlin.compiler.cache_directory import cache_directory

    directory = cache_directory()
    entry = None if directory is None else directory / f"{compiled.key}.kernel"
    return entry is not None and entry.is_file() and entry.stat().st_mtime < started


def report_run(report, info) -> None:
    grid = ""
    if info.candidate is not None:
        blocks = " x ".join(map(str, info.candidate.grid))
        grid = f", grid {blocks}, {info.candidate.threads} threads per block"
    work = "" if info.instructions is None else f"{info.instructions:,} warp instructions in "
    note = ", copies included: not a benchmark" if info.backend == "cuda" else ""
    where = (
        "the PTX machine" + info.device.removeprefix("PTX machine")
        if info.backend == "emulator"
        else info.device
    )
    report.row("ran", f"on {where}{grid}\n{work}{info.seconds:.3g} s{note}\n({info.reason})")
    report.data["run"] = info.to_dict()


def report_verdict(report, verdict, other_bits: int | None = None) -> None:
    """other_bits: outputs that are not those of exact sums in order, where they must be."""
    from numba_marlin.cli.report import GREEN, RED

    worst = (
        f"{verdict.actual_at_worst:.6g} for {verdict.expected_at_worst:.6g} +-"
        f" {verdict.bound_at_worst:.3g}"
    )
    if verdict.ok:
        text = (
            f"ok: each of {verdict.size:,} outputs is within its own error bound of the float64"
            " product\n"
        )
        text += (
            f"largest error {verdict.max_error:.3g}; nearest to its bound"
            f" ({verdict.max_ratio:.0%}): {verdict.worst}, {worst}"
        )
    else:
        text = (
            f"WRONG: {verdict.failures:,} of {verdict.size:,} outputs are out of their error"
            f" bounds\nworst: {verdict.worst}, {worst}"
        )
    if other_bits is not None:
        text += (
            f"\nWRONG: {other_bits:,} outputs have other bits than exact sums of groups, added up"
            " in the kernel's order"
            if other_bits
            else "\nevery bit is that of exact sums of groups, added up in the kernel's order"
        )
    ok = verdict.ok and not other_bits
    report.row("checked", text, GREEN if ok else RED)
    report.data["check"] = {
        "ok": ok,
        "max_error": verdict.max_error,
        "max_error_over_bound": verdict.max_ratio,
        "failures": verdict.failures,
        "outputs": verdict.size,
        **({} if other_bits is None else {"other_bits": other_bits}),
    }
