"""Problems and candidates in, rows out: contenders checked, then timed in the same rounds. Needs
torch and a GPU.

    bench = Bench(Settings())
    for row in bench.cell(problem, candidates): ...

A result that is wrong is never timed: ``WrongResult``. Data for a weight shape is made once and
kept until another shape is asked for, so ask shape by shape.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass

from numba_marlin.bench import ceilings as ceilings_module
from numba_marlin.bench import contenders, environment, operands
from numba_marlin.bench.clocks import ClockWatch
from numba_marlin.bench.summary import summarise
from numba_marlin.bench.timing import TARGET_US, GraphTimer, interleave, torch_on_gpu, wait
from numba_marlin.execution import driver
from numba_marlin.heuristics import Candidate, Problem, rank
from numba_marlin.kernels.language.definition import KernelDefinition

# After the matrix products of the ceilings an H200 holds its clocks back for a while: kernels of
# 16.0 us +- 0.3% then took 16.8 us +- 2%.
SETTLE_SECONDS = 1.0


class WrongResult(RuntimeError):
    """A contender's product is not the product."""


@dataclass(frozen=True)
class Settings:
    rounds: int = 9
    target_us: float = TARGET_US  # length of one graph
    compiler: str = "numba-cuda"
    cublas: bool = True
    library: str = ""  # shared library of the CUDA original, to time beside
    seed: int = 0


class Bench:
    """One run on torch's current device: its ceilings, its environment, and the data of one weight
    shape at a time.

    ``definitions``: kernels that candidates may name besides those of this package
    (``contenders.candidate_of`` makes the candidates).
    """

    def __init__(
        self, settings: Settings = Settings(), definitions: tuple[KernelDefinition, ...] = ()
    ):
        torch = torch_on_gpu()
        torch.manual_seed(settings.seed)
        ordinal = torch.cuda.current_device()
        self.settings, self.device = settings, driver.describe(ordinal)
        self._definitions = {each.name: each for each in definitions}
        self.environment = environment.describe(self.device.name)
        self.watch = ClockWatch(_uuid(torch, ordinal))
        self._ceilings: dict[str, ceilings_module.Ceilings] = {}
        self._weights: operands.Weights | None = None

    def ceilings(self, dtype: str) -> ceilings_module.Ceilings:
        """Measured once for each dtype."""
        if dtype not in self._ceilings:
            self._weights = None
            self._ceilings[dtype] = ceilings_module.measure(dtype)
            time.sleep(SETTLE_SECONDS)
        return self._ceilings[dtype]

    def stub(self, problem: Problem, candidate: Candidate) -> dict:
        """The fields of a row that are known before it is measured: enough to tell whether a file
        has it."""
        return {
            "kernel": candidate.kernel,
            "config": asdict(candidate.config),
            "compiler": self.settings.compiler,
            **row_of(problem),
            **self.environment,
        }

    def cell(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        chosen: Candidate | None = None,
        label: str = "",
        invariant: tuple[Candidate, ...] = (),
    ) -> list[dict]:
        """A row for each candidate, and for the CUDA original if the settings name its library; all
        in the same rounds as cuBLAS.

        ``chosen``: the candidate that the heuristics would take; default: the first of ``rank``.
        ``invariant``: candidates of the same problem, batch-invariant: timed beside the others, in
        rows that say so, ``chosen`` if they come first of these.
        """
        settings = self.settings
        ceilings = self.ceilings(problem.peer_dtype)
        chosen = chosen or rank(problem, self.device)[0]
        weights = self.weights(problem)
        batch = operands.random_batch(weights, problem.m)
        entrants = [
            self.contender(problem, each, weights, batch) for each in (*candidates, *invariant)
        ]
        errors = [checked(each, batch) for each in entrants]
        if settings.library:
            entrants.append(contenders.marlin_cuda(settings.library, weights, batch))
            # recorded, not judged: it has a race (experiments/01_faithful)
            errors.append(relative_error(entrants[-1], batch))
        self.watch.settle()  # an earlier cell may have been hot
        timers = {
            position: GraphTimer(each.launch, settings.target_us, least_launches(each))
            for position, each in enumerate(entrants)
        }
        if settings.cublas:
            peer = contenders.cublas(weights, batch)
            timers["cublas"] = GraphTimer(peer.launch, settings.target_us, least_launches(peer))
        self.watch.clear()
        times = interleave(timers, settings.rounds, self.watch.sample)
        common = {
            "shape": label or f"{problem.k}x{problem.n}",
            "rounds": settings.rounds,
            "clocks": self.watch.summary(),
            "ceilings": ceilings.to_dict(),
        }
        rows = []
        for position, (entrant, error) in enumerate(zip(entrants, errors)):
            beside = len(candidates) <= position < len(candidates) + len(invariant)
            rows.append(
                {
                    **self._described(entrant, invariant[0] if beside else chosen),
                    **row_of(problem),
                    "batch_invariant": beside or problem.batch_invariant,
                    **timed(times[position], times.get("cublas")),
                    **shares(problem, times[position], ceilings),
                    "relative_error": None if error is None else float(f"{error:.3g}"),
                    "launches_per_graph": timers[position].launches,
                    **common,
                    **self.environment,
                }
            )
        return rows

    def contender(
        self,
        problem: Problem,
        candidate: Candidate,
        weights: operands.Weights,
        batch: operands.Batch,
    ) -> contenders.Contender:
        return contenders.kernel(
            problem,
            candidate,
            weights,
            batch,
            self.settings.compiler,
            self._definitions.get(candidate.kernel),
        )

    def weights(self, problem: Problem) -> operands.Weights:
        if self._weights is None or not operands.same_weights(self._weights.problem, problem):
            self._weights = None
            torch_on_gpu().cuda.empty_cache()
            self._weights = operands.random_weights(problem)
        return self._weights

    def _described(self, entrant: contenders.Contender, chosen: Candidate) -> dict:
        if entrant.candidate is None:
            return {
                "kernel": entrant.name,
                "config": None,
                "chosen": False,
                "compiler": "nvcc",
                "kind": "measured",
            }
        return {
            "kernel": entrant.name,
            "config": asdict(entrant.candidate.config),
            "chosen": (entrant.name, entrant.candidate.config) == (chosen.kernel, chosen.config),
            "compiler": self.settings.compiler,
            "kind": "measured",
            "grid": list(entrant.candidate.grid),
            "registers": entrant.compiled.resources.registers,
            **entrant.options,
        }


def row_of(problem: Problem) -> dict:
    """The fields of a row that say what was multiplied."""
    return problem.to_dict() | {"dtype": problem.peer_dtype}


def _uuid(torch, ordinal: int) -> str | None:
    uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def least_launches(entrant: contenders.Contender) -> int:
    """Every copy of the weights takes part: else those that do might fit in the cache together."""
    return max(3, entrant.copies)


def relative_error(entrant: contenders.Contender, batch: operands.Batch) -> float | None:
    """Of one launch into a buffer full of NaN."""
    torch = torch_on_gpu()
    entrant.output.fill_(float("nan") if entrant.output.is_floating_point() else 0xAA)
    entrant.launch(0)
    event = torch.cuda.Event()
    event.record()
    wait(event)
    return batch.error(entrant.output)


def checked(entrant: contenders.Contender, batch: operands.Batch) -> float | None:
    """The relative error; WrongResult if it is too large, an element was not written, or a lock is
    left set."""
    error = relative_error(entrant, batch)
    if batch.is_wrong(error):
        raise WrongResult(
            f"kernel {entrant.name!r} with {entrant.candidate.config} at m={batch.x.shape[0]}:"
            f" relative error {error:.3g} of its product (NaN: not all written)"
        )
    if entrant.locks is not None and bool(entrant.locks.any()):
        raise WrongResult(
            f"kernel {entrant.name!r} with {entrant.candidate.config} at m={batch.x.shape[0]} left"
            " locks set: the next launch would hang"
        )
    return error


def timed(times: list[float], cublas: list[float] | None = None) -> dict:
    """The fields of a row that say how long: rounds of microseconds, of this contender and of
    cuBLAS in the same rounds."""
    us = summarise(times)
    result = {
        "us": round(us.median, 3),
        "us_spread": [round(us.low, 3), round(us.high, 3)],
        "us_min": round(us.least, 3),
        "us_max": round(us.most, 3),
    }
    if cublas is None:
        return result | {"cublas_us": None, "speedup": None}
    peer, ratio = (
        summarise(cublas),
        summarise([theirs / ours for ours, theirs in zip(times, cublas)]),
    )
    return result | {
        "cublas_us": round(peer.median, 3),
        "cublas_us_spread": [round(peer.low, 3), round(peer.high, 3)],
        "speedup": round(ratio.median, 4),
        "speedup_spread": [round(ratio.low, 4), round(ratio.high, 4)],
    }


def shares(problem: Problem, times: list[float], ceilings: ceilings_module.Ceilings) -> dict:
    """Bytes and operations of the problem, how fast they went, and which share of the ceilings that
    is."""
    seconds = statistics.median(times) * 1e-6
    nbytes, flops = problem.least_bytes, problem.flops
    least = ceilings.seconds(nbytes, flops)
    return {
        "bytes": nbytes,
        "flops": flops,
        "tb_per_s": round(nbytes / seconds / 1e12, 4),
        "tflops": round(flops / seconds / 1e12, 2),
        "bandwidth_share": round(nbytes / seconds / ceilings.read_bytes, 4),
        "compute_share": round(flops / seconds / ceilings.matrix_flops, 4),
        "limit_us": round(least * 1e6, 3),
        "limit_share": round(least / seconds, 4),
    }
