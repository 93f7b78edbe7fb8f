"""``numba-marlin machine``: runs PTX from any source (nvcc, NVRTC, Triton, a text editor) on the
PTX machine. ``entries`` lists its kernels, ``run`` runs one.

Exit codes: 1 for a hazard (a race with a copy, an uninitialised read, an address out of bounds
...), 2 for text that is not PTX, 3 for an instruction that the machine does not implement.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from numba_marlin.wording import printable

SYNTAX = """  i32:5  u64:0x10  f32:1.5  f16:2     a number of that type (i, u: 8 to 64 bits)
  null                                 a null pointer
  hex:00ff10...                        bytes, for a structure by value
  out:f32[1024]  out:f32[64x32]        pointer to an array of zeros, printed afterwards
  in:x.npy                             pointer to the file's array, read-only
  inout:x.npy                          pointer to a copy of it, printed afterwards
  in:i32[100]  inout:f16[8x8]          the same, random (--seed): floats normal,
                                       integers below 100
  out:f32[64]:y.npy  inout:x.npy:y.npy save the result in y.npy
  tensormap:in:f16[128x64],64x64,128   a tensor map of an array: box, swizzle in bytes
  name=...                             before any of them: what messages call it"""
HELP = "run any PTX on the CPU, in the PTX emulator; no GPU needed"
RANDOM = "the random arrays of --args"
EXAMPLES = f"""  nvcc -ptx -arch=sm_80 sum.cu
  numba-marlin machine entries sum.ptx
  numba-marlin machine run sum.ptx --entry sum --grid 4 --block 128 \\
      --args in:f32[1000] out:f32[1] i32:1000
  numba-marlin machine run gemm.ptx --grid 2,2 --block 128 --shared 16384 \\
      --args a=in:a.npy b=in:b.npy c=out:f32[64x64]:c.npy i32:64 --counts

arguments:
{SYNTAX}"""
SHOWN = 8  # values of an output that are printed
LISTED = 4096  # values of an output that JSON holds
LOOKED_FOR = (
    "accesses out of bounds, misaligned or to what is read-only",
    "reads of shared and local memory, and uses of registers, that nothing has written",
    "copies and products that are not waited for, missing fences between proxies",
    "barriers used wrongly, lanes that miss a collective, masks that disagree, deadlocks",
    "indices that leave their array, addresses of another thread's local memory",
)
LEFT_OUT = (
    "other orders of warps and copies (--schedule has one for each seed)",
    "reads of global memory that nothing has written",
    "lanes of one warp that write to one place in one instruction (--checks style)",
)


def add_arguments(parser) -> None:
    parser.add_argument(
        "action", choices=("run", "entries"), help="run a kernel, or list the kernels"
    )
    parser.add_argument("file", metavar="FILE.ptx", help="PTX text")
    parser.add_argument("--entry", metavar="NAME", help="the kernel (default: the only one)")
    parser.add_argument("--grid", default="1", metavar="X[,Y,Z]", help="blocks (default 1)")
    parser.add_argument(
        "--block", default="32", metavar="X[,Y,Z]", help="threads per block (default 32)"
    )
    parser.add_argument(
        "--cluster", metavar="X[,Y,Z]", help="blocks per cluster (default: as the kernel declares)"
    )
    parser.add_argument(
        "--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory (default 0)"
    )
    parser.add_argument(
        "--args", nargs="*", default=[], metavar="ARG", help="one per parameter, see below"
    )
    parser.add_argument(
        "--budget",
        type=int,
        metavar="N",
        help="warp instructions after which a run is given up (default 100 million)",
    )
    parser.add_argument(
        "--stack",
        type=int,
        metavar="BYTES",
        help="local memory of a thread for functions that call themselves (default 8192)",
    )
    parser.add_argument("--resident", type=int, metavar="N", help="resident blocks (default all)")
    parser.add_argument(
        "--schedule",
        type=int,
        metavar="S",
        help="a random order of warps and copies, drawn from this seed (default: a fixed one)",
    )
    parser.add_argument(
        "--races",
        action=argparse.BooleanOptionalAction,
        help="look for accesses that nothing orders (default: where the records of a run stay"
        " small); a run takes up to twice as long",
    )
    parser.add_argument(
        "--checks",
        metavar="LEVEL[,NAME=error|warn|off ...]",
        help="what to do about checks (docs/checks.md): strict (default), hardware (what is"
        " undefined but works on chips is a warning), style; then exceptions by name",
    )
    parser.add_argument(
        "--counts",
        action="store_true",
        help="count sectors, bank conflicts, copies, operations, registers",
    )


def execute(args, report) -> bool:
    from numba_marlin.emulator import Machine
    from numba_marlin.emulator.checks import DEFAULT

    if args.action == "entries":
        _check_only_listed(args)
    try:
        text = Path(args.file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{args.file}: must be PTX, which is text ({error})") from error
    machine = Machine(text, races=args.races, checks=args.checks or DEFAULT)
    if args.action == "entries":
        entries(machine, report)
    else:
        run(machine, args, report)
    return True


def _check_only_listed(args) -> None:
    of_run = "entry cluster shared args budget stack resident schedule races checks".split()
    given = [name for name in of_run if getattr(args, name) not in (None, 0, [])]
    if given:
        raise ValueError(f"--{given[0]} is for `machine run`: entries only lists the kernels")


def entries(machine, report) -> None:
    """One row a kernel; one that cannot be read says why."""
    from numba_marlin.emulator import LimitExceeded, PtxSyntaxError, UnknownInstruction

    found: list[dict] = []
    for name in machine.entries:
        try:
            kernel = machine.kernel(name)
        except (PtxSyntaxError, UnknownInstruction, LimitExceeded) as error:
            found.append({"entry": name, "error": str(error)})
            report.row(name, f"cannot be read: {error}")
            continue
        parameters = [
            {"name": each.name, "type": each.type, "bytes": each.size} for each in kernel.parameters
        ]
        shared = sum(variable.size for variable in kernel.variables if variable.space == "shared")
        found.append(
            {
                "entry": name,
                "parameters": parameters,
                "max_threads": kernel.max_threads,
                "shared_bytes": shared,
                "instructions": len(kernel.instructions),
            }
        )
        takes = ", ".join(f".{each.type} of {each.size} bytes" for each in kernel.parameters)
        report.row(name, f"{len(kernel.instructions)} instructions; parameters {takes or 'none'}")
    if not found:
        report.text("no kernel (.entry) in this file")
    report.data = {"entries": found}


def run(machine, args, report) -> None:
    import numpy as np

    from numba_marlin.cli import machine_arguments
    from numba_marlin.cli.progress import machine_bar
    from numba_marlin.cli.report import write_atomically

    random = np.random.default_rng(args.seed)
    kernel = machine.kernel(args.entry)
    arguments = [
        machine_arguments.parse(text, number, random) for number, text in enumerate(args.args)
    ]
    machine_arguments.check_files(arguments)
    values = [given(machine, parameter, each) for parameter, each in fitting(kernel, arguments)]
    launch = dict(
        grid=three("grid", args.grid),
        block=three("block", args.block),
        shared_bytes=args.shared,
        args=values,
        resident_blocks=args.resident,
        seed=args.schedule,
        cluster=None if args.cluster is None else three("cluster", args.cluster),
    )
    if args.stack is not None:
        launch["stack_bytes"] = args.stack
    if args.budget is not None:
        launch["max_instructions"] = args.budget
    counted = None
    with machine_bar(f"running {kernel.name} on the PTX machine"):
        if args.counts:
            from numba_marlin.counts import count

            result, counted = count(machine, kernel.name, **launch)
        else:
            result = machine.run(kernel.name, **launch)
    report.row(
        "ran",
        f"{kernel.name}: {result.blocks} block(s), {result.instructions} warp instructions,"
        f" {result.shared_bytes} bytes of shared memory per block;"
        f" {len(result.warnings) or 'no'} hazard{'s'[: len(result.warnings) > 1]} of those looked"
        " for",
    )
    if result.printed and not args.json:
        print(printable(result.printed))
    looked_for, left_out = checks(result.unraced, args.races)
    for warning in result.warnings:
        report.row("warning", f"{warning.check}: {warning}")
    report.row("looked for", "; ".join(looked_for))
    report.row("left out", "; ".join(left_out))
    report.data = {
        "entry": kernel.name,
        "grid": launch["grid"],
        "block": launch["block"],
        "blocks": result.blocks,
        "instructions": result.instructions,
        "opcodes": dict(result.opcodes),
        "shared_bytes": result.shared_bytes,
        "printed": result.printed,
        "looked_for": looked_for,
        "left_out": left_out,
        "warnings": [
            {"check": each.check, "kind": each.kind, "line": each.line, "message": str(each)}
            for each in result.warnings
        ],
        "outputs": [],
    }
    for each in arguments:
        if each.written:
            report.data["outputs"].append(output(each, report))
            if each.save is not None:
                write_atomically(each.save, lambda file, array=each.array: np.save(file, array))
                report.row("wrote", str(each.save))
    if counted is not None:
        report.data["counts"] = counted.as_dict()
        if not args.json:
            print(f"\n{printable(str(counted))}")


def checks(unraced: str, asked: bool | None) -> tuple[list[str], list[str]]:
    """What a run looked for, and what it did not; ``unraced``: of RunResult."""
    if not unraced:
        return ["races", *LOOKED_FOR], list(LEFT_OUT)
    races = "races (--no-races)" if asked is False else f"races: {unraced}"
    return list(LOOKED_FOR), [races, *LEFT_OUT]


def three(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ValueError(
            f"--{name} {text} must be one to three numbers with commas between them"
        ) from None


def fitting(kernel, arguments):
    """Return (parameter, argument) pairs. Raises ValueError unless their numbers and sizes
    agree."""
    wanted = ", ".join(f".{each.type} of {each.size} bytes" for each in kernel.parameters) or "none"
    if len(arguments) != len(kernel.parameters):
        raise ValueError(
            f"--args has {len(arguments)} arguments, {kernel.name} takes {len(kernel.parameters)}:"
            f" {wanted}"
        )
    for number, (parameter, argument) in enumerate(zip(kernel.parameters, arguments)):
        size = (
            len(argument.data) if argument.data is not None else 8 if argument.box is None else 128
        )
        if size != parameter.size:
            raise ValueError(
                f"argument {number} is {size} bytes, parameter {parameter.name} takes"
                f" {parameter.size}; the parameters are {wanted}"
            )
        yield parameter, argument


def given(machine, parameter, argument) -> bytes:
    """Return the bytes that the kernel gets for ``parameter``; arrays are mapped."""
    if argument.data is not None:
        return argument.data
    address = machine.memory.buffer(
        argument.array, argument.name, readonly=not argument.written
    ).address
    if argument.box is None:
        return address.to_bytes(parameter.size, "little")
    from numba_marlin.layout.tensor_map import TensorMap

    array = argument.array
    return TensorMap(
        str(array.dtype), array.shape, array.strides, argument.box, argument.swizzle
    ).encode(address)


def output(argument, report) -> dict:
    """Return one output as plain data, and report a row for people."""
    array = argument.array
    shape = "x".join(map(str, array.shape))
    data = {"name": argument.name, "dtype": str(array.dtype), "shape": list(array.shape)}
    # numbers of a kind that JSON has not
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        report.row(argument.name, f"{array.dtype} {shape}")
        return data
    flat = array.reshape(-1)
    first = ", ".join(f"{value:.6g}" for value in flat[:SHOWN].tolist()) + (
        ", ..." if flat.size > SHOWN else ""
    )
    summary = (
        f"; from {flat.min():.6g} to {flat.max():.6g}, mean {flat.mean():.6g}"
        if flat.size > SHOWN
        else ""
    )
    report.row(argument.name, f"{array.dtype} {shape}: {first}{summary}")
    if flat.size <= LISTED:
        data["values"] = array.tolist()
    return data | ({"min": float(flat.min()), "max": float(flat.max())} if flat.size else {})
