"""One profile: everything measured, counted and modelled about a launch, as plain data that
can be saved, opened again, shown (``profile_page``), judged (``rules``) and compared.

``build(counted, device, observation=None, ...) -> dict``. Without an observation on a GPU,
times are modelled (``model``). Every group of figures has a ``source``. Times are microseconds;
those that are shares of a launch are of an average warp. Counts are of the whole launch
(``counted.factor`` times the part that the machine ran).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.profile.instrument import records, sections
from numba_marlin.profile.lanes import lanes
from numba_marlin.profile.sources import access, model, registers
from numba_marlin.profile.sources.occupancy import occupancy
from numba_marlin.profile.sources.on_machine import Counted
from numba_marlin.views import COUNTED, MEASURED, MODELLED, RECORDED, SPEC
from numba_marlin.views.plain import nested_deeper

SCHEMA = "numba-marlin/profile-run/2"
EDGES = {
    records.LAUNCH: "launch: nothing of it runs yet",
    records.TAIL: "tail: this warp has ended, others have not",
    records.UNRECORDED: "not recorded",
    "recorder": "the recorder itself",
    model.LATENCY: "latency: what neither work nor bytes explain",
}
POINTS = 60  # of a curve over the time of a launch
LEAST_US = 0.005  # of a part that is listed
DEEPEST = 20  # lists and dicts in each other; a profile has half as many


def build(
    counted: Counted,
    device: Device,
    observation=None,
    ceilings: dict | None = None,
    state: dict | None = None,
    tools: list | None = None,
) -> dict:
    problem, candidate, compiled = counted.problem, counted.candidate, counted.compiled
    resources, blocks = compiled.resources, math.prod(candidate.grid)
    definition = find_kernel(candidate.kernel)
    modelled = model.model(counted, device)
    fits = occupancy(
        device.architecture,
        device.sms,
        compiled.threads,
        resources.registers,
        compiled.shared_bytes + (resources.static_shared or 0),
        blocks,
    )
    data = {
        "schema": SCHEMA,
        "kind": problem.kind,
        "problem": problem.to_dict(),
        "kernel": candidate.kernel,
        "config": asdict(candidate.config),
        "target": compiled.target,
        "device": device.to_dict(),
        "limits": limits(counted, device),
        "measured": observation is not None,
        "launch": {
            "grid": list(candidate.grid),
            "blocks": blocks,
            "cluster": definition.cluster(candidate.config),
            "dependent": definition.dependent(candidate.config),
            "reads_early": bool(definition.reads_early),
            "threads": compiled.threads,
            "shared_bytes": compiled.shared_bytes,
            "registers": resources.registers,
            "spill_bytes": (
                None
                if resources.spill_stores is None
                else resources.spill_stores + (resources.spill_loads or 0)
            ),
        },
        "occupancy": {**fits.to_dict(), **achieved(fits, observation, device)},
        "time": times(modelled, counted, device, observation),
        "parts": parts(modelled, observation),
        "sections": section_counts(counted),
        "counts": counts_of(counted),
        "placement": placement(blocks, fits, device, observation),
        "progress": progress(counted, observation),
        "registers": registers.by_use(counted.kernel),
        "accesses": access.rows(counted),
        "first_accesses": counted.first,
        "first_products": counted.execution.products,
        "lanes": lanes(counted, observation),
        "word": counted.word,
        "ceilings": {
            **(
                {
                    "read_bytes": ceilings["read_bytes"],
                    "matrix_flops": ceilings["matrix_flops"],
                    "source": MEASURED,
                }
                if ceilings
                else {
                    "read_bytes": device.bandwidth_bytes,
                    "matrix_flops": model.peak_flops(counted, device),
                    "source": SPEC,
                }
            )
        },
        "state": state or {"missing": "no GPU was used: nothing to ask NVML about"},
        "tools": tools or [],
        "tensor_bits": model.factor_bits(counted),
        "bytes": problem.bytes_of,
    }
    data["rates"] = rates(data, problem.least_bytes, problem.flops)
    return data


def limits(counted: Counted, device: Device) -> dict:
    """Residency limits and peak rates of the device."""
    sm = device.architecture
    return {
        "warps": sm.warps_per_sm,
        "blocks": sm.blocks_per_sm,
        "registers": sm.registers_per_sm,
        "shared_bytes": sm.shared_bytes_per_sm,
        "l2_bytes": device.l2_bytes,
        "memory_bytes": device.memory_bytes,
        "tensor_flops": model.peak_flops(counted, device),
        "clock_mhz": device.clock_mhz,
        "source": sm.source,
    }


def achieved(fits, observation, device: Device) -> dict:
    if observation is None:
        return {
            "achieved_warps": fits.launched_warps,
            "achieved": fits.launched_share,
            "achieved_source": MODELLED,
        }
    active = [records.active_warps(each) for each in observation.recordings]
    warps = (
        sum(sum(each.values()) for each in active) / len(active) / max(1, len(set().union(*active)))
    )
    return {
        "achieved_warps": warps,
        "achieved": warps / device.architecture.warps_per_sm,
        "achieved_source": MEASURED,
    }


def times(modelled: model.Modelled, counted: Counted, device: Device, observation) -> dict:
    """The times of a launch; ``bound``: whether "us" is only a lower bound, ``recorded``: the row
    of an experiment that it is from, ``nearest``: if a bound, the nearest product that was timed
    with this kernel on this device."""
    kernel = counted.candidate.kernel
    error = model.error(kernel)
    found = {
        "modelled_us": round(modelled.model_us, 3),
        "fitted": modelled.fitted,
        "model_error": (
            None
            if error is None
            else {"mean": error.mean, "largest": error.largest, "text": error.on(device)}
        ),
    }
    if observation is None:
        row, bound = modelled.recorded, modelled.is_bound
        return {
            "us": round(modelled.us, 3),
            "source": MODELLED if row is None else MEASURED,
            "bound": bound,
            "recorded": row,
            "nearest": model.nearest(kernel, counted.problem, device) if bound else None,
            **found,
        }
    return {
        "us": round(observation.us, 3),
        "source": MEASURED,
        "rounds": [round(each, 3) for each in observation.rounds],
        "alone_us": round(observation.alone_us, 3),
        "light_us": round(observation.light_us, 3),
        "work_us": None if observation.work_us is None else round(observation.work_us, 3),
        "finer_us": {name: round(us, 3) for name, us in observation.finer_us.items()},
        "raw_parts_us": round(observation.raw_timeline_us, 3),
        "detailed_us": round(observation.detailed_us, 3),
        "cublas_us": round(observation.cublas_us, 3),
        "parts_us": round(observation.timeline_us, 3),
        **found,
    }


def parts(modelled: model.Modelled, observation) -> dict:
    """The time of an average warp by part; ``raw_us``: the measurement of the single build that
    separates all parts, if that differs."""

    def listed(found: dict[str, float]) -> dict[str, float]:
        return {name: round(value, 4) for name, value in found.items() if value > LEAST_US}

    if observation is None:
        return {"source": MODELLED, "us": listed(modelled.parts)}
    return {
        "source": MEASURED,
        "us": listed(observation.shares_us),
        **(
            {"raw_us": listed(observation.raw_us)}
            if observation.raw_us != observation.shares_us
            else {}
        ),
    }


def title_of(part: str) -> str:
    return EDGES.get(part) or sections.BY_NAME[part].title


def reason_of(part: str) -> str:
    return {
        records.LAUNCH: "the launch itself",
        records.TAIL: "blocks that take longer",
        model.LATENCY: "memory and other warps, which the model does not tell apart",
    }.get(part) or (sections.BY_NAME[part].reason if part in sections.BY_NAME else "")


def section_counts(counted: Counted) -> dict:
    """Section -> warp instructions, tensor operations, shared wavefronts and global bytes of the
    whole launch."""
    found: dict[str, dict] = {}
    for row, section in zip(counted.counts.instructions, counted.sections):
        tally = row.tally
        if tally.executed:
            mine = found.setdefault(
                section,
                {"instructions": 0, "flops": 0, "wavefronts": 0, "ideal": 0, "global_bytes": 0},
            )
            for name, value in (
                ("instructions", tally.executed),
                ("flops", tally.flops),
                ("wavefronts", tally.shared.wavefronts),
                ("ideal", tally.shared.ideal),
                ("global_bytes", tally.reads.traffic + tally.writes.traffic),
            ):
                mine[name] += round(value * counted.factor)
    return {
        section.name: found[section.name] for section in sections.SECTIONS if section.name in found
    }


def counts_of(counted: Counted) -> dict:
    """Counts of the part that ran (``part``), and the factor that scales them to the whole."""
    total = counted.counts.total
    tally, factor = total.tally, counted.factor
    return {
        "source": COUNTED,
        "factor": factor,
        "part": {name: getattr(counted.part, name) for name in ("m", "n", "k")},
        "sms": counted.sms,
        "grid": list(counted.grid),
        "instructions": round(tally.executed * factor),
        "classes": {name: round(value * factor) for name, value in tally.classes.items()},
        "flops": round(tally.flops * factor),
        "tensor_instructions": round(tally.classes.get("tensor", 0) * factor),
        "asked_bytes": round(32 * total.asked * factor),
        "block_bytes": round(32 * total.block_sectors * factor),
        "distinct_bytes": round(32 * total.sectors * factor),
        "needed_bytes": round(32 * (tally.reads.needed + tally.writes.needed) * factor),
        "coalescing": (
            100.0
            * (tally.reads.needed + tally.writes.needed)
            / max(1, tally.reads.sectors + tally.writes.sectors)
        ),
        "shared_bytes": round(tally.shared.bytes * factor),
        "wavefronts": round(tally.shared.wavefronts * factor),
        "conflicts": round(tally.shared.conflicts * factor),
        "partial_share": counted.execution.partial / max(1, counted.execution.executed),
        "operand_bytes": round(tally.operand_bytes * factor),
        "copied": {name: round(value * factor) for name, value in tally.copied.items()},
        "live_registers": tally.registers,
        "local_bytes": round(tally.local_bytes * factor),
        "tensor_memory": {
            name: round(value * factor) for name, value in tally.tensor_memory.items()
        },
        "buffers": [
            {
                "name": each.name,
                "read": round(each.reads.traffic * factor),
                "read_distinct": each.read_distinct,
                "written": round(each.writes.traffic * factor),
                "bytes": each.nbytes,
            }
            for each in counted.counts.buffers
        ],
    }


def placement(blocks: int, fits, device: Device, observation) -> dict:
    """The blocks of each SM. Without a GPU they are assigned round-robin, as many at once as
    fit."""
    if observation is None:
        rows = [
            {"sm": sm, "blocks": list(range(sm, blocks, device.sms))}
            for sm in range(min(device.sms, blocks))
        ]
        return {"source": MODELLED, "rows": rows, "sms": device.sms, "at_once": fits.blocks}
    last = observation.recordings[-1]
    busy = records.active_warps(last)
    rows = [
        {
            "sm": int(sm),
            "blocks": sorted({int(block) for block in last.block[last.smid == sm]}),
            "warps": round(busy[int(sm)], 2),
        }
        for sm in sorted(busy)
    ]
    return {"source": MEASURED, "rows": rows, "sms": device.sms, "at_once": fits.blocks}


def progress(counted: Counted, observation) -> dict:
    """Blocks that have started and blocks that are done, over time: [[time, blocks]]. On the PTX
    machine, of the part that it ran, in its warp instructions."""
    found = counted.recording if observation is None else observation.recordings[-1]
    scale = 1.0 if observation is None else 1e-3
    numbers, of = np.unique(found.block, return_inverse=True)
    first, last = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(first, of, found.start_ns)
    np.maximum.at(last, of, found.end_ns)
    zero = first.min()

    def curve(times: np.ndarray) -> list[list[float]]:
        at = np.linspace(0, last.max() - zero, POINTS)
        done = np.searchsorted(np.sort(times - zero), at, side="right")
        return [[round(float(time) * scale, 4), int(count)] for time, count in zip(at, done)]

    return {
        "source": RECORDED if observation is None else MEASURED,
        "unit": "warp instructions of the machine" if observation is None else "us",
        "blocks": len(numbers),
        "started": curve(first),
        "done": curve(last),
    }


def rates(data: dict, least: int, flops: int) -> dict:
    """Bytes and operations per second of the launch, and their shares of the ceilings; None if
    there is no ceiling."""
    seconds, ceilings = data["time"]["us"] * 1e-6, data["ceilings"]
    issued = (
        data["counts"]["instructions"]
        / data["device"]["sms"]
        / 4
        / (seconds * (data["limits"]["clock_mhz"] or 1500) * 1e6)
    )
    return {
        "least_bytes": least,
        "flops": flops,
        "bytes_per_s": least / seconds,
        "flops_per_s": flops / seconds,
        "intensity": flops / least,
        "memory_share": (
            None if not ceilings["read_bytes"] else least / seconds / ceilings["read_bytes"]
        ),
        "compute_share": (
            None if not ceilings["matrix_flops"] else flops / seconds / ceilings["matrix_flops"]
        ),
        "tensor_share": (
            None
            if not ceilings["matrix_flops"]
            else data["counts"]["flops"] / seconds / ceilings["matrix_flops"]
        ),
        "issue_share": issued,
        "source": data["time"]["source"],
    }


def load(path: str | Path) -> dict:
    """Load a saved profile. Raises ValueError for any other file."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {str(error.strerror).lower()}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a profile ({error})") from error
    data = data.get("profile", data) if isinstance(data, dict) else data
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(
            f"{path}: schema must be {SCHEMA}: what numba-marlin profile --save or --json wrote"
        )
    if nested_deeper(data, DEEPEST):
        raise ValueError(f"{path}: not a profile (its lists are nested more than {DEEPEST} deep)")
    return data
