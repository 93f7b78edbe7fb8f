"""``warmup``: compile ahead of the first call. Arguments are checked here; ``execution.warmup``
chooses and compiles."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from numba_marlin.api.checks import check_choice
from numba_marlin.api.packing import check_packed
from numba_marlin.compiler import COMPILERS
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.hardware import devices
from numba_marlin.problems import OPERANDS, WeightProblem

if TYPE_CHECKING:
    from numba_marlin.execution.warmup import Choice, WarmupReport

USUAL_M = range(1, 257)  # from one token to a batch of prompts


def warmup(
    what,
    m: int | Iterable[int] | None = None,
    device: str | devices.Device | None = None,
    *,
    dtype: str | None = None,
    bias: bool | None = None,
    batch_invariant: bool = False,
    compiler: str = COMPILERS[0],
    processes: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> WarmupReport:
    """Compile, in parallel, the kernels that products will need, and keep them in the disk cache:
    no later call of such a shape waits for a compiler, in this process or another.

        nm.warmup(p)                            # nm.matmul(x, p) for x of 1 to 256 rows
        nm.warmup(nm.load_checkpoint("llama-gptq/"), m=[1, 16], device="H200")

    what: a packed weight, a Checkpoint, a problem (``explain(...).problem``), or a list of weights
        and problems, or a mapping of names to them. Of a Checkpoint only headers and zero points
        are read.
    m: numbers of rows of x, 1 to 2**31 - 1; default: 1 to 256, and a problem's own.
    device: a Device or the name of one (``devices.names()``), which need not be there; default:
        where host arrays would be multiplied now, on this computer's first GPU or the PTX machine.
        Winners that ``bench --autotune`` stored count on the computer that measured them only.
    dtype: type of x, "float16" or "bfloat16"; default: what p is packed for, what the checkpoint's
        config.json says, or float16.
    bias: whether ``matmul`` will be given a bias; default: for layers of a Checkpoint that have
        one.
    batch_invariant, compiler: as in ``matmul``.
    processes: how many compile at once (each takes a core, and 300 to 500 MB); default: one for
        each core.
    progress: called with (kernels done, kernels to compile, name of the kernel).

    Returns a WarmupReport: ``cached``, ``compiled``, ``failed``, ``seconds``, ``kernels``, and
    ``refused``, the layers of a Checkpoint that no kernel runs, with the reasons. Raises TypeError
    or ValueError for arguments that break these rules, and for a weight or a problem that no kernel
    runs; CapabilityMissing if the compiler is not there or no directory can keep kernels.
    """
    from numba_marlin.execution.warmup import compile_missing

    check_processes(processes)
    choice = choose(what, m, device, dtype, bias, batch_invariant, compiler)
    return compile_missing(choice, processes, progress)


def choose(
    what, m=None, device=None, dtype=None, bias=None, batch_invariant=False, compiler=COMPILERS[0]
) -> Choice:
    """The kernels that ``warmup`` would see to; nothing is compiled."""
    from numba_marlin.checkpoints import Checkpoint
    from numba_marlin.execution.warmup import kernels_for

    check_choice("compiler", compiler, COMPILERS)
    if dtype is not None:
        check_choice("dtype", dtype, HALF_TYPES)
    if isinstance(device, str):
        device = devices.device(device)
    elif device is not None and not isinstance(device, devices.Device):
        raise TypeError(f"device is a {type(device).__name__}, must be a Device or the name of one")
    rows = None if m is None else _rows(m)
    if isinstance(what, Checkpoint):
        problems, refused = _of_checkpoint(what, dtype, bias, batch_invariant)
        return kernels_for(problems, rows or tuple(USUAL_M), device, compiler, refused)
    given = what if isinstance(what, Mapping) else dict(enumerate(_listed(what)))
    if not given:
        raise ValueError(f"what={what!r} must hold at least one weight or problem")
    problems, alone = {}, {}
    for name, each in given.items():
        if _is_problem(each):
            if (dtype, bias, batch_invariant) != (None, None, False):
                raise ValueError("a problem has its own dtype, bias and batch_invariant: leave out")
            alone[str(name)] = each
        else:
            problems[str(name)] = _of_weight(each, dtype, bool(bias), batch_invariant)
    if rows is None and problems and alone:
        raise ValueError("m must be given where weights and problems come together")
    usual = tuple(USUAL_M) if problems else None
    return kernels_for(problems | alone, rows or usual, device, compiler)


def check_processes(processes: object, name: str = "processes") -> None:
    if processes is None:
        return
    if isinstance(processes, bool) or not isinstance(processes, numbers.Integral):
        raise TypeError(f"{name} {processes!r} must be an int")
    if processes < 1:
        raise ValueError(f"{name} {processes} must be at least 1")


def _is_problem(each: object) -> bool:
    # a BlockProblem is there only if its module is loaded
    return isinstance(each, WeightProblem) or getattr(each, "kind", None) == OPERANDS


def _listed(what) -> list:
    return list(what) if isinstance(what, (list, tuple)) else [what]


def _rows(m) -> tuple[int, ...]:
    """m as distinct numbers in order. TypeError or ValueError for anything else."""
    from numba_marlin.execution.warmup import MOST_PLANS

    if isinstance(m, numbers.Integral):
        m = (m,)
    elif isinstance(m, (str, bytes)) or not isinstance(m, Iterable):
        raise TypeError(f"m={m!r} must be an int or several")
    found: dict[int, None] = {}
    for each in m:
        if isinstance(each, bool) or not isinstance(each, numbers.Integral):
            raise TypeError(f"m has {each!r}, must be an int or several")
        if not 0 < each < 2**31:
            raise ValueError(f"m={each} must be from 1 to {2**31 - 1}")
        found.setdefault(int(each), None)
        if len(found) > MOST_PLANS:
            raise ValueError(f"m must have at most {MOST_PLANS} values")
    if not found:
        raise ValueError("m must have at least one value")
    return tuple(sorted(found))


def _of_weight(p, dtype: str | None, bias: bool, batch_invariant: bool) -> WeightProblem:
    """The problem of one row times a weight."""
    check_packed(p)
    own = getattr(p, "dtype", None)  # FP4 is packed for one type
    if own is not None and dtype not in (None, own):
        raise ValueError(f"dtype={dtype!r} must be {own}, which p is packed for")
    return WeightProblem.of(1, p, dtype or own or "float16", bias, batch_invariant)


def _of_checkpoint(checkpoint, dtype: str | None, bias: bool | None, batch_invariant: bool):
    """-> layer name -> problem, and layer name -> why no kernel runs it"""
    if not checkpoint.layers:
        raise ValueError(f"{checkpoint.source.path}: no quantised layer of a known format")
    if dtype is None:
        said = checkpoint.source.config
        said = said.get("torch_dtype", said.get("dtype"))
        dtype = said if said in HALF_TYPES else "float16"
    problems, refused = {}, {}
    for name in checkpoint.layers:
        has_bias = checkpoint.bias(name) is not None if bias is None else bias
        try:
            outline = checkpoint.outline(name)
            problems[name] = WeightProblem.of(1, outline, dtype, has_bias, batch_invariant)
        except ValueError as error:
            from numba_marlin.checkpoints import CheckpointError

            if isinstance(error, CheckpointError):  # the file is damaged, not the layer unusual
                raise
            refused[name] = str(error)
    return problems, refused
