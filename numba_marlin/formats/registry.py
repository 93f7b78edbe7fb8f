"""The registry of packed layouts: name -> Format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from numba_marlin.formats.types import PackedWeight, QuantizedWeight


class Format(Protocol):
    """What a packed layout must be able to do. ``unpack(pack(q))`` gives ``q`` back exactly; of
    block-scaled weights, the same numbers, and itself from then on.

    weights: the type of those that it packs, QuantizedWeight (what stands below) or BlockWeight.
    """

    name: str
    weights: type

    def pack(self, weight: QuantizedWeight) -> PackedWeight:
        """Pack, or raise ValueError naming the rule of this layout that ``weight`` breaks."""

    def unpack(self, packed: PackedWeight) -> QuantizedWeight:
        """The inverse of ``pack``."""

    def check(self, packed: PackedWeight) -> None:
        """Raise ValueError if shapes or parameters break the layout's rules. Called whenever one is
        made."""

    def describe(self, packed: PackedWeight) -> dict[str, object]:
        """Facts for people and for --json: shapes, bytes, bits a weight."""


FORMATS: dict[str, Format] = {}


def register(layout: Format) -> Format:
    """Add a layout under its name; a name can be taken once."""
    if layout.name in FORMATS:
        raise ValueError(f"layout {layout.name!r} is registered already")
    FORMATS[layout.name] = layout
    return layout


def find_format(name: str) -> Format:
    """The layout called ``name``; ValueError lists the known ones."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise ValueError(f"layout={name!r} must be one of {sorted(FORMATS)}") from None
