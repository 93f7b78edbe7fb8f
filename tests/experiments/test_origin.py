"""Contract under test: what a result says of its origin can be looked up: the commits that pages of
experiments and their newest rows name are in this repository's history."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST = "ffb18c58c19845e8a65eebdc3c1944724405a3a6"  # of the history
EXPERIMENTS = sorted(path for path in (ROOT / "experiments").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def history():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)

    try:
        shallow = git("rev-parse", "--is-shallow-repository").stdout.strip()
    except FileNotFoundError:
        pytest.skip("git is not installed")
    commits = git("rev-list", "--all").stdout.split()
    if shallow != "false" or FIRST not in commits:
        pytest.skip("no whole history here")
    if git("status", "--porcelain", "experiments").stdout:
        pytest.skip("results that are not committed yet may name commits from elsewhere")
    return commits


def named(folder):
    """Commits that the page of an experiment and the newest row of each file name."""
    for file in folder.glob("*.md"):
        yield from re.findall(r"\bcommit ([0-9a-f]{7,40})\b", file.read_text(encoding="utf-8"))
    for file in folder.glob("*.jsonl"):
        commit = json.loads(file.read_text(encoding="utf-8").splitlines()[-1]).get("commit")
        if commit:
            yield commit.rstrip("+")


@pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda folder: folder.name)
def test_the_commits_that_results_name_exist(folder, history):
    unknown = {name for name in named(folder) if not any(c.startswith(name) for c in history)}
    assert not unknown
