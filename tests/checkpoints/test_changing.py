"""Contract under test: what was checked is what is used. A file that changes while it is in use
changes no weight, ends no process, and is named."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert
from numba_marlin.cli import main as cli
from tests.checkpoints.models import same_weight, small_model

ROOT = Path(__file__).resolve().parents[2]
NAME = "model.layers.0.mlp.up_proj"


@pytest.fixture
def path(tmp_path):
    """A file of Marlin's words, which weights hold as they come."""
    others = {"embedding.weight": np.ones((64, 64), np.float16), "odd": np.ones(5, np.uint8)}
    made = nm.save_checkpoint(tmp_path / "m.safetensors", small_model(2), "marlin", others=others)
    os.utime(made, ns=(1, 1))  # long ago: times are coarse
    return made


def rewritten(path):
    with path.open("r+b") as file:
        data = file.read()
        file.seek(len(data) // 2)
        file.write(bytes(len(data) - len(data) // 2))


def truncated(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def replaced(path):
    path.rename(path.with_suffix(".old"))
    path.write_bytes(path.with_suffix(".old").read_bytes())


CHANGES = {
    "rewritten": (rewritten, "has changed since it was opened"),
    "truncated": (truncated, "has changed since it was opened"),
    "replaced": (replaced, "has changed since it was opened"),
    "removed": (Path.unlink, "No such file"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_has_changed_is_named(tmp_path, path, change):
    loaded = nm.load_checkpoint(path)
    alter, message = CHANGES[change]
    alter(path)
    for read in (lambda: loaded[NAME], lambda: loaded.tensor("embedding.weight")):
        with pytest.raises(nm.CheckpointError, match=message) as caught:
            read()
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("change", ["rewritten", "truncated", "removed"])
def test_what_was_read_stays_as_it_was(path, change):
    """In another process: a mapped file that is cut off ends it."""
    program = (
        "import sys; from pathlib import Path; import numba_marlin as nm\n"
        "from tests.checkpoints import test_changing as these\n"
        "from tests.checkpoints.models import same_weight, small_model\n"
        "path = Path(sys.argv[1]); loaded = nm.load_checkpoint(path)\n"
        "weight, tensor = loaded[these.NAME], loaded.tensor('embedding.weight')\n"
        "these.CHANGES[sys.argv[2]][0](path)\n"
        "assert same_weight(nm.unpack(weight), small_model(1)[these.NAME])\n"
        "assert (tensor == 1).all() and not tensor.flags.writeable\n"
        "print('as it was')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path, change], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "as it was\n", (done.returncode, done.stderr)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("target", ["out", "out.safetensors"])
def test_a_source_that_changes_meanwhile_makes_no_target(tmp_path, path, change, target):
    done = []

    def progress(*_):
        if not done:
            done.append(CHANGES[change][0](path))

    with pytest.raises(nm.CheckpointError, match=CHANGES[change][1]):
        convert(path, tmp_path / target, "gptq", progress=progress)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith("out")]


def test_a_change_during_the_read_itself_is_noticed(path):
    """Between the first and the last of a tensor's bytes."""
    loaded = nm.load_checkpoint(path)
    file = loaded.source.file_of("embedding.weight")
    with pytest.raises(nm.CheckpointError, match="has changed since it was opened"):
        for _ in file.chunks("embedding.weight"):
            rewritten(path)


def test_an_untouched_file_is_read_again_and_again(path):
    loaded = nm.load_checkpoint(path)
    for _ in range(3):
        assert same_weight(nm.unpack(loaded[NAME]), small_model(1)[NAME])
    assert cli.main(["inspect", str(path), "--data", "--json"]) == 0
