"""``pytest --cuda-on-cpu``: every test of the run has the PTX machine for a GPU.

pytest finds the plugin by its entry point; ``-p numba_marlin.on_cpu.pytest_plugin`` names it where
the package is not installed. It switches on before conftest.py and tests are imported, so that what
they ask of ``numba.cuda`` at import has its answer.
"""

from numba_marlin.on_cpu.switch import RACES, VARIABLE, Options, is_on, start


def pytest_addoption(parser):
    group = parser.getgroup("cuda-on-cpu", "CUDA without a GPU (numba_marlin.on_cpu)")
    group.addoption(
        "--cuda-on-cpu",
        action="store_true",
        help=(
            "run everything that uses numba.cuda (numba-cuda) or numba_cuda_mlir.cuda on the PTX"
            " machine, on the CPU: no GPU and no driver are needed. What a kernel does wrong (out"
            " of bounds, races, deadlocks, shared memory read before it is written) fails the test"
            f" with file, line, thread and array index. {VARIABLE}=1 does the same."
        ),
    )
    group.addoption(
        "--cuda-on-cpu-races",
        choices=sorted(RACES),
        default="auto",
        help=(
            "look for accesses that nothing orders: on; off, which is 3 to 50 times faster; auto"
            " (default): in launches where the records for it stay below 1 GiB"
        ),
    )


def pytest_load_initial_conftests(early_config):
    switch_on(early_config.known_args_namespace)


def pytest_configure(config):
    switch_on(config.option)  # of a worker of pytest-xdist


def pytest_report_header(config):
    return "numba.cuda: on the CPU, by the PTX machine" if is_on() else None


def switch_on(options):
    if options.cuda_on_cpu and not is_on():
        start(Options(RACES[options.cuda_on_cpu_races]))
