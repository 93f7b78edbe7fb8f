"""What all verbs that show a page (``views``) share: its text on the terminal, ``--html``, and the
page in the JSON object."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

STEPS_SHOWN = 1  # of each section, on a terminal, if no section was asked for


def add_page_arguments(parser) -> None:
    parser.add_argument(
        "--html",
        metavar="FILE.html",
        help="write the page here instead, as one self-contained file for any browser; arrow keys"
        " step through it",
    )


def add_view_argument(parser) -> None:
    parser.add_argument(
        "--view",
        metavar="NAME[,...]",
        help="only these sections of the page: their names stand in brackets behind the titles",
    )


def viewed(page, args):
    """Return ``page`` with the sections that ``--view`` chose. A ValueError names the valid
    ones."""
    return page.only(tuple(args.view.split(","))) if args.view else page


def check_page_arguments(args) -> None:
    """Check before any work whether the page can be written. Raises ValueError if not."""
    check("--html", args.html, (".html", ".htm"))


@contextmanager
def shown_from(*paths: str | None):
    """A context in which data read from files are shown: a missing entry, or one of another kind,
    becomes a ValueError that names the files. None: the data are from no file."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        names = [path for path in paths if path is not None]
        if not names:
            raise
        raise ValueError(
            f"{' or '.join(names)} is damaged, or was altered: it cannot be shown"
            f" ({type(error).__name__}: {error})"
        ) from error


def check(option: str, path: str | None, suffixes: tuple[str, ...]):
    """Apply ``report.check_output`` to any option."""
    from numba_marlin.cli.report import check_output

    return check_output(path, suffixes, option)


def show(page, args, report, every_step: bool = True, more: str = "", failed: bool = False) -> None:
    """Print ``page``, or write it to the file that was asked for and print one line with its path;
    put it into ``report.data["page"]``. every_step: print every step of it; otherwise ``more`` says
    how to see them. failed: a check failed: the page is printed in either case."""
    from numba_marlin.cli.report import columns
    from numba_marlin.views import html, plain, text

    report.data["page"] = plain.as_dict(page)
    target = check("--html", args.html, (".html", ".htm"))
    if not report.as_json and (target is None or failed):
        print(
            text.render(
                page,
                columns(),
                takes_colour(),
                takes_unicode(),
                None if every_step else STEPS_SHOWN,
            ),
            end="",
            flush=True,
        )
        if (
            not every_step
            and more
            and any(len(section.steps) > STEPS_SHOWN for section in page.sections)
        ):
            report.text(f"\n{more}")
    if target is not None:
        # a name of bytes that are no UTF-8
        document = html.render(page).encode(errors="backslashreplace")
        written(target, document, report)
        report.data["html"] = {"file": str(target), "bytes": len(document)}


def written(target, data: bytes, report) -> None:
    """Write a file, and print one line with its path."""
    from numba_marlin.cli.report import write_atomically

    write_atomically(target, lambda file: file.write(data))
    report.row("wrote", f"{target}, {len(data):,} bytes")


def takes_colour() -> bool:
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def takes_unicode() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
