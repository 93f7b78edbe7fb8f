"""Operands of a block-scaled product, and how its kernel is launched on the PTX machine, whichever
of that kind it is.

``BlockLaunch(candidate, problem, compiled, a, b)``: A [m, k] and B [n, k], ``formats.BlockScaled``.
C and the bias are random where the problem has them; of a result with a global scale the product's
largest magnitude decides it. Buffers are named a, b, sfa, sfb, c, bias, d, sfd, and alpha or
factors, locks.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator import Machine
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled
from numba_marlin.heuristics import Candidate
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.problems import BlockProblem
from numba_marlin.quantizers import dequantize
from numba_marlin.quantizers.operands import default_global_scale, inverse_of, quantize_blocks


def random_operands(
    problem: BlockProblem, random: np.random.Generator
) -> tuple[BlockScaled, BlockScaled]:
    return tuple(
        quantize_blocks(
            random.standard_normal((rows, problem.k)).astype(np.float32), problem.format
        )
        for rows in (problem.m, problem.n)
    )


def boxes_of(definition, config, problem: BlockProblem) -> dict[str, list[int]]:
    """{buffer: [bytes of a row in shared memory, swizzle in bytes]} of what tensor copies bring:
    what ``trace`` must know to say where a byte came from."""
    maps = definition.tensor_maps(config, problem.m, problem.n, problem.k, problem.k).values()
    return {name: [each.row_bytes, each.swizzle] for name, each in maps}


class BlockLaunch:
    """``grid``, ``shape``: what Machine.run takes but for the arguments; ``on(machine)`` gives
    those. ``d``, sfd: the results of the last machine."""

    def __init__(
        self,
        chosen: Candidate,
        problem: BlockProblem,
        compiled,
        a: BlockScaled,
        b: BlockScaled,
        random: np.random.Generator,
    ) -> None:
        self.definition, self.config, self.compiled, self.problem = (
            find_kernel(chosen.kernel),
            chosen.config,
            compiled,
            problem,
        )
        self.a, self.b, self.weight = a.with_scales("128x4"), b.with_scales("128x4"), None
        self.c = (
            random.standard_normal((problem.m, problem.n)).astype(float_type(problem.result))
            if problem.source
            else None
        )
        self.bias = random.standard_normal(problem.n).astype(np.float32) if problem.bias else None
        self.beta, self.global_scale = float(problem.source), 1.0
        if problem.result in BLOCK_FORMATS and BLOCK_FORMATS[problem.result].has_global_scale:
            self.global_scale = default_global_scale(
                float(np.abs(dequantize(a, np.float32) @ dequantize(b, np.float32).T).max())
            )
        self.grid = chosen.grid
        self.shape = {
            "grid": self.grid,
            "block": compiled.threads,
            "shared_bytes": compiled.shared_bytes,
            "cluster": self.definition.cluster(self.config),
        }

    def on(self, machine: Machine, more: tuple = ()) -> tuple[Machine, tuple]:
        """The machine with all buffers, D and its scales as nobody leaves them, and the kernel's
        arguments."""
        problem, m, n = self.problem, self.problem.m, self.problem.columns
        readable = {
            "a": self.a.data,
            "b": self.b.data,
            "sfa": self.a.scales,
            "sfb": self.b.scales,
            "c": self.c,
            "bias": self.bias,
            **self._factors(),
        }
        if problem.result in BLOCK_FORMATS:
            form = BLOCK_FORMATS[problem.result]
            written = {
                "d": np.full(form.data_shape(m, n), 0xAA, np.uint8),
                "sfd": np.zeros(form.scales_shape(m, n, "128x4"), np.uint8),
            }
        else:
            written = {"d": np.full((m, n), np.nan, float_type(problem.result))}
        if self._takes("locks"):
            written["locks"] = np.zeros(1, np.int32)
        addresses = {
            name: machine.memory.buffer(array, name=name, readonly=True).address
            for name, array in readable.items()
            if array is not None
        }
        addresses |= {
            name: machine.memory.buffer(array, name=name, readonly=False).address
            for name, array in written.items()
        }
        self.d, self.sfd = written["d"], written.get("sfd")
        k = problem.k
        return machine, (
            *self.definition.arguments(
                self.config,
                addresses,
                m,
                problem.n,
                k,
                k,
                lambda tensor_map, address: tensor_map.encode(address),
            ),
            *more,
        )

    @property
    def result(self):
        """D as the kernel left it: an array, or a BlockScaled."""
        if self.sfd is None:
            return self.d
        return BlockScaled(
            self.problem.result,
            (self.problem.m, self.problem.columns),
            self.d,
            self.sfd,
            self.global_scale,
            "128x4",
        )

    def _takes(self, name: str) -> bool:
        return any(name == parameter for parameter, _ in self.definition.parameters)

    def _factors(self) -> dict[str, np.ndarray]:
        """What sums are multiplied by: one number, or those of
        ``kernels.block_scaled_epilogue``."""
        alpha = self.a.global_scale * self.b.global_scale
        if self._takes("alpha"):
            return {"alpha": np.array([alpha], np.float32)}
        from numba_marlin.kernels.nvfp4.block_scaled.kernel import OPERAND_POWER

        inverse = inverse_of(self.global_scale)
        return {
            "factors": np.array(
                [alpha * 2.0**OPERAND_POWER, self.beta, inverse, inverse / np.float32(6)],
                np.float32,
            )
        }
