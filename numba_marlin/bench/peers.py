"""Peers: kernels of other projects, timed in the same rounds as this package's. Their code stays
outside: a peer is a function that the user's file or an installed module defines.

    def peer(weight: PlainWeight) -> launch
        called once for each copy of the weight, with the same ``PlainWeight`` each time; what the
        launch reads must be memory of its own, or the L2 cache would hold it from one launch to
        the next: prepare the weight once (``functools.lru_cache(maxsize=1)``) and clone it.
    launch(x, out)
        enqueues out = x @ w (+ bias) on torch's current stream, and nothing else: it is captured
        in a CUDA graph. x [m, k] and out [m, n] are row-major tensors of ``weight.dtype``. A peer
        that makes its own result returns that instead, of the same shape and type. m differs from
        call to call; the first calls with an m come before any capture, so that a peer may compile
        or tune itself then.

``find(text)`` resolves "FILE.py:FUNCTION" or "MODULE:FUNCTION"; ``prepared(peer, weights)`` calls
it, ``contender(...)`` makes what ``measure`` checks and times. ``PeerFailed`` says what to do. A
``__version__`` in the peer's file is recorded in its rows. Needs torch, imported on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numba_marlin.bench.contenders import Contender, empty_output
from numba_marlin.bench.operands import Batch, Weights, plain_codes, plain_scales, plain_zeros
from numba_marlin.bench.timing import torch_on_gpu
from numba_marlin.kernels import registry
from numba_marlin.problems import OPERANDS, Problem
from numba_marlin.wording import did_you_mean

FORM = "FILE.py:FUNCTION or MODULE:FUNCTION"
_LIKE = ("shape", "dtype", "device")  # of a result that a peer returns
TAKEN = ("cublas", "marlin_cuda", *registry.names())  # names of other contenders' rows


class PeerFailed(RuntimeError):
    """A peer raised an error, or returned no launch; ``name`` is the peer's."""

    def __init__(self, name: str, message: str):
        super().__init__(f"peer {name!r} {message}")
        self.name = name


@dataclass(frozen=True, eq=False)
class PlainWeight:
    """A weight in no kernel's layout, as tensors on the GPU that nobody may write: w [k, n], in
    which row i belongs to group i // group_size,

        w = (codes - zeros) * scales

    codes: uint8 [k, n], ``bits`` (4 or 8) used; scales: [groups, n] of the scales' type; zeros:
    uint8 or float16 [groups, n], or None: 2**(bits - 1) everywhere; group_size: k if there is one
    scale per column; bias: [n] or None; dense: w in ``dtype`` (torch.float16 or torch.bfloat16),
    for peers that quantise on their own. Symmetric codes are never 0, so that peers may store them
    as sign and magnitude."""

    codes: Any
    scales: Any
    zeros: Any
    group_size: int
    bits: int
    bias: Any
    dense: Any

    @property
    def k(self) -> int:
        return self.codes.shape[0]

    @property
    def n(self) -> int:
        return self.codes.shape[1]

    @property
    def dtype(self):
        return self.dense.dtype


@dataclass(frozen=True)
class Peer:
    """name: the function's, which is the "kernel" of its rows; text: what ``find`` resolved,
    without the folders of a file; version: the ``__version__`` beside the function, or None."""

    name: str
    text: str
    function: Callable[[PlainWeight], Callable[[Any, Any], Any]]
    version: str | None = None

    @property
    def fields(self) -> dict:
        """The fields of its rows that say what it is."""
        return {"compiler": None, "peer": self.text, "peer_version": self.version}


def find(text: str) -> Peer:
    """The peer that ``text`` names; ValueError, saying what to write instead, if there is none."""
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(f"peer {text!r} must be cublas, none, {FORM}")
    if name in TAKEN:
        raise ValueError(f"peer {text!r}: {name!r} names a kernel of this package: rename it")
    module = _module(text, place)
    function = getattr(module, name, None)
    if not callable(function):
        there = [key for key, each in vars(module).items() if inspect.isfunction(each)]
        raise ValueError(
            f"peer {text!r}: {place} defines no function {name!r}{did_you_mean(name, there)}"
        )
    version = getattr(module, "__version__", None)
    return Peer(
        name, f"{Path(place).name}:{name}", function, None if version is None else str(version)
    )


def find_all(texts: Iterable[str]) -> tuple[Peer, ...]:
    """The peers, in order; ValueError if two have the same name, as their rows would."""
    found = tuple(map(find, texts))
    for position, each in enumerate(found):
        if each.name in (other.name for other in found[:position]):
            raise ValueError(f"two peers are called {each.name!r}: rename one of the functions")
    return found


def _module(text: str, place: str):
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ValueError(f"peer {text!r}: no such file: {place}")
    try:
        if not is_file:
            return importlib.import_module(place)
        name = f"peer_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look their module up
        spec.loader.exec_module(module)
        return module
    except Exception as error:  # whatever the user's file does
        raise ValueError(f"peer {text!r} cannot be imported: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def check_problem(problem: Problem) -> None:
    """ValueError unless peers can be given this problem's weight."""
    if problem.kind == OPERANDS or problem.codes != "integer":
        raise ValueError(
            "peers are given weights with integer codes: leave out the peer, or --codes and"
            " --format"
        )


def plain(weights: Weights) -> PlainWeight:
    """The first copy of the weight in plain form, read back from the bytes that this package's
    kernels read."""
    problem = weights.problem
    check_problem(problem)
    return PlainWeight(
        plain_codes(weights),
        plain_scales(weights),
        plain_zeros(weights),
        problem.k // problem.groups,
        problem.bits,
        weights.bias,
        weights.dense[0],
    )


def prepared(peer: Peer, weights: Weights) -> list[Callable]:
    """A launch for each copy of the weight. PeerFailed if the peer raises an error, or returns
    something else, or the same launch twice."""
    given, launches = plain(weights), []
    where = f"at k={given.k}, n={given.n}"
    for _ in weights.packed:
        try:
            launch = peer.function(given)
        except torch_on_gpu().cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise PeerFailed(
                peer.name, f"raises {_said(error)} {where}: mend it, or leave out --peer"
            ) from error
        if not callable(launch):
            raise PeerFailed(
                peer.name, f"returns {type(launch).__name__} {where}: return launch(x, out)"
            )
        if any(launch is each for each in launches):
            raise PeerFailed(
                peer.name,
                f"returns the same launch twice {where}: clone the weight at every call, or the"
                " L2 cache would hold it",
            )
        launches.append(launch)
    return launches


def contender(peer: Peer, launches: list[Callable], weights: Weights, batch: Batch) -> Contender:
    """Its launch raises PeerFailed if the peer raises an error, or returns what is no [m, n]."""
    output, returned = empty_output(weights, batch), []
    where = f"at m={output.shape[0]}, n={output.shape[1]}, k={batch.x.shape[1]}"

    def enqueue(index: int) -> None:
        try:
            made = launches[index % len(launches)](batch.x, output)
        except torch_on_gpu().cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise PeerFailed(
                peer.name, f"raises {_said(error)} {where}: mend it, or leave out --peer"
            ) from error
        if made is None or made is output:
            return
        is_like = [getattr(made, name, None) == getattr(output, name) for name in _LIKE]
        if not all(is_like):
            said = (
                f"{getattr(made, 'dtype', type(made).__name__)} {list(getattr(made, 'shape', ''))}"
            )
            raise PeerFailed(
                peer.name,
                f"returns {said} {where}: return None, or the result as {output.dtype}"
                f" {list(output.shape)}",
            )
        returned[:] = [made]

    return Contender(
        peer.name, enqueue, output, len(launches), fields=peer.fields, returned=returned
    )
