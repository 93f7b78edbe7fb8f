"""Texts made to take time or memory: TEXTS, which need only be read, and RUNS, of kernels without
parameters that ask for more than there is once they run. ``test_hostile_texts`` bounds the time and
memory of each, docs/programs.md says what the machine says.
"""

from typing import Any

from tests.emulator.ptx_cases import HEADER, frame

MANY = 20_000
LONG = 200_000
DEBUG = HEADER + ".section .debug_str { "


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

# name: (body, before the kernel, launch)
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a loop without end": ("L: add.u32 %r0, %r0, 1; bra L;", "", {"max_instructions": 10_000}),
    "a wait for what never comes": (
        """.shared .align 8 .b64 b; mov.u32 %r2, b; mbarrier.init.shared.b64 [%r2], 2;
        W: mbarrier.try_wait.parity.shared.b64 %q1, [%r2], 0; @!%q1 bra W;""",
        "",
        {"block": 1},
    ),
    "recursion without end": (
        "call f;",
        ".func f() { .local .b8 y[64]; .reg .b64 %d; mov.u64 %d, y; call f; ret; }",
        {},
    ),
    "a frame of terabytes": (
        "call f;",
        ".func f() { .local .b8 y[1099511627776]; call f; ret; }",
        {},
    ),
    "functions that call the next one twice": (
        "call f29;",
        "".join(
            f".func f{level}() {{ {f'call f{level - 1}; ' * 2 if level else 'trap;'} ret; }}\n"
            for level in range(30)
        ),
        {},
    ),
    "terabytes of registers and local memory": (
        ".reg .b32 %x<1000000000000>; .local .b8 y[1099511627776]; mov.u64 %rd0, y;",
        "",
        {},
    ),
    "an alignment of terabytes": (".local .align 1099511627776 .b8 y[8]; mov.u64 %rd0, y;", "", {}),
    "terabytes of global memory": (".global .b8 y[1099511627776];", "", {}),
    "terabytes of constants": (".const .b64 y[1<<50];", "", {}),
    "an argument of terabytes": (
        "{ .param .b8 y[1099511627776]; call f, (y); }",
        ".func f(.param .b8 z[8]) { ret; }",
        {},
    ),
    "terabytes of local memory of the module": (
        "mov.u64 %rd0, x;",
        ".local .b8 x[1099511627776];",
        {},
    ),
    "a grid of a billion threads": ("", "", {"block": 1024, "grid": 1 << 20}),
    "as many blocks as a grid may have": ("", "", {"grid": (1 << 31) - 1}),
}
