"""Which kernel of the family a product of experts gets, and which configuration of it. Pure but
for the definitions, which import no compiler."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from numba_marlin.kernels.experts.moe import MOE
from numba_marlin.kernels.experts.moe import choose as few_rows
from numba_marlin.kernels.experts.moe_wgmma import MOE_WGMMA
from numba_marlin.kernels.experts.moe_wgmma import choose as many_rows
from numba_marlin.kernels.experts.tables import GATED_STEP
from numba_marlin.kernels.language.definition import KernelDefinition


@dataclass(frozen=True)
class Entry:
    """A kernel, and its module with ``configuration`` and ``refusals``."""

    definition: KernelDefinition
    chooser: ModuleType


KERNELS = {
    each.definition.name: each for each in (Entry(MOE, few_rows), Entry(MOE_WGMMA, many_rows))
}


def definition_of(config: Any) -> KernelDefinition:
    """Of the kernel whose configuration this is."""
    for each in KERNELS.values():
        if type(config) is each.definition.config_type:
            return each.definition
    types = " or ".join(each.definition.config_type.__name__ for each in KERNELS.values())
    raise TypeError(f"config is a {type(config).__name__}, must be a {types}")


def refusals(name: str, problem, device) -> tuple[str, ...]:
    """Why a kernel does not take a problem, a phrase each; empty if it does."""
    entry = KERNELS[name]
    found = []
    groups = (16, 32) if problem.codes == "e2m1" else (-1, 32, 64, 128, 256)
    if problem.group_size not in groups:
        found.append(f"group_size={problem.group_size}, which must be one of {groups}")
    if problem.activation is not None and problem.n % GATED_STEP:
        found.append(
            f"activation={problem.activation!r} with n={problem.n}, which must be a multiple of"
            f" {GATED_STEP}"
        )
    if not device.runs(entry.definition.min_arch):
        found.append(f"{device.name}, which is {device.arch} and not {entry.definition.min_arch}")
    return (*found, *entry.chooser.refusals(problem))


def taken(problem, device, batch_invariant: bool = False) -> str | None:
    """The name of the kernel that a problem gets; None if none takes it. A batch-invariant product
    gets the same kernel whatever the number of tokens is."""
    names = [name for name in KERNELS if not refusals(name, problem, device)]
    rows = problem.m * problem.top_k / problem.experts
    many = MOE_WGMMA.name
    if many in names and (rows < many_rows.LEAST_ROWS or batch_invariant) and len(names) > 1:
        names.remove(many)
    return names[-1] if names else None


def configured(name: str, problem, batch_invariant: bool = False) -> Any:
    """The configuration of a kernel for a problem."""
    return KERNELS[name].chooser.configuration(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        experts=problem.experts,
        top_k=problem.top_k,
        group_size=problem.group_size,
        batch_invariant=batch_invariant,
        dtype=problem.dtype,
        scale_dtype=problem.scale_dtype,
        bits=problem.bits,
        zeros=problem.zeros,
        codes=problem.codes,
        bias=problem.bias,
        x_of_pairs=problem.x_of_pairs,
        combine=problem.combine,
        activation=problem.activation,
    )
