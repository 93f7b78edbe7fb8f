"""Measures candidates for problems: checks the contenders, times them in the same rounds, and
returns rows. Needs torch and a GPU.

    bench = Bench(Settings())
    for row in bench.cell(problem, candidates): ...

A contender with a wrong result is never timed: ``WrongResult``. Data of the last
``Settings.kept`` weights is kept, so measure shape by shape, or keep them all.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, field, replace

from numba_marlin.bench import ceilings as ceilings_module
from numba_marlin.bench import contenders, environment, operands
from numba_marlin.bench import peers as peers_module
from numba_marlin.bench.clocks import ClockWatch
from numba_marlin.bench.peers import PeerFailed
from numba_marlin.bench.summary import summarise
from numba_marlin.bench.timing import (
    TARGET_US,
    GraphTimer,
    KernelStuck,
    interleave,
    torch_on_gpu,
    wait,
)
from numba_marlin.execution import driver
from numba_marlin.heuristics import Candidate, Problem, rank
from numba_marlin.kernels.language.definition import KernelDefinition

# After the matrix products of the ceilings an H200 throttles its clocks for a while: kernels of
# 16.0 us +- 0.3% then took 16.8 us +- 2%.
SETTLE_SECONDS = 1.0


class WrongResult(RuntimeError):
    """A contender's result is wrong; ``name`` is the contender's."""

    def __init__(self, message: str, name: str = ""):
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Settings:
    rounds: int = 9
    target_us: float = TARGET_US  # length of one graph
    compiler: str = "numba-cuda"
    cublas: bool = True
    library: str = ""  # shared library of the CUDA original, to time beside
    peers: tuple[str, ...] = ()  # other contenders to time beside, as ``peers.find`` takes them
    seed: int = 0
    kept: int = 1  # weights whose data stays on the GPU
    settle_seconds: float = 3.0  # at most, before a cell, for throttled clocks


@dataclass(eq=False)
class Held:
    """A weight's data on the GPU. launches: {peer's name: a launch for each copy}."""

    weights: operands.Weights
    launches: dict = field(default_factory=dict)


class Bench:
    """A benchmark run on torch's current device: its ceilings, its environment, and the data of one
    weight shape at a time.

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
        self.peers = peers_module.find_all(settings.peers)
        self.environment = environment.describe(self.device.name)
        self.watch = ClockWatch(_uuid(torch, ordinal))
        self._ceilings: dict[str, ceilings_module.Ceilings] = {}
        self._held: dict[Problem, Held] = {}

    def ceilings(self, dtype: str) -> ceilings_module.Ceilings:
        """The ceilings, measured once per dtype."""
        if dtype not in self._ceilings:
            self._held.clear()
            self._ceilings[dtype] = ceilings_module.measure(dtype)
            time.sleep(SETTLE_SECONDS)
        return self._ceilings[dtype]

    def stub(self, problem: Problem, candidate: Candidate) -> dict:
        """The fields of a row that are known before the measurement; they identify the row in a
        file."""
        return {
            "kernel": candidate.kernel,
            "config": asdict(candidate.config),
            "compiler": self.settings.compiler,
            **row_of(problem),
            **self.environment,
        }

    def stubs(self, problem: Problem, candidates: tuple[Candidate, ...]) -> list[dict]:
        """Of all rows of a cell: the candidates', then the peers'."""
        common = {"config": None, **row_of(problem), **self.environment}
        return [self.stub(problem, each) for each in candidates] + [
            {"kernel": each.name, **common, **each.fields} for each in self.peers
        ]

    def cell(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        chosen: Candidate | None = None,
        label: str = "",
        invariant: tuple[Candidate, ...] = (),
        without: tuple[str, ...] = (),
    ) -> list[dict]:
        """Measure a cell: a row per candidate, one for the original CUDA Marlin if the settings
        name its library, and one for each peer that ``without`` does not name, all in the same
        rounds as cuBLAS. WrongResult if a result is wrong, PeerFailed if a peer raises an error.

        ``chosen``: the heuristics' choice; default: the first of ``rank``. ``invariant``:
        candidates of the batch-invariant problem, timed with the others in rows marked as such; the
        first of them counts as ``chosen``.
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
            # recorded, not checked: the original has a race (experiments/01_faithful)
            errors.append(relative_error(entrants[-1], batch))
        for each in self.peers:
            if each.name not in without:
                entrants.append(self._peer(each, problem, weights, batch))
                errors.append(checked_copies(entrants[-1], batch))
        # an earlier cell may have throttled the clocks
        self.watch.settle(settings.settle_seconds)
        timers = {
            position: _timer(each, settings.target_us) for position, each in enumerate(entrants)
        }
        if settings.cublas:
            timers["cublas"] = _timer(contenders.cublas(weights, batch), settings.target_us)
        for position, each in enumerate(entrants):
            if "peer" in each.fields:
                check_replayed(each, timers[position], batch)
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
        return self._of(problem).weights

    def _of(self, problem: Problem) -> Held:
        key = replace(problem, m=1)
        if key not in self._held:
            while len(self._held) >= self.settings.kept:
                del self._held[next(iter(self._held))]
                torch_on_gpu().cuda.empty_cache()
            self._held[key] = Held(operands.random_weights(problem))
        return self._held[key]

    def _peer(self, peer, problem: Problem, weights, batch) -> contenders.Contender:
        launches = self._of(problem).launches
        if peer.name not in launches:
            launches[peer.name] = peers_module.prepared(peer, weights)
        return peers_module.contender(peer, launches[peer.name], weights, batch)

    def _described(self, entrant: contenders.Contender, chosen: Candidate) -> dict:
        if entrant.candidate is None:
            return {
                "kernel": entrant.name,
                "config": None,
                "chosen": False,
                "kind": "measured",
                **entrant.fields,
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
    """The fields of a row that describe the problem."""
    return problem.to_dict() | {"dtype": problem.peer_dtype}


def _uuid(torch, ordinal: int) -> str | None:
    uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _timer(entrant: contenders.Contender, target_us: float) -> GraphTimer:
    """PeerFailed if a peer's launches cannot be captured."""
    try:
        return GraphTimer(entrant.launch, target_us, least_launches(entrant))
    except (KernelStuck, torch_on_gpu().cuda.OutOfMemoryError):
        raise
    except RuntimeError as error:
        if "peer" not in entrant.fields:
            raise
        raise PeerFailed(
            entrant.name,
            f"cannot be captured in a CUDA graph ({str(error).splitlines()[0]}): launch(x, out)"
            " must not wait for the GPU, nor read from it; or leave out --peer",
        ) from error


def least_launches(entrant: contenders.Contender) -> int:
    """The number of launches at which each copy of the weights is used; fewer copies might fit in
    the L2 cache."""
    return max(3, entrant.copies)


def relative_error(
    entrant: contenders.Contender, batch: operands.Batch, index: int = 0
) -> float | None:
    """The relative error of launch ``index`` into a buffer full of NaN."""
    entrant.output.fill_(float("nan") if entrant.output.is_floating_point() else 0xAA)
    entrant.launch(index)
    event = torch_on_gpu().cuda.Event()
    event.record()
    wait(event)
    return batch.error(entrant.result)


def checked_copies(entrant: contenders.Contender, batch: operands.Batch) -> float | None:
    """The largest relative error of a peer's launches, one of each copy of its weight; WrongResult
    if it is too large or an element was not written."""
    errors = []
    for index in range(entrant.copies):
        errors.append(relative_error(entrant, batch, index))
        if batch.is_wrong(errors[-1]):
            raise WrongResult(
                f"peer {entrant.name!r}, copy {index} of the weight, at m={batch.x.shape[0]}:"
                f" relative error {errors[-1]:.3g} of its product (NaN: not all written); out must"
                " be x @ ((codes - zeros) * scales)",
                entrant.name,
            )
    return max(errors)


def check_replayed(entrant: contenders.Contender, timer, batch: operands.Batch) -> None:
    """WrongResult unless the timer's graph computes the product: a launch on a stream of its own
    is not captured, and would take no time."""
    entrant.result.fill_(float("nan"))
    timer.replay()
    error = batch.error(entrant.result)
    if batch.is_wrong(error):
        raise WrongResult(
            f"peer {entrant.name!r} at m={batch.x.shape[0]}: relative error {error:.3g} when its"
            " CUDA graph is replayed (NaN: not written): launch(x, out) must enqueue all of its"
            " work on torch.cuda.current_stream(), at every call",
            entrant.name,
        )


def checked(entrant: contenders.Contender, batch: operands.Batch) -> float | None:
    """The relative error; WrongResult if it is too large, an element was not written, or a lock is
    left set."""
    error = relative_error(entrant, batch)
    if batch.is_wrong(error):
        raise WrongResult(
            f"kernel {entrant.name!r} with {entrant.candidate.config} at m={batch.x.shape[0]}:"
            f" relative error {error:.3g} of its product (NaN: not all written)",
            entrant.name,
        )
    if entrant.locks is not None and bool(entrant.locks.any()):
        raise WrongResult(
            f"kernel {entrant.name!r} with {entrant.candidate.config} at m={batch.x.shape[0]} left"
            " locks set: the next launch would hang",
            entrant.name,
        )
    return error


def timed(times: list[float], cublas: list[float] | None = None) -> dict:
    """The timing fields of a row, from microseconds per round of this contender and of cuBLAS in
    the same rounds."""
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
    """The fields with the problem's bytes and operations, their rates, and their shares of the
    ceilings."""
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
