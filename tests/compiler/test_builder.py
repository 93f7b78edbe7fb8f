"""Contract under test: ``build`` gives the same, clean code every time, for every target, without a
GPU, and refuses what it cannot do."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from numba_marlin import compiler as room
from numba_marlin.compiler import MissingCompiler, build, gates, module_text
from numba_marlin.compiler.builder import COMPILERS, available_compilers, backend
from numba_marlin.emulator import Machine
from numba_marlin.hardware.targets import TARGETS, target_named
from numba_marlin.kernels.language.definition import KernelDefinition


@dataclass(frozen=True)
class Size:
    rows: int = 4


def make(lang, config):
    """Copies through shared memory; a device function, a local array, a loop over a closure
    constant: what real kernels are made of."""
    cuda, ptx, uint32, uint64 = lang.cuda, lang.ptx, lang.uint32, lang.uint64
    rows = config.rows
    wait_for_all_but_one = ptx.cp_async_wait_group(n=1)

    @lang.device
    def fill(values, source, thread):
        for i in range(rows):
            values[i] = ptx.ld_global_b32(source + uint64(thread) * uint64(4) + uint64(128 * i))

    def copy(source, target, count):
        shared = lang_shared_base()
        thread = uint32(cuda.threadIdx.x)
        values = cuda.local.array(rows, uint32)
        fill(values, source, thread)
        iterations = count
        while iterations:
            for i in range(rows):
                if iterations:
                    ptx.st_shared_b32(shared + thread * uint32(4) + uint32(128 * i), values[i])
                    wait_for_all_but_one()
                    iterations -= 1
        cuda.syncthreads()
        for i in range(rows):
            ptx.st_global_b32(
                target + uint64(thread) * uint64(4) + uint64(128 * i),
                ptx.ld_shared_b32(shared + thread * uint32(4) + uint32(128 * i)),
            )

    lang_shared_base = lang.shared_base
    return copy


KERNEL = KernelDefinition(
    name="copy",
    config_type=Size,
    parameters=(("source", "u64"), ("target", "u64"), ("count", "i32")),
    make=make,
    threads=lambda config: 32,
    shared_bytes=lambda config: 128 * config.rows,
    grid=lambda config, m, n, k, sms: (1, 1, 1),
)


@pytest.fixture(params=COMPILERS)
def compiler(request):
    if request.param == "numba-cuda-mlir":
        pytest.importorskip("numba_cuda_mlir")
    return request.param


def test_a_kernel_is_clean_named_and_bounded(compiler):
    compiled = build(KERNEL, Size(4), target="sm_90a", compiler=compiler, cache=False)
    assert gates.broken_promises(compiled) == []
    assert (compiled.kernel, compiled.entry, compiled.target, compiled.compiler) == (
        "copy",
        "marlin_copy",
        "sm_90a",
        compiler,
    )
    assert (compiled.threads, compiled.shared_bytes, compiled.parameters) == (
        32,
        512,
        KERNEL.parameters,
    )
    assert compiled.ptx.count(".entry") == 1 and ".entry marlin_copy(" in compiled.ptx
    assert re.findall(r"\.param \.(\w+) marlin_copy_param_\d", compiled.ptx)[:2] == ["u64", "u64"]
    assert len(re.findall(r"^\s*\.param", compiled.ptx, re.MULTILINE)) == 3
    assert re.search(r"\.maxntid 32, 1, 1\s+\.minnctapersm 1", compiled.ptx)
    assert ".extern .shared .align 128 .b8 dynamic_shared[];" in compiled.ptx
    assert (
        gates.opcode_count(compiled, "ld.global.b32")
        == gates.opcode_count(compiled, "st.shared.b32")
        == 4
    ), "loops are unrolled"
    assert compiled.resources.registers and compiled.resources.static_shared in (
        0,
        1024,
    ), "sm_90 keeps 1 KiB of shared memory for itself"
    assert (
        compiled.resources.assembler
        and compiled.versions[compiler if compiler == "numba-cuda" else "numba-cuda-mlir"]
    )


def test_compiling_again_gives_the_same_text(compiler):
    first, second = (
        build(KERNEL, Size(2), target="sm_80", compiler=compiler, cache=False) for _ in range(2)
    )
    assert first.ptx == second.ptx and first.cubin == second.cubin and first.key == second.key


@pytest.mark.parametrize("target", TARGETS)
def test_every_target(target, compiler):
    ptx = backend(compiler).to_ptx(
        make(backend(compiler).language(), Size(1)), KERNEL.parameters, target_named(target), 32
    )
    assert re.search(rf"^\.target {target}$", ptx, re.MULTILINE)


def test_both_compilers_speak_the_same_language():
    pytest.importorskip("numba_cuda_mlir")
    one, other = (backend(name).language() for name in COMPILERS)
    assert [n for n in dir(one) if not n.startswith("_")] == [
        n for n in dir(other) if not n.startswith("_")
    ]
    assert [n for n in dir(one.ptx) if not n.startswith("_")] == [
        n for n in dir(other.ptx) if not n.startswith("_")
    ]


def test_an_instruction_with_the_same_immediates_is_the_same_object(compiler):
    ptx = backend(compiler).language().ptx
    assert ptx.lop3(table=0xEA) is ptx.lop3(table=0xEA) is not ptx.lop3(table=0xEB)
    with pytest.raises(TypeError, match="lop3.*table"):
        ptx.lop3(mask=3)


def test_the_current_device_is_asked_again_after_a_compilation():
    """The stand-in for a device must not outlive the compilation: a program with a GPU goes on to
    launch."""
    build(KERNEL, Size(1), cache=False)
    from numba.cuda import api, dispatcher

    assert dispatcher.get_current_device is api.get_current_device


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"target": "sm_90"}, ValueError, "target='sm_90' must be one of sm_80"),
        ({"target": None}, ValueError, "target=None must be one of"),
        ({"compiler": "nvcc"}, ValueError, "compiler='nvcc' must be one of numba-cuda"),
        ({"config": 4}, TypeError, "kernel copy takes a Size, not int"),
        (
            {"kernel": replace(KERNEL, min_arch="sm_90a"), "target": "sm_120"},
            ValueError,
            "needs sm_90a, which target='sm_120'",
        ),
        (
            {"kernel": replace(KERNEL, min_arch="sm_89"), "target": "sm_86"},
            ValueError,
            "needs sm_89, which target='sm_86'",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        build(**{"kernel": KERNEL, "config": Size(), "cache": False, **arguments})


def test_architectures_are_ordered_and_specific_ones_stand_alone():
    assert (
        TARGETS["sm_120"].supports("sm_89")
        and TARGETS["sm_90a"].supports("sm_90a")
        and TARGETS["sm_90a"].supports("sm_75")
    )
    assert (
        not TARGETS["sm_86"].supports("sm_89")
        and not TARGETS["sm_100"].supports("sm_90a")
        and not TARGETS["sm_120"].supports("sm_120a")
    )


def test_parameters_are_addresses_and_ints():
    with pytest.raises(ValueError, match="'x' has type 'f32'"):
        replace(KERNEL, parameters=(("x", "f32"),))


def make_tuple_of_tuples(lang, config):
    ptx, uint32, int32 = lang.ptx, lang.uint32, lang.int32

    def kernel(source, target, count):
        pairs = ((uint32(0), uint32(1)), (uint32(2), uint32(3)))
        turn = int32(0)
        while turn < count:
            pairs = (
                (pairs[1][0], pairs[0][1]),
                (pairs[0][0], pairs[1][1] + ptx.ld_global_b32(source)),
            )
            turn += int32(1)
        ptx.st_global_v4_b32(target, pairs[0] + pairs[1])

    return kernel


def test_a_variable_may_hold_a_tuple_of_tuples(compiler):
    """As accumulators of several products do, around a loop."""
    compiled = build(
        replace(KERNEL, make=make_tuple_of_tuples), Size(), compiler=compiler, cache=False
    )
    assert gates.broken_promises(compiled) == []
    machine, out = Machine(compiled.ptx), np.zeros(4, np.uint32)
    arguments = [machine.memory.buffer(array).address for array in (np.full(1, 10, np.uint32), out)]
    machine.run(block=32, args=[*arguments, 3])
    assert out.tolist() == [2, 1, 0, 33]


def make_map_reader(lang, config):
    ptx, uint64 = lang.ptx, lang.uint64

    def kernel(target, first, number, second):
        if number:
            ptx.prefetch_tensormap(second)
        ptx.st_global_v2_b32(target, (lang_uint32(first), lang_uint32(first >> uint64(32))))

    lang_uint32 = lang.uint32
    return kernel


MAP_READER = replace(
    KERNEL,
    name="maps",
    make=make_map_reader,
    min_arch="sm_90",
    parameters=(
        ("target", "u64"),
        ("first", "tensormap"),
        ("number", "i32"),
        ("second", "tensormap"),
    ),
)


def test_a_tensor_map_is_a_parameter_of_128_bytes_whose_address_the_body_sees(compiler):
    compiled = build(MAP_READER, Size(), target="sm_90a", compiler=compiler, cache=False)
    parameters = re.findall(r"^\s*\.param ([^\n,]+?),?$", compiled.ptx, re.MULTILINE)
    assert [p for p in parameters if "[128]" in p] == [
        f".align 64 .b8 marlin_maps_param_{i}[128]" for i in (1, 3)
    ] and len(parameters) == 4
    for index in (1, 3):
        assert re.search(
            rf"mov\.b64\s+(%\w+), marlin_maps_param_{index};\s+cvta\.param\.u64\s+\1, \1;",
            compiled.ptx,
        )
        assert not re.search(rf"ld\.param[^;]*marlin_maps_param_{index}\b", compiled.ptx)
    assert compiled.cubin and compiled.parameters == MAP_READER.parameters


def test_a_cluster_is_declared_where_there_is_one(compiler):
    alone, paired = (
        build(
            replace(MAP_READER, cluster=lambda config, blocks=blocks: blocks),
            Size(),
            target="sm_90a",
            compiler=compiler,
            cache=False,
        )
        for blocks in (1, 2)
    )
    assert (
        ".reqnctapercluster" not in alone.ptx
        and re.search(r"\.reqnctapercluster 2, 1, 1$", paired.ptx, re.MULTILINE)
        and paired.cubin
    )
    assert paired.ptx.replace(".reqnctapercluster 2, 1, 1\n", "") == alone.ptx


@pytest.mark.parametrize("name", COMPILERS)
def test_a_missing_compiler_is_an_error_that_says_what_to_install(name, monkeypatch):
    module = backend(name)
    module._numba.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, module.IMPORT_NAME, None)
    try:
        with pytest.raises(MissingCompiler, match=r"pip install .numba-marlin\["):
            module._numba()
    finally:
        module._numba.cache_clear()


@pytest.mark.parametrize("name", COMPILERS)
def test_numbas_simulator_is_named_as_what_hides_the_compiler(name, monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(MissingCompiler, match="NUMBA_ENABLE_CUDASIM=1 .* unset it"):
        build(KERNEL, Size(), compiler=name, cache=False)


def test_available_compilers_are_a_part_of_all():
    assert set(available_compilers()) <= set(COMPILERS) and COMPILERS[0] == "numba-cuda"
    assert {"build", "CompiledKernel", "TARGETS", "COMPILERS"} <= set(room.__all__)


TEXT = """.visible .entry K(
\t.param .u64 K_param_0
)
{
\t%scall.uni used, ();
}
\t// .globl\tused
.visible .func used(
\t.param .b64 used_param_0
)
{
\t// begin inline asm
{
.reg .b32 x; mov.b32 {x, y}, z;
}
\t// end inline asm
\tcall.uni helper, ();
}
.visible .func  (.param .b32 out) helper(
\t.param .b64 helper_param_0
)
{
}
"""


def test_functions_are_dropped_only_when_nothing_reaches_them():
    kept = module_text.tidy(TEXT % "", "named")
    assert (
        ".func used" in kept
        and "helper_param_0" in kept
        and ".entry named(" in kept
        and "named_param_0" in kept
        and "K" not in kept
    )
    dropped = module_text.tidy(TEXT.replace("\t%scall.uni used, ();\n", ""), "named")
    assert ".func" not in dropped and dropped.count("{") == dropped.count("}") == 1


def test_unused_globals_are_dropped_and_used_ones_kept():
    text = (
        ".common .global .align 4 .u32 error_code;\n.common .global .align 8 .u64"
        " counter;\n.visible .entry K()\n{\n\tmov.u64 %r, counter;\n}\n"
    )
    assert module_text.tidy(text, "named") == text.replace(
        ".common .global .align 4 .u32 error_code;\n", ""
    ).replace("K", "named")


@pytest.mark.parametrize("text", ["", ".entry A() {}\n.entry B() {}\n"])
def test_a_module_holds_one_kernel(text):
    with pytest.raises(ValueError, match="expected one"):
        module_text.tidy(text, "named")
