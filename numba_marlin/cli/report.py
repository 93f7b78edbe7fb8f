"""The output of a verb: rows for people on stdout as they come, or one JSON object at the end, with
progress on stderr.

With ``--json`` stdout carries that object and nothing else: at least ``schema``
("numba-marlin/<verb>/<version>") and ``ok``. Lines fit the width of the terminal (without one,
``COLUMNS``). Colour is only used on terminals, and not with ``NO_COLOR`` or ``TERM=dumb``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path

from numba_marlin.cli.progress import aside, bar
from numba_marlin.wording import printable

SCHEMA_VERSION = 1
LABEL_WIDTH = 10
# columns: text is never set narrower or wider; where no terminal says how wide it is
NARROWEST, WIDEST, USUAL = 50, 120, 100
BOLD, DIM, GREEN, RED = "1", "2", "1;32", "1;31"


class Report:
    """Collects one verb's output. ``data`` is the JSON object without ``schema`` and ``ok``."""

    def __init__(self, verb: str, as_json: bool):
        self.verb, self.as_json = verb, as_json
        self.data: dict = {}

    def row(self, label: str, text: str, style: str = BOLD, width: int = LABEL_WIDTH) -> None:
        """Print one labelled line for people; what does not fit, and further lines of ``text``,
        follow indented under it."""
        if not self.as_json:
            indent = " " * (width + 1)
            lines = wrapped(printable(text), columns() - len(indent))
            row = [
                styled(f"{label:<{width}}", style) + " " + lines[0],
                *(indent + line for line in lines[1:]),
            ]
            with aside():
                print("\n".join(row).rstrip(), flush=True)

    def text(self, text: str, style: str = "") -> None:
        if not self.as_json:
            lines = [styled(line, style) for line in wrapped(printable(text), columns())]
            with aside():
                print("\n".join(lines), flush=True)

    def step(self, what: str):
        """Show on stderr that ``what`` is in progress: a bar of which nobody knows the end."""
        return bar(what)

    def object(self, ok: bool, error: str | None = None) -> dict:
        result = {"schema": f"numba-marlin/{self.verb}/{SCHEMA_VERSION}", "ok": ok}
        return result | self.data | ({} if error is None else {"error": error})

    def finish(self, ok: bool, error: str | None = None) -> None:
        if self.as_json:
            print(to_json(self.object(ok, error)))


def columns() -> int:
    return min(WIDEST, max(NARROWEST, shutil.get_terminal_size((USUAL, 24)).columns))


def wrapped(text: str, width: int) -> list[str]:
    """The lines of ``text``, long ones broken between words. The lines of a bullet point stay to
    the right of its bullet. Paths are never broken."""
    result = []
    for line in text.splitlines() or [""]:
        lead = line[: len(line) - len(line.lstrip(" "))]
        hang = lead + ("  " if line.lstrip(" ").startswith("- ") else "")
        result += textwrap.wrap(
            line, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return result


def styled(text: str, style: str) -> str:
    """``text`` in an ANSI style, if stdout is a terminal that supports it."""
    if (
        not style
        or not text.strip()
        or not sys.stdout.isatty()
        or os.environ.get("NO_COLOR")
        or os.environ.get("TERM") == "dumb"
    ):
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def to_json(value: dict) -> str:
    """Return JSON in which NaN and infinity are null, because JSON does not have them."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value):
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def check_output(path: str | None, suffixes: tuple[str, ...], option: str = "--out") -> Path | None:
    """Return the path of an option. It is checked before any work is done: a ValueError says why it
    cannot be written."""
    if path is None:
        return None
    target = Path(path)
    if target.suffix not in suffixes:
        raise ValueError(f"{option} {path} must end in {' or '.join(suffixes)}")
    if target.is_dir():
        raise ValueError(f"{option} {path} is a directory")
    if not target.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no directory {target.parent}")
    try:  # permissions tell less: root has them all, and some file systems take no file
        handle, name = tempfile.mkstemp(dir=target.parent)
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise ValueError(
            f"{option} {path}: directory {target.parent} must be writable ({error.strerror})"
        ) from error
    return target


def write_atomically(target: Path, write) -> None:
    """``write(file)`` fills a new binary file, which then atomically replaces ``target``: there is
    never half a file."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes files private
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
