"""Run a command of README.md, word for word, and paste what it printed on stdout between its output markers.

    python .ci/update_readme.py run         # all of it
    python .ci/update_readme.py test        # its last line

Run it from a fresh copy of the checkout to show what a newcomer sees: no virtual environment, no cached kernels. A failing command changes nothing.
"""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
LINES_SHOWN = {"run": None, "test": 1}


def main(name: str) -> None:
    text = README.read_text(encoding="utf-8")
    command = re.search(rf"<!-- command:{name} -->\n```sh\n(.*?)```\n", text, re.DOTALL)[1]
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=README.parent, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}: README.md is unchanged")
    lines = done.stdout.rstrip().splitlines()
    if LINES_SHOWN[name] is not None:
        lines = lines[-LINES_SHOWN[name] :]
    block = "\n".join([f"<!-- output:{name} -->", "```", *lines, "```", "<!-- end:output -->"])
    replaced, count = re.subn(rf"<!-- output:{name} -->\n.*?<!-- end:output -->", lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        sys.exit(f"README.md has {count} places marked output:{name}, must have one")
    README.write_text(replaced, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LINES_SHOWN:
        sys.exit(__doc__)
    main(sys.argv[1])
