"""Everything that is needed to fuzz a format, a kernel and a pipeline: ``pytest
experiments/08_fuzz_your_own/test_toy.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import toy

from numba_marlin import testing

test_packing = testing.packing_test(
    testing.Packing(toy.pack, toy.unpack, bits=4, k_step=toy.K_STEP, n_step=toy.N_STEP)
)
test_kernel = testing.kernel_test(
    toy.matmul, testing.problems(max_m=8, max_n=64, max_k=128, group_sizes=(-1, 16, 32, 64))
)
TestRing = testing.ring_machine(toy.ring_verbs, stages=3, consumers=2).TestCase
