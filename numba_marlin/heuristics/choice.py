"""What a kernel's module of this room answers with, and what several of them need.

Such a module has ``configurations(problem, device)`` -> list of those worth a thought;
``invariant_configurations(problem, device)``, the same of those whose ``order_of_sums`` does not
hang on m (``invariance``); ``described(problem, config, device)`` -> what is to be said of one
(ValueError if the kernel cannot count so far); and ``check(config, problem)``, a ValueError unless
the configuration was made for the problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from numba_marlin.hardware.devices import device
from numba_marlin.heuristics.problem import Problem
from numba_marlin.kernels.language.definition import TooMuchSharedMemory

FITTED_ON = device("H200")  # modelled times were fitted to measurements on it
FITTED_BANDWIDTH_PER_SM = FITTED_ON.bandwidth_bytes / FITTED_ON.sms  # bytes/s
# of a Problem
TYPE_FIELDS = ("group_size", "dtype", "bits", "zeros", "scale_dtype", "bias", "codes")


@dataclass(frozen=True)
class Description:
    """A configuration of a kernel for a problem: predicted microseconds (None where nobody knows),
    why, and what follows from the shapes."""

    us: float | None
    reasons: tuple[str, ...]
    work: dict = field(default_factory=dict)


def group_blocks_of(problem: Problem) -> int:
    """k16 rows that share a scale, -1 for per-column scales: how kernels spell a group size."""
    return -1 if problem.group_size == -1 else problem.group_size // 16


def types_of(config_type: type, problem: Problem) -> dict:
    """The problem's types, those that ``config_type`` has a field for."""
    names = {each.name for each in fields(config_type)}
    return {name: getattr(problem, name) for name in TYPE_FIELDS if name in names}


def config_of_types(config_type: type, problem: Problem):
    return config_type(**types_of(config_type, problem))


def check_types(config: object, problem: Problem) -> None:
    """ValueError unless ``config`` has the problem's types."""
    for name, value in types_of(type(config), problem).items():
        if getattr(config, name) != value:
            owner = (
                "the activations'"
                if name == "dtype"
                else "the problem's"
                if name == "bias"
                else "the weight's"
            )
            raise ValueError(
                f"config.{name}={getattr(config, name)} must be {owner} {name}={value}"
            )


def check_groups(config: object, problem: Problem) -> None:
    """ValueError unless ``config`` has the problem's groups."""
    if config.group_blocks != group_blocks_of(problem):
        raise ValueError(
            f"config.group_blocks={config.group_blocks} must be {group_blocks_of(problem)} for"
            f" group_size={problem.group_size}"
        )


def with_stages_that_fit(config_type: type, stages: int, least: int, step: int = 1, **settings):
    """The configuration with as many stages as shared memory has place for, ``stages`` at most, or
    ``step`` fewer, and so on; None if not even ``least`` fit."""
    for count in range(stages, least - 1, -step):
        try:
            return config_type(stages=count, **settings)
        except TooMuchSharedMemory:
            continue
    return None
