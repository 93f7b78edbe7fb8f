"""Contract under test: kernels of one text do not stand in each other's way. What cannot be read in
one is an error when that one is asked for, with its name and line; the others run."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, PtxSyntaxError, UnknownInstruction
from tests.cli.verbs import run, run_json
from tests.emulator.ptx_cases import HEADER

GOOD = """.visible .entry good{number}(.param .u64 p)
{{ .reg .b64 %d; .reg .b32 %r; .global .u32 own = {number};
ld.param.u64 %d, [p]; ld.global.u32 %r, [own]; st.global.u32 [%d], %r; ret; }}
"""

BAD = {
    "opcode": "frobnicate.u32 %r, 1;",
    "word": "mov.u32 %r, %nope;",
    "character": "mov.u32 %r, `;",
    "modifier": ".reg .b65 %x;",
    "call": "call launch, ();",
    "braces": "bra A; {",
    "end": "mov.u32 %r, 1",
}


def module(*bad):
    text = HEADER + ".extern .func launch();\n" + GOOD.format(number=1)
    for name in bad:
        text += f".entry {name}()\n{{ .reg .b32 %r;\n{BAD[name]}\n"
        text += "} }\n" if name == "braces" else "}\n"
    return text + GOOD.format(number=2)


def answer(machine, name):
    out = np.zeros(1, np.uint32)
    machine.run(name, args=[machine.memory.buffer(out).address])
    return out[0]


@pytest.mark.parametrize("name", BAD)
def test_a_kernel_that_cannot_be_read_is_its_own_problem(name):
    text = module(name)
    machine = Machine(text)
    assert machine.entries == ("good1", name, "good2")
    assert (answer(machine, "good2"), answer(machine, "good1")) == (2, 1)
    line = 1 + text[: text.index(BAD[name])].count("\n")
    for _ in range(2):
        with pytest.raises((PtxSyntaxError, UnknownInstruction), match=f"in kernel {name}") as said:
            machine.kernel(name)
        assert said.value.line in (line, line + 1)
        assert said.value.text in text.splitlines()[said.value.line - 1]
    assert (answer(machine, "good2"), answer(machine, "good1")) == (2, 1)


def test_what_its_launch_finds_names_it_too():
    wrong = ".entry k() { .reg .b32 %r; add.frob.u32 %r, %r, 1; }"
    machine = Machine(module() + wrong)
    machine.kernel("k")
    with pytest.raises(UnknownInstruction, match=r"frob.*\(in kernel k\)"):
        machine.run("k")


def test_parameters_that_mean_nothing_are_their_kernels_too():
    machine = Machine(
        HEADER + ".entry a(.param .pred p) { ret; } .entry b() .what { } .entry c() {}"
    )
    for name in "ab":
        with pytest.raises(PtxSyntaxError, match=f"in kernel {name}"):
            machine.kernel(name)
    machine.run("c")


def test_the_only_kernel_is_read_at_once():
    with pytest.raises(UnknownInstruction, match=r"'frobnicate.u32' \(in kernel opcode\)"):
        Machine(HEADER + f".entry opcode() {{ .reg .b32 %r; {BAD['opcode']} }}")


def test_a_kernel_is_read_once():
    machine = Machine(module())
    assert machine.kernel("good1") is machine.kernel("good1") is machine.module.kernels["good1"]


def test_the_command_line_lists_those_that_it_can_read(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(module("opcode"))
    code, data = run_json(capsys, "machine", "entries", tmp_path / "k.ptx")
    assert code == 0 and [each["entry"] for each in data["entries"]] == ["good1", "opcode", "good2"]
    assert "frobnicate" in data["entries"][1]["error"]
    assert "cannot be read" in run(capsys, "machine", "entries", tmp_path / "k.ptx")[1]
    command = "machine", "run", tmp_path / "k.ptx", "--entry"
    assert run(capsys, *command, "good2", "--args", "out:i32[1]")[0] == 0
    code, _, said = run(capsys, *command, "opcode")
    assert code == 3 and "in kernel opcode" in said
