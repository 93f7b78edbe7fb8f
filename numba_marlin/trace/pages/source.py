"""The kernel's source beside a step of the walk."""

from __future__ import annotations

from textwrap import dedent

from numba_marlin.trace.record import Trace
from numba_marlin.trace.sources import around
from numba_marlin.views import Text


def beside(trace: Trace, pc: int) -> tuple[Text, ...]:
    """Show the lines of source around an instruction's, which is marked; nothing if the trace has
    none (PTX without line numbers, files of earlier versions)."""
    lines = around(trace, pc)
    if not lines:
        return ()
    place = trace.instructions[pc]["source"]
    texts = dedent("\n".join(text or "" for _, text, _ in lines)).split("\n")
    shown = "\n".join(
        f"{'>' if mine else ' '} {number:>4}  {text}".rstrip()
        for (number, _, mine), text in zip(lines, texts)
    )
    return (Text(f"{place}, in {trace.instructions[pc]['phase']}\n{shown}", "source"),)
