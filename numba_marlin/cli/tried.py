"""``profile --try``: what neighbouring configurations would bring. ``timed`` (the default) needs
torch and a GPU, ``counted`` neither."""

from __future__ import annotations

TIMED, COUNTED = "timed", "counted"


def add_argument(parser) -> None:
    parser.add_argument(
        "--try",
        dest="tried",
        nargs="?",
        const=TIMED,
        choices=(TIMED, COUNTED),
        metavar="HOW",
        help=(
            "try configurations one field away: timed on this computer's GPU in the same rounds"
            " (default), or counted on the PTX machine"
        ),
    )


def check(args) -> None:
    """Before any work. Raises CapabilityMissing if a GPU is needed and not usable."""
    from numba_marlin.errors import CapabilityMissing
    from numba_marlin.execution import driver

    if args.tried != TIMED:
        return
    if args.device is not None:
        raise ValueError("--try times on this computer's GPU: omit --device, or give --try counted")
    probe = driver.probe()
    if not probe.usable:
        raise CapabilityMissing(
            f"--try times configurations on a GPU, with torch: {probe.reason} (--try counted counts"
            " them on the PTX machine)"
        )


def tried(args, report, data: dict) -> dict:
    """What a profile holds under "tried" (``profile.sources.neighbours``)."""
    from numba_marlin.bench import measure
    from numba_marlin.execution import driver
    from numba_marlin.hardware import devices
    from numba_marlin.problems import ACTIVATIONS
    from numba_marlin.profile.sources import neighbours

    problem = neighbours.problem_of(data)
    on_gpu = args.tried == TIMED
    if on_gpu and problem.kind == ACTIVATIONS:  # ``bench`` has no operands of this kind
        raise ValueError("--try does not time products of x in 8 bits: give --try counted")
    device = driver.describe(0) if on_gpu else devices.device(data["device"]["name"])
    chosen = neighbours.chosen_of(data, device)
    around = neighbours.neighbours(problem, chosen, device)
    with report.step(f"trying {len(around)} configurations next to {chosen.kernel}'s"):
        if on_gpu:
            return neighbours.timed(measure.Bench(measure.Settings()), problem, chosen, around)
        return neighbours.counted(problem, chosen, around, device, args.seed)
