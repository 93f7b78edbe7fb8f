"""Contract under test: experiment 12's tables are those of its recorded counts, and what they hold
against the walk-through follows from the problem alone."""

import importlib.util
import json
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "12_blackwell"
SPEC = importlib.util.spec_from_file_location("blackwell_experiment", HERE / "run.py")
run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run)


@pytest.fixture(scope="module")
def rows():
    return [json.loads(line) for line in run.RESULTS.read_text(encoding="utf-8").splitlines()]


def test_the_readme_shows_the_recorded_counts(rows):
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert text.split(run.BEGIN)[1].split(run.END)[0].strip() == "\n".join(run.tables(rows))


def test_counts_are_those_of_the_problem(rows):
    """Every step of every tile loads 128 rows of A and of B, 256 of k at 4 bits, and a scale for
    every 16; D is written once."""
    for row in rows:
        m, n, k = row["m"], row["n"], row["k"]
        assert row["flops"] == 2 * m * n * k and row["buffers"]["d"]["written"] == 2 * m * n
        for name, rows_of, others in (("a", m, n), ("b", n, m)):
            assert row["buffers"][name] == {
                "read": rows_of * k // 2 * others // 128,
                "read_distinct": rows_of * k // 2,
                "written": 0,
            }
            assert row["buffers"]["sf" + name]["read"] == rows_of * k // 16 * others // 128
    sums = next(row for row in rows if row["kernel"] == "tcgen05")["tensor_memory"]
    assert sums == {"scales": 4 * (m // 128) * (n // 128) * 256 * k // 16, "loaded": 4 * m * n}


@pytest.mark.parametrize(
    "nbytes, text",
    [
        (16384, "16 KiB"),
        (36 * 1024, "36 KiB"),
        (75497472, "72 MiB"),
        (16, "16 B"),
        (2.25 * (1 << 20), "2.25 MiB"),
    ],
)
def test_amounts(nbytes, text):
    assert run.amount(nbytes) == text
