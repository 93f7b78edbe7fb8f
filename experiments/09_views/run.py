"""Takes the pictures of ``numba-marlin trace`` from its pages with a headless Chromium, and writes
the table of them in README.md.

    python experiments/09_views/run.py                  pictures and table
    python experiments/09_views/run.py --table          the table alone
    python experiments/09_views/run.py --only idea sub  these pictures, and the table

Needs playwright and a Chromium; no GPU.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from walk import DEMO, VIEWS

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
WIDTH, HEIGHT = 1180, 1400

ONLY = """([first, last]) => {
  // figures first .. last - 1 of those that the section, or its step, shows; nothing else
  const all = (selectors) => [...document.querySelectorAll(selectors)];
  const shown = all("section.here figure").filter((figure) => figure.offsetParent);
  const figures = shown.slice(first, last);
  const words = "section.here > p, section.here h2, section.here h3";
  all(`section.here figure, ${words}, header, nav, .stepbar`)
    .filter((each) => !figures.includes(each))
    .forEach((each) => { each.style.display = "none"; });
  document.querySelector(".frame").style.gridTemplateColumns = "1fr";
}"""


def command(options: tuple) -> list[str]:
    return ["trace", *DEMO, *options]


def pages(folder: Path, keys: list[str]) -> dict[tuple, Path]:
    """Build one page for each set of options that these pictures need."""
    found = {}
    for options in dict.fromkeys(view[3] for view in VIEWS if view[0] in keys):
        path = folder / f"{len(found)}.html"
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        }
        subprocess.run(
            [sys.executable, "-m", "numba_marlin", *command(options), "--html", str(path)],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        found[options] = path
    return found


def pictures(keys: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        of_options = pages(Path(folder), keys)
        browser = p.chromium.launch(
            executable_path=next((path for path in CHROMIUM if Path(path).exists()), None),
            args=list(FLAGS),
        )
        for number, (key, _, _, options, section, step, first, last) in enumerate(VIEWS):
            if key not in keys:
                continue
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme="dark" if number % 2 else "light",
            )
            page.goto(of_options[options].as_uri() + f"#{section}" + (f"/{step}" if step else ""))
            page.evaluate(ONLY, [first, last])
            page.locator("section.here").screenshot(path=str(HERE / f"{key}.png"))
            page.close()
        browser.close()


def table() -> str:
    rows = ["| asked for | shown | command | |", "|---|---|---|---|"]
    for key, asked, shown, options, section, *_ in VIEWS:
        rows.append(
            f"| {asked} | {shown} | `numba-marlin {' '.join(command(options))} --phase {section}` |"
            f" ![{asked}]({key}.png) |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    keys = [view[0] for view in VIEWS]
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="PICTURE")
    args = parser.parse_args()
    if not args.table:
        pictures(args.only)
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
