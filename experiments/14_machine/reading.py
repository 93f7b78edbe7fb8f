"""How fast does the PTX machine read a text? Target: 50,000 lines a second on every file.

Texts: one generated kernel of straight code; the ladder's kernels as they ship, and with line
information; 60 kernels of many.cu by NVRTC, which call functions, and a debug build of a few. A
time is that of reading the module and the body of every kernel in it, blocks and places where
branches meet included: the best of ``--repeats``, of process time. ``opened`` is what a machine
takes that reads no body, ``bound`` what a launch takes before its first instruction, of one kernel.
Appends one object per text to reading.jsonl and rewrites the table in README.md.

    python experiments/14_machine/reading.py [--repeats 5] [--no-record]
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from numba_marlin.emulator import Machine, MachineError
from numba_marlin.emulator.instructions import root_of
from numba_marlin.emulator.text.parser import parse
from numba_marlin.testing.trials import SMALLS

BEGIN, END = "<!-- reading: begin -->", "<!-- reading: end -->"
KERNELS = 60


def straight(count: int) -> str:
    """``count`` times three instructions, and a branch every twenty."""
    lines = [".version 8.0", ".target sm_80", ".address_size 64", ".entry k(.param .u64 p)", "{"]
    lines += [f".reg .b32 %r<{count + 1}>;", f".reg .f32 %f<{count + 1}>;", ".reg .pred %p<2>;"]
    lines += [".reg .b64 %rd<2>;", "\tld.param.u64 \t%rd1, [p];", "\tmov.u32 \t%r0, 0;"]
    lines += ["\tmov.f32 \t%f0, 0f00000000;"]
    for i in range(count):
        lines += [
            f"\tadd.s32 \t%r{i + 1}, %r{i}, {i};",
            f"\tfma.rn.f32 \t%f{i + 1}, %f{i}, %f{i}, 0f3F800000;",
            f"\tld.global.u32 \t%r{i + 1}, [%rd1+{4 * i}];",
        ]
        if not i % 20:
            lines += [f"\tsetp.lt.s32 \t%p1, %r{i}, 5;", f"\t@%p1 bra \tL{i};", f"L{i}:"]
    return "\n".join([*lines, "\tret;", "}"]) + "\n"


def compiled(source: str, *options: str) -> str:
    """PTX of CUDA C++ by NVRTC, which needs no GPU and no driver."""
    from cuda.bindings import nvrtc

    def checked(status, *values):
        if int(status):
            raise SystemExit(f"NVRTC: {status}")
        return values[0] if values else None

    given = [each.encode() for each in ("--gpu-architecture=sm_80", *options)]
    program = checked(*nvrtc.nvrtcCreateProgram(source.encode(), b"many.cu", 0, [], []))
    checked(*nvrtc.nvrtcCompileProgram(program, len(given), given))
    text = b" " * checked(*nvrtc.nvrtcGetPTXSize(program))
    checked(*nvrtc.nvrtcGetPTX(program, text))
    return text.rstrip(b"\0 ").decode()


def texts() -> dict[str, str]:
    source = (HERE / "many.cu").read_text(encoding="utf-8")
    few = "template __global__ void kernel<2>(const float*, float*);\n"
    many = "".join(few.replace("2", str(number)) for number in range(1, KERNELS + 1))
    return {
        "generated": straight(16_000),
        **{name: SMALLS[name].problem[0]().compiled.ptx for name in ("ampere", "wgmma")},
        f"NVRTC, {KERNELS} kernels": compiled(source + many),
        "NVRTC, -lineinfo": compiled(source + few, "-lineinfo"),
        "NVRTC, -G": compiled(source + few, "-G"),
    }


def best(repeats: int, work) -> float:
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def read(text: str) -> list:
    return list(parse(text, root_of).kernels.values())


def bind(machine: Machine, name: str) -> None:
    kernel = machine.kernel(name)
    args = [bytes(each.size) for each in kernel.parameters]
    try:
        machine.run(name, block=kernel.max_threads or 32, args=args, max_instructions=1)
    except MachineError:  # its arguments are null pointers
        pass


def measure(name: str, text: str, repeats: int) -> dict:
    kernels = read(text)
    machine, first = Machine(text), kernels[0].name
    seconds = best(repeats, lambda: read(text))
    lines = text.count("\n")
    return {
        "text": name,
        "lines": lines,
        "kib": len(text) >> 10,
        "kernels": len(kernels),
        "instructions": sum(len(each.instructions) for each in kernels),
        "seconds": round(seconds, 4),
        "lines_a_second": round(lines / seconds),
        "opened": round(best(repeats, lambda: parse(text, root_of)), 4),
        "bound": round(best(repeats, lambda: bind(machine, first)), 4),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(
            ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
        ).stdout.strip(),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    rows = [measure(name, text, args.repeats) for name, text in texts().items()]
    lines = [
        "| text | lines | KiB | kernels | instructions | seconds | lines a second | opened |"
        " bound |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r['text']} | {r['lines']:,} | {r['kib']:,} | {r['kernels']} |"
            f" {r['instructions']:,} | {r['seconds']:.3f} | {r['lines_a_second']:,} |"
            f" {r['opened']:.3f} | {r['bound']:.3f} |"
            for r in rows
        ),
    ]
    print("\n".join(lines))
    if args.no_record:
        return
    with open(HERE / "reading.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    readme, first = HERE / "README.md", rows[0]
    text = readme.read_text(encoding="utf-8")
    origin = (
        f"Measured {first['date']} at {first['commit']}: Python {first['python']},"
        f" {len(os.sched_getaffinity(0))} cores, load {first['load']}; best of {args.repeats}."
    )
    readme.write_text(
        text.split(BEGIN)[0] + "\n".join([BEGIN, origin, "", *lines, END]) + text.split(END)[1],
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
