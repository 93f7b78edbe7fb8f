"""Switches: kernel tests run on the PTX machine (default) or on a GPU (``--run-on cuda``); how much
is tried (``--thorough``, or the nightly profile).

Two Hypothesis profiles: "untimed" (default), and "nightly": ``HYPOTHESIS_PROFILE=nightly``, or
``--hypothesis-profile nightly``. The nightly one is thorough too, and draws NIGHTLY examples
wherever a test does not say how many: a thousand schedules a kernel
(tests/kernels/test_schedules.py) among them.
"""

import gc
import json
import os

# a worker a core: NumPy's own threads would fight each other, 50 times slower than one
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import pytest

gc.disable()  # until all tests are collected: what importing and collecting make, stays
NIGHTLY = 1000
# a busy machine, or the first call's imports, are no failure
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=NIGHTLY)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))


def pytest_addoption(parser):
    parser.addoption(
        "--run-on",
        choices=("machine", "cuda"),
        default="machine",
        help=(
            "where kernel tests execute: the PTX machine (default, no GPU needed) or the current"
            " CUDA device"
        ),
    )
    parser.addoption(
        "--every-target",
        action="store_true",
        help=(
            "static gates: compile every configuration for every target (a quarter of an hour)"
            " instead of assembling Hopper's PTX for it"
        ),
    )
    parser.addoption(
        "--kernels-to",
        metavar="FILE",
        help=(
            "append each kernel, configuration and target that a test compiles or finds in the"
            " cache, a JSON line each (experiments/19_two_versions compiles them again)"
        ),
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help=(
            "also the cases that show a property once more, in yet another configuration; each"
            " compiles a kernel (always on a GPU)"
        ),
    )


def pytest_configure(config):
    file = config.getoption("--kernels-to")
    if file is None:
        return
    from numba_marlin.compiler import cache

    real = cache.cache_key

    def noted(kernel, configuration, target, compiler, *others):
        line = json.dumps([kernel.name, repr(configuration), target, compiler])
        with open(file, "a", encoding="utf-8") as out:
            out.write(line + "\n")
        return real(kernel, configuration, target, compiler, *others)

    cache.cache_key = noted


def is_nightly():
    return hypothesis.settings.default.max_examples == NIGHTLY


def is_thorough(config):
    return config.getoption("--thorough") or is_nightly()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    if is_thorough(config):
        for item in items:
            # which do more of the same then
            if "thorough" in getattr(item, "fixturenames", ()):
                item.add_marker("thorough")
    elif config.getoption("--run-on") == "machine":
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(
                    pytest.mark.skip(
                        reason="one more configuration of a property shown by others: --thorough"
                    )
                )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    settle()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        settle()


def settle():
    """Modules, 7000 tests, and what a compiler keeps of each kernel, live to the end: the collector
    need not walk through them again and again while a test makes many objects. That took a fifth of
    the processor time; three seconds a time, in the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def every_target(request):
    return request.config.getoption("--every-target")


@pytest.fixture(scope="session")
def thorough(request):
    return is_thorough(request.config)


@pytest.fixture(scope="session")
def nightly():
    """Examples that a test draws in the nightly profile; None in the usual one."""
    return NIGHTLY if is_nightly() else None


@pytest.fixture(scope="session")
def run_on(request):
    return request.config.getoption("--run-on")
