"""Contract under test: a compiled kernel comes back from disk as it was, or not at all; several
processes may share the directory."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from numba_marlin.compiler import Resources, build, builder, cache
from numba_marlin.compiler.cache_directory import cache_directory
from numba_marlin.compiler.compiled import MAGIC, CompiledKernel, from_bytes, to_bytes
from numba_marlin.kernels.language.definition import KernelDefinition

PACKAGE = Path(cache.__file__).resolve().parent.parent


@dataclass(frozen=True)
class Size:
    rows: int = 4


def make(lang, config):
    raise AssertionError("the body is made by the compiler only, which these tests replace")


KERNEL = KernelDefinition(
    name="copy",
    config_type=Size,
    parameters=(("source", "u64"), ("count", "i32")),
    make=make,
    threads=lambda config: 32,
    shared_bytes=lambda config: 128 * config.rows,
    grid=lambda config, m, n, k, sms: (1, 1, 1),
)
COMPILED = CompiledKernel(
    kernel="copy",
    config=Size(),
    target="sm_80",
    compiler="numba-cuda",
    ptx=".version 9.4\n// ü\n",
    entry="marlin_copy",
    parameters=KERNEL.parameters,
    threads=32,
    shared_bytes=512,
    cubin=bytes(range(256)),
    resources=Resources(registers=40, spill_stores=0, assembler="ptxas 13.4.92"),
    key="k" * 64,
    versions={"numba": "0.68.1", "python": "3.12"},
)


@pytest.mark.parametrize(
    "compiled",
    [COMPILED, replace(COMPILED, cubin=None, resources=Resources(), versions={}, parameters=())],
)
def test_bytes_and_back(compiled):
    again = from_bytes(to_bytes(compiled), Size())
    assert again == compiled and again.from_cache and not compiled.from_cache


def test_every_flipped_byte_is_noticed():
    data = to_bytes(COMPILED)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x20
        with pytest.raises(ValueError):
            from_bytes(bytes(damaged), Size())


def test_every_cut_is_noticed():
    data = to_bytes(COMPILED)
    for length in range(len(data)):
        with pytest.raises(ValueError):
            from_bytes(data[:length], Size())


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch):
    """Replaces the compiler; the list of what it was asked for."""
    asked = []

    def compile_it(kernel, config, target, backend, key, versions):
        asked.append((kernel.name, config, target.name, backend.NAME))
        return replace(
            COMPILED,
            config=config,
            target=target.name,
            key=key,
            versions=versions,
            parameters=kernel.parameters,
        )

    monkeypatch.setattr(builder, "_compile", compile_it)
    return asked


def test_the_second_time_it_is_read(directory, compilations):
    first, second = build(KERNEL, Size()), build(KERNEL, Size())
    assert (
        len(compilations) == 1
        and first == second
        and (first.from_cache, second.from_cache) == (False, True)
    )
    assert [path.name for path in directory.iterdir()] == [f"{first.key}.kernel"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"config": Size(5)},
        {"target": "sm_80"},
        {"compiler": "numba-cuda-mlir"},
        {"kernel": replace(KERNEL, name="copy_2")},
        {"kernel": replace(KERNEL, parameters=())},
        {"kernel": replace(KERNEL, threads=lambda config: 64)},
    ],
)
def test_what_makes_another_kernel_makes_another_key(arguments, directory, compilations):
    one = build(KERNEL, Size())
    other = build(**{"kernel": KERNEL, "config": Size(), **arguments})
    assert one.key != other.key and len(compilations) == 2


@pytest.mark.parametrize("change", ["package", "versions", "tool", "setting", "body"])
def test_whatever_the_code_depends_on_is_in_the_key(change, monkeypatch):
    before = cache.cache_key(KERNEL, Size(), "sm_80", "numba-cuda", {"numba": "1"})
    versions = {"numba": "1"}
    if change == "package":
        monkeypatch.setattr(cache, "package_digest", lambda: "another source")
    elif change == "versions":
        versions = {"numba": "2"}
    elif change == "tool":
        monkeypatch.setattr(cache, "_tool_identity", lambda: "another ptxas")
    elif change == "setting":
        monkeypatch.setenv("NUMBA_OPT", "0")
    kernel = replace(KERNEL, make=lambda lang, config: None) if change == "body" else KERNEL
    assert cache.cache_key(kernel, Size(), "sm_80", "numba-cuda", versions) != before
    monkeypatch.undo()
    assert cache.cache_key(KERNEL, Size(), "sm_80", "numba-cuda", {"numba": "1"}) == before


def test_sources_are_digested_by_content(tmp_path, monkeypatch):
    before = cache.package_digest.__wrapped__()
    for name in ("lop3", "prmt_b32"):
        tmp_path.joinpath(f"{name}.ptx").write_text("changed")
    monkeypatch.setattr(cache, "ptx_directory", lambda: tmp_path)
    assert cache.package_digest.__wrapped__() != before


@pytest.mark.parametrize("room", (*cache.SOURCES, "kernels/nvfp4/tcgen05"))
def test_a_change_at_any_depth_of_a_room_changes_the_digest(room, tmp_path, monkeypatch):
    package = tmp_path / "numba_marlin"
    for name in cache.SOURCES:
        shutil.copytree(
            PACKAGE / name, package / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    monkeypatch.setattr(cache, "__file__", str(package / "compiler" / "cache.py"))
    before = cache.package_digest.__wrapped__()
    assert before == cache.package_digest.__wrapped__()
    edited = min(package.joinpath(room).glob("*.py"))
    edited.write_bytes(edited.read_bytes() + b"#")
    assert cache.package_digest.__wrapped__() != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:100] + b"\0" + data[101:],
        lambda data: data.replace(MAGIC, b"numba_marlin kernel 0\n"),
        lambda data: to_bytes(COMPILED),
    ],
    ids=["empty", "cut", "flipped", "other schema", "another kernel's entry"],
)
def test_a_damaged_entry_is_built_again(damage, directory, compilations):
    first = build(KERNEL, Size())
    path = directory / f"{first.key}.kernel"
    path.write_bytes(damage(path.read_bytes()))
    assert not build(KERNEL, Size()).from_cache and len(compilations) == 2
    assert build(KERNEL, Size()).from_cache and len(compilations) == 2


def test_cache_false_neither_reads_nor_writes(directory, compilations):
    build(KERNEL, Size(), cache=False)
    assert not directory.exists()
    build(KERNEL, Size())
    assert not build(KERNEL, Size(), cache=False).from_cache and len(compilations) == 3


def test_a_directory_that_cannot_be_made_is_replaced_by_a_private_one(
    tmp_path, monkeypatch, compilations
):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(blocked / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = cache_directory()
    assert directory.parent == tmp_path and os.access(directory, os.W_OK)
    if hasattr(os, "getuid"):
        assert directory.stat().st_mode & 0o777 == 0o700
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        directory.rename(tmp_path / "numba_marlin_12345")
        assert cache_directory() is None, "somebody else's directory is not trusted"
    assert not build(KERNEL, Size()).from_cache


POSIX = pytest.mark.skipif(not hasattr(os, "getuid"), reason="users and modes are POSIX's")
STRANGER = 4321


def open_to_all(directory, monkeypatch):
    directory.chmod(0o777)


def open_to_the_group(directory, monkeypatch):
    directory.chmod(0o770)


def in_a_place_open_to_all(directory, monkeypatch):
    directory.parent.chmod(0o777)


def of_another_user(directory, monkeypatch):
    status = os.stat

    def of_a_stranger(path, *arguments, **options):
        found = status(path, *arguments, **options)
        fields = list(found)
        if not isinstance(path, int) and Path(path) == directory:
            fields[stat.ST_UID] = STRANGER
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", of_a_stranger)


def a_strangers_link(directory, monkeypatch):
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(directory.with_name("elsewhere"))
    status = os.lstat

    def of_a_stranger(path, *arguments, **options):
        fields = list(status(path, *arguments, **options))
        if Path(path) == directory:
            fields[stat.ST_UID] = STRANGER
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", of_a_stranger)


@pytest.fixture
def no_home(tmp_path, monkeypatch):
    """No place for a cache but those that a test names."""
    for name in ("NUMBA_MARLIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    tmp_path.joinpath("file").write_text("in the way")
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "temporary"))


@POSIX
@pytest.mark.parametrize("place", ["NUMBA_MARLIN_CACHE", "XDG_CACHE_HOME", "temporary files"])
@pytest.mark.parametrize(
    "spoil, why",
    [
        (open_to_all, "(mode 0777)"),
        (open_to_the_group, "(mode 0770)"),
        (in_a_place_open_to_all, "(mode 0777, not sticky)"),
        (of_another_user, "another user's"),
        (a_strangers_link, "a link of another user"),
    ],
)
def test_what_others_may_have_written_is_not_loaded_and_one_line_says_why(
    place, spoil, why, tmp_path, monkeypatch, no_home, compilations, caplog
):
    given = tmp_path / "given"
    if place == "NUMBA_MARLIN_CACHE":
        directory = given / "cache"
        monkeypatch.setenv(place, str(directory))
    elif place == "XDG_CACHE_HOME":
        directory = given / "numba_marlin"
        monkeypatch.setenv(place, str(given))
    else:
        directory = given / f"numba_marlin_{os.getuid()}"
        given.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(given))
    build(KERNEL, Size())
    assert build(KERNEL, Size()).from_cache and not caplog.messages
    spoil(directory, monkeypatch)
    assert not build(KERNEL, Size()).from_cache and cache_directory() is None
    (line,) = caplog.messages
    assert why in line and str(given) in line and "\n" not in line


@POSIX
def test_a_link_of_ones_own_leads_to_the_cache(tmp_path, monkeypatch, compilations, caplog):
    tmp_path.joinpath("disk").mkdir(mode=0o700)
    tmp_path.joinpath("cache").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(tmp_path / "cache"))
    build(KERNEL, Size())
    assert build(KERNEL, Size()).from_cache and not caplog.messages


@POSIX
def test_an_entry_that_others_may_write_counts_as_absent(directory, compilations):
    """It may be from a time when the directory was open to them."""
    entry = directory / f"{build(KERNEL, Size()).key}.kernel"
    entry.chmod(0o666)
    assert not build(KERNEL, Size()).from_cache
    assert build(KERNEL, Size()).from_cache, "it was replaced"


@pytest.mark.parametrize("home", [None, "~nosuchuser"])
def test_a_home_that_nobody_has_is_said_and_not_made(
    home, tmp_path, monkeypatch, no_home, compilations, caplog
):
    monkeypatch.chdir(tmp_path)
    if home is None:  # a user without an entry in the system's list, as in containers
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        monkeypatch.setenv("NUMBA_MARLIN_CACHE", f"{home}/x")
    assert not build(KERNEL, Size()).from_cache
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    assert ["~nosuchuser/x" in each for each in caplog.messages] == [True] * (home is not None)


def test_a_failing_write_costs_only_time_and_leaves_nothing(directory, monkeypatch, compilations):
    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(cache.os, "replace", fail)
    assert not build(KERNEL, Size()).from_cache
    assert list(directory.iterdir()) == []


PROGRAM = """
import sys
from numba_marlin.compiler import build
from numba_marlin.kernels.general import KERNEL
compiled = build(KERNEL, KERNEL.config_type(), target="sm_80")
imported = "numba.core" in sys.modules or "numba.cuda" in sys.modules
print(compiled.key, len(compiled.ptx), compiled.from_cache, imported)
"""


def test_processes_share_the_cache_and_the_warm_path_imports_no_numba(directory):
    environment = dict(os.environ, NUMBA_MARLIN_CACHE=str(directory))
    start = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    cold = [process.communicate(timeout=200)[0].split() for process in start]
    assert all(process.returncode == 0 for process in start)
    assert len({(key, length) for key, length, *_ in cold}) == 1
    assert [path.name for path in directory.iterdir()] == [f"{cold[0][0]}.kernel"], (
        "one entry, no temporary files"
    )
    warm = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert warm == [*cold[0][:2], "True", "False"]
