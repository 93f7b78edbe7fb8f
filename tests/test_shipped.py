"""Contract under test: ``run``, ``trace``, ``profile`` and the PTX machine work with what setup.cfg
requires and nothing else, on the PTX that comes with the package; it is that of the sources."""

import configparser
import contextlib
import hashlib
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import data
from numba_marlin.cli import run as run_verb
from numba_marlin.compiler import MissingCompiler, build, builder, cache, shipped
from numba_marlin.compiler import numba_cuda as default_compiler
from numba_marlin.execution import driver
from numba_marlin.kernels import registry
from numba_marlin.kernels.language.plain import GroupScales
from tests import pages
from tests.cli.verbs import run, run_json
from tests.without_compiler import program, verb

ROOT = Path(__file__).resolve().parent.parent
INDEX = data.shipped_index()
MOST_BYTES = 1_000_000


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    """As where numba-cuda is not installed, and nothing is in the cache."""
    from numba_marlin.execution import plan

    def missing(**options):
        raise MissingCompiler("numba-cuda cannot be imported")

    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setattr(default_compiler, "language", missing)
    monkeypatch.setattr(driver, "probe", no_gpu)
    plan.held.cache_clear()
    yield
    plan.held.cache_clear()


def no_gpu():
    return driver.Probe(False, "no NVIDIA driver on this machine")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("ship_ptx", ROOT / ".ci" / "ship_ptx.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(driver, "probe", no_gpu)  # what is known already
        spec.loader.exec_module(module)
        yield module


def rows_named():
    return [pytest.param(row, id=row["ptx"].rpartition(".ptx")[0]) for row in INDEX["kernels"]]


def definition_and_config(row):
    kernel = registry.find_definition(row["kernel"])
    return kernel, kernel.config_type(**row["config"])


# ---- what is shipped


def test_the_ptx_was_made_from_these_sources():
    """After a change of kernels, of the compiler's room, of ptx/: python .ci/ship_ptx.py."""
    assert INDEX["sources"] == cache.package_digest()


def test_the_index_and_the_archive_are_of_one_make():
    with zipfile.ZipFile(ROOT / "numba_marlin" / "data" / "shipped" / "ptx.zip") as archive:
        texts = {name: archive.read(name) for name in archive.namelist()}
    assert {row["ptx"] for row in INDEX["kernels"]} == set(texts)
    for name, text in texts.items():
        assert name.split(".")[-2] == hashlib.sha256(text).hexdigest()[:12], name
    assert {"numba-cuda", "nvidia-nvvm", "python"} <= set(INDEX["versions"])


def test_what_is_shipped_is_small():
    folder = ROOT / "numba_marlin" / "data" / "shipped"
    assert sum(path.stat().st_size for path in folder.iterdir()) < MOST_BYTES


@pytest.mark.thorough
def test_every_row_is_found_by_its_kernel_and_configuration():
    for row in INDEX["kernels"]:
        kernel, config = definition_and_config(row)
        found = shipped.find(kernel, config, row["target"], "numba-cuda", row["line_info"])
        assert found.shipped and f".entry marlin_{kernel.name}(" in found.ptx
        assert f".target {row['target']}" in found.ptx
        assert (".loc" in found.ptx) == row["line_info"]
        assert found.resources.registers and found.cubin is None


@pytest.mark.thorough
def test_what_the_verbs_ask_for_is_what_is_shipped(script):
    wanted = {
        (name, repr(config), target, lines): commands
        for (name, config, target, lines), commands in script.requests().items()
    }
    kept = {
        (row["kernel"], repr(definition_and_config(row)[1]), row["target"], row["line_info"]): row[
            "commands"
        ]
        for row in INDEX["kernels"]
    }
    assert kept == wanted


@pytest.mark.thorough
@pytest.mark.parametrize("row", rows_named())
def test_the_compiler_makes_the_same_ptx(row):
    kernel, config = definition_and_config(row)
    made = build(kernel, config, target=row["target"], line_info=row["line_info"])
    assert not made.shipped
    if made.versions != INDEX["versions"]:
        pytest.skip(f"made with {INDEX['versions']}, here are {made.versions}")
    found = shipped.find(kernel, config, row["target"], "numba-cuda", row["line_info"])
    assert (found.ptx, found.entry) == (made.ptx, made.entry)
    assert (found.parameters, found.threads) == (made.parameters, made.threads)
    assert (found.shared_bytes, found.resources) == (made.shared_bytes, made.resources)


# ---- where it is used


@pytest.mark.parametrize(
    "kernel",
    [
        "naive",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("tiled", "buffered", "general")
        ),
    ],
)
def test_a_product_without_a_compiler(kernel, no_compiler):
    """The kernels that the README names, on a size that nothing was compiled for."""
    rng = np.random.default_rng(0)
    p = nm.pack(nm.quantize(rng.standard_normal((256, 64)), group_size=128))
    x = rng.standard_normal((3, 256)).astype(np.float16)
    y = nm.matmul(x, p, "emulator", kernel=kernel)
    wanted = x.astype(np.float32) @ nm.dequantize(p, np.float32)
    np.testing.assert_allclose(y, wanted, rtol=0.001, atol=0.05)


def test_a_compiler_is_used_where_there_is_one(monkeypatch):
    monkeypatch.setattr(builder, "_compile", lambda *given, **options: "compiled here")
    kernel = registry.find_kernel("naive")
    assert build(kernel, kernel.config_type(128), cache=False) == "compiled here"


def test_ptx_of_other_sources_is_not_used(no_compiler, monkeypatch):
    kernel = registry.find_kernel("naive")
    assert build(kernel, kernel.config_type(128)).shipped
    monkeypatch.setattr(cache, "package_digest", lambda: "others")
    monkeypatch.setattr(shipped, "package_digest", lambda: "others")
    with pytest.raises(MissingCompiler, match="made from other sources than those installed"):
        build(kernel, kernel.config_type(128))


def test_ptx_of_another_kernel_with_the_same_name_is_not_used(no_compiler):
    kernel = registry.find_kernel("naive")

    def make(lang, config):
        return kernel.make(lang, config)

    with pytest.raises(MissingCompiler):
        build(replace(kernel, make=make), kernel.config_type(128))


def test_nothing_that_is_shipped_gets_into_the_cache(no_compiler, tmp_path):
    kernel = registry.find_kernel("naive")
    assert build(kernel, kernel.config_type(128)).shipped
    assert not list(tmp_path.rglob("*.kernel"))


def test_another_compiler_is_not_replaced(no_compiler, monkeypatch):
    from numba_marlin.compiler import numba_cuda_mlir

    def missing(**options):
        raise MissingCompiler("numba-cuda-mlir cannot be imported")

    monkeypatch.setattr(numba_cuda_mlir, "language", missing)
    kernel = registry.find_kernel("naive")
    with pytest.raises(MissingCompiler, match="numba-cuda-mlir cannot be imported$"):
        build(kernel, kernel.config_type(128), compiler="numba-cuda-mlir")


def test_without_the_compiler_the_error_says_what_there_is(no_compiler):
    kernel = registry.find_kernel("naive")
    with pytest.raises(MissingCompiler) as error:
        build(kernel, kernel.config_type(64))
    text = str(error.value)
    assert "not with group_size=64, but with group_size=128" in text
    assert "`numba-marlin run --kernel naive`" in text
    with pytest.raises(MissingCompiler, match="comes with the package, not as asked, sm_120a"):
        build(kernel, kernel.config_type(128), target="sm_120a")

    @dataclass(frozen=True)
    class Own(GroupScales):
        pass

    with pytest.raises(MissingCompiler, match="No PTX of kernel mine comes with the package"):
        build(replace(kernel, name="mine", config_type=Own), Own(128))


@pytest.mark.thorough
def test_run_says_whose_ptx_it_ran(no_compiler, capsys):
    sizes = ("--m", "2", "--n", "64", "--k", "256", "--kernel", "naive")
    code, found = run_json(capsys, "run", *sizes)
    assert (code, found["compiled"]["shipped"], found["check"]["ok"]) == (0, True, True)
    out = " ".join(run(capsys, "run", *sizes)[1].split())
    assert f"with numba-cuda {INDEX['versions']['numba-cuda']}, CUDA" in out
    assert "beforehand: its PTX comes with the package" in out


@pytest.mark.parametrize("current", (True, False))
def test_info_says_what_is_shipped(current, monkeypatch):
    from numba_marlin.cli import info

    monkeypatch.setattr(shipped, "current", lambda: current)
    row = info._shipped()
    assert row["status"] == ("ok" if current else "missing")
    assert (f"in {len(INDEX['kernels'])} configurations" in row["detail"]) == current


def test_a_compiler_without_a_toolkit_is_a_missing_one(no_compiler, monkeypatch):
    """numba-cuda alone installs neither libnvvm nor nvrtc."""
    from cuda.pathfinder import DynamicLibNotFoundError

    def compile(*args, **options):
        raise DynamicLibNotFoundError("Failure finding libnvrtc\nand so on")

    monkeypatch.undo()
    monkeypatch.setattr(default_compiler._numba().cuda, "compile", compile)
    kernel = registry.find_kernel("naive")
    assert build(kernel, kernel.config_type(128), cache=False).shipped
    with pytest.raises(MissingCompiler, match="no CUDA toolkit .*libnvrtc.*numba-marlin.cu13"):
        build(kernel, kernel.config_type(64), cache=False)


def test_every_example_of_run_can_run():
    """What the examples ask for is refused by no kernel (one was)."""
    for line in re.sub(r"\\\n *", "", run_verb.EXAMPLES).splitlines():
        arguments = line.split()[1:] + ["--backend", "reference"]
        if "--input" in arguments or "--format" in arguments or "moe" in arguments:
            continue  # of no random weight: a file's, two operands', a mixture's
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            from numba_marlin.api.reports import problem_of
            from numba_marlin.cli.main import parser
            from numba_marlin.cli.types import types_of
            from numba_marlin.execution import plan

            args = parser().parse_args(arguments)
        problem = problem_of(
            args.m, args.n or 256, args.k or 1024, args.group_size, **types_of(args)
        )
        plan.plan(problem, "emulator", args.kernel)


# ---- what messages name


def test_every_extra_that_is_named_exists():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = set(config["options.extras_require"])
    files = [*pages.PAGES, ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run"]
    files += [ROOT / ".ci" / "ship_ptx.py", *(ROOT / "numba_marlin").rglob("*.py")]
    found = {
        name
        for path in files
        for named in re.findall(
            r"(?:numba-marlin|-e '?\.)\[([a-z0-9,]+)\]", path.read_text(encoding="utf-8")
        )
        for name in named.split(",")
    }
    assert {"cu12", "cu13", "mlir", "fast", "test"} <= found <= extras


def test_a_base_installation_requires_no_compiler():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = config["options"]["install_requires"].splitlines()
    required = {re.split(r"[<>=\[]", line)[0] for line in lines if line and line[0] != "#"}
    assert required == {"numpy", "scipy", "safetensors", "rich"}
    assert "shipped/*" in config["options.package_data"]["numba_marlin.data"]


# ---- with nothing else installed


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    sorted({each for row in INDEX["kernels"] for each in row["commands"]}),
)
def test_what_is_promised_runs(command, tmp_path):
    """Every command that the index lists, with a new cache and no compiler."""
    done = verb(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and done.stdout


@pytest.mark.thorough
def test_large_weights_are_packed_without_numba(tmp_path):
    text = """
import numpy as np, numba_marlin as nm
from numba_marlin.checkpoints import checkpoint
from numba_marlin import formats
assert "numba" not in sys.modules
q = nm.quantize(np.ones((4096, 4096), np.float32), group_size=128)
p = nm.pack(q)
assert np.array_equal(nm.unpack(p).codes, q.codes)
assert type(checkpoint.codec_for(q.codes.size)).__name__ == "Plain"
assert "numba" not in sys.modules
"""
    done = program(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'numba-marlin[fast]'") == 1


@pytest.mark.thorough
def test_an_installed_wheel_has_what_is_shipped(tmp_path):
    """What pip installs, not the checkout."""
    source = tmp_path / "source"  # pip leaves build/ in it
    for name in ("numba_marlin", "ptx"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wheel = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
    )
    if wheel.returncode:
        pytest.skip(f"no wheel can be built here: {wheel.stderr[-200:]}")
    (file,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "site")
    text = (
        f"sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from numba_marlin.compiler import shipped\nfrom numba_marlin.cli.main import main\n"
        "print(shipped.__file__)\nassert shipped.current()\n"
        "sys.exit(main(['run', '--kernel', 'naive', '--json']))"
    )
    done = program(text, tmp_path)
    assert done.returncode == 0, done.stderr
    place, _, out = done.stdout.partition("\n")
    assert place.startswith(str(tmp_path)) and json.loads(out)["compiled"]["shipped"]
