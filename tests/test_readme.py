"""Contract under test: what the pages (README.md, docs/) quote is what the sources say, and their
examples print what they show. (Figures: ``test_readme_figures``; tables, commands, examples:
``test_readme_statements``.)

After a change of the sources: ``python .ci/update_readme.py code``, ``views`` and ``example``.
"""

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.compiler import builder
from numba_marlin.compiler.module_text import tidy
from numba_marlin.emulator import Machine
from numba_marlin.formats.files import STORED
from numba_marlin.hardware.targets import target_named
from numba_marlin.kernels.language.arrays import array_words
from numba_marlin.kernels.language.plain import body_of
from tests.pages import PAGES, TEXT

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


@pytest.fixture(scope="module")
def update_readme():
    spec = importlib.util.spec_from_file_location(
        "update_readme", ROOT / ".ci" / "update_readme.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_quoted_code_is_the_code(update_readme):
    quotations = list(update_readme.QUOTE.finditer(TEXT))
    assert len(quotations) >= 2
    for each in quotations:
        assert each["code"] == update_readme.quoted(each["path"], each["name"]), (
            f"{each['path']} has changed: run python .ci/update_readme.py code"
        )


def test_the_ladder_knows_how_long_its_rungs_are(update_readme):
    """To a tenth: nobody should have to touch the README for every line."""
    rungs = list(update_readme.RUNG.finditer(TEXT))
    assert [each["name"] for each in rungs] == [
        "naive",
        "tiled",
        "buffered",
        "ampere",
        "decode",
        "wgmma",
        "block_scaled",
        "block_decode",
        "block_mma",
        "tcgen05",
    ]
    for each in rungs:
        for said, is_now in zip((each["own"], each["whole"]), update_readme.lengths(each["path"])):
            assert abs(int(said) - is_now) <= is_now / 10, (
                f"{each['path']}: {is_now} lines, not {said}: run python .ci/update_readme.py code"
            )


def test_a_rung_of_several_files_is_as_long_as_all_of_them(update_readme):
    own, whole = update_readme.lengths("numba_marlin/kernels/wgmma/kernel.py")
    folder = ROOT / "numba_marlin" / "kernels" / "wgmma"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert 2 * own < whole < text.count("\n")
    own, whole = update_readme.lengths("numba_marlin/kernels/naive/kernel.py")
    assert own == whole


def test_every_view_is_listed_with_its_command_and_picture(update_readme):
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert update_readme.with_views(text) == text, "run python .ci/update_readme.py views"
    pictures = re.findall(r"\[picture\]\(([^)]+)\)", TEXT)
    assert len(pictures) > 30 and all((ROOT / each).is_file() for each in pictures)


@pytest.mark.thorough
def test_the_puzzles_are_listed_and_checked_as_shown(update_readme):
    text = (ROOT / "docs" / "puzzles.md").read_text(encoding="utf-8")
    assert update_readme.with_puzzles(text) == text, "run python .ci/update_readme.py puzzle"


def test_the_readmes_table_of_speed_is_that_of_the_page(update_readme):
    text = README.read_text(encoding="utf-8")
    assert update_readme.with_speed(text) == text, "run python .ci/update_readme.py speed"
    table = update_readme.SPEED.search(text)[2]
    assert len(table.splitlines()) == 7 and "(" not in table and "*" not in table


def test_every_rung_of_the_evening_has_its_picture_and_its_measured_time(update_readme):
    text = (ROOT / "docs" / "evening.md").read_text(encoding="utf-8")
    assert update_readme.with_times(text) == text, "run python .ci/update_readme.py times"
    rungs = [part for part in text.split("\n## ") if "`" in part.splitlines()[0]]
    assert len(rungs) == 6
    for rung in rungs:
        name = re.search(r"`(\w+)`", rung.splitlines()[0])[1]
        assert f"<!-- time:{name}:" in rung and re.search(r"\*\*[\d.,]+ us\*\*", rung)
        pictures = re.findall(r"!\[[^\]]+\]\((?:\.\./)?([^)]+)\)", rung)
        assert pictures and all((ROOT / each).is_file() for each in pictures)


@pytest.mark.thorough
def test_the_graph_of_rooms_is_that_of_the_code():
    """New imports move boxes: python .ci/room_graph.py."""
    graph = runpy.run_path(str(ROOT / ".ci" / "room_graph.py"))
    assert (ROOT / "docs" / "rooms.svg").read_text(encoding="utf-8") == graph["picture"]()
    assert {"layout", "hardware"} <= graph["imports"]()["emulator"]
    with pytest.raises(ValueError, match="a -> b -> a"):
        graph["levels"]({"a": {"b"}, "b": {"a"}})
    assert graph["reduced"]({"a": {"b", "c"}, "b": {"c"}, "c": set()})["a"] == {"b"}


def test_updating_changes_only_what_is_quoted(update_readme):
    stale = re.sub(r"def matmul\(.*\):", "def matmul():", TEXT, count=1)
    assert stale != TEXT and update_readme.with_code(stale) == update_readme.with_code(TEXT)


def test_the_example_prints_what_is_shown(update_readme):
    """Registers, lines and addresses are the compiler's business. What the test extra brings is not
    there: the README installs without it."""
    shown = update_readme.block(TEXT, "output", "example", "")
    example = update_readme.block(TEXT, "example", "machine", "python")
    without = "import sys\nsys.modules.update(dict.fromkeys(('hypothesis', 'pytest', 'scipy')))\n"
    done = subprocess.run(
        [sys.executable, "-c", without + example],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.match(
        r"PendingCopyRead: .*\n  PTX line \d+: ld\.shared.*\n  block \(\d+, 0, 0\), warp \d+,"
        r" lanes",
        done.stdout,
    ), done.stdout
    assert _shape(done.stdout) == _shape(shown), "run python .ci/update_readme.py example"


@pytest.mark.parametrize("compiler", ("numba-cuda", "numba-cuda-mlir"))
def test_the_example_of_a_kernel_of_ones_own_multiplies(update_readme, compiler, run_on, tmp_path):
    """On a GPU Numba launches it; without one, what Numba makes of it runs on the machine."""
    if compiler == "numba-cuda-mlir":
        pytest.importorskip("numba_cuda_mlir")
    text = update_readme.block(TEXT, "example", "ptx", "python")
    if compiler == "numba-cuda-mlir":
        text = text.replace("from numba import cuda", "from numba_cuda_mlir import cuda")
    file = tmp_path / "example.py"  # Numba wants to see the source
    file.write_text(text, encoding="utf-8")
    example = runpy.run_path(str(file))
    x, w, y = (example[name] for name in "xwy")
    if run_on != "cuda":
        on_machine(example["multiply"], compiler, (x, w, y))
    assert np.array_equal(y, x.astype(np.float32) @ w.T.astype(np.float32)) and y.any()


def on_machine(kernel, compiler, arrays):
    language = builder.backend(compiler)
    parameters = tuple((name, f"{each.dtype}[:, ::1]") for name, each in zip("xwy", arrays))
    ptx = language.to_ptx(
        body_of(kernel, language.language()), parameters, target_named("sm_80"), 32, plain=True
    )
    machine = Machine(language.with_array_words(tidy(ptx, "example"), "example", parameters))
    passed = []
    for (_, kind), array in zip(parameters, arrays):
        passed += array_words(kind, machine.memory.buffer(array).address, array.shape)
    machine.run("example", (1,), (32,), 0, passed)


@pytest.mark.parametrize("other", ("touches", "is still in flight", "not waited for"))
def test_other_words_than_the_example_prints_are_noticed(update_readme, other):
    shown = update_readme.block(TEXT, "output", "example", "")
    assert other in shown and _shape(shown.replace(other, "other words")) != _shape(shown)


def _shape(message):
    """Every word, but numbers and the PTX instructions, which change from one compiler to the
    next."""
    without_instructions = re.sub(r"(PTX line )\d+: [^;]*;", r"\1N: ...;", message)
    return re.sub(r"\b(0x)?[0-9a-f]*\d[0-9a-f]*\b", "N", without_instructions).split()


def test_the_table_of_formats_is_what_they_can_do(update_readme):
    pytest.importorskip("ml_dtypes")
    assert "| `gptq`" in TEXT or "[`gptq`]" in TEXT
    assert update_readme.with_formats(TEXT) == TEXT, "run python .ci/update_readme.py formats"


def test_the_formats_that_quantize_writes_are_those_that_it_says():
    (row,) = (line for line in TEXT.splitlines() if line.startswith("| `numba-marlin quantize "))
    form = r"written in any format \[there is\]\(docs/formats\.md\) but (.*?) \|$"
    excepted = re.search(form, row)
    said = set(re.findall(r"`([^`]*)`", excepted[1]))
    assert said == {name for name, form in STORED.items() if not form.numbers}


def test_links_lead_somewhere():
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]*)[^)]*\)", prose):
        assert target.startswith("https://") or not target or (ROOT / target).exists(), target
