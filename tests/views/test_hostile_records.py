"""Contract under test: a record of any contents, read from a file, is shown or refused in words:
never with a traceback, never with a character that steers the terminal, never with a tag of its own
in HTML, and in bounded time.

Fixed seeds; each seed is a file. What is shown with exit code 1 is a check that failed."""

import json
import re
import time

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.cli import main as cli
from numba_marlin.profile.pages import device_page
from numba_marlin.profile.sources.device_state import State
from numba_marlin.trace.file import as_bytes
from numba_marlin.trace.record import Trace
from numba_marlin.views import html, plain, text
from tests.bench.invented import row
from tests.profile.built import data
from tests.trace.runs import recorded
from tests.views.hostile import MANY, WORDS, Shape, as_json, mutated, strict, unsafe

SECONDS = 60  # of this process that showing one file takes at most; usually it is one
SEEDS = 40  # of each test; in each, several files


def shown(capsys, path, *argv, html_kinds=None, page=None, json_too=True):
    """Run a command on a hostile file, for people, as a page and as JSON. -> exit codes"""
    codes = []
    ways = [[], ["--json"]] if json_too else [[]]
    if page is not None:
        ways.append(["--html", str(page)])
    for more in ways:
        began = time.process_time()
        try:
            code = cli.main([*map(str, argv), *more])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        codes.append(code)
        assert time.process_time() - began < SECONDS
        assert code in (0, 1, 2) and unsafe(out + err) == []
        # but for the line of what is done
        said = [line for line in err.splitlines() if not re.match(r"converting: .* in .* s$", line)]
        assert len(said) <= 4 and (code == 2) == bool(said), said
        if more == ["--json"]:
            strict(out)
    if page is not None and page.exists():
        document = page.read_text(encoding="utf-8")
        found = Shape(document)
        assert found.kinds <= html_kinds.kinds and found.raw == html_kinds.raw
        assert all(link.startswith(("#", "data:,")) for link in found.links)
        assert unsafe(document) == []
        page.unlink()
    return codes


def kinds_of(page):
    return Shape(html.render(page))


@pytest.fixture(scope="module")
def profile_kinds():
    from numba_marlin.profile.pages import profile_page

    return kinds_of(profile_page.page(data()))


@pytest.fixture(scope="module")
def trace_kinds():
    from numba_marlin.trace import pages

    return kinds_of(pages.page(recorded("tiled")[0]))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_profiles_of_any_contents(seed, tmp_path, capsys, profile_kinds):
    random, path = np.random.default_rng(seed), tmp_path / "run.json"
    good = tmp_path / "good.json"
    good.write_text(json.dumps(data()))
    for _ in range(4):
        path.write_text(as_json(mutated(data(), random)))
        shown(
            capsys,
            path,
            "profile",
            "--open",
            path,
            html_kinds=profile_kinds,
            page=tmp_path / "page.html",
        )
        shown(capsys, path, "profile", "--open", good, "--against", path, "--view", "compare")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_traces_of_any_contents(seed, tmp_path, capsys, trace_kinds):
    random, path, good = np.random.default_rng(seed), tmp_path / "run.npz", recorded("tiled")[0]
    kept = tmp_path / "good.npz"
    kept.write_bytes(as_bytes(good))
    for step in range(2):
        header = mutated(good.header, random) if step == 0 or random.integers(2) else good.header
        arrays = dict(good.arrays)
        if step:
            name = sorted(arrays)[random.integers(len(arrays))]
            arrays[name] = spoilt(arrays[name], random)
        path.write_bytes(as_bytes(Trace(header, arrays)))
        shown(
            capsys,
            path,
            "trace",
            "--open",
            path,
            html_kinds=trace_kinds,
            page=tmp_path / "page.html",
        )
        shown(capsys, path, "trace", "--open", kept, "--compare", path, json_too=False)
        events = tmp_path / "events.json"
        shown(
            capsys,
            path,
            "trace",
            "--open",
            path,
            "--phase",
            "launch",
            "--perfetto",
            events,
            json_too=False,
        )
        if events.exists():
            strict(events.read_text())
            events.unlink()


def spoilt(array, random):
    """The array shorter, of another type or shape, or with some entries altered."""
    change = random.integers(5)
    if change == 0:
        return array[: len(array) // 2]
    if change == 1:
        return array.astype(np.float64)
    if change == 2:
        return array.reshape(-1)
    if change == 3:
        return array[:0]
    array = array.copy()
    if array.size:
        limits = np.iinfo(array.dtype)
        flat = array.reshape(-1)
        for _ in range(3):
            flat[random.integers(flat.size)] = random.choice([limits.min, limits.max, 0])
    return array


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["us", "speedup"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_measurements_of_any_contents(seed, by, tmp_path, capsys):
    random, path, good = np.random.default_rng(seed), tmp_path / "b.json", tmp_path / "a.jsonl"
    rows = [row(m=m, zeros=zeros) for m in (1, 16) for zeros in (None, "integer")]
    good.write_text("".join(json.dumps(each) + "\n" for each in rows))
    for _ in range(10):
        path.write_text(as_json(mutated({"ok": True, "rows": rows}, random)))
        shown(capsys, path, "compare", good, path, "--by", by, *["--each"] * (seed % 2))
        path.write_text("".join(as_json(mutated(each, random)) + "\n" for each in rows))
        shown(capsys, path, "compare", path, good, "--by", by)


@pytest.mark.thorough
def test_a_hundred_thousand_measurements(tmp_path, capsys):
    path = tmp_path / "many.jsonl"
    line = json.dumps(row())
    with path.open("w") as file:
        for number in range(MANY):
            file.write(line.replace('"m": 16', f'"m": {number + 1}') + "\n")
    assert shown(capsys, path, "compare", path, path) == [0, 0]


@pytest.mark.thorough
@pytest.mark.parametrize("word", WORDS[:-2], ids=range(len(WORDS) - 2))
def test_layers_of_any_name(word, tmp_path, capsys):
    if "\ud800" in word:
        pytest.skip("no name in UTF-8, which the file is written in")
    path = tmp_path / "m.safetensors"
    nm.save_checkpoint(path, {f"a{word}": nm.quantize(np.ones((128, 64), np.float32))}, "gptq")
    kinds = tmp_path / "plain.html"
    assert cli.main(["unpack", "--format", "gptq", "--html", str(kinds)]) == 0
    capsys.readouterr()
    assert shown(capsys, path, "inspect", path, "--layers", "--data") == [0, 0]
    assert shown(capsys, path, "inspect", path, "--to", "marlin")[0] in (0, 1)
    known = Shape(kinds.read_text(encoding="utf-8"))
    page = tmp_path / "page.html"
    assert set(shown(capsys, path, "unpack", path, html_kinds=known, page=page)) == {0}
    shown(capsys, path, "unpack", path, "--layer", "none")
    shown(capsys, path, "trace", "--input", path, "--tensor", "none")
    shown(capsys, path, "convert", path, tmp_path / f"c{len(word)}", "--to", "awq")
    notebook = nm.load_checkpoint(path)
    assert unsafe(repr(notebook)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_samples_of_any_device(seed):
    """Names and values as a driver, or a child that is watched, may say them."""
    random = np.random.default_rng(seed)
    word = lambda: WORDS[random.integers(len(WORDS))]  # noqa: E731
    values = {name: int(random.integers(2**31)) for name in ("gpu", "power_w", "sm_mhz")}
    states = [State(float(i), values, (word(),), {}) for i in range(3)]
    page = device_page.page(word(), states, {word(): word()}, [(word(), word(), word())], word())
    for width in (50, 100):
        assert unsafe(text.render(page, width)) == []
    assert Shape(html.render(page)).kinds <= KINDS_OF_SAMPLES
    strict(plain.render(page))


PLAIN_PAGE = device_page.page(
    "x",
    [State(float(i), {"gpu": 1, "power_w": 2, "sm_mhz": 3}, ("y",), {}) for i in range(3)],
    {"z": "none"},
    [("a", "b", "c")],
    "noted",
)
KINDS_OF_SAMPLES = Shape(html.render(PLAIN_PAGE)).kinds
