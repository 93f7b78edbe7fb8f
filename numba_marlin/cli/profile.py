"""``numba-marlin profile``: where a kernel's time goes and how it uses the device. The figures are
measured on this computer's GPU, or counted on the PTX machine and modelled."""

from __future__ import annotations

import warnings
from pathlib import Path

from numba_marlin.cli import activations, mixtures
from numba_marlin.cli.kernels import Names, device_for, multiplies_operands, shown_first

HELP = "show where a kernel's time goes, what limits it, and what would help"
RANDOM = "the operands"
EXAMPLES = """\
  numba-marlin profile --demo                                    no GPU needed
  numba-marlin profile --m 16 --n 8192 --k 8192 --kernel ampere --html page.html
  numba-marlin profile --m 1 --n 4096 --k 4096 --device "RTX 4090" --view summary,timeline
  numba-marlin profile --m 16 --n 8192 --k 8192 --save run.json  save the profile
  numba-marlin profile --open run.json --html page.html          show it again
  numba-marlin profile --open before.json --against after.json   compare two profiles
  numba-marlin profile --m 16 --n 8192 --k 8192 --try --view tried   time what advice would bring
  numba-marlin profile --open run.json --ncu ncu.csv --view counters   beside Nsight's counters
  numba-marlin profile --demo --kernel block_scaled              both operands NVFP4, on Hopper
  numba-marlin profile --demo --kernel tcgen05 --view memory     a published walk-through's problem
  numba-marlin profile --demo --kernel moe                       a mixture of experts
  numba-marlin profile --m 64 --n 4096 --k 4096 --activations int8
  numba-marlin profile --m 8 --n 1536 --k 2048 --experts 16 --top-k 4

Every figure says whether it is measured on a GPU, counted on the PTX machine, modelled, or from a
data sheet."""


OF_A_RUN = ("demo", "m", "n", "k", "group_size", "experts", "top_k", "combine", "activations")


def add_arguments(parser) -> None:
    from numba_marlin.cli import estimate, tried
    from numba_marlin.cli.pages import add_page_arguments, add_view_argument

    parser.add_argument(
        "--demo",
        action="store_true",
        help=(
            "the kernel's demonstration problem (without --kernel: m=16, n=4096, k=4096), as where"
            " no sizes are given"
        ),
    )
    parser.add_argument("--m", type=int, metavar="M", help="rows of activations")
    parser.add_argument("--n", type=int, metavar="N", help="columns of the weight")
    parser.add_argument("--k", type=int, metavar="K", help="rows of the weight")
    parser.add_argument(
        "--group-size", type=int, metavar="G", help="rows that share a scale; -1: all (default 128)"
    )
    mixtures.add_arguments(parser)
    activations.add_argument(parser)
    parser.add_argument(
        "--kernel",
        choices=Names(),
        metavar="NAME",
        help="%(choices)s (default: the kernel that `explain` reports)",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        metavar="NAME=VALUE",
        help=(
            "fields of the kernel's configuration that replace the chosen values; requires --kernel"
        ),
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=(
            "model this device (a name as in `explain`), even if there is a GPU (default: this"
            " computer's GPU, else H200, or the fastest device that has the kernel's instructions)"
        ),
    )
    estimate.add_argument(parser)
    parser.add_argument(
        "--save", metavar="RUN.json", help="save the profile, for --open and --against"
    )
    parser.add_argument("--open", metavar="RUN.json", help="show a saved profile; no kernel runs")
    parser.add_argument("--against", metavar="RUN.json", help="compare with this saved profile")
    parser.add_argument(
        "--ncu",
        metavar="NCU.csv",
        help="show counters that Nsight Compute wrote (--view counters has its command)",
    )
    parser.add_argument(
        "--nsys", metavar="NSYS.csv", help="show launches that Nsight Systems wrote, likewise"
    )
    tried.add_argument(parser)
    add_view_argument(parser)
    add_page_arguments(parser)


def execute(args, report) -> bool:
    from numba_marlin.cli import pages, tried
    from numba_marlin.cli.report import to_json
    from numba_marlin.profile import build as profile
    from numba_marlin.profile.pages import compared, profile_page
    from numba_marlin.profile.sources import nsight, rules, verdict
    from numba_marlin.views import Page

    pages.check_page_arguments(args)
    _check_given(args)
    tried.check(args)
    target = pages.check("--save", args.save, (".json",))
    other = None if args.against is None else profile.load(args.against)
    data = profile.load(args.open) if args.open else _profile(args, report)
    if args.tried is not None:
        with pages.shown_from(args.open):
            data["tried"] = tried.tried(args, report, data)
    if args.ncu is not None or args.nsys is not None:
        with pages.shown_from(args.open, args.against):
            entry = nsight.entry_of(data)
        data |= _counters(args, entry)
    with pages.shown_from(args.open, args.against):
        page = profile_page.page(data)
        if other is not None:
            page = Page(
                f"{page.title}, compared",
                (
                    compared.compared(
                        data,
                        other,
                        (
                            Path(args.open).stem if args.open else "this run",
                            Path(args.against).stem,
                        ),
                    ),
                    *page.sections,
                ),
                page.subtitle,
            )
        what, why = verdict.bottleneck(data)
        report.data = {
            "profile": data,
            "bottleneck": {"what": what, "why": why},
            "findings": [
                {"rule": each.rule, "tone": each.tone, "text": each.text}
                for each in rules.findings(data)
            ],
        }
        pages.show(pages.viewed(page, args), args, report)
    if target is not None:
        pages.written(target, to_json(data).encode() + b"\n", report)
    return True


def _counters(args, entry: str) -> dict:
    """Return what the reports of NVIDIA's profilers say of the kernel."""
    from numba_marlin.profile.sources import nsight

    found = {}
    if args.ncu is not None:
        found["ncu"] = nsight.read_ncu(args.ncu, entry)
    if args.nsys is not None:
        found["nsys"] = nsight.read_nsys(args.nsys, entry)
    return found


def _check_given(args) -> None:
    """Check before any work that the sections exist, and that --open is not contradicted."""
    from numba_marlin.profile.pages.profile_page import SECTIONS
    from numba_marlin.wording import did_you_mean

    for key in args.view.split(",") if args.view else ():
        if key == "compare" and args.against is None:
            raise ValueError("--view compare needs --against, the profile to compare with")
        if key not in (*SECTIONS, "compare"):
            raise ValueError(
                f"--view {key} must be one of {', '.join(SECTIONS)}, or compare (with --against)"
                f"{did_you_mean(key, SECTIONS)}"
            )
    for name in (*OF_A_RUN, "kernel", "config", "device"):
        if args.open is not None and getattr(args, name) not in (None, False):
            raise ValueError(f"--open shows a saved profile; omit --{name.replace('_', '-')}")


def _profile(args, report) -> dict:
    from numba_marlin import heuristics
    from numba_marlin.execution import driver
    from numba_marlin.hardware import devices
    from numba_marlin.problems import WEIGHTS
    from numba_marlin.profile import build as profile
    from numba_marlin.profile.sources.other_tools import other_tools

    # Compiling a kernel's lambdas with line numbers warns, but the numbers are correct.
    warnings.filterwarnings("ignore", message=".*Could not find source for function")
    if args.config is not None and args.kernel is None:
        raise ValueError("--config sets fields of one kernel's configuration: also give --kernel")
    if multiplies_operands(args.kernel):
        return _block_scaled(args, report)
    problem = _problem(args)
    probe = driver.probe()
    # experiments/23_w4a8 and 26_experts time the others, in their own way
    timed = problem.kind == WEIGHTS
    on_gpu = probe.usable and args.device is None and timed
    device = driver.describe(0) if on_gpu else devices.device(args.device or "H200")
    _check_timed(device)
    candidate = (
        heuristics.rank(problem, device)[0]
        if args.kernel is None
        else heuristics.candidate(problem, device, args.kernel)
    )
    if args.config is not None:
        from numba_marlin.cli.traced import changed_config

        candidate = heuristics.candidate(
            problem, device, args.kernel, changed_config(args.config, candidate.config)
        )
    observation = ceilings = None
    if on_gpu:
        observation, ceilings = _observed(problem, candidate, device, report)
    counted = _counted(args, report, problem, candidate, device, observation)
    state = (
        observation.state
        if on_gpu
        else {
            "missing": (
                f"no GPU was used: {probe.reason}"
                if not probe.usable
                else f"{device.name} was modelled, this computer's GPU was not used"
            )
        }
    )
    data = profile.build(counted, device, observation, ceilings, state, other_tools())
    if not timed:
        data["measured_elsewhere"] = _elsewhere(candidate.kernel, None, data["time"]["modelled_us"])
    return data


def _block_scaled(args, report) -> dict:
    """Profile a kernel with two block-scaled operands: measured if the GPU has the kernel's
    instructions, else counted on the PTX machine and modelled for a device that has them."""
    from numba_marlin import heuristics
    from numba_marlin.cli.traced import config_changes
    from numba_marlin.execution import driver
    from numba_marlin.kernels.registry import find_kernel
    from numba_marlin.problems import BlockProblem
    from numba_marlin.profile import build as profile
    from numba_marlin.profile.sources import model
    from numba_marlin.profile.sources.other_tools import other_tools

    activations.refuse(args)
    if args.group_size is not None:
        raise ValueError(
            f"--group-size is not for {args.kernel}: the format of its operands determines their"
            " blocks (--config format=...)"
        )
    definition = find_kernel(args.kernel)
    m, n, k = _sizes(args, definition.about.demo.profile)
    probe = driver.probe()
    device = driver.describe(0) if probe.usable and args.device is None else None
    if device is None or not heuristics.has_instructions(args.kernel, device):
        device = device_for(args.device, args.kernel)
    _check_timed(device)
    heuristics.check_device(args.kernel, device)
    changes = config_changes(args.config or [], definition.config_type)
    problem = BlockProblem.with_fields(m, n, k, changes)
    config = heuristics.configured(problem, device, args.kernel, changes)
    candidate = heuristics.candidate(problem, device, args.kernel, config)
    if device.source == "measured":
        observation, ceilings = _observed(problem, candidate, device, report)
        if not definition.about.half_products:
            # the ceiling of cuBLAS for 16-bit operands does not apply to other tensor-core kinds
            ceilings = None
        state, recorded = observation.state, None
    else:
        observation, ceilings = None, None
        state = {
            "missing": (
                f"no GPU was used: {probe.reason}"
                if not probe.usable
                else f"{device.name} was modelled, this computer's GPU was not used"
            )
        }
        recorded = model.recorded(args.kernel, problem, config)
    counted = _counted(args, report, problem, candidate, device, observation)
    data = profile.build(counted, device, observation, ceilings, state, other_tools())
    return (
        data
        if observation is not None
        else data
        | {"measured_elsewhere": _elsewhere(args.kernel, recorded, data["time"]["modelled_us"])}
    )


def _counted(args, report, problem, candidate, device, observation):
    """Run a part of the problem on the PTX machine, twice. Refused if even that takes too long."""
    from numba_marlin.cli import estimate
    from numba_marlin.cli.progress import machine_bar
    from numba_marlin.execution import expected
    from numba_marlin.profile.sources import on_machine

    def expect(whole):
        part, _ = on_machine.cut(whole, candidate, device)
        return expected.recorded(part, candidate, runs=2)

    wanted = estimate.check(args, report, problem, expect)
    what = f"counting on the PTX machine what {candidate.kernel} does"
    with machine_bar(what, wanted.instructions):
        return on_machine.observe(
            problem,
            candidate,
            device,
            None if observation is None else observation.compiled,
            args.seed,
        )


def _elsewhere(kernel: str, row: dict | None, modelled_us: float) -> list[str]:
    """Return what is known about a kernel's time that this run did not measure: [text], or [text,
    "measured"] if it comes from a measurement."""
    from numba_marlin.kernels.registry import find_kernel

    if row is None:
        return [find_kernel(kernel).about.unmeasured]
    return [
        (
            f"{row['us']:.1f} us on {row['device']}, {row['us'] / modelled_us:.2f} times the"
            f" modelled time; cuBLAS fp16 {row['cublas_us']:.1f} us in the same rounds"
            f" (experiments/11_block_scaled, {row['date']})"
        ),
        "measured",
    ]


def _check_timed(device) -> None:
    if device.source == "model":
        raise ValueError(
            "--device model is the PTX machine itself, which has no timing; name a GPU of the table"
        )


def _observed(problem, candidate, device, report) -> tuple:
    """Return (observation of a run on the GPU, the GPU's measured ceilings)."""
    from numba_marlin.bench import ceilings
    from numba_marlin.profile.sources import on_gpu

    with report.step(f"timing {candidate.kernel} on {device.name}, plain and instrumented"):
        return (
            on_gpu.observe(problem, candidate),
            ceilings.measure(problem.peer_dtype).to_dict(),
        )


def _sizes(args, demo: tuple[int, int, int]) -> tuple[int, int, int]:
    sizes = (args.m, args.n, args.k)
    if args.demo and any(size is not None for size in sizes):
        raise ValueError("--demo has its own problem; omit --demo, or --m, --n and --k")
    if all(size is None for size in sizes):  # as run and trace do
        return demo
    if None in sizes:
        raise ValueError(
            "a size is missing: give --m, --n and --k, or none of them for the demonstration"
        )
    return sizes


def _problem(args):
    from numba_marlin.kernels.registry import find_kernel, kernels
    from numba_marlin.problems import EXPERTS, ActivationsProblem, ExpertsProblem, WeightProblem

    group_size = 128 if args.group_size is None else args.group_size
    if not mixtures.asked(args):
        demo = find_kernel(args.kernel or shown_first()).about.demo.profile
        of_x = activations.fields(args)
        kind = ActivationsProblem if of_x else WeightProblem
        return kind(*_sizes(args, demo), group_size, **of_x)
    kernel = find_kernel(args.kernel) if args.kernel else kernels(EXPERTS)[-1]
    sizes = _sizes(args, kernel.about.demo.profile)
    return ExpertsProblem(*sizes, group_size, **mixtures.fields(args))
