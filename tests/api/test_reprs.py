"""Contract under test: what a REPL or a notebook shows of a public object is a line, or a table,
that says what it is; no array and no PTX."""

import html.parser
import subprocess
import sys

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import calibration, wording

W = np.random.default_rng(0).standard_normal((64, 192)).astype(np.float32)
Q = nm.quantize(W, group_size=32)
BLOCKS = nm.quantize_blocks(W.T.copy())


def ran(call):
    call()
    return nm.last_run()


def product(**options):
    return nm.matmul(np.ones((2, 64), np.float16), nm.pack(Q), "emulator", **options)


SHOWN = {
    "QuantizedWeight": (lambda: Q, ("[k=64, n=192]", "4 bits", "groups of 32", "12.8 KiB")),
    "asymmetric": (
        lambda: nm.quantize(W, group_size=-1, symmetric=False),
        ("zero points", "a scale per column"),
    ),
    "PackedWeight": (lambda: nm.pack(Q), ("[k=64, n=192]", "layout marlin", "6.75 KiB")),
    "BlockScaled": (lambda: BLOCKS, ("[192, 64]", "nvfp4", "plain order", "on the host")),
    "BlockWeight": (lambda: block_weight(), ("[k=64, n=192]", "e2m1", "e4m3 of blocks [16, 1]")),
    "PackedBlocks": (lambda: nm.pack(block_weight()), ("[k=64, n=192]", "marlin-fp4 for float16")),
    "RunInfo": (
        lambda: ran(product),
        ("y[2, 192]", "kernel: ", "PTX machine", "warp instructions"),
    ),
    "CompiledKernel": (lambda: ran(product).compiled, ("sm_90a", "numba-cuda", "lines of PTX")),
    "Explanation": (lambda: nm.explain(16, 4096, 4096), ("y[16, 4096]", "H200: decode", "print()")),
    "Workspace": (lambda: nm.Workspace(np.zeros(8), np.zeros(2, np.int32)), ("(8,)", "(2,)")),
    "Hessians": (
        lambda: calibration.store.in_memory({"a.q": nm.Hessian(8), "a.k": nm.Hessian(8)}),
        ("2 layers with 2 inputs", "1 KiB"),
    ),
    "MethodComparison": (
        lambda: nm.compare_methods(
            {"a.q": W}, {"a.q": nm.Hessian(64).add(np.ones((3, 64), np.float32))}, "rtn"
        ),
        ("1 layer,", "mean output error: rtn "),
    ),
    "Hessian": (lambda: nm.Hessian(8).add(np.ones((3, 8), np.float32)), ("[8, 8]", "3 rows")),
}


def block_weight():
    from numba_marlin.formats.operands import to_weight

    return to_weight(BLOCKS)


@pytest.mark.parametrize("what", SHOWN)
def test_a_public_object_is_said_in_one_short_line(what):
    make, parts = SHOWN[what]
    shown = repr(make())
    assert len(shown) < 320 and "\n" not in shown and "array(" not in shown
    for part in parts:
        assert part in shown


def test_weights_have_the_shape_of_a_matrix_and_their_bytes():
    packed, blocks = nm.pack(Q), nm.pack(block_weight())
    assert Q.shape == packed.shape == block_weight().shape == blocks.shape == (64, 192)
    assert Q.nbytes == 64 * 192 + 2 * 2 * 192 and packed.nbytes == 64 * 192 // 2 + 2 * 2 * 192
    assert BLOCKS.nbytes == 192 * 64 // 2 + 192 * 4


class Cells(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def test_a_notebook_shows_tables():
    shown = nm.explain(16, 4096, 4096)
    cells = Cells(shown._repr_html_())
    assert cells.tags.count("tr") == 1 + len(shown.candidates)
    assert cells.tags.count("td") == 5 * len(shown.candidates) and "decode" in cells.text
    cells = Cells(ran(product)._repr_html_())
    assert {"problem", "kernel", "backend", "device"} <= set(cells.text)


def test_tables_escape_what_they_hold():
    assert Cells(wording.html_table([["<script>", "a&b"]], ["<b>"])).tags == [
        *("table", "tr", "th", "tr", "td", "td")
    ]


@pytest.mark.parametrize(
    "nbytes, said",
    (
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023 * 1024, "0.999 MiB"),
        (5 << 30, "5 GiB"),
        (7000 << 30, "7000 GiB"),
    ),
)
def test_sizes_are_said_in_the_unit_that_fits(nbytes, said):
    assert wording.byte_count(nbytes) == said


MISTAKES = {
    "a kernel": (lambda: product(kernel="amper"), ValueError, "'ampere'"),
    "a device": (lambda: nm.explain(1, 64, 64, device="H20O"), ValueError, "'H200'"),
    "a block format": (lambda: nm.quantize_blocks(W, "nvpf4"), ValueError, "'nvfp4'"),
    "a layout": (lambda: find_format("marlim"), ValueError, "'marlin'"),
    "a file format": (lambda: find_stored("gtpq"), ValueError, "'gptq'"),
}


def find_format(name):
    from numba_marlin.formats import find_format

    return find_format(name)


def find_stored(name):
    from numba_marlin.formats.files import find_stored

    return find_stored(name)


@pytest.mark.parametrize("what", MISTAKES)
def test_the_nearest_name_is_proposed(what):
    call, error, meant = MISTAKES[what]
    with pytest.raises(error, match=f"did you mean {meant}"):
        call()


def test_the_traceback_of_a_wrong_attribute_proposes_the_nearest():
    command = [sys.executable, "-c", "import numba_marlin as nm; nm.matmull"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Did you mean: 'matmul'?" in done.stderr


def test_nothing_is_proposed_for_a_name_like_no_other():
    with pytest.raises(ValueError, match=r"must be one of .*\w$"):
        find_stored("zzzz")


def test_a_layer_that_a_checkpoint_lacks(tmp_path):
    file = tmp_path / "model.safetensors"
    nm.save_checkpoint(file, {"layers.0.q_proj": Q}, format="gptq")
    found = nm.load_checkpoint(file)
    assert "model.safetensors: 1 quantised layers" in repr(found)
    with pytest.raises(KeyError, match=r"did you mean 'layers\.0\.q_proj'"):
        found["layer.0.q_proj"]
    assert found.get("other") is None and "other" not in found


@pytest.mark.parametrize(
    "line, meant",
    (
        ("exlain", "explain"),
        ("explain --m 1 --n 64 --k 64 --group-sise=32", "--group-size"),
        ("bench --backend emulater", "emulator"),
    ),
)
def test_the_command_line_proposes_verbs_options_and_choices(line, meant, capsys):
    from numba_marlin.cli.main import main

    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    assert stopped.value.code == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_the_package_says_that_it_has_types():
    from importlib.resources import files

    assert (files("numba_marlin") / "py.typed").is_file()
