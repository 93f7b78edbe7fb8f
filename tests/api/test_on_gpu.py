"""Contract under test: a product on a GPU is the same however it got there: the long way, repeated,
captured, on any stream, from any thread.

All of it needs a GPU: ``pytest --run-on cuda``. torch and CuPy are tested where they are installed.
"""

import functools
import gc
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.execution import driver, launch, map_encoding, repeat, scratch
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.layout.tensor_map import TensorMap
from numba_marlin.testing import exact_problem
from tests.api.engines import choose
from tests.kernels.harness import prepare

M, N, K = 16, 512, 1024


@pytest.fixture(autouse=True)
def need_gpu(run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: run it with --run-on cuda")


@pytest.fixture(scope="module")
def problem():
    return exact_problem(M, N, K, 128, seed=1)


@pytest.fixture(scope="module")
def packed(problem):
    return nm.pack(problem.weight)


def torch_arrays(x):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(x).cuda(), lambda y: y.cpu().numpy()


def cupy_arrays(x):
    cupy = pytest.importorskip("cupy")
    return cupy.asarray(x), lambda y: y.get()


def numba_arrays(x):
    cuda = pytest.importorskip("numba.cuda")
    return cuda.to_device(x), lambda y: y.copy_to_host()


LIBRARIES = {"torch": torch_arrays, "cupy": cupy_arrays, "numba": numba_arrays}


def kept(packed):
    return len(repeat._calls.get(id(packed), ()))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_repeated_call_gives_the_same_bits_in_a_result_of_its_own(problem, library):
    packed = nm.pack(problem.weight)
    x, host = LIBRARIES[library](problem.x)
    first, info = nm.matmul(x, packed, return_info=True)
    assert kept(packed) == 1 and info.seconds > 0
    second = nm.matmul(x, packed)
    repeated = nm.last_run()
    assert (
        kept(packed) == 1 and repeated.seconds is None and repeated.to_dict()["backend"] == "cuda"
    )
    for y in (first, second):
        assert type(y) is type(x) and np.array_equal(host(y), problem.expected)
    other, _ = LIBRARIES[library](-problem.x)
    third = nm.matmul(other, packed, out=first)
    assert (
        third is first
        and np.array_equal(host(third), -problem.expected)
        and np.array_equal(host(second), problem.expected)
    )


def test_rows_apart_are_read_where_they_lie_or_copied(problem, packed):
    torch = pytest.importorskip("torch")
    for gap, kernel in ((0, None), (8, None), (8, "general"), (3, None), (3, "general")):
        wide = torch.full((M, K + gap), float("nan"), dtype=torch.float16, device="cuda")
        wide[:, :K] = torch.from_numpy(problem.x)
        for _ in range(2):
            assert np.array_equal(
                nm.matmul(wide[:, :K], packed, kernel=kernel).cpu().numpy(), problem.expected
            )


def test_other_streams_and_threads_at_the_same_time(problem, packed):
    torch = pytest.importorskip("torch")
    wrong = []

    def work(rows, stream):
        with torch.cuda.stream(stream) if stream else nullcontext():
            x = torch.from_numpy(problem.x[:rows]).cuda()
            for _ in range(200):
                if not np.array_equal(nm.matmul(x, packed).cpu().numpy(), problem.expected[:rows]):
                    wrong.append(rows)

    threads = [
        threading.Thread(target=work, args=(rows, rows % 2 and torch.cuda.Stream()))
        for rows in (1, 2, 3, 4, 9, 16)
    ]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert not wrong


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_stream_asked_for_by_name(problem, library):
    from tests.kernels.on_gpu import Streams

    packed = nm.pack(problem.weight)
    (x, host), (out, _) = (
        LIBRARIES[library](problem.x),
        LIBRARIES[library](np.zeros((M, N), np.float16)),
    )
    with Streams(2) as handles:
        for _ in range(3):
            for stream in handles:
                driver.synchronize(0)
                nm.matmul(x, packed, out=out, stream=stream)
                driver.synchronize(0, stream)
                assert np.array_equal(host(out), problem.expected)
        assert kept(packed) == 2
        assert np.array_equal(host(nm.matmul(x, packed, stream=handles[0])), problem.expected)


def test_graphs_captured_cold_and_replayed_side_by_side(problem):
    """Nothing was prepared: weight, kernel and scratch memory are brought while the stream is
    captured. Both graphs come from one stream."""
    torch = pytest.importorskip("torch")
    packed = nm.pack(problem.weight)
    launch._launchers.clear()
    x = torch.from_numpy(problem.x).cuda()
    graphs, results = [torch.cuda.CUDAGraph() for _ in range(2)], []
    for graph in graphs:
        with torch.cuda.graph(graph):
            results.append([nm.matmul(x, packed) for _ in range(3)])
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(50):
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        nm.matmul(x, packed)
    torch.cuda.synchronize()
    assert all(np.array_equal(y.cpu().numpy(), problem.expected) for each in results for y in each)
    scratch.release_workspaces()
    assert np.array_equal(nm.matmul(x, packed).cpu().numpy(), problem.expected), (
        "anew after a release"
    )


def test_a_weight_takes_its_memory_with_it(problem):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(problem.x).cuda()

    def held():
        """Arrays of this process on the device, and weights with calls; what the device has free is
        also other processes' affair."""
        gc.collect()
        return sum(isinstance(each, driver.DeviceArray) for each in gc.get_objects()), len(
            repeat._calls
        )

    packed = nm.pack(problem.weight)
    nm.matmul(x, packed)
    with_one = held()
    for _ in range(20):
        packed = nm.pack(problem.weight)
        nm.matmul(x, packed)
    assert held() == with_one
    del packed
    assert held() == (with_one[0] - 2, with_one[1] - 1), "codes and scales"


def test_bfloat16_and_a_bias_through_torch(problem, packed):
    torch = pytest.importorskip("torch")
    x, bias = (
        torch.from_numpy(array).cuda().bfloat16() for array in (problem.x, np.arange(N) % 5 - 2.0)
    )
    expected = (torch.from_numpy(problem.expected).double() + bias.cpu().double()).bfloat16()
    for _ in range(2):
        y = nm.matmul(x, packed, bias=bias)
        assert y.dtype == torch.bfloat16 and torch.equal(y.cpu(), expected)


def test_a_thread_without_a_context_and_one_with_somebody_elses(problem):
    torch = pytest.importorskip("torch")
    packed, x = nm.pack(problem.weight), torch.from_numpy(problem.x).cuda()
    launched = nm.matmul(x, packed)
    call = next(iter(repeat._calls[id(packed)].values()))
    out = torch.zeros_like(launched)
    states = []

    def work(foreign):
        context = driver.bindings().cuCtxCreate(None, 0, 0)[1] if foreign else 0
        states.append((int(context), int(driver.call("cuCtxGetCurrent"))))
        call.launch(x.data_ptr(), 0, out.data_ptr(), out)
        states.append((int(context), int(driver.call("cuCtxGetCurrent"))))
        if foreign:
            driver.call("cuCtxDestroy", context)

    for foreign in (False, True):
        out.zero_()
        torch.cuda.synchronize()
        thread = threading.Thread(target=work, args=(foreign,))
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert torch.equal(out, launched)
    assert len(states) == 4 and all(wanted == current for wanted, current in states), (
        "each thread keeps the context it had"
    )


MAPS = (
    TensorMap("float16", (64, 4096), (8192, 2), (16, 64), 128, 256),
    TensorMap("int32", (256, 8192), (32768, 4), (4, 128)),
    TensorMap("bfloat16", (3, 64), (256, 2), (8, 32), 64, 128),
    TensorMap("int32", (1 << 20,), (4,), (256,)),
    TensorMap("uint8", (7, 160), (160, 1), (7, 32), 32, 64),
)


@pytest.mark.parametrize("tensor_map", MAPS, ids=lambda each: f"{each.dtype} {each.shape}")
def test_a_patched_tensor_map_is_the_drivers_own(tensor_map):
    if driver.describe(0).compute_capability < (9, 0):
        pytest.skip("tensor maps came with compute capability 9.0")
    assert map_encoding.tensor_map_template(tensor_map, 0) is not None
    for address in np.random.default_rng(0).integers(1, 1 << 43, 100).tolist():
        assert map_encoding.encode_tensor_map(tensor_map, 16 * address) == map_encoding._encode(
            tensor_map, 16 * address, 0
        )


@pytest.mark.parametrize("cluster, dependent", ((1, True), (2, False), (4, True)))
def test_clusters_and_dependent_launches_are_accepted(problem, cluster, dependent):
    """A kernel that does not know of them runs as ever (dependent launches of it do not overlap
    what it reads: it reads nothing that was just written)."""
    if driver.describe(0).compute_capability < (9, 0):
        pytest.skip("both came with compute capability 9.0")
    from tests.kernels.on_gpu import DeviceProblem

    gpu = DeviceProblem(prepare("tiled", problem.x, problem.weight, run_on="cuda"))
    gpu.launcher = launch.launcher(gpu.compiled, cluster=cluster, dependent=dependent)
    for _ in range(3):
        gpu.launch()
    assert np.array_equal(gpu.collect()["c"], problem.expected)


HOPPER = {"decode": DecodeConfig, "wgmma": functools.partial(WgmmaConfig, tile_m=64)}


@pytest.mark.parametrize("name", HOPPER)
def test_hopper_kernels_repeat_wherever_x_lies(problem, name, monkeypatch):
    """Rows apart, new addresses (in words and in tensor maps), graphs: by the driver's own launches
    and by repeated ones."""
    torch = pytest.importorskip("torch")
    device = driver.describe(0)
    if device.target != "sm_90a":
        pytest.skip("these kernels are for compute capability 9.0")
    packed = choose(monkeypatch, name, HOPPER[name](), problem, device, "cuda")
    wide = torch.zeros((5, M, K + 8), dtype=torch.float16, device="cuda")
    wide[..., :K] = (
        torch.from_numpy(problem.x).cuda()
        * torch.tensor([1, -1, 2, 0, 1], device="cuda")[:, None, None]
    )
    for x, factor in zip(wide, (1, -1, 2, 0, 1)):
        assert np.array_equal(nm.matmul(x[:, :K], packed).cpu().numpy(), factor * problem.expected)
    assert kept(packed) == 1 and nm.last_run().candidate.kernel == name
    x, graph = wide[0, :, :K], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [nm.matmul(x, packed) for _ in range(4)]
    for factor in (2, -1):
        x.copy_(torch.from_numpy(factor * problem.x))
        for _ in range(20):
            graph.replay()
        assert all(np.array_equal(y.cpu().numpy(), factor * problem.expected) for y in results)
