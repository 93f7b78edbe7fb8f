"""Contract under test: verify compares what a visit brings back with the machine: exit code 1 where
something differs, 2 for bad use, 3 without a GPU."""

import json

import numpy as np
import pytest

from numba_marlin.cli import main as cli
from numba_marlin.execution import driver
from numba_marlin.witness import catalogue, probe, record, visit

PROBES = [
    each
    for each in catalogue.group("cooperation")
    if each.name in ("named barriers", "mbarrier phases")
]


@pytest.mark.parametrize("flipped", [0, 1])
def test_a_flipped_bit_is_named(capsys, monkeypatch, tmp_path, flipped):
    """A visit made up of the machine's own results, one bit of them flipped."""
    arrays, told = {}, {}
    for each in PROBES:
        results = {
            name: array.copy() for name, array in probe.run_on_machine(each, each.buffers()).items()
        }
        results[next(iter(results))].reshape(-1)[5] ^= flipped * (each is PROBES[0])
        arrays.update(record.keep(each, results))
        told[each.name] = {"sha256": record.sources(each, each.buffers())}
    about = {"device": "Invented", "driver": "13.0", "date": "2026-01-01", "probes": told}
    arrays["meta"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    monkeypatch.setattr(visit, "visit", lambda groups: arrays)
    monkeypatch.setattr(catalogue, "group", lambda name: PROBES)
    code = cli.main(
        [
            "verify",
            "--hardware",
            "--groups",
            "cooperation",
            "--json",
            "--out",
            str(tmp_path / "v.json"),
        ]
    )
    data = json.loads(capsys.readouterr().out)
    assert (
        code == flipped
        and data["ok"] is not bool(flipped)
        and data["counts"] == ({"differs": 1, "equal": 1} if flipped else {"equal": 2})
    )
    assert json.loads((tmp_path / "v.json").read_text()) == data
    if flipped:
        assert (
            next(row for row in data["probes"] if row["outcome"] == "differs")["first"]["element"]
            == 5
        )


def test_verify_says_what_it_needs(capsys):
    assert cli.main(["verify"]) == 2 and "--hardware" in capsys.readouterr().err
    assert cli.main(["verify", "--hardware", "--groups", "nonsense"]) == 2
    if not driver.probe().usable:
        assert (
            cli.main(["verify", "--hardware"]) == 3 and "no usable GPU" in capsys.readouterr().err
        )
