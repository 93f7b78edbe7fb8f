"""Places in the source that the text was compiled from: .loc directives.

https://docs.nvidia.com/cuda/parallel-thread-execution/#debugging-directives-loc
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from numba_marlin.emulator.text.lexer import NAME

LOCATION = re.compile(
    rf"""\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)[\s\d]*
    (?:,\s*function_name\s+(?P<name>{NAME})[^,]*,
    \s*inlined_at\s+(?P<at>\d+)\s+(?P<at_line>\d+))?""",
    re.VERBOSE | re.ASCII,
)

Source = tuple[str, int]


@dataclass(frozen=True)
class Location:
    """``source`` and ``inlined`` as of an Instruction; ``named`` are those of the last directive
    that named a line."""

    source: Source | None = None
    inlined: tuple[str, Source] | None = None
    named: tuple[Source | None, tuple[str, Source] | None] = (None, None)

    def then(self, directive: str) -> Location:
        """Behind ``directive``. A location named again after line 0, which instructions of no line
        have, was inlined where it was before: libnvvm does not repeat that."""
        found = LOCATION.match(directive)
        if found is None:
            return self
        source, inlined = (found["file"], int(found["line"])), None
        if found["name"] is not None:
            inlined = found["name"].partition("+")[0], (found["at"], int(found["at_line"]))
        if inlined is None and self.source and not self.source[1] and source == self.named[0]:
            inlined = self.named[1]
        return Location(source, inlined, (source, inlined) if source[1] else self.named)
