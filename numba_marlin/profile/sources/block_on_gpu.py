"""Products of two block-scaled matrices on this machine's GPU, as ``on_gpu`` times them: random
operands, the kernel, and cuBLAS with the same numbers as halves. Needs torch.

``Operands(problem)`` -> A, and B in as many copies as leave nothing of it in the L2 cache from one
launch to the next. ``contender`` and ``cublas`` are ``bench.contenders.Contender``; ``check``
raises WrongResult for a product that is not the matrices'. Codes are random and scales near 1, so
that halves hold every number exactly.
"""

from __future__ import annotations

from numba_marlin.bench.contenders import Contender
from numba_marlin.bench.measure import WrongResult
from numba_marlin.bench.operands import COLD_FACTOR
from numba_marlin.bench.timing import torch_on_gpu, wait
from numba_marlin.execution import driver, launch
from numba_marlin.formats.operands import BLOCK_FORMATS
from numba_marlin.formats.small_floats import table
from numba_marlin.heuristics import Candidate
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.layout.block_scales import to_tiles
from numba_marlin.problems import BlockProblem

MOST_COPIES = 64
LARGEST_ERROR = 2e-3  # of the norm, of results that are floats; indexing gone wrong is off by 1
SCALES = {"e4m3": (0x28, 0x40), "e8m0": (123, 128)}  # codes of scales: 1/4 to 2, 1/16 to 1


class Operands:
    """a, sfa; b, sfb: a list of copies each; a_half, b_half (copies): the numbers; c, bias or
    None."""

    def __init__(self, problem: BlockProblem) -> None:
        self.torch, self.problem, self.form = torch_on_gpu(), problem, BLOCK_FORMATS[problem.format]
        torch = self.torch
        cold = (
            COLD_FACTOR
            * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        )
        copies = max(1, min(MOST_COPIES, -(-cold // problem.operand_bytes(problem.n))))
        self.a, self.sfa, self.a_half = self._random(problem.m)
        b, sfb, half = self._random(problem.n)
        self.b, self.sfb = (
            [b, *(b.clone() for _ in range(copies - 1))],
            [
                sfb,
                *(sfb.clone() for _ in range(copies - 1)),
            ],
        )
        self.b_half = [
            half,
            *(
                half.clone()
                for _ in range(max(1, min(copies, -(-cold // (2 * problem.n * problem.k)))) - 1)
            ),
        ]
        self.c = (
            torch.randn((problem.m, problem.n), device="cuda").to(getattr(torch, problem.result))
            if problem.source
            else None
        )
        self.bias = torch.randn(problem.n, device="cuda") if problem.bias else None
        self.alpha = 0.5 / problem.k**0.5

    def _random(self, rows: int):
        torch, form, k = self.torch, self.form, self.problem.k
        data = torch.randint(0, 256, (rows, k * form.bits // 8), dtype=torch.uint8, device="cuda")
        # of 8 bits any sign, and sizes from 1/8 to 2
        data = data if form.bits == 4 else (data & 0x9F) + 0x20
        low, high = SCALES[form.scale_grid]
        scales = torch.randint(low, high, (rows, k // form.block), dtype=torch.uint8, device="cuda")
        codes = (
            torch.stack((data & 15, data >> 4), dim=2).reshape(rows, k) if form.bits == 4 else data
        )
        values, factors = (
            torch.nan_to_num(torch.tensor(table(name).astype("float32"), device="cuda"))
            for name in (form.element, form.scale_grid)
        )
        numbers = (
            (values[codes.int()].reshape(rows, -1, form.block) * factors[scales.int()][:, :, None])
            .reshape(rows, k)
            .half()
        )
        return data, torch.from_numpy(to_tiles(scales.cpu().numpy())).cuda(), numbers


def contender(
    candidate: Candidate, operands: Operands, compiled, more: tuple[tuple, ...] = ((),)
) -> Contender:
    """``more``: arguments behind the kernel's own, one tuple a launch, round and round."""
    torch, problem, definition, config = (
        operands.torch,
        operands.problem,
        find_kernel(candidate.kernel),
        candidate.config,
    )
    enqueue = launch.launcher(
        compiled, torch.cuda.current_device(), **definition.launch_options(config)
    )
    m, n = problem.m, problem.columns
    fixed = {
        "a": operands.a,
        "sfa": operands.sfa,
        "c": operands.c,
        "bias": operands.bias,
        "locks": torch.zeros(4, dtype=torch.int32, device="cuda"),
    }
    if problem.result in BLOCK_FORMATS:
        form = BLOCK_FORMATS[problem.result]
        fixed |= {
            "d": torch.zeros(form.data_shape(m, n), dtype=torch.uint8, device="cuda"),
            "sfd": torch.zeros(form.scales_shape(m, n, "128x4"), dtype=torch.uint8, device="cuda"),
        }
    else:
        fixed["d"] = torch.zeros((m, n), dtype=getattr(torch, problem.result), device="cuda")
    if any(name == "alpha" for name, _ in definition.parameters):
        fixed["alpha"] = torch.tensor([operands.alpha], device="cuda")
    else:
        from numba_marlin.kernels.nvfp4.block_scaled.kernel import OPERAND_POWER

        fixed["factors"] = torch.tensor(
            [operands.alpha * 2.0**OPERAND_POWER, float(problem.source), 1.0, 1 / 6], device="cuda"
        )
    addresses = {name: each.data_ptr() for name, each in fixed.items() if each is not None}
    prepared = [
        definition.arguments(
            config,
            addresses | {"b": b.data_ptr(), "sfb": sfb.data_ptr()},
            m,
            problem.n,
            problem.k,
            problem.k,
            driver.encode_tensor_map,
        )
        for b, sfb in zip(operands.b, operands.sfb)
    ]

    def run(index: int, keep=(fixed, operands)) -> None:
        enqueue(
            candidate.grid,
            prepared[index % len(prepared)] + more[index % len(more)],
            torch.cuda.current_stream().cuda_stream,
        )

    return Contender(
        candidate.kernel,
        run,
        fixed["d"],
        len(prepared),
        candidate,
        compiled,
        fixed["locks"],
        definition.launch_options(config),
    )


def cublas(operands: Operands) -> Contender:
    """``torch.matmul`` of the same numbers as halves."""
    torch, a, halves = operands.torch, operands.a_half, operands.b_half
    output = torch.empty(
        (operands.problem.m, operands.problem.n), dtype=torch.float16, device="cuda"
    )
    return Contender(
        "cublas",
        lambda index: torch.matmul(a, halves[index % len(halves)].T, out=output),
        output,
        len(halves),
    )


def check(entrant: Contender, operands: Operands) -> None:
    """One launch. Plain products of floats are compared; of all it is seen that the counter of
    tiles is left at zero."""
    torch, problem = operands.torch, operands.problem
    entrant.output.fill_(0 if entrant.output.dtype == torch.uint8 else float("nan"))
    entrant.launch(0)
    event = torch.cuda.Event()
    event.record()
    wait(event)
    if bool(entrant.locks.any()):
        raise WrongResult(
            f"kernel {entrant.name!r} with {entrant.candidate.config} left its counter set: the"
            " next launch would skip tiles"
        )
    if problem.result in BLOCK_FORMATS or problem.activation:
        return
    expected = operands.alpha * (operands.a_half.float() @ operands.b_half[0].float().T)
    expected += 0 if operands.c is None else operands.c.float()
    expected += 0 if operands.bias is None else operands.bias
    error = float((entrant.output.float() - expected).norm() / expected.norm())
    if not error < LARGEST_ERROR:
        raise WrongResult(
            f"kernel {entrant.name!r} with {entrant.candidate.config} at {problem}: relative error"
            f" {error:.3g} of its product (NaN: not all written)"
        )
