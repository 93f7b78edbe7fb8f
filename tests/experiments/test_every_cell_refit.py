"""Contract under test: experiment 25's refit finds the constants of the choice that times were made
of, from the rows of its cells and of the large layers of other experiments. Times are invented."""

from dataclasses import asdict, replace

import pytest

from numba_marlin.problems import WeightProblem
from tests.experiments.every_cell_rows import H200, cell, run

__all__ = ["run"]  # a fixture


@pytest.mark.thorough
def test_a_refit_finds_the_constants_that_times_were_made_of(run, capsys):
    """Of both kernels; and of layers that it has not seen it predicts what they take."""
    refit, layers = run.refit, list(run.shapes.layers())[:3]
    choices = {"wgmma": refit.wgmma_choice, "decode": refit.decode_choice}
    tile, stripe = (
        next(iter(each)) for each in (choices["wgmma"].STEP_US, choices["decode"].ALONE)
    )
    steps = {each: 0.9 * us for each, us in choices["wgmma"].STEP_US.items()} | {tile: 0.25}
    fitted = {each: (1.1 * us, rate) for each, (us, rate) in choices["decode"].FITTED.items()} | {
        stripe: (3.0, 28.0)
    }
    true = refit.Costs(
        replace(refit.wgmma_choice.COSTS, launch=1.7, stripes_slower=1.3, step=steps),
        replace(refit.decode_choice.COSTS, x_share=0.4, fitted=fitted),
    )
    found = []
    for layer in layers:
        for m in (1, 8, 16, 64, 96, 512):
            problem = WeightProblem(m, layer.n, layer.k, 128)
            made = []
            for name, costs in (("wgmma", true.wgmma), ("decode", true.decode)):
                if name == "wgmma" or m <= 16:
                    made += [
                        {
                            "us": choices[name].predicted_us(problem, each, H200, costs),
                            "predicted_us": 9.0,
                            "kernel": name,
                            "config": asdict(each),
                        }
                        for each in choices[name].configurations(problem, H200)
                    ]
            found.append(cell(run, layer, m) | made[0] | {"others": made[1:]})
    cells = refit.cells_of(found, layers)
    again = refit.fit(cells, H200)
    assert refit.mean_error(cells, refit.Costs(), H200) > 0.05
    assert refit.mean_error(cells, again, H200) < 0.01
    assert again.wgmma.step[tile] == pytest.approx(0.25, rel=0.05)
    assert again.decode.fitted[stripe][1] == pytest.approx(28.0, rel=0.05)
    refit.write(found, layers)
    said = capsys.readouterr().out
    assert "18 cells" in said and "layers held out" in said and "Arrangement(96, 128, 1, 2" in said
    assert "kernels/decode/choose.py" in said and "of large layers" in said
    inside, outside = next(refit.folds(cells))
    assert not {each.layer for each in inside} & {each.layer for each in outside}


def test_a_refit_takes_the_rows_of_large_layers(run):
    """INT4 in groups of 128 only, of the two kernels."""
    large = run.refit.cells_of_large_layers()
    assert len(large) > 100 and {type(each.timed[0].config).__name__ for each in large} == {
        "WgmmaConfig",
        "DecodeConfig",
    }
    assert max(each.problem.k for each in large) == 135168


def test_a_refit_sees_whatever_was_timed_in_a_cell(run):
    layers = list(run.shapes.layers())
    row = cell(run, layers[3], 64, 10.0, others=(8.0, 9.0))
    row["others"][1] |= {"kernel": "ampere", "config": {}, "predicted_us": 7.5}
    (found,) = run.refit.cells_of([row], layers)
    assert found.layer == 3 and [each.us for each in found.timed] == [10.0, 8.0, 9.0]
    chosen, like_it, other = found.timed
    assert (chosen.config.tile_m, like_it.config.tile_m, like_it.config.stages) == (128, 64, 4)
    assert run.refit.predicted(found, other, None, H200) == 7.5 and other.config is None
    assert run.refit.regrets([found], run.refit.Costs(), H200) == [9.0 / 8.0 - 1]
    with pytest.raises(ValueError, match="measure first"):
        run.refit.write([], layers)
