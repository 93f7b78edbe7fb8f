"""Contract under test: experiment 03's faithful kernel by TMA is the faithful kernel, bit for bit;
what is counted of it is so, and its rows become tables."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from numba_marlin import testing
from numba_marlin.emulator import PendingCopyRead
from numba_marlin.formats import marlin
from tests.experiments.faithful_rows import faithful_rows
from tests.kernels import harness

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "03_tma"


FAITHFUL_CASES = [  # m, n, k, group size, thread_m_blocks, stages, ragged
    (5, 512, 256, 64, 1, 4, False),
    pytest.param((40, 512, 768, 128, 3, 4, False), marks=pytest.mark.thorough),
    pytest.param((5, 512, 384, 32, 1, 3, False), marks=pytest.mark.thorough),
    pytest.param((100, 256, 512, 128, 4, 5, False), marks=pytest.mark.thorough),
    pytest.param((7, 320, 352, 32, 1, 3, True), marks=pytest.mark.thorough),
]


def faithful_products(experiment, case, names=None, **options):
    """-> {kernel: its product}"""
    m, n, k, group_size, rows, stages, ragged = case
    packed = marlin.pack(testing.make_quantized("uniform", "ordinary", k, n, group_size, seed=1))
    x = np.random.default_rng(2).standard_normal((m, k)).astype(np.float16)
    shape = {"group_blocks": group_size // 16, "stages": stages, "ragged": ragged}
    return {
        name: harness.run_kernel(
            each.definition,
            x,
            packed,
            config=each.definition.config_type(rows, 16, 4, **shape),
            sms=3,
            **options,
        ).c
        for name, each in experiment["faithful"].FAITHFUL.items()
        if names is None or name in names
    }


@pytest.mark.thorough
@pytest.mark.parametrize("case", FAITHFUL_CASES)
def test_tma_in_the_faithful_kernel_changes_no_bit(experiment, case):
    """Stripes of several slices, rows past m; with ``ragged`` tiles past n and k."""
    found = faithful_products(experiment, case)
    for product in found.values():
        np.testing.assert_array_equal(product, found["ampere"])
    assert len(found) == 3 and np.isfinite(found["ampere"]).all() and found["ampere"].any()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_changes_the_faithful_kernel_by_tma(experiment, seed):
    case = FAITHFUL_CASES[0]
    found = faithful_products(experiment, case, seed=seed, races=True)
    np.testing.assert_array_equal(found["ampere_tensor"], found["ampere"])


@pytest.mark.thorough
def test_a_wait_left_out_of_the_faithful_kernel_is_found(experiment):
    """Every one says that its tile is there, whether it is or not."""

    def without_waits(ptx):
        broken, count = re.subn(r"mbarrier\.try_wait[^;]*;", "setp.eq.u32 complete, 0, 0;", ptx)
        assert count > 3
        return broken

    with pytest.raises(PendingCopyRead):
        faithful_products(experiment, FAITHFUL_CASES[0], ["ampere_tensor"], edit_ptx=without_waits)


@pytest.mark.parametrize(
    "wrong", [{"thread_n_blocks": 8, "thread_k_blocks": 8}, {"group_blocks": -1}]
)
def test_what_tma_cannot_bring_as_it_lies_is_refused(experiment, wrong):
    shape = {"thread_n_blocks": 16, "thread_k_blocks": 4, **wrong}
    with pytest.raises(ValueError, match="256 columns, and groups"):
        experiment["faithful"].TensorAmpereConfig(**shape)


@pytest.mark.thorough
def test_the_instructions_of_a_tile_are_those_kept(experiment):
    """To a hundredth: compilers differ."""
    lines = (FOLDER / "counts.jsonl").read_text(encoding="utf-8").splitlines()
    for kept in map(json.loads, lines):
        if kept["m"] == 16:
            now = experiment["count"].of_a_tile(kept["kernel"], 16)["verbs"]
            assert abs(sum(now.values()) / sum(kept["verbs"].values()) - 1) < 0.01


def test_the_faithful_kernel_gets_its_tables(experiment):
    report, cells = experiment["report"], experiment["cells"]
    lines = (FOLDER / "counts.jsonl").read_text(encoding="utf-8").splitlines()
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert report.count_table(map(json.loads, lines)) in page
    rows = faithful_rows(cells)
    table = report.faithful_table(report.newest_faithful(rows)).splitlines()
    assert table[0] == "Microseconds with 3 / 4 / 6 stages:"
    assert table[-1] == (
        "| 256 x 512 | 16 | 33.0 / 34.0 / - | 25.0 / 26.0 / 28.0 | 23.0 / 24.0 / 26.0 | +8.7% |"
    )
