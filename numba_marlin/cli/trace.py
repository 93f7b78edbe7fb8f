"""``numba-marlin trace``: one product, run on the PTX machine and recorded, and walked through
phase by phase. Needs no GPU.

Every figure is read from the record: registers, addresses, order. The record can be saved, opened
again (with other choices: no need to run anew) and compared.
"""

from __future__ import annotations

from pathlib import Path

from numba_marlin.cli.kernels import (
    Names,
    device_for,
    multiplies_operands,
    shown_first,
    shown_for,
)

HELP = (
    "walk through a kernel's run step by step: launch, copies, unpacking, fragments, sums, pipeline"
)
EXAMPLES = """  numba-marlin trace                      the faithful kernel, a small problem
  numba-marlin trace --html walk.html     the same as a page; arrow keys step
  numba-marlin trace --phase unpack --warp 2 --lane 5
  numba-marlin trace --m 8 --n 512 --k 1024 --kernel decode --phase pipeline
  numba-marlin trace --save run.npz --perfetto run.json
  numba-marlin trace --open run.npz --phase fragments --block 1 --step 9
  numba-marlin trace --config stages=3 --compare run.npz
  numba-marlin trace --demo --kernel block_scaled --phase timeline   both NVFP4
  numba-marlin trace --demo --kernel tcgen05 --phase fragments --lane 5
  numba-marlin trace --kernel block_mma --input model-nvfp4/ --tensor mlp.up_proj"""
GROUP_SIZE = 128  # unless something else is asked for
# bits, and rows that share a scale
WEIGHTS = {
    "int4": (4, None),
    "int8": (8, None),
    "nvfp4": (4, 16),
    "mxfp4": (4, 32),
    "mxfp8-e4m3": (8, 32),
}
ALL_BLOCKS = 16  # grids of so many blocks are recorded whole
MORE = (
    "--phase NAME shows every step of a section, --html FILE all of them, --block, --warp, --lane"
    " and --step what you want to look at."
)


def add_arguments(parser) -> None:
    from numba_marlin.cli.pages import add_page_arguments

    parser.add_argument(
        "--demo",
        action="store_true",
        help=(
            "the faithful kernel (or --kernel) on the problem that it is shown on: what runs where"
            " nothing else is asked for"
        ),
    )
    parser.add_argument(
        "--m", type=int, metavar="M", help="rows of activations (default: --demo's)"
    )
    parser.add_argument(
        "--n", type=int, metavar="N", help="columns of a random weight (default: --demo's)"
    )
    parser.add_argument(
        "--k", type=int, metavar="K", help="rows of a random weight (default: --demo's)"
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        help=(
            "your own weight [k, n]: .npy or .safetensors; or a quantised checkpoint, a"
            " .safetensors file or a directory"
        ),
    )
    parser.add_argument(
        "--tensor",
        metavar="NAME",
        help="which tensor of a .safetensors file, or layer of a checkpoint",
    )
    parser.add_argument(
        "--transpose", action="store_true", help="the file holds [n, k], as torch.nn.Linear does"
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="G",
        help=(
            f"rows that share a scale; -1: all (default {GROUP_SIZE}; 16 for nvfp4, 32 for mxfp4)"
        ),
    )
    parser.add_argument(
        "--weights",
        choices=tuple(WEIGHTS),
        help=(
            "what a code is (default int4); with two block-scaled operands, of both (default"
            " nvfp4). A kernel that does not take it says so"
        ),
    )
    parser.add_argument(
        "--kernel",
        choices=Names(),
        metavar="NAME",
        help="%(choices)s (default: the faithful kernel, or the next that takes the weights)",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        metavar="NAME=VALUE",
        help="fields of the kernel's configuration, in place of what would be chosen",
    )
    parser.add_argument(
        "--sms",
        type=int,
        metavar="N",
        help=(
            "multiprocessors that the machine plays (default 4; 2 with two block-scaled operands)"
        ),
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=(
            "whose memory hierarchy is shown, from the table of `explain` (default H200, or the"
            " fastest that has the kernel's instructions)"
        ),
    )
    parser.add_argument(
        "--phase",
        metavar="NAME[,...]",
        help=(
            "only these sections: launch, phases, copies, unpack, fragments, sums, pipeline,"
            " timeline, memory, intensity"
        ),
    )
    for name, what in (
        ("block", "of the grid"),
        ("lane", "of the warp"),
        ("step", "which tensor-core instruction of the warp"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=0, metavar="I", help=f"{what} (default 0)"
        )
    parser.add_argument(
        "--warp", type=int, metavar="I", help="of the block (default: the first that multiplies)"
    )
    parser.add_argument("--save", metavar="FILE.npz", help="keep the record")
    parser.add_argument(
        "--open", metavar="FILE.npz", help="show a record that was kept, instead of running"
    )
    parser.add_argument("--compare", metavar="FILE.npz", help="show what differs from this record")
    parser.add_argument(
        "--perfetto",
        metavar="FILE.json",
        help="write a timeline for ui.perfetto.dev or chrome://tracing",
    )
    add_page_arguments(parser)


def execute(args, report) -> bool:
    from numba_marlin.cli.report import also_in_file

    return also_in_file(args.out, report, lambda: _execute(args, report))


def _execute(args, report) -> bool:
    from numba_marlin import trace as room
    from numba_marlin.cli.pages import check, check_page_arguments, show, shown_from
    from numba_marlin.cli.report import write_atomically
    from numba_marlin.trace import compare, pages, perfetto
    from numba_marlin.trace.file import as_bytes
    from numba_marlin.trace.roles import multipliers

    check_page_arguments(args)
    save, events = (
        check("--save", args.save, (".npz",)),
        check("--perfetto", args.perfetto, (".json",)),
    )
    keys = tuple(key for key in (args.phase or "").split(",") if key)
    pages.check_keys(keys)
    device_for(args.device, args.kernel)  # before any work
    if args.compare is not None and keys:
        raise ValueError("--compare shows sections of its own; leave out --phase")
    # before any work
    for name, limit in (("lane", 32), ("step", None), ("warp", None), ("block", None)):
        if getattr(args, name) is not None and (
            getattr(args, name) < 0 or limit is not None and getattr(args, name) >= limit
        ):
            raise ValueError(
                f"--{name} {getattr(args, name)} must be 0 to {limit - 1}"
                if limit
                else f"--{name} {getattr(args, name)} must not be negative"
            )
    other = None if args.compare is None else room.open_trace(args.compare)
    trace, ok = (
        (room.open_trace(args.open), True)
        if args.open is not None and not _describes(args)
        else _recorded(args, report)
    )
    with shown_from(args.open, args.compare):
        warp = next(iter(multipliers(trace, args.block)), 0) if args.warp is None else args.warp
        choice = pages.Choice(
            args.block,
            warp,
            args.lane,
            args.step,
            device_for(args.device, trace.about.get("kernel")),
        )
        report.data = {
            "kernel": trace.header["kernel"],
            "problem": trace.about.get("problem"),
            "launch": trace.header["launch"],
            "result": trace.header["result"],
            "steps": trace.steps,
        }
        if other is None:
            page = pages.page(trace, choice, keys)
        else:
            page = compare.page(
                other,
                trace,
                (Path(args.compare).stem, Path(args.open).stem if args.open else "this run"),
            )
            report.data["same"] = compare.same(other, trace)
        show(page, args, report, every_step=bool(keys) or other is not None, more=MORE)
    for target, make in (
        (save, lambda: as_bytes(trace)),
        (events, lambda: perfetto.render(trace).encode()),
    ):
        if target is not None:
            data = make()
            write_atomically(target, lambda file, data=data: file.write(data))
            report.row("wrote", f"{target}, {len(data):,} bytes")
    return ok


def _describes(args) -> list[str]:
    """Options of a problem that were given; ValueError if they contradict --demo or --open."""
    given = [
        name
        for name in (
            "m",
            "n",
            "k",
            "input",
            "tensor",
            "transpose",
            "group_size",
            "weights",
            "kernel",
            "config",
            "sms",
        )
        if getattr(args, name) not in (None, False)
    ]
    for option in ("demo", "open"):
        against = [name for name in given if (option, name) != ("demo", "kernel")]
        if getattr(args, option) and against:
            raise ValueError(
                f"--{option} says what is traced; leave out --{against[0].replace('_', '-')}"
            )
    if args.demo and args.open:
        raise ValueError("--demo and --open are two ways to say what is traced: choose one")
    return given


def _recorded(args, report):
    """(trace, whether the product is right) of the problem that the arguments describe."""
    _describes(args)
    if multiplies_operands(args.kernel):
        from numba_marlin.cli.block_trace import recorded

        return recorded(args, report)
    from dataclasses import asdict, replace

    import numpy as np

    from numba_marlin import api, compiler, reference
    from numba_marlin import trace as room
    from numba_marlin.cli.run import weight_of
    from numba_marlin.execution.binding import bind, weight_operands
    from numba_marlin.execution.machine import set_up
    from numba_marlin.execution.plan import Plan
    from numba_marlin.formats import PackedWeight
    from numba_marlin.formats.fp4_marlin import PackedBlocks
    from numba_marlin.hardware import devices
    from numba_marlin.heuristics import candidate
    from numba_marlin.kernels.registry import find_kernel, kernels
    from numba_marlin.problems import OPERANDS, WeightProblem

    shown = find_kernel(args.kernel or shown_first()).about.demo.trace
    args.m = shown[0] if args.m is None else args.m
    random = np.random.default_rng(args.seed)
    stored = stored_layer(args)
    if stored is None:
        kind = args.weights or "int4"
        bits, block_rows = WEIGHTS[kind]
        if kind == "mxfp8-e4m3":
            able = [each.name for each in kernels(OPERANDS) if "mxfp8-e4m3" in each.takes.formats]
            raise ValueError(
                f"--weights mxfp8-e4m3 is for --kernel {' or '.join(able)}: no other kernel"
                " multiplies 8-bit floats"
            )
        if block_rows is not None and args.group_size not in (None, block_rows):
            raise ValueError(
                f"--group-size {args.group_size} must be {block_rows} for --weights {kind}: leave"
                " it out"
            )
        args.group_size = (
            args.group_size if args.group_size is not None else block_rows or GROUP_SIZE
        )
        if args.input is None:
            args.n = shown[1] if args.n is None else args.n
            args.k = shown[2] if args.k is None else args.k
        weight = weight_of(args, random)
        (k, n), source = weight.values.shape, weight.source
        problem = WeightProblem(
            args.m,
            n,
            k,
            args.group_size,
            bits=bits,
            codes="integer" if block_rows is None else "e2m1",
        )
    else:
        stored, source = stored
        stored = stored if isinstance(stored, (PackedWeight, PackedBlocks)) else api.pack(stored)
        problem = WeightProblem.of(args.m, stored)
    args.kernel = args.kernel or shown_for(problem)
    device = devices.MODEL if args.sms is None else replace(devices.MODEL, sms=args.sms)
    config = (
        None
        if args.config is None
        else changed_config(args.config, candidate(problem, device, args.kernel).config)
    )
    plan = Plan("emulator", "asked for", device, candidate(problem, device, args.kernel, config))
    blocks = check_place(args, plan.candidate)
    with report.step(f"quantising and packing {problem.k} x {problem.n} weights"):
        packed = (
            stored
            if stored is not None
            else api.pack(
                api.quantize(weight.values, bits=bits, group_size=args.group_size)
                if block_rows is None
                else _in_blocks(weight.values, kind)
            )
        )
    with report.step(
        f"compiling {args.kernel} with line numbers for {device.target} (or reading the cache)"
    ):
        compiled = compiler.build(
            plan.definition, plan.candidate.config, target=device.target, line_info=True
        )
    x = random.standard_normal((args.m, problem.k)).astype(np.float16)
    with report.step(f"running {args.kernel} on the PTX machine and recording it"):
        launch = set_up(
            bind(
                plan.definition,
                plan.candidate.config,
                problem,
                {"a": x, **weight_operands(packed)},
                sms=device.sms,
                compiled=compiled,
            )
        )
        trace = room.record(
            launch.machine,
            blocks=None if blocks <= ALL_BLOCKS else (args.block,),
            **launch.launch,
        )
    verdict = reference.check(launch.results["c"], x, packed, order="random")
    trace.header["about"] = {
        "kernel": args.kernel,
        "config": asdict(plan.candidate.config),
        "reasons": list(plan.candidate.reasons),
        "weight": source,
        "problem": problem.to_dict(),
        "compiled": {"registers": compiled.resources.registers, "compiler": compiled.compiler},
        "check": {"ok": verdict.ok, "outputs": verdict.size, "failures": verdict.failures},
        **plan.definition.about.of_run(
            plan.candidate.config, trace.header["launch"]["shared_base"]
        ),
    }
    return trace, verdict.ok


def check_place(args, chosen) -> int:
    """Blocks of a candidate's grid; ValueError unless --block and --warp are some of what there
    is."""
    from math import prod

    blocks, warps = prod(chosen.grid), chosen.threads // 32
    if args.block >= blocks or (args.warp or 0) >= warps:
        name, value, count = (
            ("block", args.block, blocks) if args.block >= blocks else ("warp", args.warp, warps)
        )
        raise ValueError(
            f"--{name} {value} must be 0 to {count - 1}: {args.kernel} runs as"
            f" {' x '.join(map(str, chosen.grid))} blocks of {warps} warps"
        )
    return blocks


def stored_layer(args):
    """(weight, where it came from) if --input is a quantised checkpoint, else None. ValueError for
    options that such a file decides, and for --sms."""
    if args.sms is not None and args.sms < 1:
        raise ValueError(f"--sms {args.sms} must be at least 1")
    from numba_marlin.cli.weights import layer

    found = None if args.input is None else layer(args.input, args.tensor, args.transpose)
    for name in ("n", "k", "weights", "group_size"):
        if found is not None and getattr(args, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} is for weights that are quantised here; {found[1]}"
                " decides for itself"
            )
    return found


def _in_blocks(values, kind: str):
    """float [k, n] -> BlockWeight of NVFP4 or MXFP4, to nearest."""
    import numpy as np

    from numba_marlin.formats.operands import to_weight
    from numba_marlin.quantizers.operands import quantize_blocks

    return to_weight(quantize_blocks(np.ascontiguousarray(values.T, np.float32), kind))


def changed_config(texts: list[str], default):
    """``default`` with fields replaced; ValueError names those there are."""
    from dataclasses import fields, replace

    return replace(default, **config_changes(texts, {each.name for each in fields(default)}))


def config_changes(texts: list[str], known: set[str]) -> dict:
    changes = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known or not value:
            raise ValueError(
                f"--config {text} must be NAME=VALUE with one of {', '.join(sorted(known))}"
            )
        changes[name] = {"true": True, "false": False, "none": None}.get(
            value.lower(), int(value) if value.lstrip("-").isdigit() else value
        )
    return changes
