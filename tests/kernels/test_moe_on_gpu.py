"""Contract under test: the kernels of experts give on a GPU what they give on the machine: exact
problems bit for bit, others within their bounds, the same bits on every run, whatever the routing.

All of it needs a GPU and torch: ``pytest --run-on cuda``.
"""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import reference
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.floats import round_to
from numba_marlin.testing.experts import ids_of, kind_of_x, layer
from tests.kernels import moe_bytes, moe_few, moe_many

FEW = {f"moe, {name}": config for name, config in moe_few.CONFIGURATIONS.items()}
MANY = {f"moe_wgmma, {name}": config for name, config in moe_many.GATES.items()}
BYTES = {f"moe_wgmma_{name}": config for name, config in moe_bytes.ON_GPU.items()}
EVERY = FEW | MANY | BYTES
OF_X = ("codes", "scales")
# tokens: one, some, more than tiles have rows
TOKENS = (1, 37, 700)


def on_device(given, device):
    """-> c [rows, n], NumPy, twice the same."""
    torch = pytest.importorskip("torch")
    config = given.config
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[config.dtype]

    def there(array):
        return torch.from_numpy(array.astype(np.float32)).to(device, dtype)

    ids, weights = (
        torch.from_numpy(np.ascontiguousarray(each)).to(device)
        for each in (given.routing.ids, given.routing.weights)
    )

    def as_given(x):
        if not isinstance(x, QuantizedActivations):
            return there(x)
        parts = {name: torch.from_numpy(getattr(x, name)).to(device) for name in OF_X}
        return replace(x, **parts)

    y, again = (
        nm.moe_matmul(
            as_given(given.x),
            given.experts,
            nm.Routing.of(ids, weights, config.experts),
            bias=None if given.bias is None else there(given.bias),
            combine=config.combine,
            activation=config.activation,
            config=config,
            backend="auto" if device == "cuda" else "emulator",
        )
        for _ in range(2)
    )
    assert torch.equal(y, again)
    columns = given.experts.n // (2 if config.gated else 1)
    return round_to(y.float().cpu().numpy().reshape(-1, columns), config.dtype)


def is_exact(config):
    """Sums of small integers times powers of two, and nothing else."""
    integers = not config.block_scaled and config.zeros != "float16"
    return integers and not config.bias and not config.gated


def judge(config, m, device):
    few = "batch" in vars(config)
    k = 256 if few or kind_of_x(config) else moe_many.k_of(config)
    if few:
        n = 384 if config.gated or not config.ragged else 200
    else:
        n = moe_many.columns_of(config)
    rng = np.random.default_rng(m)
    ids = ids_of(rng, m, config.experts, config.top_k)
    given = layer(config, ids, n, k, integers=is_exact(config), seed=m)
    c = on_device(given, device)
    allowed = given.bounds_of_sums() if config.combine else given.bounds()
    if is_exact(config):
        assert np.array_equal(c, round_to(allowed.product, config.dtype))
    else:
        report = reference.judged(c, allowed)
        assert report.ok, report
    if kind_of_x(config) == "int8" and not (config.gated or config.combine):
        assert np.array_equal(c, given.expected())  # bit for bit, whatever the numbers are


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize("name", EVERY)
def test_a_gpu_gives_the_products(name, m, run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: --run-on cuda")
    judge(EVERY[name], m, "cuda")
