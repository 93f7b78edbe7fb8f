"""Contract under test: every instruction of ptx/ can be called from a kernel, by both compilers,
and reaches the PTX and the machine code."""

import re
from dataclasses import dataclass

import pytest

from numba_marlin import isa
from numba_marlin.compiler import AssemblyError, build, gates
from numba_marlin.compiler.assemble import assemble
from numba_marlin.compiler.builder import COMPILERS, backend
from numba_marlin.hardware.targets import TARGETS, target_named
from numba_marlin.kernels.language.definition import KernelDefinition

INSTRUCTIONS = isa.load_instructions()
PARAMETERS = (("address", "u64"), ("number", "i32"))


def immediates_of(name):
    """Values that the instruction takes: registers of setmaxnreg and columns of wgmma come in
    eights, columns of tensor memory in powers of two, threads that hold scales are 0 or 1; anything
    else may be 3."""
    value = (
        24
        if name.startswith(("setmaxnreg", "wgmma_m64"))
        else 32
        if name.startswith("tcgen05")
        else 0
        if name.startswith("mma_m16n8k64")
        else 3
    )
    return dict.fromkeys(INSTRUCTIONS[name].immediates, value)


def taken_by(target):
    return tuple(
        name
        for name, instruction in INSTRUCTIONS.items()
        if target_named(target).supports(instruction.arch)
    )


@dataclass(frozen=True)
class Names:
    """Which instructions the kernel calls, each once."""

    names: tuple


def make(lang, config):
    """A kernel that calls the named instructions, feeding each from the parameters and storing what
    it returns."""
    values = {
        "u16": "uint16(number)",
        "u32": "uint32(number)",
        "i32": "number",
        "u64": "address",
        "f32": "float32(number)",
    }
    stores = {
        "u16": "ptx.st_global_b16(address, {})",
        "u32": "ptx.st_global_b32(address, {})",
        "i32": "ptx.st_global_b32(address, uint32({}))",
        "f32": "ptx.st_global_v2_f32(address, ({0}, {0}))",
        "u64": "ptx.st_global_b32(address, uint32({}))",
    }
    lines = ["def kernel(address, number):", "    pass"]
    scope = {"ptx": lang.ptx, "uint16": lang.uint16, "uint32": lang.uint32, "float32": lang.float32}
    for name in config.names:
        instruction = INSTRUCTIONS[name].resolved(**immediates_of(name))
        made = getattr(lang.ptx, name)
        scope[name] = made(**immediates_of(name)) if instruction.immediates else made
        operands = [
            values[o.type] if o.width == 1 else "(" + ", ".join([values[o.type]] * o.width) + ")"
            for o in instruction.inputs
        ]
        lines.append(
            f"    result = {name}({', '.join(operands)})"
            if instruction.outputs
            else f"    {name}({', '.join(operands)})"
        )
        for output in instruction.outputs:
            elements = (
                ["result"] if output.width == 1 else [f"result[{i}]" for i in range(output.width)]
            )
            lines += ["    " + stores[output.type].format(element) for element in elements]
    exec("\n".join(lines), scope)
    return scope["kernel"]


KERNEL = KernelDefinition(
    name="snippets",
    config_type=Names,
    parameters=PARAMETERS,
    make=make,
    threads=lambda config: 32,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: (1, 1, 1),
)


@pytest.fixture(params=COMPILERS)
def compiler(request):
    if request.param == "numba-cuda-mlir":
        pytest.importorskip("numba_cuda_mlir")
    return request.param


def to_ptx(compiler, names, target):
    return backend(compiler).to_ptx(
        make(backend(compiler).language(), Names(names)), PARAMETERS, target_named(target), 32
    )


def code_of(text):
    """Its statements with operands blanked."""
    return [re.sub(r"\$\d+|%\w+", "_", " ".join(part.split())) for part in text.split(";")]


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_the_ptx_contains_the_instruction(name, compiler):
    ptx = to_ptx(
        compiler,
        (name,),
        next(
            target
            for target in ("sm_80", "sm_90a", "sm_100a", "sm_120a")
            if name in taken_by(target)
        ),
    )
    found = [block.split("// end inline asm")[0] for block in ptx.split("begin inline asm")[1:]]
    assert code_of(INSTRUCTIONS[name].assembly(**immediates_of(name))[0]) in [
        code_of(block) for block in found
    ]


# sm_100 and sm_120 have "a" forms, which have all that they have; the oldest, and those which have
# something that no other has
TELLING = ("sm_80", "sm_90a")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=() if name in TELLING else pytest.mark.thorough)
        for name in TARGETS
        if name not in ("sm_100", "sm_120")
    ],
)
def test_the_instructions_that_a_target_has_assemble_for_it(target):
    compiled = build(KERNEL, Names(taken_by(target)), target=target, cache=False)
    assert compiled.cubin.startswith(b"\x7fELF") and f".target {target}" in compiled.ptx
    assert compiled.resources.registers > 0 and not compiled.resources.spills
    assert (
        gates.opcode_count(compiled, "cp.async.cg") == 9
        and gates.opcode_count(compiled, "ldmatrix.sync") == 4
    )
    if gates.machine_count(compiled, "HMMA") is not None:
        assert (
            gates.machine_count(compiled, "HMMA") + gates.machine_count(compiled, "OMMA") >= 1
            and gates.machine_count(compiled, "LDGSTS") >= 9
        )


def test_all_instructions_assemble_when_the_other_compiler_calls_them():
    pytest.importorskip("numba_cuda_mlir")
    compiled = build(
        KERNEL, Names(taken_by("sm_90a")), target="sm_90a", compiler="numba-cuda-mlir", cache=False
    )
    assert (
        compiled.cubin.startswith(b"\x7fELF") and gates.opcode_count(compiled, "cp.async.cg") == 9
    )


def test_pure_instructions_vanish_and_others_stay_when_nobody_wants_the_result(compiler):
    language = backend(compiler).language()
    ptx, uint32 = language.ptx, language.uint32

    def kernel(address, number):
        ptx.add_f16x2(uint32(number), uint32(number))
        ptx.ld_global_b32(address)

    text = backend(compiler).to_ptx(kernel, PARAMETERS, target_named("sm_80"), 32)
    assert "add.rn.f16x2" not in text and "ld.global.b32" in text


def test_constants_convert_to_the_declared_types(compiler):
    language = backend(compiler).language()
    ptx = language.ptx

    def kernel(address, number):
        ptx.st_global_b32(address, -1)
        ptx.st_global_b16(address, 70000)
        ptx.st_global_v2_f32(address, (1, 2.5))

    text = backend(compiler).to_ptx(kernel, PARAMETERS, target_named("sm_80"), 32)
    assert "0f3F800000" in text and "0f40200000" in text and ".f64" not in text
    assemble(text, target_named("sm_80"))


WRONG_CALLS = {
    "too few operands": (
        lambda ptx, u32, f32: lambda address, number: ptx.st_global_b32(address),
        "st_global_b32",
    ),
    "scalar for a tuple": (
        lambda ptx, u32, f32: lambda address, number: ptx.st_global_v4_b32(address, u32(number)),
        "value.*tuple of 4 u32",
    ),
    "tuple too short": (
        lambda ptx, u32, f32: lambda address, number: ptx.st_global_v2_b32(address, (u32(number),)),
        "value.*tuple of 2 u32",
    ),
    "tuple for a scalar": (
        lambda ptx, u32, f32: (
            lambda address, number: ptx.st_global_b32(address, (u32(number), u32(number)))
        ),
        "value.*one u32",
    ),
    "float for a word": (
        lambda ptx, u32, f32: lambda address, number: ptx.st_global_b32(address, f32(number)),
        "value.*u32, got float",
    ),
}


@pytest.mark.parametrize("kind", WRONG_CALLS)
def test_a_call_that_does_not_fit_is_refused_by_name(kind, compiler):
    language = backend(compiler).language()
    body, message = WRONG_CALLS[kind]
    with pytest.raises(Exception) as caught:
        backend(compiler).to_ptx(
            body(language.ptx, language.uint32, language.float32),
            PARAMETERS,
            target_named("sm_80"),
            32,
        )
    assert re.search(message, str(caught.value), re.DOTALL)


def test_ptx_that_no_assembler_takes_is_an_error_with_its_log():
    ptx = to_ptx("numba-cuda", ("lop3",), "sm_80").replace("lop3.b32", "lop4.b32")
    with pytest.raises(AssemblyError, match="(?s)sm_80.*lop4"):
        assemble(ptx, target_named("sm_80"))
