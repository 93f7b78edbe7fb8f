"""Times of whole steps: a CUDA graph replayed between two events, or, on the CPU, a call between
two readings of the clock; and rows of results, written as soon as they are there.

Contenders take turns in every round, each round beginning with another one
(``bench.timing.interleave``); a row has the median, the quartiles and the extremes, and a speed-up
is the median of the rounds' own ratios.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import torch

from numba_marlin.bench import timing
from numba_marlin.bench.summary import summarise


class Replay:
    """Captures ``repeats`` calls of ``call(index)`` in one graph; ``replay`` returns microseconds
    a call, ``output`` is what the last of them returned."""

    def __init__(self, call, repeats: int = 1):
        self._call, self.repeats = call, repeats
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for index in range(2):  # compiles, loads, chooses
                call(index)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # another thread may use CUDA meanwhile: NCCL's watches its operations
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            for index in range(repeats):
                self.output = call(index)
        self.replay()

    def replay(self, during=None) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._graph.replay()
        end.record()
        if during is not None:
            during()
        timing.wait(end)
        return start.elapsed_time(end) * 1e3 / self.repeats


class Called:
    """The same of calls on the CPU."""

    def __init__(self, call, repeats: int = 1):
        self._call, self.repeats = call, repeats
        self.replay()

    def replay(self, during=None) -> float:
        start = time.perf_counter()
        for index in range(self.repeats):
            self.output = self._call(index)
        return (time.perf_counter() - start) * 1e6 / self.repeats


def timer(device: str, call, repeats: int = 1):
    return (Replay if device == "cuda" else Called)(call, repeats)


def spread(times) -> dict:
    """The fields of a row that say how long something took, in microseconds."""
    found = summarise(times)
    return {
        "us": round(found.median, 3),
        "us_spread": [round(found.low, 3), round(found.high, 3)],
        "us_min": round(found.least, 3),
        "us_max": round(found.most, 3),
        "rounds": found.count,
    }


def ratio(slow, fast) -> dict:
    """The fields that say how many times faster the second was, round by round."""
    each = [a / b for a, b in zip(slow, fast)]
    found = summarise(each)
    return {
        "speedup": round(statistics.median(each), 4),
        "speedup_spread": [round(found.low, 4), round(found.high, 4)],
    }


class Rows:
    """Appends rows to a file, and prints what is in them. common: fields of every row."""

    def __init__(self, path: Path, common: dict):
        self.path, self.common = path, common
        path.parent.mkdir(parents=True, exist_ok=True)

    def done(self) -> set[tuple]:
        """(part, glue, m, gpus, layer), None for what a row has not, of this commit's rows."""
        if not self.path.exists():
            return set()
        rows = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
        return {
            tuple(row.get(name) for name in ("part", "glue", "m", "gpus", "layer"))
            for row in rows
            if row.get("commit") == self.common.get("commit")
        }

    def add(self, row: dict, said: str) -> dict:
        row = row | self.common
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"  {said}", flush=True)
        return row
