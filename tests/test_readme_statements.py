"""Contract under test: what the pages show in tables, commands and examples is so: tables are
derived again, commands are parsed or run, examples run as they stand."""

import inspect
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import compiler, ptx, testing
from numba_marlin.cli import main as cli
from numba_marlin.cli import watch
from numba_marlin.emulator import Machine
from numba_marlin.kernels import registry
from numba_marlin.problems import WEIGHTS
from tests import experiment_results, without_compiler
from tests.pages import TEXT, WRITTEN

ROOT = Path(__file__).resolve().parent.parent
VERB = re.compile(r"^\| `numba-marlin (?P<verb>\w+)(?P<arguments>.*?)` \| (?P<what>.*) \|$", re.M)
BLOCK = r"<!-- output:{} -->\n```\n(.*?)```"


def between(begin, end):
    return TEXT.partition(begin)[2].partition(end)[0]


def rows_of(table):
    """Its cells, without the header and the line below it."""
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_marlin_is_that_of_its_results(monkeypatch):
    report = experiment_results.module("01_faithful", "report", monkeypatch)
    run = experiment_results.module("01_faithful", "run", monkeypatch)
    rows = report.newest(experiment_results.FOLDER / "01_faithful" / "results.jsonl")
    published = run.MARLIN_CUDA
    for part in (
        report.table(rows, run.SHAPES, published),
        report.summary(rows, published),
        report.origin(rows.values()),
    ):
        assert part in between(*report.PROJECT_MARKERS), "experiments/01_faithful/run.py report"


def test_the_table_of_hopper_is_that_of_its_results(monkeypatch):
    report = experiment_results.module("02_hopper", "report", monkeypatch)
    goals = experiment_results.module("02_hopper", "run", monkeypatch).GOALS
    found = report.newest(experiment_results.FOLDER / "02_hopper" / "results.jsonl", goals)
    ours = [cell["ours"] for cells in found.values() for cell in cells.values()]
    for part in (
        report.overview(found, goals),
        report.summary(found, goals),
        report.origin(ours),
    ):
        assert part in between(*report.PROJECT_MARKERS), "experiments/02_hopper/run.py report"


def test_the_times_of_the_ladder_and_their_floor_are_those_measured():
    ladder = between("## The ladder", "\n## ")
    (header,) = (line for line in ladder.splitlines() if line.startswith("| rung |"))
    batches = [int(each) for each in re.findall(r"m=(\d+)", header)]
    assert batches == [1, 16, 256]
    rows, expected = experiment_results.rows("18_ladder"), {}
    for row in rows:
        least = max(
            row["bytes"] / row["ceilings"]["read_bytes"],
            row["flops"] / row["ceilings"]["matrix_flops"],
        )
        for name, us in (("floor", 1e6 * least), (row["kernel"], row["us"])):
            expected.setdefault((name, row["m"]), f"{us:.1f}" if us < 20 else f"{us:,.0f}")
    names = []
    for row in rows_of(ladder):
        names.append(re.sub(r"\[`(\w+)`\].*", r"\1", row[0]))
        assert row[3:6] == [expected[names[-1], m] for m in batches], names[-1]
    rungs = [each.name for each in registry.kernels(WEIGHTS) if each.rung > 0]
    assert names == ["floor", *rungs]


def test_a_time_stands_beside_its_floor():
    """Of the evening's rungs."""
    times = re.findall(r"^\*\*[\d.,]+ us\*\* .*$", WRITTEN, re.M)
    assert len(times) == 6
    for each in times:
        assert re.search(r"; (to read its bytes|the arithmetic) alone takes [\d.]+ us", each)


def test_what_each_kernel_takes():
    table = between("bias may be added", "`method=")
    header = [line for line in table.splitlines() if line.startswith("|")][0]
    columns = [re.findall(r"`(\w+)`", cell) for cell in header.strip("|").split("|")[1:]]
    expected = []
    for names in columns:
        found = [_taken(registry.find_kernel(name)) for name in names]
        column = list(found[0])
        for name, each in zip(names[1:], found[1:]):
            assert each[1:] == found[0][1:], name
            if each[0] != found[0][0]:
                types, scales = each[0].split("; ")
                assert types == found[0][0].split("; ")[0]
                column[0] += f" (`{name}`: {scales})"
        expected.append(column)
    assert [list(row[1:]) for row in rows_of(table)] == [list(each) for each in zip(*expected)]
    assert {name for names in columns for name in names} == {
        each.name for each in registry.kernels(WEIGHTS)
    }


def _taken(kernel):
    """The cells of the table for a kernel, from its declaration."""
    takes = kernel.takes
    short = {"float16": "fp16", "bfloat16": "bf16"}
    types = list(dict.fromkeys(x for x, _ in takes.dtypes))
    scales = "either" if len(takes.dtypes) == len(types) ** 2 else "the same"
    groups = takes.group_sizes
    listed = [str(each) for each in groups or () if each != -1] + ["or all"] * (
        -1 in (groups or ())
    )
    strided = any(name == "a_stride" for name, _ in kernel.parameters)
    assert strided == takes.bias
    return (
        ", ".join(short[each] for each in types) + (f"; {scales}" if len(types) > 1 else ""),
        ", ".join(map(str, takes.bits)) + " bits" + ("; FP4" if takes.fp4_groups else ""),
        ", ".join({None: "none", "float16": "fp16"}.get(each, each) for each in takes.zeros),
        "any multiple of 16, or all" if groups is None else ", ".join(listed),
        str(takes.column_step),
        "yes" if strided else "no",
    )


def test_every_verb_is_listed():
    assert sorted(each["verb"] for each in VERB.finditer(TEXT)) == sorted(cli.VERBS)


COMMANDS = sorted(
    # in fences and in tables; elsewhere they are only named
    set(re.findall(r"(?:^|^\|.*\| `|^\| `)numba-marlin (\w[^`#\n]*)", TEXT, re.M))
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses(command):
    cli.parser().parse_args(shlex.split(command.strip()))
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("row", list(VERB.finditer(TEXT)), ids=lambda row: row["verb"])
def test_options_named_beside_a_verb_are_its(row):
    options = cli.parser().verbs.choices[row["verb"]]._option_string_actions
    assert set(re.findall(r"--[\w-]+", row["what"])) <= set(options)


CALLS = {
    "Machine": Machine,
    "machine.run": Machine.run,
    "compiler.build": compiler.build,
    "nm.pack": nm.pack,
}


def test_names_are_there():
    """Of the Python API, and the keywords that are given to what is called."""
    prose = re.sub(r"^```.*?^```", "", TEXT, flags=re.S | re.M)
    code = re.findall(r"`([^`\n]+)`", prose)
    names = set(re.findall(r"\bnm\.(\w+)", TEXT))
    assert len(names) > 5 and all(getattr(nm, name) is not None for name in names)
    calls = [found.groups() for each in code if (found := re.match(r"([\w.]+)\((.*)\)$", each))]
    checked = 0
    for name, arguments in calls:
        for keyword in re.findall(r"\b(\w+)=", arguments) if name in CALLS else ():
            assert keyword in inspect.signature(CALLS[name]).parameters, name
            checked += 1
    assert checked >= 4
    # files are named by themselves too
    for each in code:
        if re.fullmatch(r"[\w./*]+/[\w.*]+(\.\w+)?", each) and each.partition("/")[0] in TOP:
            assert list(ROOT.glob(each)), each
    assert callable(testing.schedules)


TOP = {each.name for each in ROOT.iterdir()}


def test_the_instructions_describe_themselves():
    assert "`dir(ptx)` lists them; `help(ptx.ldmatrix_x4)` describes operands and results" in TEXT
    files = {each.stem for each in (ROOT / "ptx").glob("*.ptx")}
    assert files <= set(dir(ptx))
    assert "https://docs.nvidia.com/cuda/parallel-thread-execution" in ptx.ldmatrix_x4.__doc__


def test_extras_are_there():
    settings = (ROOT / "setup.cfg").read_text(encoding="utf-8").partition("extras_require]")[2]
    there = set(re.findall(r"^(\w+) =$", settings, re.M))
    said = set(re.findall(r"extra `(\w+)`", TEXT))
    for each in re.findall(r"-e '\.\[([\w,]+)\]'", TEXT):
        said |= set(each.split(","))
    assert len(said) >= 4 and said <= there


def test_options_of_the_tests_are_there(pytestconfig):
    said = between("<!-- output:test -->", "\n## ").partition("<!-- end:output -->")[2]
    assert "--thorough" in said and "HYPOTHESIS_PROFILE=nightly" in said
    for option in re.findall(r"--([\w-]+)", said):
        assert pytestconfig.getoption(option.replace("-", "_"), "absent") != "absent", option
    (marker,) = re.findall(r"-m (\w+)`", said.replace("-m pytest", ""))
    assert any(each.startswith(f"{marker}:") for each in pytestconfig.getini("markers"))


def test_the_libraries_that_are_read_each_have_a_test():
    (said,) = re.findall(r"Files written by (.*?) are read", TEXT)
    modules = (ROOT / "tests" / "formats").glob("test_public_*.py")
    texts = [each.read_text(encoding="utf-8").partition('"""')[2] for each in modules]
    contracts = [each.partition("Skipped where")[0] for each in texts]
    for library in re.split(r", | and ", said):
        assert any(library in each for each in contracts), library
    loaded = (ROOT / "tests" / "checkpoints" / "test_loaded_numbers.py").read_text(encoding="utf-8")
    (said,) = re.findall(r"directories of (.*?) weights written here give", TEXT)
    for form in re.split(r", | and ", said):
        assert f'"{form.lower()}' in loaded, form


def test_watch_is_as_fast_as_is_said():
    (row,) = (each for each in VERB.finditer(TEXT) if each["verb"] == "watch")
    assert row["what"].endswith("up to ten times a second") and watch.FASTEST == 10


def test_every_room_is_listed():
    table = between("# Rooms of the package", "\n# ")
    linked = set(re.findall(r"\]\(numba_marlin/(\w+)/?\)", table))
    rooms = {each.parent.name for each in (ROOT / "numba_marlin").glob("*/__init__.py")}
    assert linked == rooms, rooms ^ linked


def test_the_first_command_needs_no_compiler(tmp_path):
    """It installs what setup.cfg requires, and prints what is shown but for times, the versions
    with which the PTX was made, and what that compiler made of it: registers, instructions."""
    command = between("<!-- command:run -->", "<!-- end:run -->").partition("```sh\n")[2]
    venv, install, first = command.partition("\n")[0].split(" && ")
    assert venv == "python3 -m venv .venv" and first == ".venv/bin/numba-marlin run"
    assert install == ".venv/bin/pip install --quiet -e ."
    done = without_compiler.verb("run", tmp_path)
    assert done.returncode == 0, done.stderr
    shown = re.search(BLOCK.format("run"), TEXT, re.DOTALL)[1]
    assert "its PTX comes with the package" in " ".join(shown.split())
    assert _steady(done.stdout) == _steady(shown)


def _steady(text):
    text = re.sub(r" in [\d.]+ s$", "", text.rstrip(), flags=re.M)
    # words: where lines end depends on the terminal
    return re.sub(
        r"[\d,]+ (registers|warp instructions)|(numba-cuda|CUDA) [\d.]+", r"N \1\2", text
    ).split()


def test_the_last_line_of_the_tests_is_of_about_as_many(request):
    """Within a twentieth of those there are, and of less than five minutes: nobody should have to
    touch the README for every test."""
    passed, skipped, seconds = map(
        float,
        re.search(
            r"= (\d+) passed, (\d+) skipped(?:, \d+ warnings)? in ([\d.]+)s",
            re.search(BLOCK.format("test"), TEXT, re.DOTALL)[1],
        ).groups(),
    )
    assert seconds <= 300
    items = request.session.items
    modules = {item.path for item in items}
    if len(modules) < 0.9 * len(list((ROOT / "tests").rglob("test_*.py"))):
        pytest.skip("counted when the whole suite runs")
    assert abs(passed + skipped - len(items)) < len(items) / 20, "python .ci/update_readme.py test"


def test_the_method_is_that_of_the_rows(monkeypatch):
    """A graph has several launches, and contenders take turns, a round each."""
    assert "in CUDA graphs of several launches, contenders interleaved" in " ".join(TEXT.split())
    report = experiment_results.module("01_faithful", "report", monkeypatch)
    rows = report.newest(experiment_results.FOLDER / "01_faithful" / "results.jsonl")
    assert all(row["rounds"] > 1 and row["launches_per_graph"] > 1 for row in rows.values())


def _examples():
    """The Python blocks without a marker of their own (torch's: tests/torch_room), once each."""
    found = re.findall(r"(?<!-->\n)```python\n(.*?)```", WRITTEN, re.DOTALL)
    return list(dict.fromkeys(found))


def save_gpt_oss(folder):
    """A layer of four experts as gpt-oss's files have it: hidden size 128, 64 of an expert."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(1)
    tensors = {}
    for name, k, n in (("gate_up_proj", 128, 128), ("down_proj", 64, 128)):
        blocks = random.integers(0, 256, (4, n, k // 32, 16), dtype=np.uint8)
        scales = random.integers(120, 124, (4, n, k // 32), dtype=np.uint8)
        bias = random.standard_normal((4, n)).astype(np.float32)
        for last, array in (("blocks", blocks), ("scales", scales), ("bias", bias)):
            tensors[f"model.layers.0.mlp.experts.{name}_{last}"] = array
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.thorough
def test_examples_run(tmp_path, monkeypatch, capsys):
    """As they stand, one after the other, with small arrays."""
    pytest.importorskip("ml_dtypes")
    k, n, draw = 128, 128, np.random.default_rng(0).standard_normal
    names = {"k": k, "w": draw((k, n)).astype(np.float32), "x": draw((16, k)).astype(np.float16)}
    names |= {"bias": draw(n).astype(np.float32), "batches": [draw((64, k)) for _ in range(2)]}
    layer = "model.layers.0.mlp.up_proj"
    weight = testing.make_quantized("uniform", "ordinary", k, n, 32, 0)
    nm.save_checkpoint(tmp_path / "llama-gptq", {layer: weight}, "gptq")
    sizes = {"w1": (k, 64), "w2": (64, k), "w3": (k, 64)}
    experts = {
        f"model.layers.0.block_sparse_moe.experts.{e}.{name}": nm.quantize(
            draw(size).astype(np.float32), group_size=32
        )
        for e in range(4)
        for name, size in sizes.items()
    }
    nm.save_checkpoint(tmp_path / "mixtral", experts, "gptq")
    names["logits"] = draw((16, 4)).astype(np.float32)
    save_gpt_oss(tmp_path / "gpt-oss")
    monkeypatch.chdir(tmp_path)
    examples, found = _examples(), []
    assert len(examples) == 6
    for example in examples:
        own = dict(names)
        exec("import numba_marlin as nm\n" + example, own)
        found.append(own)
    first, mixture, gpt_oss, gptq, blocks, files = found
    assert nm.reference.check(first["y"], names["x"], first["q"]).ok
    assert np.array_equal(nm.dequantize(nm.unpack(first["p"])), nm.dequantize(first["q"]))
    assert mixture["y"].shape == names["x"].shape and np.isfinite(mixture["y"]).all()
    assert gpt_oss["y"].shape == names["x"].shape and np.isfinite(gpt_oss["y"]).all()
    assert gptq["q"].shape == (k, n) and not np.array_equal(gptq["q"].codes, first["q"].codes)
    assert blocks["y"].shape == (16, n) and blocks["h"].shape == (16, n)
    assert np.array_equal(nm.dequantize(files["w"]), nm.dequantize(weight))
    assert np.array_equal(nm.dequantize(nm.load_checkpoint("out")[layer]), nm.dequantize(weight))
    assert "1. decode  grid" in capsys.readouterr().out
