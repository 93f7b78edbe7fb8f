"""Contract under test: texts made to take time or memory are refused, or read, in time that grows
as they do, with an error that names a line."""

import resource
import time

import pytest

from numba_marlin.emulator import LimitExceeded, Machine, MachineError
from tests.emulator.ptx_cases import HEADER, frame

MANY = 20_000
LONG = 200_000
DEBUG = HEADER + ".section .debug_str { "
SECONDS, GIB = 15, 1  # 0.1 to 4 s where nothing else runs


def many(template, count=MANY):
    return "".join(template.format(i=i, j=i + 1) for i in range(count))


TEXTS = {
    "comments without end": lambda: HEADER + "/*" * LONG,
    "a comment without end in a kernel": lambda: frame("/*" + " " * LONG, 0),
    "strings without end": lambda: HEADER + '"' * LONG,
    "braces": lambda: HEADER + "{" * LONG,
    "braces in a kernel": lambda: frame("{" * LONG, 0),
    "closing braces": lambda: frame("}" * LONG, 0),
    "brackets": lambda: frame("mov.u32 %r0, " + "[" * LONG + ";", 0),
    "vectors": lambda: frame("mov.u32 %r0, " + "{" * 500 + ";", 0),
    "parentheses": lambda: frame("mov.u32 %r0, " + "(" * LONG + ";", 0),
    "signs": lambda: frame("mov.u32 %r0, " + "-" * LONG + "1;", 0),
    "questions": lambda: frame("mov.u32 %r0, " + "1?" * LONG + "1;", 0),
    "a sum": lambda: frame("mov.u32 %r0, " + "1+" * LONG + "1;", 0),
    "no semicolon": lambda: frame("mov.u32 %r0, %r1\n" * MANY, 0),
    "spaces": lambda: HEADER + " " * LONG + "?",
    "spaces behind a guard": lambda: frame("@" + " " * LONG, 0),
    "spaces behind a call": lambda: frame("call f;", 0, ".func f() { call" + " " * LONG + "; }"),
    "a long name": lambda: frame("mov.u32 %r0, " + "x" * LONG + ";", 0),
    "a long number": lambda: frame("mov.u32 %r0, " + "7" * LONG + ";", 0),
    "a long octal number": lambda: frame("mov.u32 %r0, 0" + "7" * LONG + ";", 0),
    "a long register": lambda: frame("mov.u32 %r0, %r1" + "0" * LONG + ";", 0),
    "a long vector register": lambda: frame("mov.u32 %r0, v" + ".x" * LONG + ";", 0),
    "a long opcode": lambda: frame("add" + ".u32" * LONG + " %r0, %r1, %r2;", 0),
    "an opcode of nothing": lambda: frame("." * LONG, 0),
    "a long string of debug information": lambda: DEBUG + "x" * LONG + " }",
    "labels of debug information": lambda: DEBUG + many("L{i}: ") + "}",
    "a number of debug information": lambda: DEBUG + "L: .b8 " + "9" * LONG + " }",
    "directives before a body": lambda: HEADER + ".entry k() " + ".what " * LONG,
    "parameters": lambda: (
        HEADER + ".entry k(" + many(".param .u8 p{i}, ") + ".param .u8 p) { ret; }"
    ),
    "kernels": lambda: HEADER + many(".entry k{i}() {{ ret; }}\n"),
    "one variable again and again": lambda: HEADER + many(".global .u32 x;\n"),
    "one variable of a kernel": lambda: frame(many("{{ .local .u32 x; }}\n"), 0),
    "one label": lambda: frame(many("{{ L: bra L; }}\n"), 0),
    "functions": lambda: frame("call f0;", 0, many(".func f{i}() {{ ret; }}\n")),
    "functions that call through registers": lambda: frame(
        "call f0;", 0, many(".func f{i}() {{ .reg .b64 %d; P: .callprototype _ (); ret; }}\n")
    ),
    "functions by address": lambda: frame(
        many("P{i}: .callprototype _ (.param .b32 _);\ncall %rd0, (1), P{i};\n", 2000),
        0,
        many(".func f{i}() {{ ret; }}\n", 2000),
    ),
    "functions that call all others": lambda: frame(
        "call f0;",
        0,
        many(".func f{i}() {{ .reg .b64 %d; P: .callprototype _ (); call %d, P; ret; }}\n", 2000),
    ),
    "a circle of functions": lambda: frame(
        "call f0;",
        0,
        many(".func f{i}() {{ call f{j}; ret; }}\n") + f".func f{MANY}() {{ call f0; }}",
    ),
    "a long list for each of many calls": lambda: frame(
        "call f, (" + "%r0, " * 5000 + ");", 0, ".func f() { ret; }"
    ),
    "numbers": lambda: HEADER + ".global .u8 x[] = {" + "1," * LONG + "1};",
    "numbers that are none": lambda: HEADER + ".global .u8 x[] = {" + "1," * LONG + "z};",
    "lists in lists": lambda: HEADER + ".global .u8 x[] = " + "{" * LONG,
    "addresses": lambda: HEADER + ".global .u32 y; .global .u64 x[] = {" + "y," * MANY + "y};",
    "a table of branches": lambda: frame("T: .branchtargets " + "A," * LONG + "A; A:\n", 0),
    "many scopes": lambda: frame("{ " * 900 + "add.u32 %r0, %r1, %r2; " * 2000 + "}" * 900, 0),
    "lines of nothing": lambda: frame("\n" * LONG, 0),
    "semicolons": lambda: frame(";" * LONG, 0),
    "locations": lambda: frame(".loc 1 2 3\n" * MANY, 0),
    "debug lines": lambda: frame("@@\n" * MANY, 0),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEXTS)
def test_time_and_memory_are_bounded(name):
    text = TEXTS[name]()
    start = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        machine = Machine(text)
        for entry in machine.entries:
            machine.kernel(entry)
    except MachineError as error:
        assert error.line is not None and f"PTX line {error.line}" in str(error)
        assert len(str(error)) < 1500
    assert time.process_time() - start < SECONDS
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < GIB << 20  # ru_maxrss is in KiB


@pytest.mark.parametrize(
    "body, before",
    [
        (".reg .b32 %x<1000000000000>; .local .b8 y[1099511627776]; mov.u64 %rd0, y;", ""),
        (".local .align 1099511627776 .b8 y[8]; mov.u64 %rd0, y;", ""),
        (".global .b8 y[1099511627776];", ""),
        (".const .b64 y[1<<50];", ""),
        ("{ .param .b8 y[1099511627776]; call f, (y); }", ".func f(.param .b8 z[8]) { ret; }"),
        ("call f;", ".func f() { .local .b8 y[1099511627776]; call f; ret; }"),
        ("mov.u64 %rd0, x;", ".local .b8 x[1099511627776];"),
    ],
)
def test_terabytes(body, before):
    with pytest.raises(LimitExceeded):
        Machine(frame(body, 0, before)).run()
