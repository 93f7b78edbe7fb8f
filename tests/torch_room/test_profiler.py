"""Contract under test: PyTorch's profiler lists this package's product by its name, with its
shapes."""

import pytest

torch = pytest.importorskip("torch")


def test_the_product_stands_in_torchs_profile_by_name():
    from torch.profiler import ProfilerActivity, profile

    import numba_marlin.torch as nmt

    layer = nmt.Linear.from_linear(torch.nn.Linear(128, 64, bias=False).half())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        layer(torch.zeros(2, 128).half())
    rows = {row.key: row for row in found.key_averages(group_by_input_shape=True)}
    assert rows["numba_marlin::matmul"].count == 1
    assert [2, 128] in rows["numba_marlin::matmul"].input_shapes
