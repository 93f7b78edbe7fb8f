"""Groups of processes for the tests of parallel layers, and vLLM.

A group begins slowly (imports, CUDA, NCCL) and then serves every test that wants as many processes.
Under pytest-xdist each worker has groups of its own, so on GPUs, which all groups share, a worker
for each module is enough:

    python -m pytest --run-on cuda --thorough -n 3 --dist loadfile \\
        tests/torch_room/test_parallel.py tests/torch_room/test_parallel_graphs.py \\
        tests/torch_room/test_parallelize.py
"""

import pytest


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A group of one, in this process."""
    dist = pytest.importorskip("torch.distributed")
    file = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def started(tmp_path_factory):
    """{world: processes}, begun by the first test that wants as many, and after one that failed."""
    found = {}
    yield found
    for ranks in found.values():
        ranks.close()


@pytest.fixture(params=(2, 3))
def ranks(request, started, run_on, tmp_path):
    torch = pytest.importorskip("torch")
    from tests.torch_room.ranks import Ranks

    world = request.param
    if run_on == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if world not in started or not started[world].alive:
        started[world] = Ranks(world, tmp_path / "store", "nccl" if run_on == "cuda" else "gloo")
    return started[world]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """vLLM on the CPU (``engines``). Importing it takes seconds, so nobody does before."""
    pytest.importorskip(
        "vllm.model_executor.layers.linear", exc_type=ImportError, reason="vllm does not start"
    )
    from tests.torch_room import engines

    with engines.on_the_cpu(tmp_path_factory.mktemp("group") / "store"):
        yield engines


@pytest.fixture(scope="module")
def plugin(vllm):
    import numba_marlin.torch.vllm as room

    room.register()
    return room
