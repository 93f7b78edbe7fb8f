"""Invented rows of experiment 25, and its module, for the tests of it."""

import pytest

from numba_marlin.hardware import devices
from tests import experiment_results
from tests.bench.invented import row as invented

H200 = devices.device("H200")


@pytest.fixture
def run(monkeypatch):
    return experiment_results.module("25_every_cell", "run", monkeypatch)


def cell(run, layer, m, us=10.0, others=(), **peers):
    """A row: ``others`` are times, ``peers`` times or reasons why there is none."""
    return invented(
        m=m,
        n=layer.n,
        k=layer.k,
        us=us,
        kernel="wgmma",
        config={"tile_m": 128, "tile_n": 128, "stages": 4},
        predicted_us=8.0,
        others=[
            {"kernel": "wgmma", "config": {"tile_m": 64 + at}, "us": each, "predicted_us": 9.0}
            for at, each in enumerate(others)
        ],
        peers={
            name: {"failed": each} if isinstance(each, str) else {"us": each, "version": "1.0"}
            for name, each in peers.items()
        },
    )
