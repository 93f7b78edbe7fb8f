"""A small mixture of experts that several modules test: its sizes, operands and judge."""

import numpy as np

import numba_marlin as nm
from numba_marlin import reference
from numba_marlin.testing.contents import make_quantized

K, N, E, M = 64, 64, 4, 5
RNG = np.random.default_rng(7)
LOGITS = RNG.standard_normal((M, E)).astype(np.float32)
ROUTING = nm.route(LOGITS, 2, normalize=True)
X = RNG.standard_normal((M, K)).astype(np.float16)


def experts(k=K, n=N, seed=0, count=E, **options):
    return nm.PackedExperts.of(
        nm.pack(make_quantized("uniform", "ordinary", k, n, 32, seed + each, **options))
        for each in range(count)
    )


EXPERTS = experts()


def judged(y, allowed):
    n = y.shape[-1]
    parts = (allowed.product, allowed.accumulated, allowed.rounded)
    flat = reference.Bounds(*(each.reshape(-1, n) for each in parts))
    report = reference.judged(y.reshape(-1, n), flat)
    assert report.ok, report
