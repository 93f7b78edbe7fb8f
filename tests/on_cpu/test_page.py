"""Contract under test: the example of docs/on_cpu.md prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "on_cpu.md").read_text(encoding="utf-8")


def block(marker):
    return re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.mark.thorough
def test_the_example_says_what_the_page_shows(tmp_path):
    (tmp_path / "example.py").write_text(block("program"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "numba_marlin.on_cpu", "example.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = done.stderr.replace(f"{tmp_path}/", "")
    assert done.returncode == 1 and block("output") in said, said


def test_every_option_on_the_page_exists():
    from numba_marlin.on_cpu import __main__, pytest_plugin, switch

    sources = "".join(
        Path(module.__file__).read_text(encoding="utf-8")
        for module in (__main__, pytest_plugin, switch)
    )
    for option in set(re.findall(r"--[a-z][a-z-]+|NUMBA_CUDA_ON_CPU", PAGE)):
        assert option in sources, option
