"""Contract under test: a file of ptx/ becomes an Instruction, and whatever is wrong with it is reported as file:line."""
import re

import pytest

from numba_marlin import isa

GOOD = """\
// Load two words.
// It reads shared memory.
// name: pair
// outputs: d: u32 x2
// inputs: address: u32, scale: f32
// immediates: offset
// effects: shared.read
// arch: sm_80
// isa: https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld

{
    .reg .f32 twice;  // a comment with <nothing> declared
    add.f32 twice, <scale>, <scale>;
    ld.shared.v2.b32 {<d0>, <d1>}, [<address> + <offset>];
}
"""


def test_a_file_becomes_an_instruction():
    pair = isa.parse_instruction(GOOD, "pair.ptx", "pair")
    assert pair.outputs == (isa.Operand("d", "u32", 2),)
    assert pair.inputs == (isa.Operand("address", "u32"), isa.Operand("scale", "f32"))
    assert pair.summary == "Load two words. It reads shared memory."
    assert (pair.immediates, pair.effects, pair.arch, pair.pure) == (("offset",), ("shared.read",), "sm_80", False)


def test_assembly_numbers_operands_in_order_and_clobbers_memory():
    template, constraints = isa.parse_instruction(GOOD, "pair.ptx").assembly(offset=16)
    assert "ld.shared.v2.b32 {$0, $1}, [$2 + 16];" in template and "add.f32 twice, $3, $3;" in template
    assert "<" not in template and "//" not in template
    assert constraints == "=r,=r,r,f,~{memory}"


def test_pure_assembly_does_not_clobber_memory_and_dollars_are_escaped():
    text = GOOD.replace("shared.read", "none").replace("twice", "$twice")
    template, constraints = isa.parse_instruction(text, "pair.ptx").assembly(offset=16)
    assert constraints == "=r,=r,r,f" and ".reg .f32 $$twice;" in template


@pytest.mark.parametrize("immediates", [{}, {"offset": 1, "more": 2}, {"offset": 1.0}, {"offset": True}, {"offset": "1"}])
def test_immediates_are_exactly_the_declared_ints(immediates):
    with pytest.raises(TypeError, match="pair.*offset|pair.*immediate"):
        isa.parse_instruction(GOOD, "pair.ptx").assembly(**immediates)


BROKEN = {
    "no name": ("// name: pair\n", "", 1, "has no `// name:` line"),
    "no effects": ("// effects: shared.read\n", "", 1, "has no `// effects:` line"),
    "no arch": ("// arch: sm_80\n", "", 1, "has no `// arch:` line"),
    "no prose": ("// Load two words.\n// It reads shared memory.\n", "", 1, "no line of prose"),
    "name of another file": ("name: pair", "name: other", 3, "differs from the file's name"),
    "unknown key": ("// arch:", "// architecture:", 8, "unknown header key 'architecture'"),
    "key twice": ("// arch: sm_80", "// arch: sm_80\n// arch: sm_90", 9, "occurs twice"),
    "empty value": ("immediates: offset", "immediates:", 6, "has no value"),
    "unknown type": ("scale: f32", "scale: f64", 5, "unknown type 'f64'"),
    "no type": ("scale: f32", "scale", 5, "not of the form"),
    "bad width": ("u32 x2", "u32 x", 4, "not of the form"),
    "vector of one": ("u32 x2", "u32 x1", 4, "x1"),
    "digits in a name": ("address: u32", "a1: u32", 5, "not of the form"),
    "two outputs": ("d: u32 x2", "d: u32 x2, e: u32", 4, "2 outputs"),
    "declared twice": ("scale: f32", "d: f32", 4, "more than once"),
    "immediate is an operand": ("immediates: offset", "immediates: scale", 5, "more than once"),
    "bad immediate": ("immediates: offset", "immediates: 4", 6, "immediate '4'"),
    "unknown effect": ("shared.read", "shared.reed", 7, "unknown effect 'shared.reed'"),
    "bad arch": ("sm_80", "compute_80", 8, "'compute_80'"),
    "no address": ("https://docs", "docs", 9, "https://"),
    "unknown placeholder": ("<address>", "<adress>", 14, "unknown placeholder <adress>"),
    "unused operand": ("<scale>, <scale>", "1.0, 1.0", 5, "'scale' is never used"),
    "unused immediate": (" + <offset>", "", 6, "immediate 'offset' is never used"),
    "arity: body too narrow": ("{<d0>, <d1>}", "<d0>", 4, "declared x2, but the body never uses <d1>"),
    "arity: body too wide": ("{<d0>, <d1>}", "{<d0>, <d1>, <d2>}", 14, "arity: <d2> does not exist"),
    "arity: scalar as vector": ("[<address>", "[<address0>", 14, "'address' is a scalar"),
    "arity: vector as scalar": ("{<d0>, <d1>}", "<d>", 14, "arity: <d> does not exist"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_errors_name_file_line_and_rule(kind, tmp_path):
    old, new, line, message = BROKEN[kind]
    assert old in GOOD
    path = tmp_path / "pair.ptx"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(isa.InstructionError, match=re.escape(f"{path}:{line}:") + ".*" + re.escape(message)):
        isa.load_instructions(tmp_path)


def test_a_header_without_body_is_an_error():
    with pytest.raises(isa.InstructionError, match=r"pair.ptx:9: .*no body"):
        isa.parse_instruction(GOOD.split("\n\n")[0], "pair.ptx")


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    tmp_path.joinpath("pair.ptx").write_bytes(GOOD.encode() + b"// \xff\n")
    with pytest.raises(isa.InstructionError, match="pair.ptx:16: not UTF-8"):
        isa.load_instructions(tmp_path)
