import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda comes with numba-marlin[cu13]")


@pytest.fixture
def gpu():
    """numba.cuda, with the PTX machine for a GPU."""
    from numba import cuda

    from numba_marlin import on_cpu

    with on_cpu.cuda():
        yield cuda
