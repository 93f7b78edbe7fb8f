"""``Explanation``: what would run for a problem, and why, for people and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from numba_marlin.hardware import devices
from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics import tuned
from numba_marlin.heuristics.candidates import Candidate
from numba_marlin.heuristics.gated import ranked
from numba_marlin.kernels import registry
from numba_marlin.problems import Problem, WeightProblem
from numba_marlin.wording import html_table


@dataclass(frozen=True)
class Explanation:
    """What would run for a problem on a device, and why.

    candidates: ranked, ``candidates[0]`` is the choice. measured: the winner of a measurement on
    this computer, if there is one for the problem. ``str()`` is for people; ``to_dict()`` returns
    plain values for programs (JSON).
    """

    problem: Problem
    device: Device
    candidates: tuple[Candidate, ...]
    measured: tuned.Choice | None = None

    @property
    def choice(self) -> Candidate:
        return self.candidates[0]

    @property
    def because(self) -> str:
        """Why the choice is first: by what ``rank`` compares candidates."""
        first, others = (
            self.choice,
            [each for each in self.candidates if each.kernel != self.choice.kernel],
        )
        if self.measured and (self.measured.kernel, self.measured.config) == (
            first.kernel,
            first.config,
        ):
            return f"because it was the fastest when measured here, {self.measured.us:.1f} us"
        if self.problem.batch_invariant:
            return "because every m takes it, with the same order of sums"
        if not others:
            return "because no other kernel takes this problem on this device"
        then = others[0]
        if "predicted_us" not in first.figures:
            return f"because it is first by rule, no time is predicted (next: {then.kernel})"
        known = "predicted_us" in then.figures
        behind = f"{then.kernel}: {_predicted(then)}" if known else f"next: {then.kernel}"
        return f"because its predicted time is least: {_predicted(first)} ({behind})"

    def to_dict(self) -> dict:
        return {
            "problem": self.problem.to_dict() | {"least_bytes": self.problem.least_bytes},
            "device": self.device.to_dict(),
            "candidates": [each.to_dict() for each in self.candidates],
        }

    def __repr__(self) -> str:
        others = len(self.candidates) - 1
        return (
            f"<Explanation {self.problem.in_words()}, on {self.device.name}:"
            f" {self.choice.kernel}, then {others} other candidate{'s' * (others != 1)};"
            " print() says why>"
        )

    def _repr_html_(self) -> str:
        header = ("kernel", "configuration", "grid", "predicted", "why")
        rows = [
            (
                each.kernel,
                each.config_text,
                each.grid_text,
                _predicted(each) if "predicted_us" in each.figures else "",
                "; ".join(each.reasons),
            )
            for each in self.candidates
        ]
        return html_table(rows, header)

    def __str__(self) -> str:
        return self.text(100)

    def text(self, width: int) -> str:
        """``str()``, in lines of at most ``width`` columns."""
        p, d = self.problem, self.device
        lines = [
            f"chosen: {self.choice.kernel}, {self.because}",
            p.in_words(),
            (
                f"device: {d.name}, {d.sms} SMs, {d.arch}, {d.shared_bytes_per_block // 1024} KiB"
                f" shared memory per block ({d.source})"
            ),
            f"moves at least {p.least_bytes:,} bytes"
            + (
                f", in {p.least_bytes / d.bandwidth_bytes * 1e6:.3g} us if nothing else took time"
                if d.bandwidth_bytes
                else ""
            )
            + " (modelled)",
        ]
        for position, each in enumerate(self.candidates, start=1):
            lines += ["", *_lines(each, position)]
        return "\n".join(_folded(lines, width))


def _folded(lines: list[str], width: int) -> Iterator[str]:
    """The lines, long ones broken between words; what follows stands under the first word."""
    for line in lines:
        words = line.lstrip(" -")
        yield from textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(words)),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def _predicted(each: Candidate) -> str:
    return f"{each.figures['predicted_us']:.1f} us"


def _lines(each: Candidate, position: int) -> list[str]:
    f = each.figures
    static = registry.find_kernel(each.kernel).static_shared_bytes(each.config)
    shared = each.shared_bytes + static
    work = f"blocks {f['blocks']}, waves {f['waves']:g}"
    if "tiles" in f:
        work += "; tiles " + " x ".join(
            f"{f['tiles'][name]} ({name})" for name in "knm" if name in f["tiles"]
        )
    if "tiles_per_block" in f:
        work += f", {f['tiles_per_block']} per block, SMs {f['busy']:.0%} busy"
    lines = [
        (
            f"{position}. {each.kernel}  grid {each.grid_text}, {each.threads}"
            f" threads, {shared / 1024:g} KiB shared"
        ),
        f"   {each.config_text}",
        *(f"   - {reason}" for reason in each.reasons),
        f"   modelled: {work}"
        + (f"; {_predicted(each)}" if "predicted_us" in f else "")
        + (f", {f['free_us']:.1f} us if free to choose" if "free_us" in f else ""),
    ]
    return lines


def explain(
    m: int, n: int, k: int, group_size: int = 128, device: str | Device = "H200", **types
) -> Explanation:
    """What would run for ``y[m, n] = x[m, k] @ W[k, n]`` on ``device``: a name
    (``devices.names()``) or a ``Device``.

    types: dtype, bits, zeros, scale_dtype, bias, batch_invariant and codes of the
    ``WeightProblem``.
    """
    return explain_problem(WeightProblem(m, n, k, group_size, **types), device)


def explain_problem(problem: Problem, device: str | Device) -> Explanation:
    """The Explanation of a problem of any kind."""
    where = devices.device(device) if isinstance(device, str) else device
    if not isinstance(where, Device):
        raise TypeError(f"device is a {type(where).__name__}, must be a name or a Device")
    return Explanation(problem, where, ranked(problem, where), tuned.stored_choice(problem, where))
