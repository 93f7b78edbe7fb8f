"""Runs one kernel of the zoo from its folder: right or not, by which bound; races; traffic."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import problem
from launches import inside

from numba_marlin.cli import machine_arguments
from numba_marlin.cli.machine import given
from numba_marlin.counts import count
from numba_marlin.counts.transactions import SECTOR_BYTES
from numba_marlin.emulator import Machine, MachineError, Race, Schedule
from numba_marlin.emulator.scheduling.schedules import OF_WARPS
from numba_marlin.formats.floats import round_to
from numba_marlin.layout.tensor_map import TensorMap
from numba_marlin.quantizers.dequantize import dequantize
from numba_marlin.reference import bounds
from numba_marlin.reference import matmul as reference

CHECKS = "hardware"  # what is undefined, and works on chips, is a warning
ORDERS = [Schedule(29, order) for order in OF_WARPS]  # that a kernel with a race is run in


@dataclass(frozen=True)
class Mapped:
    """An argument that is a tensor map, of ``array``."""

    name: str
    array: np.ndarray
    written: bool
    map: TensorMap


def mapped(held: dict) -> Mapped:
    held = dict(held)
    name, written = held.pop("name"), held.pop("written")
    return Mapped(name, np.load(f"{name}.npy"), written, TensorMap(**held))


def encoded(machine: Machine, argument: Mapped) -> bytes:
    buffer = machine.memory.buffer(argument.array, argument.name, readonly=not argument.written)
    return argument.map.encode(buffer.address)


def run(folder: Path, races: bool = False, counting: bool = False, seed: Schedule | None = None):
    """-> (result [m, n] as the host makes it of the parts, RunResult, Counts or None)."""
    held = json.loads((folder / "launch.json").read_text(encoding="utf-8"))
    random = np.random.default_rng(0)
    with inside(folder):
        arguments = [
            mapped(each)
            if isinstance(each, dict)
            else machine_arguments.parse(each, number, random)
            for number, each in enumerate(held["arguments"])
        ]
    text = (folder / "kernel.ptx").read_text(encoding="utf-8")
    machine = Machine(text, races=races, checks=CHECKS)
    kernel = machine.kernel(held["entry"])
    launch = dict(
        grid=held["grid"],
        block=held["block"],
        shared_bytes=held["shared"],
        cluster=held["cluster"],
        seed=seed,
        args=[
            encoded(machine, each) if isinstance(each, Mapped) else given(machine, parameter, each)
            for parameter, each in zip(kernel.parameters, arguments, strict=True)
        ],
    )
    if counting:
        result, counts = count(machine, held["entry"], **launch)
    else:
        result, counts = machine.run(held["entry"], **launch), None
    (output,) = [each.array for each in arguments if each.name == held["output"]]
    if output.ndim == 3:  # as the host does: the sum of parts, rounded once
        output = output.astype(np.float32).sum(axis=0).astype(output.dtype)
    return output, result, counts


def verdict(y, x, weight, subject) -> dict:
    """By the first bound that holds, from the tightest on."""
    error = np.abs(y.astype(np.float64) - reference(x, weight))
    product = reference(x, weight)
    found = {
        "max_error": float(error.max()),
        "relative": float(np.linalg.norm(error) / np.linalg.norm(product)),
    }
    if not np.isfinite(y).all():
        return {**found, "bound": None, "not_finite": int((~np.isfinite(y)).sum())}
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(dequantize(weight))
    ladder = [(method, 0) for method in ("sums", "weights")] + [
        ("weights", each) for each in (subject.half_roundings,) if each
    ]
    for method, halves in ladder:
        held = bounds(x, weight, method=method, out_dtype=y.dtype)
        bound = held.rounded + halves * 2.0**-11 * magnitude
        ratio = float((error / bound).max())
        if ratio <= 1:
            return {**found, "bound": method, "half_roundings": halves, "ratio": round(ratio, 3)}
    return {**found, "bound": None, "ratio": round(ratio, 3), "wrong": int((error > bound).sum())}


def judge(subject, place: Path) -> dict:
    """place: the folder of one target, with a folder for each kind of data."""
    held = json.loads((place / problem.DATA[0] / "launch.json").read_text(encoding="utf-8"))
    row = {
        "version": held["version"],
        "entry": held["entry"],
        "grid": held["grid"],
        "block": held["block"],
    }
    x, weight = subject.operands("gaussian")
    try:
        y, result, counts = run(place / "gaussian", counting=True)
    except MachineError as error:
        return {**row, "outcome": "refused", "said": clean(str(error))}
    total = counts.total
    row |= {
        **verdict(y, x, weight, subject),
        "instructions": result.instructions,
        "kinds": dict(total.tally.classes),
        "flops": total.tally.flops,
        "asked": SECTOR_BYTES * total.asked,
        "block_bytes": SECTOR_BYTES * total.block_sectors,
        "needed": SECTOR_BYTES * total.sectors,
        "shared_conflicts": total.tally.shared.conflicts,
        "shared_bytes": result.shared_bytes,
        "registers": total.tally.registers,
        "warnings": said(result.warnings),
    }
    exact_x, exact_weight = subject.operands("exact")

    def differing(seed: Schedule | None) -> int:
        """Results that are not the only right ones; a run that is stopped has none."""
        expected = reference(exact_x, exact_weight)
        try:
            y, _, _ = run(place / "exact", seed=seed)
        except MachineError:
            return expected.size
        return int((y.astype(np.float64) != round_to(expected, y.dtype).astype(np.float64)).sum())

    row["exact"] = differing(None)
    try:
        _, result, _ = run(place / "gaussian", races=True)
        row |= {"races": [], "warnings": said(result.warnings)}
    except Race as error:  # the first one ends the run
        row["races"] = said([error])
        row["orders"] = [differing(seed) for seed in ORDERS]
    except MachineError as error:
        row |= {"races": None, "said": clean(str(error))}
    row["outcome"] = "right" if row["bound"] and not row["exact"] else "wrong"
    return row


def said(errors: list[MachineError]) -> list[dict]:
    return [
        {
            "check": each.check or each.kind,
            "line": each.line,
            "text": each.text,
            "said": clean(each.detail),
        }
        for each in errors
    ]


def clean(text: str) -> str:
    """Of paths, the name; of mangled names of shared arrays, the array's."""
    return re.sub(r"_ZZ\w+E\d+(\w+)", r"\1", re.sub(r"/\S+/", "", text))
