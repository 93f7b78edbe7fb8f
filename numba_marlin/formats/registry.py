"""The registry of packed layouts: name -> Format."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from numba_marlin.wording import did_you_mean

Weight = TypeVar("Weight")
Packed = TypeVar("Packed")


class Format(Protocol[Weight, Packed]):
    """Interface of a packed layout. ``unpack(pack(q))`` returns exactly ``q``; for block-scaled
    weights it returns the canonical form, and packing that again is exact.

    Weight, Packed: QuantizedWeight and PackedWeight, or BlockWeight and PackedBlocks.
    """

    name: str

    @property
    def weights(self) -> type[Weight]:
        """Type of the weights that the layout packs."""

    def pack(self, weight: Weight) -> Packed:
        """Pack, or raise ValueError naming the rule of this layout that ``weight`` breaks."""

    def unpack(self, packed: Packed) -> Weight:
        """The inverse of ``pack``."""

    def check(self, packed: Packed) -> None:
        """Raise ValueError if shapes or parameters break the layout's rules. Every packed weight is
        checked on construction."""

    def describe(self, packed: Packed) -> dict[str, object]:
        """Facts for people and for --json: shapes, bytes, bits per weight."""


FORMATS: dict[str, Format] = {}
AnyFormat = TypeVar("AnyFormat", bound=Format[Any, Any])


def register(layout: AnyFormat) -> AnyFormat:
    """Register a layout under its name; ValueError if the name is taken."""
    if layout.name in FORMATS:
        raise ValueError(f"layout {layout.name!r} is registered already")
    FORMATS[layout.name] = layout
    return layout


def find_format(name: str) -> Format:
    """The layout called ``name``; ValueError lists the known ones."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"layout={name!r} must be one of {sorted(FORMATS)}{did_you_mean(name, FORMATS)}"
        ) from None
