"""Contract under test: ``.ci/counts.py`` finds what the house rules forbid, and nothing else; and
this checkout is at or below every recorded maximum."""

import ast
import json

import pytest

from tests.ci_scripts import script

tuple_fields, counts = script("tuple_fields"), script("counts")


@pytest.mark.thorough  # .ci/run counts by itself, and first
def test_this_checkout_is_below_every_maximum(capsys):
    assert counts.main([]) == 0, capsys.readouterr().out


def fields_in(body, others=""):
    """Subscripts that are counted in the body of a factory of device functions."""
    indented = "\n".join("    " + line for line in body.strip("\n").splitlines())
    source = f"def make(lang, config):\n    ptx, cuda = lang.ptx, lang.cuda\n{indented}\n{others}"
    found = tuple_fields.names_in_disguise({"kernel.py": ast.parse(source)})
    return [what.split(",")[0] for _, _, what in found]


RECORDS = {
    "unlike things": "place = (stage, parity)\nuse(place[1])",
    "by way of a result": """
def start():
    return lane // 4, lane % 4
place = start()
use(place[0])""",
    "by way of an argument": """
def wait(place):
    return place[1]
wait((stage, parity))""",
    "by way of a namespace": """
def wait(place):
    return place[1]
ring = SimpleNamespace(wait=wait)
ring.wait((stage, parity))""",
    "by way of unpacking": "first, place = 1, (stage, parity)\nuse(place[1])",
    "inside a vector": """
def one(i):
    return (i // 4, config.size)
pair = (one(0), one(1))
use(pair[0][1])""",
    "one of two": "place = (stage, parity) if lane else ptx.ld_v2(a)\nuse(place[1])",
    "never called": "def wait(place):\n    return place[1]",
    "called by a function from a table": """
def wait(place):
    return place[1]
{"wait": wait}[config.how]((stage, parity))""",
}
VECTORS = {
    "an array": "frag = cuda.local.array(8, float32)\nuse(frag[4 * v], frag[0])",
    "an instruction's results": "q = ptx.ld_shared_v4_b32(address)\nuse(q[0], q[3])",
    "an instruction's with immediates": "fold = ptx.fold(n=2)\nuse(fold(x)[1])",
    "alike but for literals": "x = (load(p), load(p + 16))\nuse(x[1])",
    "alike but for digits": "x = (w0, w1)\nuse(x[1])",
    "alike but for ordinals": "x = (times(v, low_scale), times(v, high_scale))\nuse(x[1])",
    "alike but for casts": "x = (uint32(w0), w1)\nuse(x[1])",
    "alike but for shifts": "x = (nibbles(word, 8), nibbles(word >> 4, 8))\nuse(x[1])",
    "joined": "x = ptx.ld_v2(a) + ptx.ld_v2(b)\nuse(x[3], x[1:][0])",
    "literals meet a vector": "x = (0, 1) if lane else ptx.ld_v2(a)\nuse(x[1])",
    "a part of an array": "frag = cuda.local.array(8, f32)\nx = (frag, frag)\nuse(x[1][2])",
}


@pytest.mark.parametrize("case", RECORDS)
def test_an_index_into_a_record_is_counted(case):
    assert len(fields_in(RECORDS[case])) >= 1


@pytest.mark.parametrize("case", VECTORS)
def test_an_index_into_a_vector_is_not(case):
    assert fields_in(VECTORS[case]) == []


def test_parameters_of_a_kernel_are_arrays():
    source = "@cuda.jit\ndef kernel(x, y):\n    y[0] = x[1] + x.shape[0]\n"
    assert tuple_fields.names_in_disguise({"kernel.py": ast.parse(source)}) == []


def test_only_kernel_code_is_looked_at():
    source = "def host():\n    grid = (blocks, 1)\n    return grid[0]\n"
    assert tuple_fields.names_in_disguise({"kernel.py": ast.parse(source)}) == []


KERNEL = "numba_marlin/kernels/one.py"


def found(count, text, path=KERNEL):
    return [line for _, line, _ in getattr(counts, count)({path: text})]


def test_casts_of_constants_are_counted():
    text = "uint32(1)\nuint32(4 * LANES)\nlang.uint32(config.stages)\nuint32(-(-K.n // 2))\n"
    assert found("casts_of_constants", text) == [1, 2, 3, 4]
    assert found("casts_of_constants", "uint32(lane)\nuint32(LANES * lane)\nuint64(1)\n") == []
    assert found("casts_of_constants", text, "numba_marlin/driver.py") == []


@pytest.mark.parametrize("decorator", ["@lang.device", "@lang.device(section='copy')"])
def test_device_functions_with_many_parameters_are_counted(decorator):
    eight, nine = "a, b, c, d, e, f, g, h", "a, b, c, d, e, f, g, h, i"
    assert found("wide_functions", f"{decorator}\ndef verb({nine}):\n    pass\n") == [2]
    assert found("wide_functions", f"{decorator}\ndef verb({eight}):\n    pass\n") == []
    assert found("wide_functions", f"def host({nine}):\n    pass\n") == []


def test_long_lines_are_counted_but_for_unbreakable_urls():
    url = "https://docs.nvidia.com/" + 90 * "a"
    text = f"# {90 * 'word '}\n# {url}\n{url} and\n# see {url}\n{100 * 'x'}\n{101 * 'x'}\n"
    assert found("long_lines", text) == [1, 3, 6]


DECLARED = {
    "numba_marlin/kernels/one/declare.py": "KERNEL = KernelDefinition(config_type=OneConfig)\n"
}


def test_names_of_kernels_are_counted_outside_their_place():
    text = "x = 'the kernel one'\n"
    for path, lines in (
        ("numba_marlin/cli/run.py", [1]),
        ("numba_marlin/kernels/one/choose.py", []),
        ("numba_marlin/kernels/two/choose.py", [1]),
        ("tests/test_one.py", []),
    ):
        places = counts.kernel_names({**DECLARED, path: text})
        assert [line for _, line, _ in places] == lines


def test_long_modules_are_counted():
    assert found("long_modules", 401 * "pass\n") == [1]
    assert found("long_modules", 400 * "pass\n") == []


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "numba_marlin" / "kernels").mkdir(parents=True)
    (tmp_path / KERNEL).write_text("uint32(1)\n" * 3)
    return tmp_path


def test_more_than_the_maximum_fails_and_names_the_place(checkout, monkeypatch, capsys):
    monkeypatch.setitem(counts.MAXIMA, "casts_of_constants", 2)
    assert counts.main([], root=checkout) == 1
    assert f"{KERNEL}:3: uint32(1)" in capsys.readouterr().out


def test_less_than_the_maximum_says_so(checkout, monkeypatch, capsys):
    monkeypatch.setitem(counts.MAXIMA, "casts_of_constants", 4)
    assert counts.main([], root=checkout) == 0
    assert "lower its maximum to 3" in capsys.readouterr().out


def test_json(checkout, monkeypatch, capsys):
    monkeypatch.setitem(counts.MAXIMA, "casts_of_constants", 3)
    assert counts.main(["--json"], root=checkout) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == "numba-marlin/form-counts/1" and printed["ok"]
    assert printed["casts_of_constants"]["count"] == 3
