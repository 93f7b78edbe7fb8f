"""What each role of the kernel costs: its variants (``variants``) in turns, on this machine's GPU.

    python experiments/11_block_scaled/parts.py [m n k]
"""
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from variants import VARIANTS  # noqa: E402

from numba_marlin.kernels.block_scaled_config import BlockScaledConfig  # noqa: E402

CONFIGS = (BlockScaledConfig(stages=3, expanded_stages=4), BlockScaledConfig(tile_m=128, stages=4, expanded_stages=4))


def compile_one(name, config):
    from numba_marlin import compiler
    return compiler.build(VARIANTS[name], config, target="sm_90a").resources


def main():
    m, n, k = (int(each) for each in sys.argv[1:4]) if len(sys.argv) > 3 else (8192, 8192, 8192)
    cells = [(name, config) for config in CONFIGS for name in VARIANTS]
    with ProcessPoolExecutor(len(cells), mp_context=get_context("fork")) as pool:
        list(pool.map(compile_one, *zip(*cells)))
    import run
    from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu
    torch = torch_on_gpu()
    operands = run.Operands(torch, m, n, k)
    factors = torch.tensor([2.0**28 / k, 0.0, 1.0, 1 / 6], device="cuda")
    timers = {(name, config): GraphTimer(operands.launch(config, factors, VARIANTS[name])[0]) for name, config in cells}
    for (name, config), times in interleave(timers, 7).items():
        us = sorted(times)[len(times) // 2]
        steps = -(-config.tiles(m, n) // 132) * (k // 128)
        print(f"{config.tile_m} x {config.tile_n}  {name:10} {us:9.1f} us  {2 * m * n * k / us / 1e6:7.1f} TFLOP/s  {us * 1e3 / steps:7.0f} ns for 128 of k")


if __name__ == "__main__":
    main()
