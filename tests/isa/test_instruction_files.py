"""Contract under test: a file of ptx/ becomes an Instruction, and whatever is wrong with it is
reported as file:line."""

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
// isa: https://docs.nvidia.com/cuda/parallel-thread-execution/#state-spaces

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
    assert (pair.immediates, pair.effects, pair.arch, pair.pure) == (
        ("offset",),
        ("shared.read",),
        "sm_80",
        False,
    )


def test_assembly_numbers_operands_in_order_and_clobbers_memory():
    template, constraints = isa.parse_instruction(GOOD, "pair.ptx").assembly(offset=16)
    assert (
        "ld.shared.v2.b32 {$0, $1}, [$2 + 16];" in template and "add.f32 twice, $3, $3;" in template
    )
    assert "<" not in template and "//" not in template
    assert constraints == "=r,=r,r,f,~{memory}"


WIDE = """\
// Add to a vector in place.
// name: wide
// inout: d: f32 x n/2
// inputs: a: u32 x2, s: f32 x n/2, t: u64
// immediates: n, depth
// effects: async
// arch: sm_90a
// isa: https://docs.nvidia.com/cuda/parallel-thread-execution/

wide.m64n<n>k<depth> {<d...>}, {<a...>}, <t>;
add.f32 <d*>, <d*>, <s*>;
"""


def test_operands_in_place_are_tied_and_widths_follow_immediates():
    wide = isa.parse_instruction(WIDE, "wide.ptx", "wide")
    assert (
        wide.outputs == (isa.Operand("d", "f32", "n/2"),)
        and [o.name for o in wide.inputs] == ["d", "a", "s", "t"]
        and wide.tied == ("d",)
    )
    assert [o.width for o in wide.resolved(n=6, depth=16).inputs] == [3, 2, 3, 1]
    template, constraints = wide.assembly(n=4, depth=16)
    assert (
        template
        == "wide.m64n4k16 {$0, $1}, {$4, $5}, $8;\nadd.f32 $0, $0, $6;\nadd.f32 $1, $1, $7;"
    )
    assert constraints == "=f,=f,0,1,r,r,f,f,l,~{memory}"


@pytest.mark.parametrize("n", [7, 2, 0, -4])
def test_a_width_is_an_int_of_two_or_more(n):
    with pytest.raises(ValueError, match=f"wide: n={n}: operand 'd' has n/2 elements"):
        isa.parse_instruction(WIDE, "wide.ptx").assembly(n=n, depth=16)


WIDE_BROKEN = {
    "outputs besides": ("// inputs:", "// outputs: e: u32\n// inputs:", 3, "outputs besides inout"),
    "two in place": ("d: f32 x n/2", "d: f32 x n/2, e: u32", 3, "2 outputs"),
    "width of no immediate": ("d: f32 x n/2", "d: f32 x m/2", 3, "'m' is not an immediate"),
    "width that is no quotient": ("d: f32 x n/2", "d: f32 x n-2", 3, "not of the form"),
    "all elements of a scalar": ("<t>", "<t...>", 10, "'t' is a scalar"),
    "one element of many": (
        "<d...>",
        "<d0>",
        10,
        "<d0> does not exist, operand 'd' is declared xn/2",
    ),
    "lines of different length": ("<s*>", "<a*>", 11, "different widths ['2', 'n/2']"),
    "never used": (", <s*>", "", 4, "'s' is never used"),
    "unused immediate": ("k<depth>", "", 5, "'depth' is never used"),
}


@pytest.mark.parametrize("kind", WIDE_BROKEN)
def test_errors_about_wide_operands_name_file_line_and_rule(kind):
    old, new, line, message = WIDE_BROKEN[kind]
    assert old in WIDE
    with pytest.raises(
        isa.InstructionError, match=re.escape(f"wide.ptx:{line}:") + ".*" + re.escape(message)
    ):
        isa.parse_instruction(WIDE.replace(old, new, 1), "wide.ptx")


def test_pure_assembly_does_not_clobber_memory_and_dollars_are_escaped():
    text = GOOD.replace("shared.read", "none").replace("twice", "$twice")
    template, constraints = isa.parse_instruction(text, "pair.ptx").assembly(offset=16)
    assert constraints == "=r,=r,r,f" and ".reg .f32 $$twice;" in template


@pytest.mark.parametrize(
    "immediates", [{}, {"offset": 1, "more": 2}, {"offset": 1.0}, {"offset": True}, {"offset": "1"}]
)
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
    "arity: body too narrow": (
        "{<d0>, <d1>}",
        "<d0>",
        4,
        "declared x2, but the body never uses <d1>",
    ),
    "arity: body too wide": (
        "{<d0>, <d1>}",
        "{<d0>, <d1>, <d2>}",
        14,
        "arity: <d2> does not exist",
    ),
    "arity: scalar as vector": ("[<address>", "[<address0>", 14, "'address' is a scalar"),
    "arity: vector as scalar": ("{<d0>, <d1>}", "<d>", 14, "arity: <d> does not exist"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_errors_name_file_line_and_rule(kind, tmp_path):
    old, new, line, message = BROKEN[kind]
    assert old in GOOD
    path = tmp_path / "pair.ptx"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(
        isa.InstructionError, match=re.escape(f"{path}:{line}:") + ".*" + re.escape(message)
    ):
        isa.load_instructions(tmp_path)


def test_a_header_without_body_is_an_error():
    with pytest.raises(isa.InstructionError, match=r"pair.ptx:9: .*no body"):
        isa.parse_instruction(GOOD.split("\n\n")[0], "pair.ptx")


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    tmp_path.joinpath("pair.ptx").write_bytes(GOOD.encode() + b"// \xff\n")
    with pytest.raises(isa.InstructionError, match="pair.ptx:16: .*not valid UTF-8"):
        isa.load_instructions(tmp_path)
