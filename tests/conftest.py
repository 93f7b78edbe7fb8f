"""One switch for the kernel tests: the PTX machine (default) or a real GPU (``--run-on cuda``)."""
import pytest


def pytest_addoption(parser):
    parser.addoption("--run-on", choices=("machine", "cuda"), default="machine",
                     help="where kernel tests execute: the PTX machine (default, no GPU needed) or the current CUDA device")


@pytest.fixture(scope="session")
def run_on(request):
    return request.config.getoption("--run-on")
