"""Make ``nm.matmul`` take one kernel in one configuration, whatever the heuristics would say."""

import numba_marlin as nm
from numba_marlin import heuristics
from numba_marlin.execution import plan as planning
from numba_marlin.kernels import registry


def choose(monkeypatch, name, config, problem, device, backend):
    """-> the packed weight of ``problem`` (testing.ExactProblem), for which ``backend`` will run
    kernel ``name`` on ``device``."""
    kernel = registry.find_kernel(name)
    m, (k, n) = problem.x.shape[0], problem.weight.codes.shape
    grid = tuple(kernel.grid(config, m, n, k, device.sms))
    candidate = heuristics.Candidate(
        name, config, grid, kernel.threads(config), kernel.shared_bytes(config), ()
    )
    monkeypatch.setattr(planning, "find_kernel", lambda wanted: kernel)
    monkeypatch.setattr(
        planning, "plan", lambda *arguments: planning.Plan(backend, "asked for", device, candidate)
    )
    return nm.pack(problem.weight)
