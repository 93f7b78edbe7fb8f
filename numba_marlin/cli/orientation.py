"""Which way a stored matrix lies: [n, k], as torch.nn.Linear has it, or [k, n], as NumPy programs
and GPT-2 have it. The wrong one is a wrong model that looks like a right one.

Evidence, for each matrix: what the command line says; the length of its bias, where the matrix is
not square; ``architectures`` of the directory's config.json, which says that transformers loads it.
Where they disagree, or nothing says it, ValueError. Only the command line may contradict
config.json: GPT-2's own layers lie the other way, the square ones, which show no sign of it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NK, KN = "[n, k]", "[k, n]"
_OPTIONS = {NK: "--transpose", KN: "--no-transpose"}


@dataclass(frozen=True)
class Orientation:
    """stored: NK or KN. because: what says so."""

    stored: str
    because: str


def orientations(
    names: Iterable[str], entries: Mapping, config: Mapping, transpose: bool | None
) -> dict[str, Orientation]:
    """The Orientation of each matrix of ``names``. entries: all tensors, name -> anything with
    ``shape``; config: the contents of config.json; transpose: what the command line says, None for
    nothing."""
    architectures = _architectures(config)
    if transpose is not None:
        stored = NK if transpose else KN
        said = {_OPTIONS[stored]: stored}
    elif architectures:
        said = {f"config.json (architectures {architectures})": NK}
        other = next((name for name in entries if _by_bias(name, entries) == KN), None)
        if other is not None:
            said[f"the bias of {other}"] = KN
    else:
        said = {}
    return {name: _orientation(name, entries, said, transpose is not None) for name in names}


def _orientation(name: str, entries: Mapping, said: dict[str, str], told: bool) -> Orientation:
    """said: what speaks -> which way it says that all matrices lie; told: it is the command line
    that says so."""
    shape, own = entries[name].shape, _by_bias(name, entries)
    if own is not None:
        said = said | {f"a bias of {_bias(name, entries)}": own}
    if len(set(said.values())) > 1:
        evidence = ", ".join(f"{stored} by {who}" for who, stored in said.items())
        settle = (
            "one of them is wrong"
            if told
            else "say --no-transpose where it is [k, n], --transpose where it is [n, k]"
        )
        raise ValueError(f"{name} ({shape[0]} x {shape[1]}) is {evidence}: {settle}")
    if not said:
        raise ValueError(
            f"{name} ({shape[0]} x {shape[1]}): nothing says which way it lies; say --transpose if"
            " it is [n, k], as torch.nn.Linear has it, or --no-transpose if it is [k, n]"
        )
    return Orientation(next(iter(said.values())), " and ".join(said))


def _by_bias(name: str, entries: Mapping) -> str | None:
    """Which way a matrix lies by the length of its bias; None where that says nothing."""
    shape, bias = entries[name].shape, _bias(name, entries)
    if len(shape) != 2 or shape[0] == shape[1] or bias not in shape:
        return None
    return NK if bias == shape[0] else KN


def _architectures(config: Mapping) -> str:
    value = config.get("architectures")
    names = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    return ", ".join(names)


def _bias(name: str, entries: Mapping) -> int | None:
    """The length of the bias that belongs to a matrix."""
    layer = name.removesuffix(".weight")
    bias = entries.get(f"{layer}.bias") if layer != name else None
    return bias.shape[0] if bias is not None and len(bias.shape) == 1 else None
