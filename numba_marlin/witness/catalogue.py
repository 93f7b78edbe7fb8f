"""All probes by group, and what becomes of every file of ``ptx/``: compared, or no value to
compare."""

from __future__ import annotations

import importlib
from functools import cache

from numba_marlin.witness.probe import Probe, instructions
from numba_marlin.wording import did_you_mean

GROUPS = (
    "registers",
    "memory",
    "copies",
    "cooperation",
    "multiplication",
    "sparse",
    "blackwell",
    "refusals",
)


@cache
def group(name: str) -> tuple[Probe, ...]:
    """The probes of a group. ValueError for an unknown one."""
    if name not in GROUPS:
        raise ValueError(
            f"group={name!r} must be one of {', '.join(GROUPS)}{did_you_mean(name, GROUPS)}"
        )
    return tuple(importlib.import_module(f"numba_marlin.witness.{name}").probes())


def every_probe() -> list[Probe]:
    return [probe for name in GROUPS for probe in group(name)]


def coverage() -> dict[str, str]:
    """{instruction: "compared", or why there is no value to compare}. KeyError, naming it, for a
    file that no probe knows."""
    from numba_marlin.witness.cooperation import QUIET

    compared = {name for probe in every_probe() for name in probe.covers}
    missing = [name for name in instructions() if name not in compared and name not in QUIET]
    if missing:
        raise KeyError(
            f"no probe covers ptx/{missing[0]}.ptx, and witness.cooperation.QUIET does not say that"
            " it has no value"
        )
    return {name: "compared" if name in compared else QUIET[name] for name in instructions()}
