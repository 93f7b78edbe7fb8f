"""Contract under test: a target has one writer from the first byte to the rename, and an
interrupted conversion goes on only if nothing of it has changed, wherever it was killed."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert, job, owner
from tests.checkpoints.models import OTHERS, same_weight, small_model

ROOT = Path(__file__).resolve().parents[2]


def foreign(directory):
    """A checkpoint whose files say nothing themselves, as others write them."""
    from safetensors.numpy import load_file, save_file

    for path in directory.glob("*.safetensors"):
        save_file(load_file(path), path)
    return directory


@pytest.fixture
def source(tmp_path):
    model = small_model(6, "integer")
    path = nm.save_checkpoint(tmp_path / "source", model, "gptq_v2", others=OTHERS)
    (path / "tokenizer.json").write_text("{}")
    return foreign(path)


def interrupted(source, target, after, **options):
    """Convert, and stop before this shard."""
    shard, written = job.Job._shard, []

    def stopping(self, path, items, *rest, **more):
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path.name)
        return shard(self, path, items, *rest, **more)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(job.Job, "_shard", stopping)
        convert(source, target, **options)
    return written


def contents(directory):
    return {each.name: each.read_bytes() for each in directory.iterdir()}


def corrected(source):
    """The configuration said the wrong version."""
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq"
    return lambda: (source / "config.json").write_text(json.dumps(config))


def with_quantize_config(source):
    """The other place of the same statement."""
    said = {"checkpoint_format": "gptq"}
    (source / "config.json").write_text("{}")
    (source / "quantize_config.json").write_text('{"checkpoint_format": "gptq_v2"}')
    return lambda: (source / "quantize_config.json").write_text(json.dumps(said))


@pytest.mark.parametrize("change", [corrected, with_quantize_config])
def test_another_configuration_of_the_source_starts_anew(tmp_path, source, change):
    """Two of six layers were of the old one."""
    change = change(source)
    options = {"format": "pack-quantized", "shard_bytes": 6_000}
    assert interrupted(source, tmp_path / "target", 2, **options)
    change()
    convert(source, tmp_path / "target", **options)
    convert(source, tmp_path / "whole", **options)
    assert contents(tmp_path / "target") == contents(tmp_path / "whole")


def test_the_same_source_goes_on(tmp_path, source):
    options = {"format": "awq", "shard_bytes": 6_000}
    written = interrupted(source, tmp_path / "target", 2, **options)
    names = [tmp_path / "target.partial" / name for name in written]
    stamps = [each.stat().st_mtime_ns for each in names]
    (tmp_path / "target.partial" / "stray.json").write_text("of a killed run")
    convert(source, tmp_path / "target", **options)
    assert stamps == [(tmp_path / "target" / each.name).stat().st_mtime_ns for each in names]
    convert(source, tmp_path / "whole", **options)
    assert contents(tmp_path / "target") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["target", "target.safetensors"])
@pytest.mark.parametrize("other", ["gptq", "awq"])
def test_a_target_has_one_writer_to_the_end(tmp_path, source, name, other):
    """A second conversion meets the first at every shard of it, and while it finishes."""
    pytest.importorskip("fcntl")
    target, refused = tmp_path / name, []

    def second(*_):
        with pytest.raises(BlockingIOError, match="is being written by another process"):
            convert(source, target, other, shard_bytes=7_000)
        refused.append(1)

    replace = os.replace

    def replaced(old, new):
        second()
        replace(old, new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replaced)
        convert(source, target, "gptq_v2", shard_bytes=6_000, progress=second)
    assert len(refused) > 6
    for layer, weight in small_model(6, "integer").items():
        assert same_weight(nm.load_checkpoint(target)[layer], weight)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source", name]


def test_many_at_once_make_one_target(tmp_path, source):
    """Each has finished, or was told why not; the target is one of theirs, whole."""
    pytest.importorskip("fcntl")
    forms, outcomes = ("awq", "gptq", "gptq_v2", "pack-quantized"), []

    def run(form):
        try:
            convert(source, tmp_path / "target", form, shard_bytes=6_000)
            outcomes.append(form)
        except (BlockingIOError, nm.CheckpointError) as error:
            assert "by another process" in str(error) or "never overwritten" in str(error)

    threads = [threading.Thread(target=run, args=(form,)) for form in forms * 3]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert len(outcomes) == 1
    convert(source, tmp_path / "alone", outcomes[0], shard_bytes=6_000)
    assert contents(tmp_path / "target") == contents(tmp_path / "alone")
    assert not (tmp_path / "target.partial").exists()


KILLED = """
import os, sys
from numba_marlin.checkpoints import convert
from numba_marlin.formats.files import find_stored

source, base, form = sys.argv[1:]
find_stored(form)
counted = [0]

def dying(name, number, real):
    def call(*arguments, **options):
        counted[0] += 1
        if counted[0] == number:
            os._exit(9)
        return real(*arguments, **options)
    return call

NAMES = ("mkdir", "replace", "unlink", "fsync", "close", "open")
real = {name: getattr(os, name) for name in NAMES}
for number in range(1, 1000):
    child = os.fork()
    if child == 0:
        counted[0] = 0
        for name in NAMES:
            setattr(os, name, dying(name, number, real[name]))
        convert(source, f"{base}/{number}", form, shard_bytes=9_000)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        print(number)
        break
"""


def test_killed_before_any_file_operation_it_goes_on(tmp_path, source):
    """Before every mkdir, open, close, fsync, rename and removal in turn: no target, or a whole
    one; the next run finishes."""
    if not hasattr(os, "fork"):
        pytest.skip("processes are forked")
    made = tmp_path / "made"
    made.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, source, made, "awq"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    operations = int(done.stdout)
    assert operations > 20
    whole = contents(made / str(operations))
    finished = 0
    for number in range(1, operations):
        target = made / str(number)
        if not target.exists():
            convert(source, target, "awq", shard_bytes=9_000)
        else:
            finished += 1
            (target / "numba_marlin_conversion.json").unlink(missing_ok=True)
        assert contents(target) == whole, number
        assert not (made / f"{number}.partial").exists()
    assert finished < operations // 2


def test_an_empty_directory_that_a_killed_run_left_is_taken(tmp_path, source):
    (tmp_path / "target.partial").mkdir()
    assert len(nm.load_checkpoint(convert(source, tmp_path / "target", "awq"))) == 6


@pytest.mark.parametrize("name", ["target", "target.safetensors"])
def test_a_file_that_a_killed_run_left_is_replaced(tmp_path, source, name):
    left = tmp_path / f"{name}.partial"
    if name == "target":
        left.mkdir()
        (left / "numba_marlin_conversion.json").write_text("")
        left /= "model.safetensors.partial"
    left.write_bytes(b"half")
    assert len(nm.load_checkpoint(convert(source, tmp_path / name, "awq"))) == 6
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source", name]


def test_without_locks_a_file_that_was_left_is_removed_unless_it_is_open(tmp_path, monkeypatch):
    """As on Windows, where what a process has open cannot be removed."""
    monkeypatch.setattr(owner, "fcntl", None)
    left = tmp_path / "target.partial"
    left.write_bytes(b"half")
    owner.remove_left(left)
    assert not left.exists()
    owner.remove_left(left)  # gone: nothing to do
    left.write_bytes(b"half")

    def refuse(path):
        raise PermissionError("in use")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(BlockingIOError, match="is being written by another process"):
        owner.remove_left(left)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_whoever_is_refused_keeps_no_descriptor(tmp_path):
    with owner.owned(tmp_path / "target.partial"):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(BlockingIOError), owner.owned(tmp_path / "target.partial"):
                pass
        assert len(os.listdir("/proc/self/fd")) == before
