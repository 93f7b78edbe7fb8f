"""Contract under test: packages of others that use Numba CUDA run on the machine, races looked for.

The extra ``on-cpu-packages`` installs them; without a package its tests are skipped. Tests that a
package ships run unchanged; where it ships none for a GPU, or they take minutes here, its public
calls are compared with its own code for a CPU or with the formula in float64.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_marlin import on_cpu
from numba_marlin.on_cpu.faults import KernelError

ROOT = Path(__file__).resolve().parent.parent.parent
WHY = "comes with numba-marlin[on-cpu-packages]"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]


def test_the_tests_of_disimpy(tmp_path):
    """Those of its device functions; ``random_step`` takes 100,000 states three times."""
    pytest.importorskip("disimpy", reason=WHY)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs"),
            *("-p", "numba_marlin.on_cpu.pytest_plugin", "--cuda-on-cpu", "--cuda-on-cpu-races=on"),
            *("disimpy.tests.test_simulations", "-k", "_cuda_ and not random_step"),
        ],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=590,
    )
    assert "10 passed" in done.stdout and "failed" not in done.stdout, done.stdout[-4000:]


def test_the_cost_of_comet():
    """comet-smlm: sum of Gaussians over pairs, and its gradient by atomics, in two chunks. Its own
    tests minimise it a hundred times over; here it is compared once, term by term."""
    wrapper = pytest.importorskip("comet.core.cuda_wrapper.cuda_wrapper", reason=WHY)
    from comet.core.cpu_wrapper import _cost_and_gradient_reference

    rng = np.random.default_rng(0)
    points, pairs, segments, chunk = 40, 300, 5, 256
    coordinates, times = 50 * rng.random((points, 3)), rng.integers(0, segments, points)
    first, second = rng.integers(0, points, (2, pairs))
    mu = rng.standard_normal((segments, 3))
    with on_cpu.cuda(races=True):
        from numba import cuda

        device = [cuda.to_device(each) for each in (coordinates, times, first, second)]
        scratch, slope = cuda.device_array(chunk), cuda.to_device(np.zeros((segments, 3)))
        cost, gradient = wrapper.cuda_wrapper_chunked(
            mu.ravel(), *device, 10.0, 2.0, scratch, slope, chunk
        )
    want, slopes = _cost_and_gradient_reference(
        coordinates, times, first, second, mu, sigma=10.0, sigma_factor=2.0
    )
    # sums of that many float64 terms, in another order
    bound = 8 * pairs * np.finfo(float).eps
    assert abs(-cost - want) <= bound * want
    assert np.abs(-gradient - slopes.ravel()).max() <= bound * np.abs(slopes).max() * pairs


def lattice(gamdpy, cells):
    found = gamdpy.Configuration(D=3)
    found.make_lattice(gamdpy.unit_cells.FCC, cells=[cells] * 3, rho=0.973)
    found["m"] = 1.0
    rng = np.random.default_rng(0)
    found["r"] = found["r"] + 0.05 * rng.standard_normal(found["r"].shape).astype(np.float32)
    return found


def forces_of(configuration, cut):
    """Energy of each particle, and the force on it, of a Lennard-Jones pair potential that is
    shifted to 0 at ``cut``, in float64."""
    r, size = configuration["r"].astype(float), np.asarray(configuration.simbox.get_lengths())
    between = r[:, None] - r[None]
    between -= size * np.round(between / size)
    square = (between**2).sum(-1)
    np.fill_diagonal(square, np.inf)
    inside, at_cut = square < cut**2, 4 * (cut**-12.0 - cut**-6.0)
    energy = np.where(inside, 4 * (square**-6 - square**-3) - at_cut, 0).sum(1) / 2
    strength = np.where(inside, 24 * (2 * square**-6 - square**-3) / square, 0)
    return energy, (strength[..., None] * between).sum(1)


def is_close(found, want):
    """gamdpy computes in float32: a hundred roundings of the largest value."""
    return np.abs(found - want).max() <= 100 * np.finfo(np.float32).eps * np.abs(want).max()


def test_the_forces_of_gamdpy(monkeypatch):
    """All pairs: blocks, a barrier of the grid, and a few steps of its integrator."""
    gamdpy = pytest.importorskip("gamdpy", reason=WHY)
    # gamdpy saves the text of the script that was started: a worker of pytest-xdist has none
    monkeypatch.setattr(sys, "argv", [__file__])
    cut = 1.28
    potential = gamdpy.apply_shifted_potential_cutoff(gamdpy.LJ_12_6_sigma_epsilon)
    with on_cpu.cuda(races=True):
        particles = lattice(gamdpy, 2)
        pairs = gamdpy.PairPotentialNsquared(potential, params=[1.0, 1.0, cut])
        gamdpy.Evaluator(particles, pairs, verbose=False).evaluate()
        energy, force = forces_of(particles, cut)
        assert is_close(particles["U"], energy) and is_close(particles["f"], force)

        particles.randomize_velocities(temperature=0.7)
        simulation = gamdpy.Simulation(
            particles,
            [pairs],
            gamdpy.integrators.NVE(dt=0.001),
            [gamdpy.ScalarSaver(1)],
            num_timeblocks=1,
            steps_per_timeblock=4,
            storage="memory",
        )
        assert len(list(simulation.run_timeblocks())) == 1
        potential_energy, kinetic = gamdpy.extract_scalars(simulation.output, ["U", "K"])
    # what a leap-frog step moves between the two, it gives back
    whole, moved = potential_energy + kinetic, np.ptp(potential_energy)
    assert moved > 0 and np.ptp(whole) < moved / 10


def test_a_race_of_gamdpy():
    """gamdpy 0.8.3 rebuilds its neighbour list while a flag, read by plain loads, is counted down
    by atomics of blocks that are done. The flag stays positive until the last one, so the result is
    right."""
    gamdpy = pytest.importorskip("gamdpy", reason=WHY)
    potential = gamdpy.apply_shifted_potential_cutoff(gamdpy.LJ_12_6_sigma_epsilon)
    pairs = gamdpy.PairPotential(potential, params=[1.0, 1.0, 1.28], max_num_nbs=100)
    for races in (True, False):
        with on_cpu.cuda(races=races):
            particles = lattice(gamdpy, 2)
            evaluator = gamdpy.Evaluator(particles, pairs, verbose=False)
            if races:
                with pytest.raises(KernelError, match=r"nblist\.py") as caught:
                    evaluator.evaluate()
                assert caught.value.kind in ("missing-release", "missing-acquire")
            else:
                evaluator.evaluate()
                energy, force = forces_of(particles, 1.28)
                assert is_close(particles["U"], energy) and is_close(particles["f"], force)
