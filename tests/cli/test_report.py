"""Contract under test: what a verb writes to a file is JSON that every reader takes, and is there
whole or not at all."""

import json

import pytest

from numba_marlin.cli.report import to_json, write_atomically


def test_json_has_no_nan():
    assert json.loads(
        to_json({"a": [float("nan"), float("inf"), 1.5], "b": {"c": -float("inf")}})
    ) == {"a": [None, None, 1.5], "b": {"c": None}}


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "y.npy"
    target.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        write_atomically(target, fail)
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


def test_a_file_is_replaced_whole(tmp_path):
    """Whoever has the old one open reads it to its end."""
    target = tmp_path / "y.npy"
    target.write_bytes(b"the old one")

    def write(file):
        file.write(b"new")
        assert target.read_bytes() == b"the old one"

    with target.open("rb", buffering=0) as reader:
        assert reader.read(3) == b"the"
        write_atomically(target, write)
        assert reader.read() == b" old one"
    assert target.read_bytes() == b"new" and list(tmp_path.iterdir()) == [target]
    (tmp_path / "plain").touch()
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode, "for who may read others"
