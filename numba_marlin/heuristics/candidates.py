"""Candidates of all kernels for a problem on a device, ranked by predicted time."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass, field, fields, replace

from numba_marlin.hardware.devices import SPECIFICATIONS, Device, runs_machine_code
from numba_marlin.hardware.limits import GRID_BLOCKS
from numba_marlin.heuristics import tuned
from numba_marlin.heuristics.invariance import SPECTRUM, Order, settle
from numba_marlin.kernels import registry
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.problems import WEIGHTS, Problem

LADDER = registry.names(WEIGHTS)  # of kernels for quantised weights, simplest first
PER_KERNEL = 3  # default of ``rank``, and what autotuning tries


@dataclass(frozen=True)
class Candidate:
    """One way to run a problem. ``grid``: blocks (x, y, z); ``shared_bytes``: dynamic shared memory
    per block."""

    kernel: str
    config: object
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    reasons: tuple[str, ...]
    figures: dict = field(default_factory=dict, hash=False)
    leads: bool = field(default=True, compare=False)  # see ``kernels.language.choice.Description``

    @property
    def config_text(self) -> str:
        """The configuration's fields: "batch=8, stages=5"."""
        return ", ".join(f"{name}={value}" for name, value in asdict(self.config).items())

    @property
    def grid_text(self) -> str:
        """Blocks: "132 x 1 x 1"."""
        return " x ".join(map(str, self.grid))

    def to_dict(self) -> dict:
        return {
            "kernel": self.kernel,
            "config": asdict(self.config),
            "grid": list(self.grid),
            "threads": self.threads,
            "shared_bytes": self.shared_bytes,
            "reasons": list(self.reasons),
            "modelled": dict(self.figures),
        }


def kernel_of(config: object) -> str:
    """The name of the kernel that ``config`` configures; TypeError if there is none."""
    return registry.kernel_of(config).name


def devices_for(kernel: str) -> tuple[Device, ...]:
    """Devices of the table that run ``kernel``, the one with the fastest memory first."""
    able = [each for each in SPECIFICATIONS if has_instructions(kernel, each)]
    return tuple(sorted(able, key=lambda each: -(each.bandwidth_bytes or 0)))


def has_instructions(kernel: str, device: Device) -> bool:
    """Whether ``device`` has the instructions that ``kernel`` needs: its target includes them, or
    they are specific to exactly its architecture."""
    needs = find_kernel(kernel).min_arch
    alone = needs.endswith("a") and runs_machine_code(needs, device.compute_capability)
    return device.runs(needs) or alone


def check_takes(kernel: str, problem: Problem) -> None:
    """ValueError, naming the kernels that do, unless ``kernel`` takes problems of this kind."""
    refusals = find_kernel(kernel).takes.refusals(problem)
    if refusals:
        able = [
            each.name for each in registry.kernels(problem.kind) if not each.takes.refusals(problem)
        ]
        raise ValueError(
            f"kernel {kernel!r} does not take {'; nor '.join(refusals)}; kernels that do:"
            f" {', '.join(able) or 'none'}"
        )


def check_device(kernel: str, device: Device) -> None:
    """ValueError, naming devices that have them, unless ``device`` has the instructions of
    ``kernel``."""
    if not has_instructions(kernel, device):
        able = " or ".join(each.name for each in devices_for(kernel))
        raise ValueError(
            f"kernel {kernel!r} needs {find_kernel(kernel).min_arch}, {device.name} is"
            f" {device.arch}: choose {able}"
        )


def check_config(kernel: str, config: object, problem: Problem) -> None:
    """TypeError or ValueError unless ``config`` is one of ``kernel``'s and was made for
    ``problem``'s types, groups and tails."""
    definition = find_kernel(kernel)
    if type(config) is not definition.config_type:
        raise TypeError(
            f"config is a {type(config).__name__}, kernel {kernel!r} needs a"
            f" {definition.config_type.__name__}"
        )
    definition.chooser.check(config, problem)
    if problem.batch_invariant and order_of(kernel, config) is None:
        raise ValueError(
            "batch_invariant=True needs a configuration whose reduction order is independent of m,"
            f" {config} shares tiles: see explain(..., batch_invariant=True)"
        )


def default_config(kernel: str, problem: Problem, device: Device):
    """The best configuration of ``kernel`` for ``problem`` on ``device``."""
    return candidate(problem, device, kernel).config


def configured(problem: Problem, device: Device, kernel: str, changes: dict):
    """``default_config`` with fields changed, {field: value}, and with the fields that depend on
    them adjusted. ValueError, listing the fields, for an unknown one."""
    definition = find_kernel(kernel)
    known = [each.name for each in fields(definition.config_type)]
    for name, value in changes.items():
        if name not in known:
            raise ValueError(
                f"{name}={value!r} is no field of {kernel}'s configuration, which has"
                f" {', '.join(known)}"
            )
    return definition.changed(default_config(kernel, problem, device), changes)


def candidate(problem: Problem, device: Device, kernel: str, config=None) -> Candidate:
    """``problem`` on ``kernel`` with ``config`` (default: ``default_config``); ValueError if the
    device cannot hold or run it."""
    check_takes(kernel, problem)
    if device.source != "model":  # the PTX machine has the instructions of all kernels
        check_device(kernel, device)
    if config is not None:
        check_config(kernel, config, problem)
        return _priced(problem, device, [_candidate(problem, device, kernel, config)])[0]
    found, refusals = _candidates(problem, device, kernel)
    if problem.batch_invariant:
        found = _priced(
            problem, device, _of_order(found, invariant_order(problem, device, (kernel,)))
        )
    if not found:
        raise ValueError("; ".join(refusals))
    return found[0]


def order_of(kernel: str, config: object) -> Order | None:
    """Reduction-order key: the kernel and its ``order_of_sums``. Candidates with equal keys compute
    bit-identical rows. None if the order depends on more than ``config``."""
    sums = find_kernel(kernel).order_of_sums(config)
    return None if sums is None else (kernel, sums)


def invariant_order(
    problem: Problem, device: Device, kernels: tuple[str, ...] | None = None
) -> Order:
    """The reduction order that the batch-invariant mode chooses among those of ``kernels``,
    independent of the problem's m (``invariance``). kernels: default: all of the problem's kind.
    ValueError, with the reasons, if none has such an order."""
    able = registry.names(problem.kind) if kernels is None else kernels
    return _invariant_order(replace(problem, m=1, batch_invariant=True), device, able)


@functools.lru_cache(maxsize=1024)
def _invariant_order(problem: Problem, device: Device, kernels: tuple[str, ...]) -> Order:
    found, refusals = [], {}  # {kernel: why}
    for kernel in reversed(kernels):
        for m in SPECTRUM:
            candidates, wrong = _runnable(replace(problem, m=m), device, kernel)
            found += [
                (m, order_of(each.kernel, each.config), _predicted(each)) for each in candidates
            ]
            if not candidates:
                refusals[kernel] = "; ".join(wrong) or f"kernel {kernel!r} has no such order"
    if not found:
        raise ValueError(
            "batch_invariant=True needs a reduction order that is independent of m: change what no"
            f" kernel takes for n={problem.n}, k={problem.k} on {device.name}, or leave it out:"
            f" {'; '.join(refusals.values())}"
        )
    return settle(found)


def in_words(order: Order) -> str:
    return f"{order[0]} ({order[1]})"


def _of_order(found: list[Candidate], order: Order) -> list[Candidate]:
    return [each for each in found if order_of(each.kernel, each.config) == order]


def _priced(problem: Problem, device: Device, found: list[Candidate]) -> list[Candidate]:
    """In the batch-invariant mode: add to each candidate what would be chosen without it."""
    if not problem.batch_invariant or not found:
        return found
    free = rank(replace(problem, batch_invariant=False), device)[0]
    us, kept = free.figures.get("predicted_us"), {}
    instead = f"{free.kernel}, {us:.1f} us by prediction" if us is not None else free.kernel
    if us is not None:
        kept = {"free_us": us}
    return [
        replace(
            each,
            figures=each.figures | kept,
            reasons=(
                (
                    "batch-invariant: every m takes"
                    f" {in_words(order_of(each.kernel, each.config))}; free to choose,"
                    f" m={problem.m} would take {instead}"
                ),
                *each.reasons,
            ),
        )
        for each in found
    ]


def _runnable(problem: Problem, device: Device, kernel: str) -> tuple[list[Candidate], list[str]]:
    """``_candidates``, or none if the kernel does not support the problem or the device."""
    try:
        check_takes(kernel, problem)
        check_device(kernel, device)
    except ValueError as error:
        return [], [str(error)]
    return _candidates(problem, device, kernel)


def _candidates(problem: Problem, device: Device, kernel: str) -> tuple[list[Candidate], list[str]]:
    """(candidates of one kernel that fit the device, fastest first; why the others do not fit)."""
    found, refusals = [], []
    chooser = find_kernel(kernel).chooser
    try:
        configurations = (
            chooser.invariant_configurations if problem.batch_invariant else chooser.configurations
        )(problem, device)
    except ValueError as error:  # too large for the kernel's 32-bit indices
        return [], [str(error)]
    for config in configurations:
        try:
            found.append(_candidate(problem, device, kernel, config))
        except ValueError as error:
            refusals.append(str(error))
    return sorted(found, key=_predicted), list(dict.fromkeys(refusals))


def _predicted(each: Candidate) -> float:
    return each.figures.get("predicted_us", math.inf)


def _likely(each: Candidate) -> tuple[float, bool]:
    """The sort key of candidates."""
    return _predicted(each), not each.leads


def _candidate(problem: Problem, device: Device, kernel: str, config: object) -> Candidate:
    definition = find_kernel(kernel)
    shared_bytes = definition.shared_bytes(config)
    if shared_bytes > device.shared_bytes_per_block:
        raise ValueError(
            f"kernel {kernel!r} needs shared_bytes={shared_bytes} per block, {device.name} has"
            f" {device.shared_bytes_per_block}"
        )
    grid = tuple(definition.grid(config, problem.m, problem.n, problem.k, device.sms))
    choice = definition.chooser.described(problem, config, device)
    if any(blocks > most for blocks, most in zip(grid, GRID_BLOCKS)):
        raise ValueError(
            f"m={problem.m}: grid {grid} of kernel {kernel!r} with {config} is beyond CUDA's limit"
            f" {GRID_BLOCKS}"
        )
    blocks = grid[0] * grid[1] * grid[2]
    figures = {
        "blocks": blocks,
        "waves": round(blocks / device.sms, 3),
        "least_bytes": problem.least_bytes,
        **choice.work,
    }
    if choice.us is not None:
        figures["predicted_us"] = round(choice.us, 2)
    if device.bandwidth_bytes:
        figures["memory_us"] = round(problem.least_bytes / device.bandwidth_bytes * 1e6, 3)
    return Candidate(
        kernel,
        config,
        grid,
        definition.threads(config),
        shared_bytes,
        choice.reasons,
        figures,
        choice.leads,
    )


def rank(
    problem: Problem,
    device: Device,
    whole_n: int | None = None,
    per_kernel: int = PER_KERNEL,
) -> tuple[Candidate, ...]:
    """All candidates that ``device`` can run, best first.

    The winner measured on this computer (``tuned``) comes first, then candidates by predicted time,
    then those without a prediction: first those that lead
    (``kernels.language.choice.Description``), the simplest kernel last. For a batch-invariant
    problem all candidates have the reduction order chosen for every m (``invariance``), and report
    what would be chosen without it. ValueError, with the reasons, if no candidate is left.

    whole_n: of a batch-invariant problem whose weight is a part of the columns of a weight
        [k, whole_n]: all candidates have the order of sums chosen for the whole, so that the part
        gives the bits that the whole gives in these columns. ValueError if that kernel does not
        take the part: "ampere" takes multiples of 64 columns only.
    per_kernel: the most configurations of a kernel that are ranked, the fastest ones.
    """
    whole = problem if whole_n is None else replace(problem, n=whole_n)
    order = invariant_order(whole, device) if problem.batch_invariant else None
    found, refusals = [], []
    ladder = registry.names(problem.kind)
    for kernel in reversed(ladder) if order is None else order[:1]:
        candidates, wrong = _runnable(problem, device, kernel)
        found += (candidates if order is None else _of_order(candidates, order))[:per_kernel]
        refusals += wrong
    if not found:
        able = (
            "no kernel runs"
            if order is None
            else f"batch_invariant=True takes {in_words(order)}, whatever m is"
            f"{'' if whole_n is None else f', as for n={whole_n}, of which this is a part'};"
            " that does not run"
        )
        raise ValueError(
            f"{able} m={problem.m}, n={problem.n}, k={problem.k} on {device.name}:"
            f" {'; '.join(refusals)}"
        )
    found = _priced(problem, device, sorted(dict.fromkeys(found), key=_likely))
    return _measured_first(problem, device, found, order)


def _measured_first(
    problem: Problem, device: Device, found: list[Candidate], order: Order | None
) -> tuple[Candidate, ...]:
    stored = tuned.stored_choice(problem, device)
    if stored is None or (order is not None and order_of(stored.kernel, stored.config) != order):
        return tuple(found)
    try:
        winner = candidate(problem, device, stored.kernel, stored.config)
    except (TypeError, ValueError):  # the winner was made for another m of its bucket
        return tuple(found)
    others = [
        each for each in found if (each.kernel, each.config) != (winner.kernel, winner.config)
    ]
    return (
        replace(
            winner,
            reasons=(
                f"measured to be best here on {stored.date}: {stored.us:.2f} us",
                *winner.reasons,
            ),
        ),
        *others,
    )
