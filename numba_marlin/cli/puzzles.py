"""``numba-marlin puzzles``: kernels to complete, checked on the PTX machine.

Without more words it lists them. ``start`` writes files, and never over one that exists; ``check``
runs them, notebooks too; ``hint`` and ``solution`` help.
"""

from __future__ import annotations

from pathlib import Path

HELP = "small kernels to complete, from a thread's number to wgmma; no GPU needed"
EXAMPLES = """\
  numba-marlin puzzles                      the list
  numba-marlin puzzles start 1              writes puzzles/01_one_thread.py: complete it
  numba-marlin puzzles check 1              is it right? if not, what it did, and where
  numba-marlin puzzles start all --dir mine
  numba-marlin puzzles start 13 --notebook  puzzles/13_fragments.ipynb
  numba-marlin puzzles hint 5
  numba-marlin puzzles check                all files and notebooks that are there"""
ACTIONS = ("list", "start", "check", "hint", "solution")


def add_arguments(parser) -> None:
    parser.options_between = True  # puzzles check --dir mine 1
    parser.add_argument(
        "action",
        nargs="?",
        choices=ACTIONS,
        default="list",
        metavar="ACTION",
        help=f"{', '.join(ACTIONS)} (default list)",
    )
    parser.add_argument("which", nargs="*", metavar="PUZZLE", help="numbers, names or files; `all`")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("puzzles"),
        metavar="DIR",
        help="where your files are (default puzzles)",
    )
    parser.add_argument(
        "--notebook", action="store_true", help="with start: notebooks instead of files"
    )


def execute(args, report) -> bool:
    from numba_marlin import puzzles

    if args.notebook and args.action != "start":
        raise ValueError("--notebook goes with start")
    if args.action == "list":
        if args.which:
            raise ValueError(f"list takes no puzzle: puzzles start {args.which[0]}?")
        return _list(puzzles.puzzles(), args, report)
    if args.action == "check":
        return _check(args, report)
    if not args.which:
        raise ValueError(f"which one? numba-marlin puzzles {args.action} 1")
    chosen = (
        puzzles.puzzles() if args.which == ["all"] else [puzzles.find(each) for each in args.which]
    )
    report.data["puzzles"] = [puzzle.name for puzzle in chosen]
    if args.action == "start":
        return _start(chosen, args, report)
    for puzzle in chosen:
        text = puzzle.checks().HINT if args.action == "hint" else puzzle.solution()
        report.text(f"{puzzle.number}. {puzzle.title}")
        report.text(text)
        report.data[puzzle.name] = text
    return True


def _list(all_puzzles, args, report) -> bool:
    report.data["puzzles"] = []
    for puzzle in all_puzzles:
        begun = _begun(args.dir / puzzle.file) is not None
        report.data["puzzles"].append(
            {"number": puzzle.number, "name": puzzle.name, "title": puzzle.title, "begun": begun}
        )
        report.row(f"{puzzle.number:>3}", puzzle.title + (" (begun)" if begun else ""), width=4)
    report.text("\nnumba-marlin puzzles start 1 writes the first into ./puzzles")
    return True


def _start(chosen, args, report) -> bool:
    from numba_marlin.cli.report import write_atomically

    args.dir.mkdir(parents=True, exist_ok=True)
    for puzzle in chosen:
        path = args.dir / puzzle.file
        if args.notebook:
            path = path.with_suffix(".ipynb")
        if path.exists():
            report.row("kept", f"{path}: it is there already")
            continue
        text = puzzle.notebook() if args.notebook else puzzle.start()
        write_atomically(path, lambda file, text=text: file.write(text.encode()))
        report.row("wrote", str(path))
        last = "run its last cell, or" if args.notebook else "then"
        report.row("", f"complete it, {last}: numba-marlin puzzles check {path}")
    return True


def _check(args, report) -> bool:
    from numba_marlin import puzzles
    from numba_marlin.errors import CapabilityMissing

    try:
        import numba.cuda  # noqa: F401
    except ImportError as error:
        raise CapabilityMissing(
            f"puzzles need a compiler, numba-cuda: pip install 'numba-marlin[cu13]' ({error})"
        ) from error
    paths = [_path(each, args.dir) for each in args.which if each != "all"]
    if not paths:
        begun = [_begun(args.dir / puzzle.file) for puzzle in puzzles.puzzles()]
        paths = [path for path in begun if path is not None]
        if not paths:
            raise ValueError(f"{args.dir} has no puzzle: numba-marlin puzzles start 1")
    report.data["puzzles"] = {}
    for path in paths:
        with report.step(f"checking {path.name}"):
            verdict = puzzles.check_file(path)
        report.data["puzzles"][verdict.puzzle.name] = {
            "passed": verdict.passed,
            "message": verdict.message,
        }
        report.text(str(verdict) if len(paths) == 1 or not verdict.passed else _line(verdict))
        if not verdict.passed:
            report.text(f"(numba-marlin puzzles hint {verdict.puzzle.number})")
    return all(each["passed"] for each in report.data["puzzles"].values())


def _line(verdict) -> str:
    return str(verdict).partition("\n")[0]


def _begun(path: Path) -> Path | None:
    """The learner's file or, where there is none, their notebook."""
    return next((each for each in (path, path.with_suffix(".ipynb")) if each.exists()), None)


def _path(which: str, folder: Path) -> Path:
    from numba_marlin import puzzles

    path = Path(which)
    if path.suffix not in (".py", ".ipynb"):
        path = folder / puzzles.find(which).file
        path = _begun(path) or path
    if not path.exists():
        raise ValueError(
            f"{path} does not exist: numba-marlin puzzles start {puzzles.find(which).number}"
        )
    return path
