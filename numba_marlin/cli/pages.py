"""A verb's page (``views``) where it was asked for: on the terminal, in an HTML file (``--html``), in the JSON object (``--json``). ``--view`` chooses sections of it."""

from __future__ import annotations

import os
import sys

ASCII = "NUMBA_MARLIN_ASCII"  # set, figures are drawn without line-drawing characters, whatever the terminal takes


def add_arguments(parser) -> None:
    parser.add_argument("--view", metavar="NAMES", help="only these sections of the page, separated by commas (their names stand in brackets)")
    parser.add_argument("--html", metavar="FILE.html", help="also write the page as one self-contained HTML file")


def check(args) -> None:
    """ValueError, before any work is done, if the HTML file cannot be written."""
    from numba_marlin.cli.report import check_output

    check_output(args.html, (".html",))


def show(page, args, report) -> None:
    """Print ``page`` for people, or add it to the report's data; write the HTML file. ValueError for a section that it does not have."""
    from numba_marlin.cli.report import check_output, columns, write_atomically
    from numba_marlin.views import html, plain, text

    target = check_output(args.html, (".html",))
    if args.view:
        page = page.only(tuple(args.view.split(",")))
    if report.as_json:
        report.data["page"] = plain.as_dict(page)
    else:
        print(text.render(page, columns(), colour(), unicode()), end="", flush=True)
    if target is not None:
        write_atomically(target, lambda file: file.write(html.render(page).encode()))
        report.data["html"] = str(target)
        report.text(f"wrote {target}")


def colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def unicode() -> bool:
    return not os.environ.get(ASCII) and "utf" in (sys.stdout.encoding or "").lower()
