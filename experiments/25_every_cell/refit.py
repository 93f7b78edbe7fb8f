"""The constants of ``kernels.wgmma.choose.Costs``, fitted to rows of results.jsonl, and what the
choice would lose with them.

Every configuration of the kernel ``wgmma`` that a row has a time of is a point. The constants that
bring the sum of squared logarithms of predicted over measured time to its least are sought from
today's, and held to them by PULL, so that what no row tells stays. Layers that are held out in turn
say whether the fit holds for layers that it has not seen; the regret is over what was timed in a
cell, other kernels with the prediction that their rows have.
"""

from dataclasses import dataclass, replace
from math import exp, log
from statistics import mean

import numpy as np
import report
from scipy.optimize import least_squares

from numba_marlin.hardware import devices
from numba_marlin.kernels.wgmma import choose
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.problems import WeightProblem

FITTED = (
    "launch",
    "whole_tile",
    "k_groups",
    "parts",
    "part",
    "stripes",
    "stripes_slower",
    "row_slower",
    "sustained_slower",
)
PULL = 0.02  # of a factor e in a constant, beside one of a factor e in a time
FOLDS = 5  # of the layers
LEAST_POINTS = 3  # of an arrangement, for a step of its own


@dataclass(frozen=True)
class Timed:
    """A configuration that was timed. config: None of another kernel than wgmma; predicted_us: what
    its row says."""

    config: WgmmaConfig | None
    us: float
    predicted_us: float


@dataclass(frozen=True)
class Cell:
    """What was timed in a cell, the choice of its row first; layer: the number of its layer."""

    problem: WeightProblem
    layer: int
    timed: tuple[Timed, ...]


def cells_of(found, layers):
    """A Cell for each of the table's that has a row, of the newest one."""
    cells = []
    for (layer, m), row in report.newest(found).items():
        problem = WeightProblem(m, layer.n, layer.k, row["group_size"])
        timed = [_timed(row["kernel"], row["config"], row)]
        for each in row["others"]:
            same = row["config"] if each["kernel"] == row["kernel"] else {}
            timed.append(_timed(each["kernel"], same | each["config"], each))
        cells.append(Cell(problem, layers.index(layer), tuple(timed)))
    return cells


def _timed(kernel, config, row):
    ours = WgmmaConfig(**config) if kernel == "wgmma" else None
    return Timed(ours, row["us"], row["predicted_us"])


def is_between(config):
    """Whether it is of an arrangement that is interpolated."""
    between = isinstance(config, WgmmaConfig) and config.cluster == 1
    return between and any(each.like(config) for each in choose.BETWEEN)


def predicted(cell, timed, costs, device):
    if timed.config is None:
        return timed.predicted_us
    return choose.modelled_us(cell.problem, timed.config, device, costs)


def arrangements_in(cells):
    """Those that were timed often enough for a step of their own."""
    configs = [each.config for cell in cells for each in cell.timed if each.config is not None]
    return [
        each
        for each in choose.ARRANGEMENTS
        if sum(each.like(config) for config in configs) >= LEAST_POINTS
    ]


def costs_of(factors, arrangements, start=choose.COSTS):
    """``start``, each fitted constant times its factor, given as a logarithm."""
    names = dict(zip(FITTED, factors))
    steps = {each: start.step_of(each) for each in (*start.step, *arrangements)}
    for each, factor in zip(arrangements, factors[len(FITTED) :]):
        steps[each] *= exp(factor)
    constants = {name: getattr(start, name) * exp(each) for name, each in names.items()}
    return replace(start, **constants, step=steps)


def fit(cells, device):
    """-> Costs"""
    points = [(cell, each) for cell in cells for each in cell.timed if each.config is not None]
    arrangements = arrangements_in(cells)

    def errors(factors):
        costs = costs_of(factors, arrangements)
        off = [log(predicted(cell, each, costs, device) / each.us) for cell, each in points]
        return np.concatenate([off, PULL * factors])

    start = np.zeros(len(FITTED) + len(arrangements))
    found = least_squares(errors, start, loss="soft_l1", f_scale=0.1, max_nfev=20)
    return costs_of(found.x, arrangements)


def mean_error(cells, costs, device):
    """The mean of |log(predicted / measured)| of the kernel's points."""
    return mean(
        abs(log(predicted(cell, each, costs, device) / each.us))
        for cell in cells
        for each in cell.timed
        if each.config is not None
    )


def regrets(cells, costs, device):
    """Of each cell with something to choose from: the time of what is predicted to be fastest over
    that of the fastest, less 1."""
    found = []
    for cell in cells:
        chosen = min(cell.timed, key=lambda each, cell=cell: predicted(cell, each, costs, device))
        found.append(chosen.us / min(each.us for each in cell.timed) - 1)
    return found


def folds(cells):
    """(cells to fit to, cells held out) for each part of the layers."""
    for part in range(FOLDS):
        inside = [each for each in cells if each.layer % FOLDS != part]
        outside = [each for each in cells if each.layer % FOLDS == part]
        if inside and outside:
            yield inside, outside


def said_of(name, error, values):
    return f"{name:<22} {error:6.1%} off, regret {mean(values):.2%} on average, {max(values):.1%}"


def constants(costs):
    """Lines for ``kernels/wgmma/choose.py``."""
    fields = [f"    {name}: float = {getattr(costs, name):.4g}" for name in FITTED]
    steps = [
        f"    Arrangement({each.tile_m}, {each.tile_n}, {each.warpgroups}, {each.k_groups},"
        f" {each.stages}): {us:.4g},"
        for each, us in sorted(costs.step.items(), key=lambda pair: (pair[0].tile_m, pair[1]))
    ]
    return "\n".join([*fields, "STEP_US = {", *steps, "}"])


def write(found, layers):
    """Print how far off the predictions are, today's, fitted and held out, and the constants."""
    device = devices.device("H200")
    cells = cells_of(found, layers)
    if not any(each.config for cell in cells for each in cell.timed):
        raise ValueError("no row has a time of wgmma: measure first")
    ours = [each.config is not None for cell in cells for each in cell.timed]
    print(f"{len(cells)} cells, {sum(ours)} times of wgmma, {len(ours) - sum(ours)} of others")
    recorded = [cell.timed[0].us / min(each.us for each in cell.timed) - 1 for cell in cells]
    print(f"choices of the rows: regret {mean(recorded):.2%} on average, {max(recorded):.1%}")
    today, fitted = choose.COSTS, fit(cells, device)
    for name, costs in (("today's constants", today), ("fitted to all", fitted)):
        error = mean_error(cells, costs, device)
        print(said_of(name, error, regrets(cells, costs, device)))
    errors, values = [], []
    for inside, outside in folds(cells):
        costs = fit(inside, device)
        errors.append(mean_error(outside, costs, device))
        values += regrets(outside, costs, device)
    if values:
        print(said_of("layers held out", mean(errors), values))
    print(f"\n{constants(fitted)}")
