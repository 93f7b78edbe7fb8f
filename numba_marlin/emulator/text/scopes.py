"""What a name means within a ``{ }`` of PTX: registers, labels, and the .param variables of
calls."""

from __future__ import annotations


class Scope:
    """Names of one ``{ }`` level. ``declared`` maps names to register widths, ``ranges`` prefixes
    (%r of %r<9>) to

    (width, count); a register gets its place when it is first used, because compilers declare many
    more than they use.
    """

    def __init__(self, outer: Scope | None = None, depth: int | None = None) -> None:
        """Inside ``outer``; without one, at ``depth``."""
        self.outer, self.depth = outer, depth or 0 if outer is None else outer.depth + 1
        self.declared, self.ranges, self.registers, self.labels = {}, {}, {}, {}
        # .param variables of calls: name here -> name in local memory
        self.parameters: dict[str, str] = {}

    def width_of(self, name: str) -> int | None:
        """Width of a register declared at this very level."""
        if name in self.declared:
            return self.declared[name]
        # the number begins at any of the digits at the end: %a1<30> has a %a12
        for start in range(len(name.rstrip("0123456789")), len(name)):
            width, count = self.ranges.get(name[:start], (None, 0))
            digits = name[start:]
            if len(digits) <= len(str(count)) and int(digits) < count:
                if digits == "0" or digits[0] != "0":
                    return width
        return None

    def label(self, name: str) -> int | None:
        return self._found("labels", name)

    def parameter(self, name: str) -> str | None:
        return self._found("parameters", name)

    def _found(self, table: str, name: str):
        scope = self
        while scope is not None:
            if name in getattr(scope, table):
                return getattr(scope, table)[name]
            scope = scope.outer
        return None
