"""Contract under test: a kernel is declared in its own package and nowhere else. The registry finds
what lies in the folders; what a declaration says is so in the sources; and the rule by which
``.ci/counts.py`` counts names of kernels outside their places finds them."""

import ast
import importlib
import inspect
import re
import runpy
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import numba_marlin
from numba_marlin import heuristics, kernels
from numba_marlin.hardware import devices
from numba_marlin.kernels import registry
from numba_marlin.kernels.language import about as shared
from numba_marlin.problems import (
    ACTIVATIONS,
    EXPERTS,
    KINDS,
    WEIGHTS,
    ActivationsProblem,
    BlockProblem,
    ExpertsProblem,
    WeightProblem,
)
from numba_marlin.profile.instrument.sections import BY_NAME

PACKAGE = Path(numba_marlin.__file__).parent
KERNELS = PACKAGE / "kernels"
NAMES = registry.names()
every_kernel = pytest.mark.parametrize("name", NAMES)


def demo_problem(kernel, sizes):
    """The problem of these sizes that a kernel is shown on."""
    if kernel.kind == WEIGHTS:
        return WeightProblem(*sizes)
    if kernel.kind == ACTIVATIONS:
        return ActivationsProblem(*sizes, activations=kernel.takes.activations[0])
    if kernel.kind == EXPERTS:
        return ExpertsProblem(*sizes, activations=kernel.takes.kinds_of_x[0])
    return BlockProblem.with_fields(*sizes, dict(kernel.about.demo.trace_changes))


def configurations(kernel):
    """Those that its chooser proposes for its own problems and some others, on a device that runs
    it."""
    device = heuristics.devices_for(kernel.name)[0]
    sizes = [kernel.about.demo.trace, kernel.about.demo.profile, (1, 4096, 4096), (40, 1024, 4096)]
    return [
        config
        for each in sizes
        for config in kernel.chooser.configurations(demo_problem(kernel, each), device)
    ]


# ---- what is found


def test_every_definition_in_the_folders_is_found():
    """By its text: a module under ``kernels`` that says KERNEL = is a kernel's."""
    declared = {
        file.parent.name if file.stem == "declare" else file.stem
        for file in KERNELS.rglob("*.py")
        if re.search(r"^KERNEL = KernelDefinition\(", file.read_text(encoding="utf-8"), re.M)
    }
    assert declared == set(NAMES) and len(NAMES) == len(set(NAMES))


@every_kernel
def test_a_kernel_is_found_under_its_own_name_and_by_its_configurations(name):
    kernel = registry.find_kernel(name)
    assert kernel.name == name and registry.is_kernel(name)
    assert kernel.chooser is not None and kernel.summary
    for config in configurations(kernel):
        assert registry.kernel_of(config) is kernel


def test_each_kind_of_problem_has_a_ladder_of_its_own():
    for kind in KINDS:
        rungs = [kernel.rung for kernel in registry.kernels(kind)]
        assert rungs == sorted(set(rungs)), f"{kind}: two kernels on a rung: {rungs}"
    assert [kernel.about.demo.first for kernel in registry.kernels(WEIGHTS)].count(True) == 1
    assert NAMES == tuple(name for kind in KINDS for name in registry.names(kind))
    assert len(NAMES) == len(set(NAMES))


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ValueError, match="kernel='warp' must be one of " + ", ".join(NAMES)):
        registry.find_kernel("warp")
    with pytest.raises(TypeError, match="config is a int, must be one of "):
        registry.kernel_of(3)
    assert not registry.is_kernel("warp") and not registry.is_kernel("language")


NEW = '''"""A kernel like the naive one, with a rung of its own."""
from dataclasses import dataclass, replace

from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.naive import KERNEL as NAIVE
from numba_marlin.kernels.naive import NaiveConfig


@dataclass(frozen=True)
class NewbornConfig(NaiveConfig):
    pass


KERNEL = replace(
    NAIVE, name="newborn", rung=15, config_type=NewbornConfig,
    chooser=ChooseTypes(NewbornConfig, "a new kernel"),
)
'''


@pytest.fixture
def newborn(tmp_path, monkeypatch):
    """A package of one more kernel, in a folder beside those of this package."""
    (tmp_path / "newborn").mkdir()
    (tmp_path / "newborn" / "__init__.py").touch()
    (tmp_path / "newborn" / "declare.py").write_text(NEW, encoding="utf-8")
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(tmp_path)])
    caches = (registry._families, registry._modules, registry.kernels)
    for cache in caches:
        cache.cache_clear()
    yield "newborn"
    monkeypatch.undo()  # or what is found below would be remembered
    for cache in caches:
        cache.cache_clear()
    registry.names()


def test_a_new_package_is_all_that_a_new_kernel_takes(newborn, capsys):
    from numba_marlin.cli.main import main

    assert registry.names(WEIGHTS)[:3] == ("general", "naive", newborn)
    problem, model = WeightProblem(2, 64, 64, 32), devices.MODEL
    found = {each.kernel: each for each in heuristics.rank(problem, model)}
    assert found[newborn].reasons == ("a new kernel",)
    assert heuristics.kernel_of(found[newborn].config) in ("naive", newborn)  # a subclass of it
    sizes = ("--m", "2", "--n", "64", "--k", "64", "--group-size", "32")
    assert main(["run", "--kernel", newborn, "--backend", "emulator", *sizes]) == 0
    assert newborn in capsys.readouterr().out


# ---- what is declared


def functions_of(name):
    """Names of all functions in the modules that a kernel's body is made of: those of its package,
    and those of ``kernels`` that they import."""
    found, seen, waiting = set(), set(), [inspect.getsourcefile(registry.find_kernel(name).make)]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.ImportFrom) and node.module.startswith(kernels.__name__):
                place = PACKAGE.parent.joinpath(*node.module.split("."))
                places = (place, *(place / each.name for each in node.names))
                files = (each.with_suffix(".py") for each in places)
                waiting += [str(each) for each in files if each.exists()]
    return found


@every_kernel
def test_the_device_functions_that_are_declared_are_there(name):
    """A function that was renamed in the kernel only would silently change a profile's sections or
    a trace's roles."""
    about, there = registry.find_kernel(name).about, functions_of(name)
    for declared in (about.sections, about.waits, about.roles):
        for key, verbs in declared.items():
            assert set(verbs) <= there, f"{name}, {key}: {set(verbs) - there} is not in its sources"


def test_the_device_functions_that_all_kernels_share_are_there():
    there = {
        node.name
        for room in ("language", "dequantize")
        for file in (KERNELS / room).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    for declared in (shared.SHARED_SECTIONS, shared.SHARED_WAITS, {"": shared.RING_WAITS}):
        for verbs in declared.values():
            assert set(verbs) <= there


@every_kernel
def test_sections_are_those_of_a_profile_and_a_function_is_in_one(name):
    about = registry.find_kernel(name).about
    for declared in (about.sections, shared.SHARED_SECTIONS):
        assert all(not BY_NAME[section].reason for section in declared)
    for declared in (about.waits, shared.SHARED_WAITS):
        assert all(BY_NAME[section].reason for section in declared)
    for declared in (about.sections, about.waits, about.roles):
        verbs = [verb for each in declared.values() for verb in each]
        assert len(verbs) == len(set(verbs))


@every_kernel
def test_stages_and_rings_lie_apart_in_shared_memory(name):
    kernel = registry.find_kernel(name)
    for config in configurations(kernel):
        base = 400
        found = kernel.about.of_run(config, base)
        end = base + kernel.shared_bytes(config) + kernel.static_shared_bytes(config)
        parts = sorted(part for stage in found["stages"] for part in stage)
        assert all(base <= start < stop <= end for start, stop in parts)
        assert all(before[1] <= after[0] for before, after in zip(parts, parts[1:]))
        assert len(found["stages"]) == (config.stages if parts else 0)
        for _, barrier, stages in found["rings"]:
            assert base <= barrier and barrier + 16 * stages <= end
            assert not any(start <= barrier < stop for start, stop in parts)
        assert found["tile"] is None or min(found["tile"]) > 0
        warps, blocks = found["k_shares"]
        assert warps >= 1 and blocks in (1, kernel.cluster(config))


@every_kernel
def test_a_kernel_takes_the_problems_that_it_is_shown_on(name):
    kernel = registry.find_kernel(name)
    demo, device = kernel.about.demo, heuristics.devices_for(name)[0]
    assert set(demo.trace_changes) <= {each.name for each in fields(kernel.config_type)}
    assert bool(demo.trace_changes) == bool(demo.trace_why)
    for sizes in (demo.trace, demo.profile):
        problem = demo_problem(kernel, sizes)
        assert not kernel.takes.refusals(problem)
        config = heuristics.configured(problem, device, name, dict(demo.trace_changes))
        for where in (device, devices.MODEL):
            assert heuristics.candidate(problem, where, name, config).kernel == name


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_of_one_kind_refuses_problems_of_the_other(kind):
    other = BlockProblem(16, 64, 64) if kind == WEIGHTS else WeightProblem(16, 64, 64, 32)
    for name in registry.names(kind):
        with pytest.raises(ValueError, match=f"'{name}' does not take .*; kernels that do: "):
            heuristics.candidate(other, devices.MODEL, name)


# ---- names

rule = SimpleNamespace(**runpy.run_path(PACKAGE.parent / ".ci" / "kernel_names.py"))
DECLARED = {name: registry.find_kernel(name).config_type.__name__ for name in NAMES}


def test_the_search_for_names_finds_them():
    """And is not fooled by instructions, methods and prose."""
    guilty = (
        "from numba_marlin.kernels.ampere.config import AmpereConfig",
        "from numba_marlin.kernels import naive",
        "isinstance(config, AmpereConfig)",
        "config_module.WgmmaConfig(64)",
        "TABLE = {'naive': 1}",
        "if kernel == 'wgmma': pass",
        "if args.kernel in ('decode', 'tcgen05'): pass",
        "x = f'choose --kernel wgmma, {more}'",
        "x = 'use block_decode for few rows'",
    )
    innocent = (
        '"""The decode kernel."""',
        "bytes.decode()",
        "x = 'wgmma'",
        "x = 'wgmma.mma_async'",
        "EXAMPLES = '--kernel ampere'",
        "x = 'operands of wgmma and tcgen05 from shared memory'",
        "text.decode('utf-8')",
        "x = 'rows in general, tiled or not'",
        "x = 'https://nvidia.com/nvidia-ampere-architecture.pdf'",
    )
    for text in guilty:
        assert list(rule.naming(ast.parse(text), DECLARED)), text
    for text in innocent:
        assert not list(rule.naming(ast.parse(text), DECLARED)), text


def test_the_rule_finds_all_kernels_in_their_folders():
    texts = {
        f"numba_marlin/kernels/{file.relative_to(KERNELS).as_posix()}": file.read_text("utf-8")
        for file in KERNELS.rglob("*.py")
    }
    assert rule.declared_in(texts) == DECLARED


def test_a_kernel_may_name_its_relatives_and_no_stranger():
    """Relatives lie in one folder."""
    declared = {
        f"numba_marlin/kernels/{path}/declare.py": f"KERNEL = KernelDefinition(config_type={name})"
        for path, name in (("own", "OwnConfig"), ("fp4/one", "OneConfig"), ("fp4/two", "TwoConfig"))
    }
    text = "OwnConfig(1), OneConfig(1), TwoConfig(1)"
    for place, found in (
        ("kernels/fp4/one/choose.py", {"OwnConfig"}),
        ("kernels/own/choose.py", {"OneConfig", "TwoConfig"}),
        ("kernels/registry.py", {"OwnConfig", "OneConfig", "TwoConfig"}),
        ("api/matmul.py", {"OwnConfig", "OneConfig", "TwoConfig"}),
    ):
        files = declared | {f"numba_marlin/{place}": text, "tests/test_own.py": text}
        found_there = {what for path, _, what in rule.kernel_names(files) if place in path}
        assert found_there == found, place
    made = {"numba_marlin/kernels/fp4/__init__.py": 'BUILT_OF = ("own",)  # its verbs'}
    files = declared | made | {"numba_marlin/kernels/fp4/one/choose.py": text}
    assert not list(rule.kernel_names(files))


def test_the_examples_of_the_command_line_name_kernels_that_there_are():
    from numba_marlin.cli import main

    texts = [main.EPILOG, *(importlib.import_module(each).EXAMPLES for each in main.VERBS.values())]
    named = {name for text in texts for name in re.findall(r"--kernel (\w+)", text)}
    assert len(named) > 3 and named - {"all"} <= set(NAMES)
