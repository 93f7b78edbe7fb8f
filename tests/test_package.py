"""Contract under test: what setup.cfg installs is what the checkout holds, and the README's
commands are what CI runs."""

import configparser
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numba_marlin
from tests.interpreter import loaded_by

ROOT = Path(__file__).resolve().parent.parent


def setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def test_every_room_is_installed():
    listed = {line for line in setup_cfg()["options"]["packages"].split() if line}
    rooms = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path in (ROOT / "numba_marlin").rglob("__init__.py")
    }
    assert listed == rooms | {"numba_marlin.isa.ptx"}


def test_every_requirement_has_a_reason():
    """A line of comment stands above each requirement, or above the group it belongs to."""
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    body = text.partition("install_requires =")[2].partition("[options.package_data]")[0]
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    assert lines and all(
        before.startswith("#") for before, line in zip(lines, lines[1:]) if not line.startswith("#")
    )


def test_what_is_cited_is_this_version():
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", cited, re.M)[1] == numba_marlin.__version__
    assert re.search(r"^license: (.*)$", cited, re.M)[1] == setup_cfg()["metadata"]["license"]


def test_the_command_points_at_main():
    scripts = setup_cfg()["options.entry_points"]["console_scripts"].split()
    assert scripts == ["numba-marlin", "=", "numba_marlin.cli.main:main"]


def test_ci_runs_the_readmes_test_command():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(
        r"<!-- command:test -->\n```sh\n(.*?)```\n<!-- end:test -->", readme, re.DOTALL
    )[1]
    assert "pytest" in command and "pip install" in command
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extract = next(line for line in script.splitlines() if line.startswith("command=$("))
    done = subprocess.run(
        ["bash", "-c", f'{extract}; printf "%s\n" "$command"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == command


def test_every_checker_is_of_one_version():
    """What pre-commit runs is what .ci/run installs; and CI calls it as it is."""
    lint = setup_cfg()["options.extras_require"]["lint"]
    pinned = re.search(r"ruff==(\d+\.\d+)\.\*", lint)[1]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"ruff-pre-commit\n    rev: v(\d+\.\d+)\.\d+\n", hooks) == [pinned]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for what in re.findall(r"run: \.ci/run (\w+)", workflow):
        assert f'"$what" = {what}' in script or f'"$what" != {what}' in script
    oldest, newest = re.findall(r"3\.(\d+)", setup_cfg()["options"]["python_requires"])
    versions = re.search(r"python-version: \[(.*)\]", workflow)[1]
    assert re.findall(r"3\.(\d+)", versions) == [str(v) for v in range(int(oldest), int(newest))]


def test_a_source_distribution_has_what_tests_and_checks_read():
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    named = [
        name for line in lines if line.startswith(("include", "graft")) for name in line.split()[1:]
    ]
    assert all((ROOT / name).exists() for name in named)
    needed = {
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        ".pre-commit-config.yaml",
        ".ci",
        ".github",
        "docs",
    }
    assert needed <= set(named)


def test_an_import_from_an_archive_says_at_once_what_to_do(tmp_path):
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (ROOT / "numba_marlin").rglob("*.py"):
            file.write(path, path.relative_to(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", "import numba_marlin"],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    last = done.stderr.splitlines()[-1:]
    assert done.returncode == 1 and last[0].startswith("ImportError: ")
    assert str(archive) in last[0] and "unpack it" in last[0]


def test_public_names_resolve():
    for name in numba_marlin.__all__:
        assert getattr(numba_marlin, name) is not None
    assert set(numba_marlin.__all__) <= set(dir(numba_marlin))


def test_the_public_functions_and_the_command_load_no_gpu_library():
    """Neither numba nor anything of CUDA before something is compiled or launched."""
    statement = (
        "import numba_marlin.api, numba_marlin.execution.launch, numba_marlin.cli.run\nimport"
        " numba_marlin as nm; nm.explain(1, 64, 128, device='H200')"
    )
    libraries = {"numba", "llvmlite", "cuda", "numba_cuda", "torch", "cupy"}
    assert not loaded_by(statement, ROOT) & libraries
