"""How a kernel's package says which configuration a problem gets, and what several choosers share.

A package's ``choose`` module is a ``Chooser``: four functions, which ``heuristics`` asks through
``KernelDefinition.chooser``. Pure: numbers in, configurations with reasons and modelled figures
out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from numba_marlin.hardware.devices import device
from numba_marlin.kernels.language.definition import TooMuchSharedMemory

if TYPE_CHECKING:
    from numba_marlin.hardware.devices import Device
    from numba_marlin.problems import Problem, WeightProblem

FITTED_ON = device("H200")  # modelled times were fitted to measurements on it
FITTED_BANDWIDTH_PER_SM = FITTED_ON.bandwidth_bytes / FITTED_ON.sms  # bytes/s
# of a WeightProblem
TYPE_FIELDS = ("group_size", "dtype", "bits", "zeros", "scale_dtype", "bias", "codes")


@dataclass(frozen=True)
class Description:
    """What is to be said of a configuration for a problem."""

    #: Predicted microseconds, None where nobody knows.
    us: float | None
    #: Why it looks as it does, a sentence each.
    reasons: tuple[str, ...]
    #: What follows from the shapes: tiles, tiles per block, how busy SMs are.
    work: dict = field(default_factory=dict)
    #: Where no time is predicted: whether the kernel is preferred to those below it on the ladder.
    leads: bool = True


class Chooser(Protocol):
    """What a package's ``choose`` module has."""

    def configurations(self, problem: Problem, device: Device) -> list:
        """Those worth a thought; ValueError for sizes that the kernel cannot count."""

    def invariant_configurations(self, problem: Problem, device: Device) -> list:
        """The same of those whose ``order_of_sums`` does not depend on m
        (``heuristics.invariance``)."""

    def described(self, problem: Problem, config: Any, device: Device) -> Description:
        """What is to be said of one; ValueError if the kernel cannot count so far."""

    def check(self, config: Any, problem: Problem) -> None:
        """ValueError unless ``config`` was made for ``problem``."""


@dataclass(frozen=True)
class ChooseTypes:
    """The chooser of a kernel whose configuration is the problem's types and nothing else."""

    config_type: type
    reason: str

    def configurations(self, problem: Problem, device: Device) -> list:
        return [config_of_types(self.config_type, problem)]

    invariant_configurations = configurations

    def described(self, problem: Problem, config: Any, device: Device) -> Description:
        return Description(None, (self.reason,))

    def check(self, config: Any, problem: Problem) -> None:
        check_types(config, problem)


def group_blocks_of(problem: WeightProblem) -> int:
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
