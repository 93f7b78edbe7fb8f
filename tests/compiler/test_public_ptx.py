"""Contract under test: ``numba_marlin.ptx`` gives every instruction of ``ptx/`` to plain kernels of
both compilers, and says what each takes."""

import inspect
import pickle
import pydoc
import re
import subprocess
import sys

import numpy as np
import pytest

from numba_marlin import isa, ptx
from numba_marlin.compiler.builder import COMPILERS, backend
from numba_marlin.hardware.targets import target_named

INSTRUCTIONS = isa.load_instructions()
PARAMETERS = (("address", "u64"), ("number", "i32"))
ADDRESSES = {"cvta_to_global", "cvta_to_shared"}
wait_for_all_but_two = ptx.cp_async_wait_group(n=2)
GROUPS = 3
TARGETS = ("sm_90a", "sm_100a", "sm_120a")


@pytest.fixture(params=COMPILERS)
def compiler(request):
    if request.param == "numba-cuda-mlir":
        pytest.importorskip("numba_cuda_mlir")
    return request.param


def to_ptx(compiler, kernel, target="sm_90a"):
    return backend(compiler).to_ptx(kernel, PARAMETERS, target_named(target), 32, plain=True)


def target_of(name):
    """The first of TARGETS that has the instruction."""
    return next(each for each in TARGETS if target_named(each).supports(INSTRUCTIONS[name].arch))


def cuda_of(compiler):
    return backend(compiler).language().cuda


def values_of(name):
    """Immediates that the instruction takes: threads that hold scales are 0 or 1; registers and
    columns come in eights or powers of two; anything else may be 32."""
    return dict.fromkeys(INSTRUCTIONS[name].immediates, 0 if "mma_m16n8k64" in name else 32)


def test_there_is_a_name_for_every_file_and_no_other():
    assert set(dir(ptx)) == set(ptx.__all__) == set(INSTRUCTIONS) | ADDRESSES
    with pytest.raises(AttributeError, match="mma_m1n1k1"):
        getattr(ptx, "mma_m1n1k1")  # noqa: B009
    with pytest.raises(ImportError):
        from numba_marlin.ptx import mma_m1n1k1  # noqa: F401


def call_of(name):
    """The lines of a plain kernel that call the instruction and store what it gives."""
    instruction = INSTRUCTIONS[name].resolved(**values_of(name))
    one = {"u16": "number", "u32": "number", "i32": "number", "u64": "address", "f32": "1.5"}
    operands = [
        one[o.type] if o.width == 1 else f"({', '.join([one[o.type]] * o.width)})"
        for o in instruction.inputs
    ] + [f"{immediate}={value}" for immediate, value in values_of(name).items()]
    call = f"ptx.{name}({', '.join(operands)})"
    if not instruction.outputs:
        return f"    {call}\n"
    (output,) = instruction.outputs
    result = "result" if output.width == 1 else "result[0]"
    if output.type == "f32":
        return f"    result = {call}\n    ptx.st_global_v2_f32(address, ({result}, {result}))\n"
    return f"    result = {call}\n    ptx.st_global_b32(address, {result})\n"


@pytest.mark.parametrize("target", TARGETS)
def test_plain_kernels_call_all_that_a_target_has(target, compiler):
    """Each once, with its immediates in the call; those of an earlier target are not repeated."""
    names = [name for name in INSTRUCTIONS if target_of(name) == target]
    scope = {"ptx": ptx}
    exec("def kernel(address, number):\n" + "".join(map(call_of, names)), scope)
    text = to_ptx(compiler, scope["kernel"], target)
    found = [statement(block) for block in text.split("begin inline asm")[1:]]
    for name in names:
        assert statement("\n" + INSTRUCTIONS[name].assembly(**values_of(name))[0]) in found, name


def statement(block):
    """The first instruction of an inline assembly block, operands blanked."""
    line = block.split("\n", 1)[1].split("// end")[0]
    return re.sub(r"\$\d+|%\w+", "_", " ".join(line.split()))


def test_immediates_are_filled_in_outside_or_given_inside(compiler):
    def kernel(address, number):
        wait_for_all_but_two()
        ptx.cp_async_wait_group(n=GROUPS)
        ptx.cp_async_wait_group(n=4)

    found = re.findall(r"cp\.async\.wait_group (\d+);", to_ptx(compiler, kernel))
    assert found == ["2", "3", "4"]


def test_an_immediate_that_is_a_variable_is_refused_by_name(compiler):
    def kernel(address, number):
        ptx.cp_async_wait_group(n=number)

    with pytest.raises(Exception, match=r"ptx\.cp_async_wait_group: the immediate n must be a lit"):
        to_ptx(compiler, kernel)


def test_an_operand_that_does_not_fit_is_refused_by_name(compiler):
    def kernel(address, number):
        ptx.st_global_b32(address, 1.5)

    with pytest.raises(Exception, match="operand 'value' is u32, got float"):
        to_ptx(compiler, kernel)


def test_immediates_that_cannot_be_are_refused_outside():
    with pytest.raises(TypeError, match="takes the immediates"):
        ptx.cp_async_wait_group(groups=2)
    with pytest.raises(TypeError, match="must be an int"):
        ptx.cp_async_wait_group(n=2.0)
    with pytest.raises(TypeError, match="only in a kernel"):
        ptx.ldmatrix_x4(0)


def test_addresses_are_those_of_the_places(compiler):
    """The byte distance of two places, and the window that each lies in."""
    cuda = cuda_of(compiler)

    def kernel(address, number):
        tile = cuda.shared.array((4, 6, 8), np.int16, alignment=16)
        line = cuda.shared.array(32, np.float32)
        tile[0, 0, 0] = line[number] = number
        ptx.st_global_b32(address, ptx.cvta_to_shared(tile, (2, 3, 1)))
        ptx.st_global_b32(address + 4, ptx.cvta_to_shared(tile, (0, 0, 0)))
        ptx.st_global_b32(address + 8, ptx.cvta_to_shared(line, 5))
        ptx.st_global_b32(address + 12, ptx.cvta_to_shared(line, 0))

    from numba_marlin.emulator import Machine

    machine, found = Machine(to_ptx(compiler, kernel)), np.zeros(4, np.uint32)
    address = machine.memory.buffer(found).address
    machine.run(next(iter(machine.entries)), (1,), (1,), 0, [address, 3])
    assert found[0] - found[1] == 2 * (2 * 48 + 3 * 8 + 1) and found[2] - found[3] == 4 * 5
    assert not found[1] % 16


def test_places_that_cannot_be_are_refused(compiler):
    cuda = cuda_of(compiler)

    def too_few(address, number):
        ptx.st_global_b32(address, ptx.cvta_to_shared(cuda.shared.array((4, 4), np.int16), 1))

    def no_array(address, number):
        ptx.st_global_b32(address, ptx.cvta_to_shared(number, 1))

    with pytest.raises(Exception, match="an array of 2 dimensions needs as many indices"):
        to_ptx(compiler, too_few)
    with pytest.raises(Exception, match="takes an array and an index"):
        to_ptx(compiler, no_array)


def test_help_says_what_it_takes_and_where_the_isa_has_it():
    text = pydoc.plain(pydoc.render_doc(ptx.mma_m16n8k16_f32_f16))
    for part in (
        "mma_m16n8k16_f32_f16(a, b, c)",
        "a: tuple of 4 uint32",
        "returns: tuple of 4 float32",
        "needs: sm_80",
        "https://docs.nvidia.com/cuda/parallel-thread-execution/#",
        "mma.sync.aligned",
    ):
        assert part in text, text
    assert str(inspect.signature(ptx.cp_async_wait_group)) == "(*, n: 'int') -> None"
    assert all(getattr(ptx, name).__doc__.startswith(name) for name in dir(ptx))


def test_an_instruction_survives_pickling():
    for each in (ptx.ldmatrix_x4, wait_for_all_but_two, ptx.cvta_to_shared):
        assert pickle.loads(pickle.dumps(each)) is each


def test_importing_it_loads_no_compiler():
    program = (
        "import sys\nfrom numba_marlin import ptx\nptx.ldmatrix_x4, dir(ptx),"
        " ptx.cp_async_wait_group(n=1)\nprint({'numba', 'numba_cuda_mlir', 'llvmlite', 'cuda'} &"
        " set(sys.modules))"
    )
    # -S: installed packages may load a compiler whenever Python starts
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys\nsys.path[:] = {sys.path}\n{program}"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
