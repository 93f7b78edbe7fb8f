"""The constants of ``Costs`` in ``kernels.wgmma.choose`` and ``kernels.decode.choose``, fitted to
rows of results.jsonl, and what the choice would lose with them.

Every configuration of the two kernels that a row has a time of is a point, and so are the rows of
experiments 02 and 06 (INT4), whose layers are larger. The constants that bring the sum of squared
logarithms of predicted over measured time to its least are sought from today's, and held to them by
PULL, so that what no row tells stays. Layers that are held out in turn say whether the fit holds
for layers that it has not seen; the regret is over what was timed in a cell, other kernels with the
prediction that their rows have.
"""

import itertools
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import mean

import numpy as np
import report
from scipy.optimize import least_squares
from scipy.sparse import lil_matrix

from numba_marlin.bench import rows as rows_module
from numba_marlin.hardware import devices
from numba_marlin.kernels.decode import choose as decode_choice
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.wgmma import choose as wgmma_choice
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.problems import WeightProblem

WGMMA = (
    "launch",
    "idle",
    "whole_tile",
    "k_groups",
    "parts",
    "part",
    "stripes",
    "sharer",
    "stripes_slower",
    "row_slower",
    "sustained_slower",
)
DECODE = ("x_share", "read_ahead")
PULL = 0.02  # of a factor e in a constant, beside one of a factor e in a time
PULL_OF_RATES = 0.3  # which a few rows of one size could drive apart: a launch's time and its rate
LARGE_WEIGHT = 8.0  # of a time of a large layer, of which there are few
FOLDS = 5  # of the layers
LEAST_POINTS = 3  # of an arrangement, for a step of its own
HERE = Path(__file__).resolve().parent
LARGE = (HERE.parent / "02_hopper" / "results.jsonl", HERE.parent / "06_nvfp4" / "results.jsonl")


@dataclass(frozen=True)
class Timed:
    """A configuration that was timed. config: None of another kernel than the two; predicted_us:
    what its row says."""

    config: WgmmaConfig | DecodeConfig | None
    us: float
    predicted_us: float


@dataclass(frozen=True)
class Cell:
    """What was timed in a cell, the choice of its row first; layer: the number of its layer, or
    None of a large one."""

    problem: WeightProblem
    layer: int | None
    timed: tuple[Timed, ...]


@dataclass(frozen=True)
class Costs:
    """Of the two kernels."""

    wgmma: wgmma_choice.Costs = wgmma_choice.COSTS
    decode: decode_choice.Costs = decode_choice.COSTS


def cells_of(found, layers):
    """A Cell for each of the table's that has a row, of the newest one."""
    cells = []
    for (layer, m), row in report.newest(found).items():
        problem = WeightProblem(m, layer.n, layer.k, row["group_size"])
        timed = [_timed(row["kernel"], row["config"], row)]
        whole = report.whole_config(row)
        timed += [_timed(*whole(each), each) for each in row["others"]]
        cells.append(Cell(problem, layers.index(layer), tuple(timed)))
    return cells


def cells_of_large_layers(files=LARGE):
    """A Cell of one time for each row of fp16 x INT4 in groups of 128."""
    cells = []
    for row in itertools.chain.from_iterable(map(rows_module.read, files)):
        usual = (row["dtype"], row.get("bits"), row.get("zeros"), row["group_size"])
        if row["kernel"] in ("wgmma", "decode") and usual == ("float16", 4, None, 128):
            timed = _timed(row["kernel"], row["config"], row | {"predicted_us": None})
            problem = WeightProblem(row["m"], row["n"], row["k"], 128)
            cells.append(Cell(problem, None, (timed,)))
    return cells


def _timed(kernel, config, row):
    made = {"wgmma": WgmmaConfig, "decode": DecodeConfig}.get(kernel)
    return Timed(made and made(**config), row["us"], row["predicted_us"])


def predicted(cell, timed, costs, device):
    if timed.config is None:
        return timed.predicted_us
    if isinstance(timed.config, WgmmaConfig):
        return wgmma_choice.predicted_us(cell.problem, timed.config, device, costs.wgmma)
    return decode_choice.predicted_us(cell.problem, timed.config, device, costs.decode)


def points_of(cells):
    """(cell, Timed) of everything that a constant may be fitted to."""
    return [(cell, each) for cell in cells for each in cell.timed if each.config is not None]


@dataclass(frozen=True)
class Fitted:
    """What is fitted, an element of a vector of logarithms each: the names of WGMMA and DECODE, the
    steps of ``tiles``, then a launch's time and a rate for each of ``stripes``. Both have the
    arrangements that were timed often enough for constants of their own."""

    tiles: tuple[wgmma_choice.Arrangement, ...]
    stripes: tuple[decode_choice.Arrangement, ...]

    @classmethod
    def to(cls, points):
        def often(arrangements, kind):
            configs = [each.config for _, each in points if isinstance(each.config, kind)]
            return tuple(
                each
                for each in arrangements
                if sum(each.like(config) for config in configs) >= LEAST_POINTS
            )

        return cls(
            often(wgmma_choice.STEP_US, WgmmaConfig), often(decode_choice.FITTED, DecodeConfig)
        )

    @property
    def pulls(self):
        constants = [PULL] * (len(WGMMA) + len(DECODE) + len(self.tiles))
        return np.array([*constants, *[PULL_OF_RATES] * (2 * len(self.stripes))])

    def columns(self, config):
        """The elements that a configuration's time depends on."""
        begin = len(WGMMA) + len(DECODE)
        if isinstance(config, WgmmaConfig):
            own = [begin + i for i, each in enumerate(self.tiles) if each.like(config)]
            return [*range(len(WGMMA)), *own]
        begin += len(self.tiles)
        (own,) = [i for i, each in enumerate(self.stripes) if each.like(config)] or [None]
        rates = [] if own is None else [begin + 2 * own, begin + 2 * own + 1]
        return [*range(len(WGMMA), len(WGMMA) + len(DECODE)), *rates]

    def costs(self, factors, start=Costs()):
        """``start``, each constant times its factor, given as a logarithm."""
        parts = iter(np.exp(factors))
        names = {name: getattr(start.wgmma, name) * next(parts) for name in WGMMA}
        others = {name: getattr(start.decode, name) * next(parts) for name in DECODE}
        steps = {each: start.wgmma.step[each] * next(parts) for each in self.tiles}
        fits = {
            each: tuple(value * next(parts) for value in start.decode.fitted[each])
            for each in self.stripes
        }
        return Costs(
            replace(start.wgmma, **names, step={**start.wgmma.step, **steps}),
            replace(start.decode, **others, fitted={**start.decode.fitted, **fits}),
        )


def fit(cells, device):
    """-> Costs"""
    points = points_of(cells)
    fitted = Fitted.to(points)
    pulls = fitted.pulls
    weights = np.array([LARGE_WEIGHT if cell.layer is None else 1.0 for cell, _ in points])

    def errors(factors):
        costs = fitted.costs(factors)
        off = [log(predicted(cell, each, costs, device) / each.us) for cell, each in points]
        return np.concatenate([weights * off, pulls * factors])

    depends = lil_matrix((len(points) + len(pulls), len(pulls)), dtype=bool)
    for row, (_, each) in enumerate(points):
        depends[row, fitted.columns(each.config)] = True
    for column in range(len(pulls)):
        depends[len(points) + column, column] = True
    found = least_squares(
        errors,
        np.zeros(len(pulls)),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=20,
        jac_sparsity=depends,
    )
    return fitted.costs(found.x)


def mean_error(cells, costs, device):
    """The mean of |log(predicted / measured)| of the points."""
    return mean(
        abs(log(predicted(cell, each, costs, device) / each.us)) for cell, each in points_of(cells)
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
    within = sum(each <= report.REGRET_GOALS[0] for each in values)
    return (
        f"{name:<22} {error:6.1%} off, regret {mean(values):.2%} on average, {max(values):.1%} at"
        f" most, {within} of {len(values)} within {report.REGRET_GOALS[0]:.0%}"
    )


def constants(costs):
    """Lines for ``choose.py`` of the two kernels."""
    tiles = sorted(costs.wgmma.step.items(), key=lambda pair: (pair[0].tile_m, pair[1]))
    lines = ["kernels/wgmma/choose.py:", "STEP_US = {"]
    lines += [
        f"    Arrangement({each.tile_m}, {each.tile_n}, {each.warpgroups}, {each.k_groups},"
        f" {each.stages}): {us:.4g},"
        for each, us in tiles
    ]
    lines += ["}", *(f"    {name}: float = {getattr(costs.wgmma, name):.4g}" for name in WGMMA)]
    lines += ["", "kernels/decode/choose.py:", "FITTED = {"]
    lines += [
        f"    Arrangement({', '.join(str(value) for value in vars(each).values())}):"
        f" ({us:.3g}, {rate:.4g}),"
        for each, (us, rate) in costs.decode.fitted.items()
    ]
    lines += ["}", *(f"    {name}: float = {getattr(costs.decode, name):.3g}" for name in DECODE)]
    return "\n".join(lines)


def write(found, layers):
    """Print how far off the predictions are, today's, fitted and held out, and the constants."""
    device = devices.device("H200")
    cells, large = cells_of(found, layers), cells_of_large_layers()
    if not points_of(cells):
        raise ValueError("no row has a time of wgmma or decode: measure first")
    print(
        f"{len(cells)} cells with {len(points_of(cells))} times, and {len(large)} of large layers"
    )
    recorded = [cell.timed[0].us / min(each.us for each in cell.timed) - 1 for cell in cells]
    print(said_of("choices of the rows", 0.0, recorded))
    for name, costs in (
        ("today's constants", Costs()),
        ("fitted to all", fit(cells + large, device)),
    ):
        error = mean_error(cells, costs, device)
        print(said_of(name, error, regrets(cells, costs, device)))
        print(f"{'':<22} {mean_error(large, costs, device):6.1%} off at large layers")
    errors, values = [], []
    for inside, outside in folds(cells):
        held = fit(inside + large, device)
        errors.append(mean_error(outside, held, device))
        values += regrets(outside, held, device)
    if values:
        print(said_of("layers held out", mean(errors), values))
    print(f"\n{constants(costs)}")
