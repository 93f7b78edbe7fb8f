"""Programs in an interpreter of their own that has what setup.cfg requires and nothing else: no
compiler, no kernel in the cache, no driver."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def program(text, tmp_path, *hidden):
    """Run ``text`` in ``tmp_path``, where these packages are not installed either."""
    before = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.other_systems import NO_COMPILER, hide\n"
        f"hide(NO_COMPILER | {set(hidden)!r})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", before + text],
        cwd=tmp_path,
        env={"NUMBA_MARLIN_CACHE": str(tmp_path / "kernels"), "PATH": "", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def verb(command, tmp_path):
    """``program`` of a command of numba-marlin."""
    return program(
        "import shlex\nfrom numba_marlin.cli.main import main\n"
        f"sys.exit(main(shlex.split({command!r})))",
        tmp_path,
    )
