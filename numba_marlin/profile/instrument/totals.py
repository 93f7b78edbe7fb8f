"""The light instrumented builds: the total time of each warp in each section, without a timeline.

``instrument(compiled) -> Instrumented`` is like that of ``recorder``, but the clock is read only
where ``coarse`` says. Each section has a register: a reading is added to that of the section that
ends and subtracted from that of the one that begins. Nothing is stored before the end, since a
store in a loop would keep later loads from being issued before it. (On an H200 the recorder of
events cost 11 to 26% of a kernel's time; adding up in registers at all its marks cost 9 to 22%.)
What warps did before the previous launch had ended (``griddepcontrol.wait``) is left out: in a
sequence of launches it belongs to no launch. A slot is 128 bytes per warp:

    byte  0  u64  %globaltimer at the end (of the block's first warp, else 0)
          8  u64  %clock64 at the end
         16  u32  %smid
         20  u32  number of the warp in the block
         24  u32  1
         28  u32  1 if the kernel waits for the previous one (griddepcontrol.wait)
         32  u32  cycles per section since the start, or since the end of that wait

``ends_only``: sections are not separated; for measuring the cost of the ends alone. ``align``
returns ``Totals``, ``shares`` the distribution of the time per launch in a sequence of launches.
Reading the clock around the waits of a loop costs up to a tenth of a kernel's time, because the
assembler may not move work across it. So ``builds`` makes one build that reads at no wait, and one
per kind of wait, and ``divided`` combines them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from numba_marlin.compiler import CompiledKernel
from numba_marlin.emulator import Machine
from numba_marlin.profile.instrument.coarse import WAITS, Reading, interruptions, leavings, readings
from numba_marlin.profile.instrument.recorder import Instrumented, edited, rebuilt
from numba_marlin.profile.instrument.records import LAUNCH, TAIL, Warps
from numba_marlin.profile.instrument.sections import NUMBER, SECTIONS, START
from numba_marlin.profile.instrument.totals_text import (
    SECTIONS_AT,
    SLOT_BYTES,
    epilogue,
    leaving,
    prologue,
    reading,
)

WAIT = "wait_kernel"
LIGHT, WORK = "light", "work"

_SLOT = np.dtype(
    {
        "names": ["timer", "clock", "smid", "warp", "used", "waits", "cycles"],
        "formats": ["<u8", "<u8", "<u4", "<u4", "<u4", "<u4", ("<u4", len(SECTIONS))],
        "offsets": [0, 8, 16, 20, 24, 28, SECTIONS_AT],
        "itemsize": SLOT_BYTES,
    }
)


def instrument(
    compiled: CompiledKernel,
    machine_code: bool = True,
    ends_only: bool = False,
    without: frozenset[str] = frozenset(),
) -> Instrumented:
    """without: waits that are not separated from the work that they interrupt (``coarse.WAITS``).
    machine_code: False for the PTX machine, which needs none. Raises ValueError if the PTX has no
    line numbers."""
    name, warps = f"{compiled.entry}_param_{len(compiled.parameters)}", -(-compiled.threads // 32)
    used: list[str] = [START]
    found: list[Reading] = []

    def places(module, kernel) -> list:
        found.extend(readings(module, kernel, without))
        if ends_only:
            found[:] = [Reading(each.pc, restart=True) for each in found if each.restart]
        for each in found:
            used.extend(
                [
                    *(each.leave or ()),
                    *(each.enter or ()),
                    *((each.switch[0], *each.switch[1]) if each.switch else ()),
                ]
            )
        used[:] = [section for section in NUMBER if section in used]
        return [*found, *leavings(module, kernel)]

    labels = iter(range(1 << 20))
    ptx, _ = edited(
        compiled.ptx,
        compiled.entry,
        name,
        places,
        lambda: prologue(used),
        lambda each: (
            reading(each, used, f"$nmr_same{next(labels)}")
            if isinstance(each, Reading)
            else leaving(each)
        ),
        lambda: epilogue(name, warps, used, any(each.restart for each in found)),
    )
    return Instrumented(rebuilt(compiled, ptx, machine_code), len(found), SLOT_BYTES)


def builds(
    compiled: CompiledKernel, machine_code: bool = True
) -> tuple[dict[str, Instrumented], dict[str, frozenset[str]]]:
    """({LIGHT: the build that separates everything; WORK, if the kernel waits: the build that
    separates no wait from the work that it interrupts; wait, if there are several: the build that
    separates this one alone}, {wait: sections that it interrupts})."""
    machine = Machine(compiled.ptx)
    interrupts = interruptions(readings(machine.module, machine.kernel(compiled.entry)))
    without = {
        LIGHT: frozenset(),
        **({WORK: WAITS} if interrupts else {}),
        **({wait: WAITS - {wait} for wait in interrupts} if len(interrupts) > 1 else {}),
    }
    with ThreadPoolExecutor() as pool:  # the assembler is a process of its own
        return (
            dict(
                zip(
                    without,
                    pool.map(
                        lambda each: instrument(compiled, machine_code, without=each),
                        without.values(),
                    ),
                )
            ),
            interrupts,
        )


@dataclass(frozen=True, eq=False)
class Totals(Warps):
    """The warps of one launch that recorded. ``waits`` (bool [warps]): whether the kernel waits for
    the previous one; the start is then the end of that wait. sections_ns: float64 [warps,
    sections], between start and end."""

    waits: np.ndarray
    sections_ns: np.ndarray


def raw(buffer: np.ndarray, instrumented: Instrumented, blocks: int) -> np.ndarray:
    """The slots of a launch [blocks, warps], from uint8 [nbytes]; the slot of a warp that had
    nothing to do is not in use. Raises ValueError if no slot is in use, or if the first of a block
    is not although others of the block are."""
    slots = (
        np.ascontiguousarray(buffer[: instrumented.nbytes(blocks)])
        .view(_SLOT)
        .reshape(blocks, instrumented.warps)
    )
    used = slots["used"] != 0
    lacking = used.any(axis=1) & ~used[:, 0] if used.any() else ~used[:, 0]
    if lacking.any():
        raise ValueError(f"block {int(np.argmax(lacking))} of {blocks} left no record")
    return slots


def align(launches: list[np.ndarray]) -> list[Totals]:
    """Consecutive launches on one time axis, whose zero is the first end of a block. The clock of
    an SM is mapped to the timer by a line fitted to the ends of its blocks."""
    launches = _without_bygone(launches)
    everything = np.concatenate([each[each["used"][:, 0] != 0, 0] for each in launches])
    origin = int(everything["timer"].min())
    smids = np.unique(everything["smid"])
    lines = np.zeros(len(smids), [("base", np.int64), ("slope", float), ("x", float), ("y", float)])
    for line, smid in zip(lines, smids):
        mine = everything[everything["smid"] == smid]
        base = mine["clock"].min()
        x, y = (
            (mine["clock"] - base).astype(np.float64),
            (mine["timer"] - np.uint64(origin)).astype(np.float64),
        )
        spread = ((x - x.mean()) ** 2).sum()
        line["base"], line["slope"], line["x"], line["y"] = (
            base,
            ((x - x.mean()) * (y - y.mean())).sum() / spread if spread else 0,
            x.mean(),
            y.mean(),
        )
    known = lines["slope"][lines["slope"] != 0]
    # of an SM that had one block in all
    lines["slope"][lines["slope"] == 0] = np.median(known) if len(known) else 1.0
    return [_aligned(each.reshape(-1), each.shape[1], smids, lines) for each in launches]


def _without_bygone(launches: list[np.ndarray]) -> list[np.ndarray]:
    """The launches without stale records. If a block had nothing to do in a launch, the buffer may
    still have its record of an earlier one, which is from before the previous launch's end."""
    found, ended = [], 0
    for each in launches:
        each = each.copy()
        each["used"][each["timer"][:, 0] < ended] = 0
        found.append(each)
        ended = int(each["timer"][:, 0].max())
    return found


def _aligned(slots: np.ndarray, warps: int, smids: np.ndarray, lines: np.ndarray) -> Totals:
    number = np.flatnonzero(slots["used"])
    slots = slots[number]
    line = lines[np.searchsorted(smids, slots["smid"])]
    end = ((slots["clock"].astype(np.int64) - line["base"]).astype(np.float64) - line["x"]) * line[
        "slope"
    ] + line["y"]
    sections = slots["cycles"].view(np.int32) * line["slope"][:, None]
    return Totals(
        slots["smid"].astype(np.int64),
        number // warps,
        slots["warp"].astype(np.int64),
        end - sections.sum(axis=1),
        end,
        slots["waits"] != 0,
        sections,
    )


def working(launch: Totals) -> np.ndarray:
    """bool [warps]: the warps that copied or multiplied anything; if none did, all. (A role may
    need one warp of a warpgroup, whose other three then have nothing to do.)"""
    busy = (launch.sections_ns[:, [NUMBER["copy"], NUMBER["multiply"]]] > 0).any(axis=1)
    return busy if busy.any() else np.ones(len(busy), bool)


def shares(launches: list[Totals], warps=None, apart: bool = False) -> dict[str, float]:
    """ns of an average working warp by section, from the end of the previous launch to the end of
    its own, "launch" and "tail" included; the window of a single launch is its own span. The time
    until the wait for the previous kernel ends counts as that wait, or as "launch" if launches were
    kept ``apart``. ``warps``: bool [warps], the warps to average over instead.
    """
    windows = [(launches[i - 1].last_ns, launches[i]) for i in range(1, len(launches))] or [
        (launches[0].first_ns, launches[0])
    ]
    total = {name: 0.0 for name in (LAUNCH, *NUMBER, TAIL)}
    for opening, each in windows:
        rows = working(each) if warps is None else warps
        start, end, waits, sections = (
            array[rows] for array in (each.start_ns, each.end_ns, each.waits, each.sections_ns)
        )
        waits = waits & (not apart)
        total[LAUNCH] += float(np.where(waits, 0, start - opening).mean())
        total[WAIT] += float(np.where(waits, start - opening, 0).mean())
        total[TAIL] += float((each.last_ns - end).mean())
        for name, number in NUMBER.items():
            total[name] += float(sections[:, number].mean())
    return {name: value / len(windows) for name, value in total.items()}


def divided(
    work: dict[str, float],
    finer: dict[str, dict[str, float]],
    interrupts: dict[str, frozenset[str]],
) -> dict[str, float]:
    """The shares of ``work``, with waits separated. ``work``: shares of a build that separates no
    wait from the work that it interrupts; ``finer``: wait -> shares of a build that separates this
    one. The sum stays that of ``work``: the build that reads the clock least gives the time of work
    and its interruptions together; the finer one gives the part of it that was waiting, and which
    of several kinds of work this part is subtracted from.
    """
    parts = dict(work)
    for wait, shares_of_it in finer.items():
        sections = sorted(interrupts[wait])
        together, slower = (
            sum(work[name] for name in sections),
            shares_of_it[wait] + sum(shares_of_it[name] for name in sections),
        )
        if not slower or not together:
            continue
        missing = {
            name: max(0.0, work[name] * slower / together - shares_of_it[name]) for name in sections
        }
        for name in sections:
            taken = min(
                parts[name],
                together
                * shares_of_it[wait]
                / slower
                * missing[name]
                / (sum(missing.values()) or 1.0),
            )
            parts[name] -= taken
            parts[wait] += taken
    return parts
