"""Bring README.md and the pages of docs/ up to date: paste what their commands really print, and
the code they quote.

    python .ci/update_readme.py run         # the README's first command, word for word: all it
                                            prints on stdout
    python .ci/update_readme.py test        # its second command: the last line
    python .ci/update_readme.py example     # the example of the PTX machine, in this Python
    python .ci/update_readme.py code        # the functions and files that are quoted, and the
                                            lengths of the ladder's rungs
    python .ci/update_readme.py puzzle      # what the check of a puzzle says, and their list
    python .ci/update_readme.py speed       # the README's table of speed, from that of
                                            docs/performance.md
    python .ci/update_readme.py formats     # the table of formats of files, found out by converting
                                            weights
    python .ci/update_readme.py views       # the table of views, from those of experiments 09 and
                                            10
    python .ci/update_readme.py times       # the times of the ladder's rungs, and their floor, from
                                            the rows of experiment 18
    python .ci/update_readme.py truths      # what the examples of docs/truths.md print

Run the first two from a fresh copy of the checkout to show what a newcomer sees: no virtual
environment, no cached kernels. A failing command changes nothing. ``tests/test_readme.py`` holds
the rest against the sources.
"""

import ast
import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LINES_SHOWN = {"run": None, "test": 1}
QUOTE = re.compile(
    r"<!-- code:(?P<path>[\w/.]+)(?::(?P<name>\w+))? -->\n```(?P<language>\w*)\n(?P<code>.*?)```\n",
    re.DOTALL,
)
FORMATS = re.compile(r"(<!-- formats -->\n)(.*?)(<!-- end:formats -->)", re.DOTALL)
VIEWS = re.compile(r"(<!-- views -->\n)(.*?)(<!-- end:views -->)", re.DOTALL)
PUZZLES = re.compile(r"(<!-- puzzles -->\n)(.*?)(<!-- end:puzzles -->)", re.DOTALL)
SPEED = re.compile(r"(<!-- speed -->\n)(.*?)(<!-- end:speed -->)", re.DOTALL)
TIMES = re.compile(
    r"(?P<begin><!-- time:(?P<kernel>\w+):(?P<m>\d+)(?::(?P<before>\w+))? -->\n)"
    r".*?(?P<end><!-- end:time -->)",
    re.DOTALL,
)
RESULTS = re.compile(r"<!-- results:02_hopper -->\n(.*?\n)\n", re.DOTALL)
SESSION = re.compile(r"(?<=^```pycon\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
VIEW = re.compile(r"^(\| .* \|) !\[.*\]\((\w+\.png)\) \|$", re.MULTILINE)
FLOOR = re.compile(r"^\| floor \|.*$", re.MULTILINE)
RUNG = re.compile(
    r"^(\| \[`(?P<name>\w+)`\]\((?P<path>[\w/.]+)\) \|.*\| )(?P<own>\d+) \| (?P<whole>\d+) \|$",
    re.MULTILINE,
)


def block(text: str, kind: str, name: str, language: str) -> str:
    """The text of the fenced block that follows the marker ``<!-- kind:name -->``."""
    found = re.search(rf"<!-- {kind}:{name} -->\n```{language}\n(.*?)```\n", text, re.DOTALL)
    if found is None:
        raise ValueError(f"there is no block after a marker {kind}:{name}")
    return found[1]


def quoted(path: str, name: str | None) -> str:
    """A file's text, or that of the function ``name`` in it, wherever it is nested."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if name is None:
        return text
    node = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno])) + "\n"


def with_code(text: str) -> str:
    """``text`` with every quotation as the sources have it now, and the length of every rung."""

    def quotation(found):
        name = f":{found['name']}" if found["name"] else ""
        return (
            f"<!-- code:{found['path']}{name}"
            f" -->\n```{found['language']}\n{quoted(found['path'], found['name'])}```\n"
        )

    text = QUOTE.sub(quotation, text)
    return RUNG.sub(
        lambda found: (
            found[1] + " | ".join(map(str, lengths(found["path"].removeprefix("../")))) + " |"
        ),
        text,
    )


def lengths(path: str) -> tuple[int, int]:
    """Lines of a kernel's file, and of all modules of the package whose device functions are its
    own: without those that choose, declare and configure it."""
    own, others = ROOT / path, ("config.py", "choose.py", "declare.py", "__init__.py")
    modules = [each for each in own.parent.glob("*.py") if each.name not in others]
    count = {each: len(each.read_text(encoding="utf-8").splitlines()) for each in modules}
    return count[own], sum(count.values())


def with_output(text: str, name: str, output: str) -> str:
    lines = output.rstrip().splitlines()
    shown = LINES_SHOWN.get(name)
    if shown is not None:
        lines = lines[-shown:]
    replacement = "\n".join(
        [f"<!-- output:{name} -->", "```", *lines, "```", "<!-- end:output -->"]
    )
    replaced, count = re.subn(
        rf"<!-- output:{name} -->\n.*?<!-- end:output -->",
        lambda _: replacement,
        text,
        flags=re.DOTALL,
    )
    return replaced if count else text


def with_formats(text: str) -> str:
    """``text`` with the conformance table as it comes out now."""
    sys.path.insert(0, str(ROOT))
    from numba_marlin.formats import conformance

    return FORMATS.sub(lambda found: f"{found[1]}{conformance.markdown()}{found[3]}", text)


def with_views(text: str) -> str:
    """``text`` with every view of a kernel's run: what is asked for, what is shown, the command,
    its picture."""
    rows = ["| asked for | shown | command | |", "|---|---|---|---|"]
    for folder in ("experiments/09_views", "experiments/10_profile"):
        table = (ROOT / folder / "README.md").read_text(encoding="utf-8")
        rows += [
            f"{found[1]} [picture](../{folder}/{found[2]}) |" for found in VIEW.finditer(table)
        ]
    return VIEWS.sub(lambda found: found[1] + "\n".join(rows) + "\n" + found[3], text)


def with_puzzles(text: str) -> str:
    """``text`` with the list of puzzles, and what the check of a wrong answer says."""
    if not PUZZLES.search(text):
        return text
    sys.path.insert(0, str(ROOT))
    from numba_marlin import puzzles

    rows = ["| | puzzle | its idea |", "|--:|---|---|"]
    for puzzle in puzzles.puzzles():
        idea = " ".join(puzzle.statement.split("\n\n")[1].split())
        file = f"../numba_marlin/puzzles/tasks/{puzzle.file}"
        rows.append(f"| {puzzle.number} | [{puzzle.title}]({file}) | {idea} |")
    text = PUZZLES.sub(lambda found: found[1] + "\n".join(rows) + "\n" + found[3], text)
    puzzle = puzzles.find("fragments")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / puzzle.file
        path.write_text(puzzle.start(), encoding="utf-8")
        return with_output(text, "puzzle", str(puzzles.check_file(path)))


def with_speed(text: str) -> str:
    """``text`` with the speed-ups of docs/performance.md, without their goals."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    (results,) = RESULTS.findall(page)
    table = re.sub(r" \(\d\.\d+\)|\*\*", "", results)
    return SPEED.sub(lambda found: found[1] + table + found[3], text)


def with_times(text: str) -> str:
    """``text`` with what experiment 18 measured: of a kernel for m rows of x, beside the floor and
    the kernel before it; and in the table of a page that has the floor's line, of every rung."""
    sys.path.insert(0, str(ROOT))
    from numba_marlin.bench import rows

    found = rows.newest(rows.read(ROOT / "experiments" / "18_ladder" / "results.jsonl")).values()
    measured = {(row["kernel"], row["m"]): row for row in found}

    def line(found) -> str:
        m = int(found["m"])
        row, before = measured[found["kernel"], m], found["before"]
        faster = before and measured[before, m]["us"] / row["us"]
        gain = f", {faster:.2f} times as fast as `{before}`" if before else ""
        said = (
            f"**{row['us']:,.1f} us** on {row['device']} for {m} row{'s' * (m > 1)} of x and a"
            f" {row['k']} x {row['n']} matrix{gain}; {floor_of(row)} ([experiment"
            f" 18](../experiments/18_ladder), {row['date']}).\n"
        )
        return found["begin"] + said + found["end"]

    def timed(row: str, kernel: str, name: str) -> str:
        """A row of the table: its words, times, the lengths of its files."""
        times = (f" {digits(measured[kernel, m][name])} " for m in (1, 16, 256))
        cells = row.split("|")
        return "|".join([*cells[:4], *times, *cells[7:]])

    text = TIMES.sub(line, text)
    if FLOOR.search(text):
        text = FLOOR.sub(lambda found: timed(found[0], "naive", "limit_us"), text)
        text = RUNG.sub(lambda found: timed(found[0], found["name"], "us"), text)
    return text


def floor_of(row: dict) -> str:
    """The least time of a measured product, in words. A large sum gave the rate of reading in the
    same run, cuBLAS that of arithmetic."""
    reading = row["bytes"] / row["ceilings"]["read_bytes"] * 1e6
    what = "to read its bytes" if reading > row["limit_us"] - 0.01 else "the arithmetic"
    return f"{what} alone takes {row['limit_us']:.1f} us"


def digits(us: float) -> str:
    return f"{us:.1f}" if us < 20 else f"{us:,.0f}"


def with_sessions(text: str) -> str:
    """``text`` with what its interactive examples (``>>>``) print, one after the other in one
    namespace, from the repository's root."""
    sys.path.insert(0, str(ROOT))
    names: dict[str, object] = {}
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        return SESSION.sub(lambda found: session(found[0], names), text)
    finally:
        os.chdir(before)


def session(text: str, names: dict[str, object]) -> str:
    """Examples with their output as Python prints it; of an error, its last lines."""
    shown = []
    for example in doctest.DocTestParser().get_examples(text):
        lines = example.source.rstrip("\n").split("\n")
        shown += [f"{'...' if at else '>>>'} {line}".rstrip() for at, line in enumerate(lines)]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(example.source, "<page>", "single"), names)
            except ValueError as error:
                print(f"ValueError: {error}")
        shown += printed.getvalue().splitlines()
    return "\n".join(shown) + "\n"


CHANGES = {
    "code": with_code,
    "formats": with_formats,
    "puzzle": with_puzzles,
    "speed": with_speed,
    "times": with_times,
    "truths": with_sessions,
    "views": with_views,
}


def change(how) -> None:
    """Every page, by a function of its text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        changed = how(text)
        if changed != text:
            page.write_text(changed, encoding="utf-8")


def main(name: str) -> None:
    if name in CHANGES:
        change(CHANGES[name])
        return
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    if text.count(f"<!-- output:{name} -->") != 1:
        sys.exit(f"the pages must have one place marked output:{name}")
    if name == "example":
        command = [sys.executable, "-c", block(text, "example", "machine", "python")]
    else:
        command = ["bash", "-euo", "pipefail", "-c", block(text, "command", name, "sh")]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"exit code {done.returncode}: the pages are unchanged")
    change(lambda text: with_output(text, name, done.stdout))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in (*LINES_SHOWN, "example", *CHANGES):
        sys.exit(__doc__)
    main(sys.argv[1])
