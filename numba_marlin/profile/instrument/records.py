"""Reads the buffer of an instrumented kernel: ``Recording``, the sections of each warp over time in
nanoseconds.

``read(buffer, instrumented, blocks)`` gives a ``Recording`` of one launch. The clocks of
SMs are independent, and their rate varies with power; ``%globaltimer`` is the same for all SMs
but may be coarse. So each SM's clock is mapped to the timer by a straight line, fitted to the
starts and ends of all warps that ran on it (``align``, for the launches of one replay together).
On the PTX machine both count warp instructions, and so "ns" are warp instructions there.

``shares(recordings)`` says where the time between two launches' ends went, on average over warps.
Every warp's window is the time from the end of the previous launch to the end of its own. It is
divided into "launch" (the warp had not started), its sections, "unrecorded" (if its slot was full),
and "tail" (it had ended, others had not). The parts add up to the window, so their sum is the time
that a launch takes in a sequence of launches, also if launches overlap: what a warp did before its
window is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.profile.instrument.recorder import EVENT_BYTES, HEADER_BYTES, Instrumented
from numba_marlin.profile.instrument.sections import NUMBER, SECTIONS, START

LAUNCH, TAIL, UNRECORDED = "launch", "tail", "unrecorded"


@dataclass(frozen=True, eq=False)
class Warps:
    """The warps of one launch. ``smid``, ``block``, ``warp`` (in the block): int [warps]; start_ns,
    end_ns: float64 [warps]."""

    smid: np.ndarray
    block: np.ndarray
    warp: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray

    @property
    def first_ns(self) -> float:
        return float(self.start_ns.min())

    @property
    def last_ns(self) -> float:
        return float(self.end_ns.max())


@dataclass(frozen=True, eq=False)
class Recording(Warps):
    """One launch, event by event. ``section``: int8 and ``begin_ns``: float64 [warps, events], the
    first column being the start; -1 and the end's time if there is no event. ``clipped``: number of
    warps whose slot was full; the rest of their time has section -1.
    """

    section: np.ndarray
    begin_ns: np.ndarray
    clipped: int

    def until_ns(self) -> np.ndarray:
        """When each event's section ended, float64 [warps, events]."""
        return np.concatenate([self.begin_ns[:, 1:], self.end_ns[:, None]], axis=1)


@dataclass(frozen=True, eq=False)
class Raw:
    """One launch as it was written: headers as a structured array [warps], events uint32 [warps,
    events, 2] (clock, section)."""

    header: np.ndarray
    events: np.ndarray
    warps_per_block: int
    full: np.ndarray


_HEADER = np.dtype(
    {
        "names": ["timer0", "clock0", "smid", "warp", "timer1", "clock1", "used"],
        "formats": ["<u8", "<u8", "<u4", "<u4", "<u8", "<u8", "<u4"],
        "offsets": [0, 8, 16, 20, 24, 32, 40],
        "itemsize": HEADER_BYTES,
    }
)


def raw(buffer: np.ndarray, instrumented: Instrumented, blocks: int) -> Raw:
    """The ``Raw`` of a buffer, uint8 [nbytes], as the recorder left it. Raises ValueError if a warp
    did not reach its end."""
    slots = np.ascontiguousarray(buffer[: instrumented.nbytes(blocks)]).reshape(
        blocks * instrumented.warps, instrumented.slot_bytes
    )
    header = slots[:, :HEADER_BYTES].copy().view(_HEADER).reshape(-1)
    if not header["used"].all():
        raise ValueError(f"warp {int(np.argmin(header['used']))} of {len(header)} left no record")
    counts = (header["used"].astype(np.int64) - HEADER_BYTES) // EVENT_BYTES
    most = int(counts.max(initial=0))
    events = (
        slots[:, HEADER_BYTES : HEADER_BYTES + EVENT_BYTES * most]
        .copy()
        .view("<u4")
        .reshape(len(slots), most, 2)
    )
    events[np.arange(most) >= counts[:, None]] = NOTHING
    return Raw(
        header, events, instrumented.warps, header["used"] + EVENT_BYTES >= instrumented.slot_bytes
    )


NOTHING = 0xFFFFFFFF


def align(raws: list[Raw]) -> list[Recording]:
    """Recordings of consecutive launches on one time axis, whose zero is the first warp's start."""
    lines = lines_of(raws)
    return [_aligned(each, lines) for each in raws]


def lines_of(raws: list[Raw]) -> dict:
    """SM -> (clock of its first warp's start, ns per tick, ns of that start)."""
    smid = np.concatenate([each.header["smid"] for each in raws])
    origin = min(int(each.header["timer0"].min()) for each in raws)
    lines = {}
    for number in np.unique(smid).tolist():
        mine = [each.header[each.header["smid"] == number] for each in raws]
        clock = np.concatenate([np.concatenate([each["clock0"], each["clock1"]]) for each in mine])
        timer = np.concatenate([np.concatenate([each["timer0"], each["timer1"]]) for each in mine])
        base = int(clock.min())
        x, y = (
            (clock - np.uint64(base)).astype(np.float64),
            (timer - np.uint64(origin)).astype(np.float64),
        )
        spread = ((x - x.mean()) ** 2).sum()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread) if spread else 1.0
        lines[number] = base, slope, float(y.mean() - slope * x.mean())
    return lines


def on_line(header: np.ndarray, lines: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(start, end, ns per tick) of every warp."""
    base, slope, offset = (
        np.array([lines[number][i] for number in header["smid"].tolist()]) for i in range(3)
    )
    start, end = (
        (header[name] - base.astype(np.uint64)).astype(np.float64) * slope + offset
        for name in ("clock0", "clock1")
    )
    return start, end, slope


def _aligned(each: Raw, lines: dict) -> Recording:
    header = each.header
    start, end, slope = on_line(header, lines)
    # modulo 2**32
    since = (each.events[:, :, 0] - header["clock0"].astype(np.uint32)[:, None]).astype(np.float64)
    section = np.where(
        each.events[:, :, 1] == NOTHING, -1, each.events[:, :, 1].astype(np.int64)
    ).astype(np.int8)
    begin = np.where(section < 0, end[:, None], start[:, None] + since * slope[:, None])
    if each.full.any():
        section[each.full, -1] = -1
    first = np.full((len(header), 1), NUMBER[START], np.int8)
    block = np.arange(len(header)) // each.warps_per_block
    return Recording(
        header["smid"].astype(np.int64),
        block,
        header["warp"].astype(np.int64),
        start,
        end,
        np.concatenate([first, section], axis=1),
        np.concatenate([start[:, None], begin], axis=1),
        int(each.full.sum()),
    )


def working(recording: Recording) -> np.ndarray:
    """bool [warps]: the warps that copied or multiplied anything; if none did, all."""
    busy = np.isin(recording.section, [NUMBER["copy"], NUMBER["multiply"]]).any(axis=1)
    return busy if busy.any() else np.ones(len(busy), bool)


def shares(recordings: list[Recording], warps=None) -> dict[str, float]:
    """ns of an average working warp by section, "launch" and "tail" included, for launches in the
    order in which they ran. Each but the first has a window; the window of a single recording is
    its own span. ``warps``: bool [warps of a launch], the warps to average over instead."""
    windows = [(recordings[i - 1].last_ns, recordings[i]) for i in range(1, len(recordings))] or [
        (recordings[0].first_ns, recordings[0])
    ]
    total = {name: 0.0 for name in (LAUNCH, *NUMBER, UNRECORDED, TAIL)}
    for opening, each in windows:
        closing, rows = each.last_ns, slice(None) if warps is None else warps
        begin, until, section = (
            array[rows] for array in (each.begin_ns, each.until_ns(), each.section)
        )
        inside = np.clip(until, opening, closing) - np.clip(begin, opening, closing)
        by_section = np.bincount(
            np.maximum(section, 0).ravel(), np.where(section < 0, 0, inside).ravel(), len(SECTIONS)
        ) / len(section)
        total[LAUNCH] += float(np.clip(each.start_ns[rows] - opening, 0, None).mean())
        total[TAIL] += float((closing - np.clip(each.end_ns[rows], opening, closing)).mean())
        total[UNRECORDED] += float(np.where(section < 0, inside, 0).sum() / len(section))
        for name, number in NUMBER.items():
            total[name] += float(by_section[number])
    return {name: value / len(windows) for name, value in total.items()}


def period_ns(recordings: list[Recording]) -> float:
    """The average time from one launch's end to the next one's, in ns."""
    if len(recordings) < 2:
        return recordings[0].last_ns - recordings[0].first_ns
    return (recordings[-1].last_ns - recordings[0].last_ns) / (len(recordings) - 1)


def active_warps(recording: Recording) -> dict[int, float]:
    """SM -> the average number of its resident warps over the launch."""
    span = recording.last_ns - recording.first_ns
    found = np.bincount(recording.smid, recording.end_ns - recording.start_ns)
    return (
        {int(number): float(found[number] / span) for number in np.unique(recording.smid)}
        if span
        else {}
    )
