"""Advice that was tried: configurations one field away from a launch's own, timed on this
computer's GPU, or counted on the PTX machine.

``neighbours(problem, chosen, device)`` -> the configurations; ``timed(...)`` and ``counted(...)``
-> what became of each, as plain data that a profile holds under "tried":

``source``
    "measured" (timed in the same interleaved rounds as the launch's own configuration, every
    result checked before) or "counted" (on the machine, the part of the problem that it runs).
``device``, ``rows``, ``dropped``
    rows: the first is the configuration itself (``change`` ""); then each neighbour. They have
    ``config`` {field: value}, their figures, and if timed ``change_by`` (its time over the
    configuration's own, less 1) and ``verdict`` (``bench.compare``'s). dropped: [{change, why}].

Timing needs torch and a GPU (CapabilityMissing). A neighbour that multiplies wrongly is dropped.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import numpy as np

from numba_marlin import compiler, counts
from numba_marlin.execution import machine
from numba_marlin.execution.plan import target_for
from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics import Candidate, candidate, find_kernel
from numba_marlin.problems import ActivationsProblem, BlockProblem, Problem, WeightProblem
from numba_marlin.profile.sources import on_machine
from numba_marlin.profile.sources.occupancy import occupancy
from numba_marlin.profile.sources.samples import sample
from numba_marlin.views import COUNTED, MEASURED

MOST = 10  # neighbours that are tried
TOLERANCE = 0.01  # of the verdicts: rounds are interleaved, quartiles are within 1% on an H200


@dataclass(frozen=True)
class Neighbour:
    """``change``: what differs from the launch's own configuration, in words."""

    change: str
    candidate: Candidate


def problem_of(data: dict) -> Problem:
    """The problem of a profile (``profile.build``). ValueError for one of another kind."""
    kinds = {each.kind: each for each in (WeightProblem, BlockProblem, ActivationsProblem)}
    if data["kind"] not in kinds:
        raise ValueError(
            f"a profile of kind {data['kind']!r} has no neighbours to try, only one of"
            f" {' or '.join(kinds)}"
        )
    made = kinds[data["kind"]]
    known = {each.name for each in fields(made)}
    return made(**{name: value for name, value in data["problem"].items() if name in known})


def chosen_of(data: dict, device: Device) -> Candidate:
    """The launch of a profile on ``device``."""
    config = find_kernel(data["kernel"]).config_type(**data["config"])
    return candidate(problem_of(data), device, data["kernel"], config)


def neighbours(
    problem: Problem, chosen: Candidate, device: Device, most: int = MOST
) -> tuple[Neighbour, ...]:
    """Configurations of the same kernel in which one field has another value: for a number the
    next smaller and the next larger value among those that the kernel proposes for the problem,
    else half, double, one less and one more; for others any value that it proposes. What the device
    or the kernel refuses is no neighbour. At most ``most``, the ones predicted to be fastest
    first."""
    definition, own = find_kernel(chosen.kernel), asdict(chosen.config)
    proposed = [asdict(each) for each in definition.chooser.configurations(problem, device)]
    found: dict[object, Neighbour] = {}
    for name, value in own.items():
        for other in _values(value, {each[name] for each in proposed} - {value}):
            try:
                config = definition.changed(chosen.config, {name: other})
                each = candidate(problem, device, chosen.kernel, config)
            except (TypeError, ValueError):
                continue
            if config != chosen.config and config not in found:
                found[config] = Neighbour(_difference(own, asdict(config)), each)
    ordered = sorted(
        found.values(), key=lambda each: each.candidate.figures.get("predicted_us", 0.0)
    )
    return tuple(ordered[:most])


def _values(value: object, proposed: set) -> list:
    if isinstance(value, bool) or not isinstance(value, int):
        return sorted(proposed, key=str)
    if not proposed:
        return [each for each in (value // 2, value - 1, value + 1, 2 * value) if each > 0]
    numbers = {each for each in proposed if isinstance(each, int)}
    below = [each for each in numbers if each < value]
    above = [each for each in numbers if each > value]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def _difference(own: dict, other: dict) -> str:
    return ", ".join(
        f"{name} {own[name]} > {other[name]}" for name in own if own[name] != other[name]
    )


def timed(bench, problem: Problem, chosen: Candidate, around: tuple[Neighbour, ...]) -> dict:
    """``bench``: a ``bench.measure.Bench`` on the GPU. Raises WrongResult if the launch's own
    configuration multiplies wrongly."""
    from numba_marlin.bench.compare import judge
    from numba_marlin.bench.tune import screen

    changes = {each.candidate: each.change for each in around}
    tried, refused = screen(bench, problem, tuple(changes))
    running = tuple(each for each, _ in tried)
    rows = bench.cell(problem, (chosen, *running), chosen)[: len(running) + 1]
    own = rows[0]
    low, high = own["us_spread"]
    found = []
    for each, row in zip((chosen, *running), rows):
        by = row["us"] / own["us"] - 1
        interval = row["us_spread"][0] / high - 1, row["us_spread"][1] / low - 1
        found.append(
            {
                "change": changes.get(each, ""),
                "config": asdict(each.config),
                "us": row["us"],
                "us_spread": list(row["us_spread"]),
                "registers": row.get("registers"),
                "change_by": round(by, 4),
                "verdict": judge(by, *interval, TOLERANCE) if each is not chosen else "",
            }
        )
    return {
        "source": MEASURED,
        "device": bench.device.name,
        "rows": found,
        "dropped": [{"change": changes[each], "why": why} for each, why in refused],
    }


def counted(
    problem: Problem,
    chosen: Candidate,
    around: tuple[Neighbour, ...],
    device: Device,
    seed: int = 0,
) -> dict:
    """Run each on the PTX machine. A neighbour that cannot be compiled here is dropped."""
    from numba_marlin.errors import CapabilityMissing

    rows, dropped = [], []
    for each in (Neighbour("", chosen), *around):
        try:
            rows.append(_counts(problem, each, device, seed))
        except CapabilityMissing as error:
            dropped.append({"change": each.change, "why": str(error).splitlines()[0]})
    return {"source": COUNTED, "device": device.name, "rows": rows, "dropped": dropped}


def _counts(problem: Problem, tried: Neighbour, device: Device, seed: int) -> dict:
    chosen = tried.candidate
    definition = find_kernel(chosen.kernel)
    compiled = compiler.build(
        definition, chosen.config, target=target_for(definition, device), line_info=True
    )
    part, sms = on_machine.cut(problem, chosen, device)
    binding = sample(part, np.random.default_rng(seed)).bound(chosen, sms, compiled)
    run = machine.set_up(binding)
    _, found = counts.count(run.machine, **run.launch)
    total, factor = found.total, (problem.m * problem.n) / (part.m * part.n)
    resources = compiled.resources
    blocks = math.prod(chosen.grid)
    fits = occupancy(
        device.architecture,
        device.sms,
        compiled.threads,
        resources.registers,
        compiled.shared_bytes + (resources.static_shared or 0),
        blocks,
    )
    return {
        "change": tried.change,
        "config": asdict(chosen.config),
        "predicted_us": chosen.figures.get("predicted_us"),
        "instructions": round(total.tally.executed * factor),
        "asked_bytes": round(32 * total.asked * factor),
        "wavefronts": round(total.tally.shared.wavefronts * factor),
        "flops": round(total.tally.flops * factor),
        "registers": resources.registers,
        "shared_bytes": compiled.shared_bytes,
        "blocks": blocks,
        "warps_per_sm": fits.launched_warps,
    }
