"""The pass behind a launch of experts' products with ``combine``: it makes the sums over a token's
experts of the rows that the launch has left (``KernelDefinition.behind``). ``product`` runs it.

``on_machine`` returns the sums, ``enqueue`` enqueues the pass on a stream; nothing waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_marlin.execution import gpu, machine
from numba_marlin.execution.binding import OPERAND, RESULT, Binding, Buffer
from numba_marlin.kernels.language.definition import Configured
from numba_marlin.problems.experts import ExpertsProblem


@dataclass(frozen=True, eq=False)
class Sum:
    """The pass for a problem, and its compiled kernel."""

    problem: ExpertsProblem
    launch: Configured
    compiled: Any

    def binding(self, rows: Any = None, weights: Any = None) -> Binding:
        """rows [pairs, n], weights [m, top_k]: float32, for the PTX machine."""
        m, n, top_k = self.problem.m, self.problem.n, self.problem.top_k
        buffers = {
            "rows": Buffer(OPERAND, (m * top_k, n), "float32", array=rows),
            "weights": Buffer(OPERAND, (m, top_k), "float32", array=weights),
            "c": Buffer(RESULT, *self.problem.result_shapes["c"]),
        }
        definition, config = self.launch.definition, self.launch.config
        grid, sizes = definition.grid(config, m, n, top_k, 0), (m, n, top_k, top_k)
        return Binding(definition, config, self.compiled, grid, sizes, buffers)

    def on_machine(self, rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, int]:
        """(sums [m, n], warp instructions)"""
        launch = machine.set_up(self.binding(rows, weights))
        instructions = launch.run().instructions
        return launch.results["c"], instructions

    def enqueue(self, addresses: dict[str, int], ordinal: int, stream: int) -> None:
        """addresses: of the rows, the weights and c."""
        binding = self.binding()
        launcher = gpu.loaded(binding, ordinal)
        launcher(binding.grid, gpu.arguments(binding, addresses, ordinal), stream)
