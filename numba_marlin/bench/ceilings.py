"""The ceilings of this GPU, measured in the same run as the kernels: bytes read per second, and
matrix operations per second. Needs torch.

Reading: the sum of a buffer far larger than the L2 cache. Matrix rate: cuBLAS on square 16-bit
matrices of random numbers. Both are the best of interleaved rounds, since a ceiling is what can be
reached, and both hold for this GPU in its present state: power and temperature limit the second.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu

READ_BYTES = 4 << 30
SQUARE = 8192


@dataclass(frozen=True)
class Ceilings:
    """Ceilings in bytes/s and operations/s (a multiply-add is two). ``source``: "measured"."""

    read_bytes: float
    matrix_flops: float
    source: str = "measured"

    def to_dict(self) -> dict:
        return asdict(self)

    def seconds(self, nbytes: float, flops: float) -> float:
        """Seconds for the work at the ceiling that limits it."""
        return max(nbytes / self.read_bytes, flops / self.matrix_flops)


def measure(dtype: str = "float16", rounds: int = 9) -> Ceilings:
    torch = torch_on_gpu()
    free, _ = torch.cuda.mem_get_info()
    words = min(READ_BYTES, free // 4) // 4
    size = SQUARE if free > 8 * SQUARE * SQUARE else SQUARE // 2
    source = torch.randn(words, device="cuda")
    total = torch.empty((), device="cuda")
    left, right = (
        torch.randn((size, size), device="cuda").to(getattr(torch, dtype)) for _ in range(2)
    )
    product = torch.empty_like(left)
    timers = {
        "read": GraphTimer(lambda index: torch.sum(source, dim=0, out=total), least=2),
        "matrix": GraphTimer(lambda index: torch.matmul(left, right, out=product), least=2),
    }
    best = {name: min(times) * 1e-6 for name, times in interleave(timers, rounds).items()}
    return Ceilings(4 * words / best["read"], 2 * size**3 / best["matrix"])
