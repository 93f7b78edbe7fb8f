"""``numba-marlin trace``: runs one product on the PTX machine, records it, and shows it phase by
phase. Needs no GPU.

Every figure is read from the record: registers, addresses, order. The record can be saved, compared
with another one, and opened again with another choice of block, warp and lane without a new run.
"""

from __future__ import annotations

from pathlib import Path

from numba_marlin.cli import activations, mixtures
from numba_marlin.cli.kernels import Names, device_for
from numba_marlin.cli.traced import GROUP_SIZE, WEIGHTS

HELP = "show a kernel's run step by step: launch, copies, unpacking, fragments, sums, pipeline"
RANDOM = "the random weight and the activations"
EXAMPLES = """  numba-marlin trace                      the faithful kernel on a small problem
  numba-marlin trace --html walk.html     the same as a page; arrow keys change the step
  numba-marlin trace --phase unpack --warp 2 --lane 5
  numba-marlin trace --phase weights --floats 0.5 -0.3 0.8 -0.1 0.6 -0.4 0.2 0
  numba-marlin trace --m 8 --n 512 --k 1024 --kernel decode --phase pipeline
  numba-marlin trace --save run.npz --perfetto run.json
  numba-marlin trace --open run.npz --phase fragments --block 1 --step 9
  numba-marlin trace --config stages=3 --compare run.npz
  numba-marlin trace --demo --kernel block_scaled --phase timeline   both NVFP4
  numba-marlin trace --demo --kernel tcgen05 --phase fragments --lane 5
  numba-marlin trace --demo --kernel wgmma_int8 --phase unpack   x in 8 bits
  numba-marlin trace --m 8 --n 256 --k 512 --activations fp8
  numba-marlin trace --kernel moe --phase experts   which block takes which expert's rows
  numba-marlin trace --kernel block_mma --input model-nvfp4/ --tensor mlp.up_proj"""
ALL_BLOCKS = 16  # grids of up to this many blocks are recorded completely
MORE = (
    "--phase NAME shows every step of a section, --html FILE shows all sections. --block, --warp,"
    " --lane and --step choose what is shown."
)


def add_arguments(parser) -> None:
    from numba_marlin.cli import estimate
    from numba_marlin.cli.pages import add_page_arguments

    parser.add_argument(
        "--demo",
        action="store_true",
        help=(
            "the faithful kernel (or --kernel) on its demonstration problem; the default if no"
            " option describes a problem"
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
            "your own weight [k, n], .npy or .safetensors; or a quantised checkpoint, a"
            " .safetensors file or a directory"
        ),
    )
    parser.add_argument(
        "--tensor",
        metavar="NAME",
        help="name of a tensor of a .safetensors file, or of a layer of a checkpoint",
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
            "format of the weights (default int4); of both operands if both are block-scaled"
            " (default nvfp4)"
        ),
    )
    parser.add_argument(
        "--floats",
        nargs="+",
        type=float,
        metavar="W",
        help=(
            "up to 8 weights of your own, w[0, 0] to w[7, 0] of the random weight: the section"
            " `weights` follows them to their scale, codes and bytes"
        ),
    )
    mixtures.add_arguments(parser)
    activations.add_argument(parser)
    parser.add_argument(
        "--kernel",
        choices=Names(),
        metavar="NAME",
        help="%(choices)s (default: the faithful kernel, or the next one that takes the weights)",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        metavar="NAME=VALUE",
        help="fields of the kernel's configuration that replace the chosen values",
    )
    parser.add_argument(
        "--sms",
        type=int,
        metavar="N",
        help="SMs of the PTX machine (default 4; 2 with two block-scaled operands)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=(
            "the device (a name as in `explain`) whose memory hierarchy is shown (default H200, or"
            " the fastest that has the kernel's instructions)"
        ),
    )
    parser.add_argument(
        "--phase",
        metavar="NAME[,...]",
        help=(
            "only these sections: idea, launch, experts, phases, weights, copies, unpack,"
            " fragments, sums, pipeline, timeline, memory, intensity"
        ),
    )
    for name, what in (
        ("block", "block of the grid"),
        ("lane", "lane of the warp"),
        ("step", "tensor-core instruction of the warp, by number"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=0, metavar="I", help=f"{what} (default 0)"
        )
    parser.add_argument(
        "--warp",
        type=int,
        metavar="I",
        help="warp of the block (default: the first that multiplies)",
    )
    estimate.add_argument(parser)
    parser.add_argument("--save", metavar="FILE.npz", help="save the record")
    parser.add_argument(
        "--open", metavar="FILE.npz", help="show a saved record instead of running a kernel"
    )
    parser.add_argument(
        "--compare", metavar="FILE.npz", help="show the differences from this record"
    )
    parser.add_argument(
        "--perfetto",
        metavar="FILE.json",
        help="write a timeline for ui.perfetto.dev or chrome://tracing",
    )
    add_page_arguments(parser)


def execute(args, report) -> bool:
    from numba_marlin import trace as room
    from numba_marlin.cli.pages import check, check_page_arguments, show, shown_from, written
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
    # all arguments are checked before the kernel runs
    device_for(args.device, args.kernel)
    if args.compare is not None and keys:
        raise ValueError("--compare shows sections of its own; omit --phase")
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
        show(page, args, report, bool(keys) or other is not None, MORE, failed=not ok)
    for target, make in (
        (save, lambda: as_bytes(trace)),
        (events, lambda: perfetto.render(trace).encode()),
    ):
        if target is not None:
            written(target, make(), report)
    return ok


def _describes(args) -> list[str]:
    """Return the given options that describe a problem. Raises ValueError if they contradict --demo
    or --open."""
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
            "floats",
            "experts",
            "top_k",
            "combine",
            "activations",
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
                f"--{option} determines what is traced; omit --{against[0].replace('_', '-')}"
            )
    if args.demo and args.open:
        raise ValueError("--demo and --open both determine what is traced: choose one")
    return given


def _recorded(args, report):
    """Run and record the problem that the arguments describe. Returns (trace, whether the result is
    within its bounds)."""
    from dataclasses import asdict

    from numba_marlin import compiler
    from numba_marlin import trace as room
    from numba_marlin.cli import estimate
    from numba_marlin.cli.progress import machine_bar
    from numba_marlin.cli.traced import check_floats, described
    from numba_marlin.cli.traced_host import handed_over
    from numba_marlin.emulator import Schedule
    from numba_marlin.execution import expected
    from numba_marlin.execution.binding import bind
    from numba_marlin.execution.machine import set_up
    from numba_marlin.execution.plan import target_for
    from numba_marlin.heuristics import candidate
    from numba_marlin.kernels.registry import find_kernel

    _describes(args)
    check_floats(args)
    found = described(args)
    chosen, definition = found.chosen, find_kernel(found.chosen.kernel)
    blocks = check_place(args, chosen)
    wanted = estimate.check(
        args,
        report,
        found.problem,
        lambda each: expected.recorded(
            each, candidate(each, found.device, chosen.kernel, chosen.config)
        ),
        args.input,
    )
    with report.step(f"quantising {found.problem.k} x {found.problem.n} weights"):
        made = found.quantised()
    target = target_for(definition, found.device)
    # In the machine's own order every warp makes a round of its loop: no role runs ahead.
    order = Schedule(0, "in turn", "any") if definition.about.roles else None
    with report.step(
        f"compiling {chosen.kernel} with line numbers for {target} (or reading the cache)"
    ):
        compiled = compiler.build(definition, chosen.config, target=target, line_info=True)
    what = f"running {chosen.kernel} on the PTX machine and recording it"
    with machine_bar(what, wanted.instructions):
        binding = bind(
            definition,
            chosen.config,
            found.problem,
            made.operands,
            sms=found.device.sms,
            compiled=compiled,
            scaling=made.scaling,
        )
        launch = set_up(binding)
        trace = room.record(
            launch.machine,
            blocks=None if blocks <= ALL_BLOCKS else (args.block,),
            **launch.launch | {"seed": order},
        )
    failures, size = made.judged(launch.results)
    trace.header["about"] = {
        "kernel": chosen.kernel,
        "config": asdict(chosen.config),
        "reasons": [*chosen.reasons, *found.reasons],
        "weight": found.source,
        "order": "rounds" if order is None else order.order,
        "kind": found.problem.kind,
        "problem": found.problem.to_dict(),
        "compiled": {"registers": compiled.resources.registers, "compiler": compiled.compiler},
        "check": {"ok": not failures, "outputs": size, "failures": failures},
        "host": handed_over(binding),
        **({"boxes": binding.boxes} if made.scaling is not None else {}),
        **({"floats": made.floats} if made.floats is not None else {}),
        **made.about,
        **definition.about.of_run(chosen.config, trace.header["launch"]["shared_base"]),
    }
    return trace, not failures


def check_place(args, chosen) -> int:
    """Return the number of blocks of a candidate's grid. Raises ValueError if --block or --warp is
    not one of them."""
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
