"""Contract under test: what tests compile can be listed (``--kernels-to``), and experiment
19_two_versions builds such a list with two checkouts' sources."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from numba_marlin.kernels.registry import find_kernel

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "experiments" / "19_two_versions" / "run.py"
TEST = "tests/kernels/test_schedules.py"


@pytest.mark.thorough
def test_what_a_test_compiles_is_listed_and_built_by_both_versions(tmp_path):
    listed = tmp_path / "kernels.jsonl"
    options = ["-q", "-p", "no:cacheprovider", "--kernels-to", str(listed), "-k", "naive"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, TEST],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=300,
    )
    wanted = {tuple(json.loads(line)) for line in listed.read_text(encoding="utf-8").splitlines()}
    assert {kernel for kernel, *_ in wanted} == {"naive"}
    (config,) = {config for _, config, *_ in wanted}
    config_type = find_kernel("naive").config_type
    assert config == repr(eval(config, {config_type.__name__: config_type}))

    spec = importlib.util.spec_from_file_location("two_versions", RUN)
    experiment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(experiment)
    builds = [("naive", config, "sm_90a"), ("naive", "NaiveConfig(unknown=1)", "sm_90a")]
    made = experiment.built((ROOT, ROOT), builds, tmp_path)
    before, now = made[builds[0]]
    assert before.ptx == now.ptx and "ld.global" in now.ptx
    assert made[builds[1]] == [None, None]  # what a version cannot build
