"""Contract under test: the registers live at an instruction are those that some path still reads;
classes and operations cover the machine's opcodes."""

import numpy as np

from numba_marlin import counts
from numba_marlin.counts.instructions import class_of, flops_of
from numba_marlin.counts.liveness import live_words
from numba_marlin.counts.phases import plain_name
from numba_marlin.emulator import Machine
from numba_marlin.emulator.instructions import HANDLERS
from numba_marlin.emulator.text.program import Instruction
from tests.emulator.ptx_cases import HEADER, frame, launch


def live(body, parameters=""):
    machine = Machine(
        f"{HEADER}.visible .entry k({parameters})\n{{\n.reg .pred %p<4>;\n.reg .b16 %h<4>;\n.reg"
        f" .b32 %r<9>;\n.reg .b64 %d<4>;\n{body}\nret;\n}}\n"
    )
    return live_words(machine.kernel("k"))


def test_a_register_lives_from_its_write_to_its_last_read():
    assert live(
        "mov.u32 %r1, 1;\nmov.u32 %r2, 2;\nadd.u32 %r3, %r1, %r2;\nadd.u32 %r4, %r3,"
        " %r3;\nst.global.u32 [%r4], %r4;"
    ) == [1, 2, 2, 1, 1, 0]


def test_widths_count_words_and_predicates_none():
    assert live(
        "mov.u64 %d1, 1;\nmov.u16 %h1, 1;\nsetp.eq.u64 %p1, %d1, 0;\n@%p1 st.global.u16 [%d1], %h1;"
    ) == [2, 3, 3, 3, 0]


def test_loops_keep_alive_what_the_next_round_reads():
    """%r1 is read at the head of every round; %r2 is new in each."""
    assert live(
        "mov.u32 %r1, 8;\nLOOP:\nadd.u32 %r2, %r1, 1;\nsub.u32 %r3, %r2, 2;\nsetp.ne.u32 %p1, %r3,"
        " 0;\n@%p1 bra LOOP;"
    ) == [1, 2, 2, 2, 1, 0]


def test_what_only_one_side_reads_lives_before_the_branch():
    assert live(
        "mov.u32 %r1, 1;\nmov.u32 %r2, 2;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra OUT;\nst.global.u32"
        " [%r2], %r2;\nOUT:\nmov.u32 %r3, 0;"
    )[2:5] == [2, 1, 1]


def test_a_guarded_write_keeps_the_old_value_alive():
    guarded, plain = (
        live(
            f"mov.u32 %r1, 1;\nmov.u32 %r2, 2;\nsetp.eq.u32 %p1, %r2, 0;\n{guard} mov.u32 %r1,"
            " %r2;\nst.global.u32 [%r1], %r1;"
        )
        for guard in ("@%p1", "")
    )
    assert guarded[1] == 2 and plain[1] == 1


def test_every_opcode_has_a_class_and_memory_is_told_apart():
    for root in HANDLERS:
        assert class_of(Instruction(0, 1, root, root, root, ("u32",), ()))
    spaces = {
        "ld.shared.u32": "shared",
        "ld.global.nc.u32": "global",
        "st.local.u32": "local",
        "ld.param.u64": "parameter",
        "ld.u32": "global",
        "div.u32": "integer",
        "div.rn.f32": "special",
        "fma.rn.f16x2": "fp16",
        "fma.rn.f64": "fp64",
        "add.f32": "fp32",
        "mbarrier.init.b64": "sync",
    }
    for opcode, expected in spaces.items():
        root = next(opcode[:i] for i in range(len(opcode), 0, -1) if opcode[:i] in HANDLERS)
        assert (
            class_of(
                Instruction(
                    0, 1, opcode, opcode, root, tuple(opcode[len(root) :].strip(".").split(".")), ()
                )
            )
            == expected
        ), opcode


def test_tensor_operations_are_counted_by_shape():
    registers = [
        "{" + ", ".join(f"%{kind}{i}" for i in range(count)) + "}"
        for kind, count in (("f", 4), ("r", 4), ("r", 2), ("f", 4))
    ]
    body = (
        "".join(f"mov.b32 %r{i}, 0;\nmov.b32 %f{i}, 0f00000000;\n" for i in range(4))
        + f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {', '.join(registers)};"
    )
    machine = Machine(frame(body, 0))
    _, counted = counts.count(machine, "k", grid=3, block=64)
    assert (
        counted.total.tally.flops == 6 * 2 * 16 * 8 * 16
        and counted.total.tally.classes["tensor"] == 6
    )
    wgmma = Instruction(
        0,
        1,
        "",
        "wgmma.mma_async",
        "wgmma.mma_async",
        ("sync", "aligned", "m64n128k16", "f32", "f16", "f16"),
        (),
    )
    assert 4 * flops_of(wgmma) == 2 * 64 * 128 * 16


def test_spills_are_seen():
    machine = Machine(
        frame(
            ".local .align 4 .b8 stack[8];\nmov.u64 %rd1, stack;\nst.local.u32 [%rd1],"
            " %t;\nld.local.u32 %r1, [%rd1];",
            0,
        )
    )
    assert counts.count(machine, "k", block=64)[1].total.tally.local_bytes == 2 * 64 * 4


def test_names_are_demangled():
    assert plain_name("_ZN12numba_marlin7kernels6ampere9own_placeB3v32B8cw51cXTLE") == "own_place"
    assert (
        plain_name("_Z6reducePfS_i") == "reduce"
        and plain_name("_ZN2cg4syncEv") == "sync"
        and plain_name("kernel_1") == "kernel_1"
    )


def test_without_line_numbers_there_is_one_phase():
    launched = Machine(frame("st.global.u32 [%p0], %t;", 1))
    address = launched.memory.buffer(np.zeros(1, np.uint32), "x").address
    counted = counts.count(launched, "k", args=[address])[1]
    assert [phase.name for phase in counted.phases] == ["k"] and counted.instructions[
        0
    ].source is None
    assert launch("st.global.u32 [%p0], %t;", {"x": np.zeros(1, np.uint32)}).executed == (
        1,
        1,
        1,
        1,
    )


def test_lines_are_phases_where_no_function_has_a_name():
    text = (
        frame(".loc 1 7 3\nmov.u32 %r1, 1;\n.loc 1 9 3\nst.global.u32 [%p0], %r1;\n.loc 1 0 0", 1)
        + '.file 1 "a/kernel.cu"\n'
    )
    machine = Machine(text)
    address = machine.memory.buffer(np.zeros(1, np.uint32), "x").address
    counted = counts.count(machine, "k", args=[address])[1]
    assert [(phase.name, phase.tally.executed) for phase in counted.phases] == [
        ("k", 3),
        ("a/kernel.cu:7", 1),
        ("a/kernel.cu:9", 1),
    ]
