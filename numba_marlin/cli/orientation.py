"""Which way a stored matrix lies: [n, k], as torch.nn.Linear has it, or [k, n], as NumPy programs
and GPT-2 have it. The wrong one is a wrong model that looks like a right one.

Evidence, for each matrix: what the command line says; the length of its bias, where the matrix is
not square; ``architectures`` of the directory's config.json, which says that transformers loads it.
Where they disagree, or nothing says it, ValueError. Only the command line may contradict
config.json: GPT-2's own layers lie the other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NK, KN = "[n, k]", "[k, n]"
_OPTIONS = {NK: "--transpose", KN: "--no-transpose"}


@dataclass(frozen=True)
class Orientation:
    """stored: NK or KN. because: what says so."""

    stored: str
    because: str


def orientation(
    name: str, entries: Mapping, config: Mapping, transpose: bool | None
) -> Orientation:
    """The Orientation of tensor ``name``. entries: all tensors, name -> anything with ``shape``;
    config: the contents of config.json; transpose: what the command line says, None for nothing."""
    shape = entries[name].shape
    said = {}
    if transpose is not None:
        stored = NK if transpose else KN
        said[_OPTIONS[stored]] = stored
    elif _architectures(config):
        said[f"config.json (architectures {_architectures(config)})"] = NK
    bias = _bias(name, entries)
    if shape[0] != shape[1] and bias in shape:
        said[f"a bias of {bias}"] = NK if bias == shape[0] else KN
    if len(set(said.values())) > 1:
        evidence = ", ".join(f"{stored} by {who}" for who, stored in said.items())
        settle = (
            "one of them is wrong"
            if transpose is not None
            else "say --no-transpose where it is [k, n], --transpose where it is [n, k]"
        )
        raise ValueError(f"{name} ({shape[0]} x {shape[1]}) is {evidence}: {settle}")
    if not said:
        raise ValueError(
            f"{name} ({shape[0]} x {shape[1]}): nothing says which way it lies; say --transpose if"
            " it is [n, k], as torch.nn.Linear has it, or --no-transpose if it is [k, n]"
        )
    return Orientation(next(iter(said.values())), " and ".join(said))


def _architectures(config: Mapping) -> str:
    value = config.get("architectures")
    names = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    return ", ".join(names)


def _bias(name: str, entries: Mapping) -> int | None:
    """The length of the bias that belongs to a matrix."""
    layer = name.removesuffix(".weight")
    bias = entries.get(f"{layer}.bias") if layer != name else None
    return bias.shape[0] if bias is not None and len(bias.shape) == 1 else None
