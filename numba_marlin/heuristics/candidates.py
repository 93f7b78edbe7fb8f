"""Candidates of every kernel for a problem on a device, ranked by the time that each is likely to take."""

from __future__ import annotations

import importlib
import math
from dataclasses import asdict, dataclass, field, replace

from numba_marlin import tuned
from numba_marlin.devices import Device
from numba_marlin.heuristics import ampere, decode, naive, tiled, wgmma
from numba_marlin.heuristics.problem import LARGEST_DIMENSION, Problem
from numba_marlin.kernels.definition import KernelDefinition

CHOOSERS = {"naive": naive, "tiled": tiled, "ampere": ampere, "decode": decode, "wgmma": wgmma}
LADDER = tuple(CHOOSERS)  # simplest first; each is a module of kernels/ too
PER_KERNEL = 3  # configurations of one kernel that are ranked: the fastest


@dataclass(frozen=True)
class Candidate:
    """One way to run a problem. ``grid`` in blocks (x, y, z), ``shared_bytes`` of dynamic shared memory a block."""

    kernel: str
    config: object
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    reasons: tuple[str, ...]
    figures: dict = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict:
        return {
            "kernel": self.kernel, "config": asdict(self.config), "grid": list(self.grid), "threads": self.threads,
            "shared_bytes": self.shared_bytes, "reasons": list(self.reasons), "modelled": dict(self.figures),
        }


def find_kernel(name: str) -> KernelDefinition:
    """The kernel called ``name``; ValueError lists the ladder."""
    if name not in LADDER:
        raise ValueError(f"kernel={name!r} must be one of {', '.join(LADDER)}")
    return importlib.import_module(f"numba_marlin.kernels.{name}").KERNEL


def kernel_of(config: object) -> str:
    """The kernel that ``config`` configures; TypeError if there is none."""
    for name in LADDER:
        if isinstance(config, find_kernel(name).config_type):
            return name
    wanted = ", ".join(find_kernel(name).config_type.__name__ for name in LADDER)
    raise TypeError(f"config is a {type(config).__name__}, must be one of {wanted}")


def check_takes(kernel: str, problem: Problem) -> None:
    """ValueError, naming the kernels that can, unless ``kernel`` takes problems of this kind."""
    refusals = find_kernel(kernel).takes.refusals(problem)
    if refusals:
        able = [name for name in LADDER if not find_kernel(name).takes.refusals(problem)]
        raise ValueError(f"kernel {kernel!r} does not take {'; nor '.join(refusals)}; kernels that do: {', '.join(able) or 'none'}")


def check_device(kernel: str, device: Device) -> None:
    """ValueError unless ``device`` has the instructions of ``kernel``."""
    needs = find_kernel(kernel).min_arch
    if not device.runs(needs):
        raise ValueError(f"kernel {kernel!r} needs {needs}, {device.name} is {device.arch}")


def check_config(kernel: str, config: object, problem: Problem) -> None:
    """TypeError or ValueError unless ``config`` is one of ``kernel``'s and was made for ``problem``'s types, groups and tails."""
    config_type = find_kernel(kernel).config_type
    if not isinstance(config, config_type):
        raise TypeError(f"config is a {type(config).__name__}, kernel {kernel!r} needs a {config_type.__name__}")
    CHOOSERS[kernel].check(config, problem)


def default_config(kernel: str, problem: Problem, device: Device):
    """The configuration of ``kernel`` that leads for ``problem`` on ``device``."""
    find_kernel(kernel)
    return candidate(problem, device, kernel).config


def candidate(problem: Problem, device: Device, kernel: str, config=None) -> Candidate:
    """``problem`` on ``kernel`` with ``config`` (default: ``default_config``); ValueError if the device cannot hold or run it."""
    find_kernel(kernel)
    check_takes(kernel, problem)
    check_device(kernel, device)
    if config is not None:
        check_config(kernel, config, problem)
        return _candidate(problem, device, kernel, config)
    found, refusals = _candidates(problem, device, kernel)
    if not found:
        raise ValueError("; ".join(refusals))
    return found[0]


def _candidates(problem: Problem, device: Device, kernel: str) -> tuple[list[Candidate], list[str]]:
    """Those of one kernel that the device can hold, the fastest first; and what is wrong with the others."""
    found, refusals = [], []
    try:
        configurations = CHOOSERS[kernel].configurations(problem, device)
    except ValueError as error:  # so large that the kernel cannot count
        return [], [str(error)]
    for config in configurations:
        try:
            found.append(_candidate(problem, device, kernel, config))
        except ValueError as error:
            refusals.append(str(error))
    return sorted(found, key=_predicted), list(dict.fromkeys(refusals))


def _predicted(each: Candidate) -> float:
    return each.figures.get("predicted_us", math.inf)


def _candidate(problem: Problem, device: Device, kernel: str, config: object) -> Candidate:
    definition = find_kernel(kernel)
    shared_bytes = definition.shared_bytes(config)
    if shared_bytes > device.shared_bytes_per_block:
        raise ValueError(f"kernel {kernel!r} needs shared_bytes={shared_bytes} a block, {device.name} has {device.shared_bytes_per_block}")
    grid = tuple(definition.grid(config, problem.m, problem.n, problem.k, device.sms))
    choice = CHOOSERS[kernel].described(problem, config, device)
    if grid[1] > 65535 or grid[2] > 65535 or grid[0] > LARGEST_DIMENSION:
        raise ValueError(f"m={problem.m}: grid {grid} of kernel {kernel!r} is beyond CUDA's limit (2**31 - 1, 65535, 65535)")
    blocks = grid[0] * grid[1] * grid[2]
    figures = {"blocks": blocks, "waves": round(blocks / device.sms, 3), "least_bytes": problem.least_bytes, **choice.work}
    if choice.us is not None:
        figures["predicted_us"] = round(choice.us, 2)
    if device.bandwidth_bytes:
        figures["memory_us"] = round(problem.least_bytes / device.bandwidth_bytes * 1e6, 3)
    return Candidate(kernel, config, grid, definition.threads(config), shared_bytes, choice.reasons, figures)


def rank(problem: Problem, device: Device) -> tuple[Candidate, ...]:
    """All candidates that ``device`` can run, best first: what was measured to be best here (``tuned``), then by predicted time, then those of
    which nobody knows the time, the simplest last. ValueError, with what is wrong with each, if there is none."""
    found, refusals = [], []
    for kernel in reversed(LADDER):
        try:
            check_takes(kernel, problem)
            check_device(kernel, device)
        except ValueError as error:
            refusals.append(str(error))
            continue
        candidates, wrong = _candidates(problem, device, kernel)
        found += candidates[:PER_KERNEL]
        refusals += wrong
    if not found:
        raise ValueError(f"no kernel runs m={problem.m}, n={problem.n}, k={problem.k} on {device.name}: {'; '.join(refusals)}")
    found = sorted(dict.fromkeys(found), key=_predicted)
    return _measured_first(problem, device, found)


def _measured_first(problem: Problem, device: Device, found: list[Candidate]) -> tuple[Candidate, ...]:
    stored = tuned.stored_choice(problem, device)
    if stored is None:
        return tuple(found)
    try:
        winner = candidate(problem, device, stored.kernel, stored.config)
    except (TypeError, ValueError):  # made for another m of its bucket
        return tuple(found)
    others = [each for each in found if (each.kernel, each.config) != (winner.kernel, winner.config)]
    return (replace(winner, reasons=(f"measured to be best here on {stored.date}: {stored.us:.2f} us", *winner.reasons)), *others)
