"""Contract under test: decode and wgmma are right on a GPU in every configuration that ``heuristics`` would choose, and give the same bits every time: launch after launch, on any
stream, in a graph, and where a launch begins before the one has ended whose result it reads.

Every output of a small problem is held under its own bound (``reference``) or, where nothing is rounded, must match bit for bit; of a large one every output must be finite, and rows and blocks of 64
columns drawn at random, with the first and the last, are held under theirs. Guard bands, NaN in C and partial sums, locks zero: ``on_gpu``. Large weights are random words, repeated at a
distance that is no multiple of a row: to make them otherwise would take longer than all the rest.

    pytest -n 8 --run-on cuda tests/kernels/test_hopper_on_gpu.py      # compiles about a hundred configurations first, with all cores

On the PTX machine one small case of each kind that it can do runs; the others are skipped by name.
"""
from dataclasses import dataclass, replace

import numpy as np
import pytest

from numba_marlin import devices, driver, heuristics, reference, testing
from numba_marlin.formats import PackedWeight, marlin
from numba_marlin.formats.floats import float_type
from numba_marlin.heuristics import Problem
from numba_marlin.heuristics import decode as decode_choices
from numba_marlin.heuristics import wgmma as wgmma_choices
from tests.kernels.harness import prepare, run_kernel, sms_of
from tests.kernels.warming import warm_cache_once

H200 = devices.device("H200")
CHOICES = {"decode": decode_choices, "wgmma": wgmma_choices}
LARGEST_DECODE = 64  # rows; beyond that nobody would choose it
TABLE = {  # k, n of the table of goals: batches
    (135168, 33792): (1, 16, 64, 256), (28672, 8192): (1, 16, 64, 256, 1024), (8192, 57344): (1, 16, 64, 256, 1024),
    (8192, 8192): (1, 16, 32, 64, 128, 256, 1024), (4096, 4096): (1, 16, 32, 64, 128, 256, 4096),
}
RAGGED = ((10944, 7392, 64), (10944, 576, -1), (7168, 7392, 256), (7168, 576, 128), (7168, 7368, 32))  # k, n, group size
TAILS = (1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 95, 96, 97, 127, 128, 129, 160, 191, 192, 193, 255, 256, 257)  # rows, about every multiple of 8 and 16 that ends a tile
GROUP_SIZES = (-1, 32, 64, 128, 256)
LAUNCHES = 1000
CHECKED_ROWS, CHECKED_BLOCKS = 48, 4


@dataclass(frozen=True)
class Cell:
    """A problem and the configuration to run it with: the one that leads, if none is given."""
    kernel: str
    problem: Problem
    config: object = None

    def __post_init__(self):
        object.__setattr__(self, "config", self.config or heuristics.candidate(self.problem, H200, self.kernel).config)

    def __str__(self):
        p = self.problem
        return f"{self.kernel}, m={p.m}, n={p.n}, k={p.k}, group_size={p.group_size}, {self.config}"

    @property
    def method(self):
        """How the kernel multiplies: which bound its results are under."""
        return heuristics.find_kernel(self.kernel).method(self.config)


def short(cell):
    p, config = cell.problem, cell.config
    arrangement = "-".join(f"{name}{getattr(config, name)}" for name in ("batch", "warps_n", "warps_k", "tile_m", "tile_n", "k_groups", "cluster", "split", "whole") if hasattr(config, name))
    return f"{cell.kernel}-m{p.m}-{p.k}x{p.n}-g{p.group_size}-{arrangement}"


def led(kernel, *problem, **types):
    return Cell(kernel, Problem(*problem, **types))


def arrangements(kernel, problem):
    """A cell for each that the kernel's module of ``heuristics`` proposes."""
    return tuple(Cell(kernel, problem, config) for config in CHOICES[kernel].configurations(problem, H200))


def table_cells(k, n):
    return tuple(led(kernel, m, n, k, 128) for m in TABLE[k, n] for kernel in CHOICES if m <= LARGEST_DECODE or kernel != "decode")


def ragged_cells(kernel, k, n, group_size):
    return tuple(led(kernel, m, n, k, group_size) for m in TAILS if m <= LARGEST_DECODE or kernel != "decode")


def rows_of(config):
    return config.batch if hasattr(config, "batch") else config.tile_m


def typed_cells(kernel, group_size, dtype):
    """Two arrangements, the second with a bias, others for each type; rows that leave a tile unfilled, and fill one."""
    base = Problem(1, 200, 768, group_size, dtype, scale_dtype=dtype)
    all_of, turn = arrangements(kernel, replace(base, m=600)), 2 * GROUP_SIZES.index(group_size) + (dtype == "bfloat16")
    found = []
    for bias in (False, True):
        config = all_of[(2 * turn + bias) % len(all_of)].config
        problem = replace(base, bias=bias)
        config = next(each.config for each in arrangements(kernel, replace(problem, m=600)) if replace(each.config, bias=False) == replace(config, bias=False))
        found += [Cell(kernel, replace(problem, m=m), config) for m in (1, rows_of(config), rows_of(config) + 3)]
    return tuple(found)


REPEATED = (
    *arrangements("decode", Problem(7, 576, 7168)), *arrangements("wgmma", Problem(150, 576, 7168)),  # few tiles, each shared by many blocks
    led("decode", 1, 8192, 8192), led("decode", 16, 8192, 8192), led("decode", 40, 1984, 4096, 32), led("wgmma", 64, 4096, 4096), led("wgmma", 257, 320, 10944, 64),
)
# Two layers, the second reading what the first one wrote: kernels, rows, and k, n of the first; the second takes its n as k.
CHAINS = tuple((first, second, m) for first, second, m in (
    ("decode", "decode", 1), ("decode", "decode", 8), ("decode", "decode", 16), ("decode", "decode", 30), ("wgmma", "wgmma", 30), ("wgmma", "wgmma", 64), ("wgmma", "wgmma", 150),
    ("decode", "wgmma", 16), ("wgmma", "decode", 32)))


def layers(first, second, m):
    return led(first, m, 2048, 8192), led(second, m, 1032, 2048)


@pytest.fixture(scope="module", autouse=True)
def compiled(request, run_on):
    """The cells of all tests that were asked for, compiled."""
    if run_on == "cuda":
        cells = [cell for item in request.session.items if item.path == request.path for cell in item.callspec.params.get("cells", ())]
        warm_cache_once([(cell.kernel, cell.config) for cell in cells], driver.describe(0).target)


def need_gpu(run_on, why):
    if run_on != "cuda":
        pytest.skip(f"{why}: run it on a GPU with --run-on cuda")


# ---- data, and what is right ------------------------------------------------------------------------------------------------------------------


def random_packed(problem, seed=0):
    """A PackedWeight of random words and scales."""
    generator = np.random.default_rng((seed, problem.n, problem.k))
    columns = marlin.packed_columns(problem.n)
    words = np.frombuffer(generator.bytes(4 * ((1 << 20) + 77)), np.int32)
    qweight = np.resize(words, (problem.k // 16, 2 * columns))
    scales = generator.uniform(0.005, 0.025, (problem.groups, columns)).astype(float_type(problem.scale_dtype))
    return PackedWeight("marlin", qweight, scales, 4, problem.group_size, problem.k, problem.n)


def random_x(m, k, seed=0):
    return np.random.default_rng((seed, m, k)).standard_normal((m, k)).astype(np.float16)


def some(count, size, generator):
    """``count`` of range(size), the first and the last among them; all if there are no more."""
    return np.arange(size) if size <= count else np.unique(np.r_[0, size - 1, generator.choice(size, count - 2, replace=False)])


def judge(c, x, packed, cell):
    """AssertionError unless all of c is finite, and rows and columns drawn at random are within their bounds."""
    assert np.isfinite(c).all(), f"{cell}: {np.argwhere(~np.isfinite(c))[0]} is not finite"
    generator = np.random.default_rng(c.shape)
    rows = some(CHECKED_ROWS, x.shape[0], generator)
    blocks = some(2 if packed.k > 50000 else CHECKED_BLOCKS, packed.n_packed // 64, generator)
    columns = (64 * blocks[:, None] + np.arange(64)).reshape(-1)
    words = (128 * blocks[:, None] + np.arange(128)).reshape(-1)
    narrow = marlin.unpack(PackedWeight("marlin", packed.qweight[:, words], packed.scales[:, columns], 4, packed.group_size, packed.k, columns.size))
    inside = columns < packed.n
    narrow = replace(narrow, codes=narrow.codes[:, inside], scales=narrow.scales[:, inside])
    report = reference.check(c[np.ix_(rows, columns[inside])], x[rows], narrow, order="random", method=cell.method)
    assert report.ok, f"{cell}: {report}"


def at_home(cell, packed, seed=0, stream=0, held=None):
    """(x, a DeviceProblem not launched yet)"""
    from tests.kernels.on_gpu import DeviceProblem
    x = random_x(cell.problem.m, cell.problem.k, seed)
    return x, DeviceProblem(prepare(heuristics.find_kernel(cell.kernel), x, packed, config=cell.config, sms=sms_of("cuda"), run_on="cuda"), stream, held)


def run_all(cells):
    """Launch and judge each; the weights, which all share, go to the device once."""
    from tests.kernels.on_gpu import GuardedArray
    packed = random_packed(cells[0].problem)
    held = {"b": GuardedArray(packed.qweight), "scales": GuardedArray(packed.scales)}
    for cell in cells:
        x, problem = at_home(cell, packed, held=held)
        judge(problem.launched().collect()["c"], x, packed, cell)
    for name, array in held.items():
        array.check_unchanged(name)


# ---- right everywhere -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [table_cells(k, n) for k, n in TABLE], ids=[f"{k}x{n}" for k, n in TABLE])
def test_shapes_of_the_table(cells, run_on):
    need_gpu(run_on, f"{cells[0].problem.k * cells[0].problem.n / 1e6:.0f} million weights")
    run_all(cells)


@pytest.mark.parametrize("cells", [ragged_cells(kernel, *shape) for shape in RAGGED for kernel in CHOICES], ids=[f"{kernel}-{k}x{n}-g{g}" for k, n, g in RAGGED for kernel in CHOICES])
def test_tails_of_every_size(cells, run_on):
    need_gpu(run_on, f"{cells[0].problem.k * cells[0].problem.n / 1e6:.0f} million weights, {len(cells)} batches")
    run_all(cells)


@pytest.mark.parametrize("cells", [typed_cells(kernel, g, dtype) for kernel in CHOICES for g in GROUP_SIZES for dtype in ("float16", "bfloat16")],
                         ids=[f"{kernel}-g{g}-{dtype}" for kernel in CHOICES for g in GROUP_SIZES for dtype in ("float16", "bfloat16")])
def test_every_type_is_exact(cells, run_on):
    """On the machine with one row, in the first and last of the cells' configurations, and only for groups of 64."""
    if run_on != "cuda":
        if cells[0].problem.group_size != 64:
            need_gpu(run_on, "other groups, and larger batches")
        cells = (cells[0], replace(cells[-1], problem=replace(cells[-1].problem, m=1)))
    for cell in cells:
        p = cell.problem
        exact = testing.exact_problem(p.m, p.n, p.k, p.group_size, seed=p.m, dtype=p.dtype, scale_dtype=p.scale_dtype, bias=p.bias)
        found = run_kernel(heuristics.find_kernel(cell.kernel), exact.x, exact.weight, config=cell.config, bias=exact.bias, sms=sms_of(run_on), run_on=run_on).c
        assert (found == exact.expected).all(), f"{cell}: {(found != exact.expected).sum()} of {found.size} differ, first {np.argwhere(found != exact.expected)[0]}"


# ---- the same every time ----------------------------------------------------------------------------------------------------------------------


def assert_all_alike(bits, expected, what):
    differing = np.flatnonzero((bits != expected).any(axis=(1, 2)))
    assert differing.size == 0, f"{what}: {differing.size} of {len(bits)} launches differ, first {differing[:10]}, in up to {(bits != expected).sum(axis=(1, 2)).max()} outputs"


@pytest.mark.parametrize("cells", [(cell,) for cell in REPEATED], ids=map(short, REPEATED))
def test_every_launch_gives_the_same_bits(cells, run_on):
    """With C and workspace poisoned between them; and adjacent, so that they may overlap, and share the workspace."""
    need_gpu(run_on, f"{LAUNCHES} launches; the machine is deterministic")
    from tests.kernels.on_gpu import Streams
    packed = random_packed(cells[0].problem)
    with Streams(1) as (stream,):
        x, problem = at_home(cells[0], packed, stream=stream)
        alone = problem.launched().collect()["c"]
        judge(alone, x, packed, cells[0])
        for what, bits in (("poisoned between", problem.repeat(LAUNCHES // 10)), ("on a stream", problem.repeat_adjacent(LAUNCHES)), ("in a graph", problem.repeat_adjacent(LAUNCHES, in_graph=True))):
            assert_all_alike(bits, alone.view(np.uint16), f"{cells[0]}, {what}")
        problem.collect()


STREAMED = tuple(led(kernel, m, 4096, 4096) for kernel, m in (("decode", 1), ("decode", 16), ("wgmma", 64), ("wgmma", 150)))


@pytest.mark.parametrize("cells", (STREAMED, STREAMED[:1] * 4, STREAMED[2:3] * 4), ids=("each another kernel", "decode", "wgmma"))
def test_streams_do_not_disturb_each_other(cells, run_on):
    need_gpu(run_on, "the machine has no streams")
    from tests.kernels.on_gpu import Streams
    packed = random_packed(cells[0].problem)
    with Streams(len(cells)) as streams:
        problems = [at_home(cell, packed, seed=index, stream=stream) for index, (cell, stream) in enumerate(zip(cells, streams))]
        alone = [problem.launched().collect()["c"].view(np.uint16) for _, problem in problems]
        for _ in range(200):
            for _, problem in problems:
                problem.launch()
        for (x, problem), expected, cell in zip(problems, alone, cells):
            together = problem.collect()["c"]
            assert np.array_equal(together.view(np.uint16), expected), f"{cell} gave other bits beside other streams"
            judge(together, x, packed, cell)


@pytest.mark.parametrize("cells", [(cell,) for cell in STREAMED], ids=map(short, STREAMED))
def test_a_graph_may_be_replayed(cells, run_on):
    need_gpu(run_on, "the machine has no graphs")
    from tests.kernels.on_gpu import Graph, Row, Streams
    with Streams(1) as (stream,):
        _, problem = at_home(cells[0], random_packed(cells[0].problem), stream=stream)
        alone = problem.launched().collect()["c"]
        results = Row(20, alone, stream)
        rows = [problem.arguments_with(c=address) for address in results.addresses]
        graph = Graph(stream, lambda: [problem.launch(arguments) for arguments in rows])
        for replay in range(10):
            results.poison()
            graph.launch()
            problem.wait()
            assert_all_alike(results.bits(), alone.view(np.uint16), f"{cells[0]}, replay {replay}")
        problem.collect()


# ---- a launch that reads what the one before it writes ----------------------------------------------------------------------------------------


class Chain:
    """x -> h -> y by two layers, on two x in turns, one launch behind the other and nothing between: the second layer's launch may begin
    before h is there, and the next one's first layer while h is still read. ``edit``: what becomes of the second kernel once it is compiled."""

    def __init__(self, cells, stream, edit=lambda compiled: compiled):
        from tests.kernels.on_gpu import DeviceProblem, GuardedArray
        packed = [random_packed(cell.problem) for cell in cells]
        self.stream, self.first = stream, at_home(cells[0], packed[0], stream=stream)[1]
        hidden = np.full((cells[1].problem.m, cells[1].problem.k), np.nan, np.float16)
        second = prepare(heuristics.find_kernel(cells[1].kernel), hidden, packed[1], config=cells[1].config, sms=sms_of("cuda"), run_on="cuda")
        self.second = DeviceProblem(replace(second, compiled=edit(second.compiled)), stream, held={"a": self.first.arrays["c"]})
        self.inputs = [GuardedArray(random_x(cells[0].problem.m, cells[0].problem.k, seed)) for seed in (1, 2)]
        driver.synchronize(0)

    def lone(self):
        """The bits of y for each x, every launch waited for."""
        found = []
        for x in self.inputs:
            self.first.launch(self.first.arguments_with(a=x.address))
            self.first.wait()
            found.append(self.second.launched().collect()["c"].view(np.uint16))
        return found

    def row(self, launches, in_graph):
        """The bits of y, uint16 [launches, m, n], from one unbroken row of launches, x in turns."""
        from tests.kernels.on_gpu import Row, put
        results = Row(launches, self.second.arrays["c"].host, self.stream)
        reads = [self.first.arguments_with(a=x.address) for x in self.inputs]
        writes = [self.second.arguments_with(c=address) for address in results.addresses]

        def enqueue():
            for index, arguments in enumerate(writes):
                self.first.launch(reads[index % 2])
                self.second.launch(arguments)
        put(self.stream, enqueue, in_graph)
        self.second.wait()
        return results.bits()


def count_different(bits, expected):
    return sum(int((bits[which::2] != expected[which]).any(axis=(1, 2)).sum()) for which in (0, 1))


@pytest.mark.parametrize("in_graph", (False, True), ids=("stream", "graph"))
@pytest.mark.parametrize("cells", [layers(*chain) for chain in CHAINS], ids=[f"{first}-{second}-m{m}" for first, second, m in CHAINS])
def test_what_the_launch_before_wrote_is_what_is_read(cells, in_graph, run_on):
    need_gpu(run_on, "on the machine a launch ends before the next begins")
    from tests.kernels.on_gpu import Streams
    with Streams(1) as (stream,):
        chain = Chain(cells, stream)
        expected = chain.lone()
        assert not np.array_equal(*expected), "the two x must differ"
        wrong = count_different(chain.row(LAUNCHES, in_graph), expected)
        assert wrong == 0, f"{cells[1]} read h too early, or {cells[0]} wrote it too early, in {wrong} of {LAUNCHES} launches"
        chain.first.collect()
        chain.second.collect()


def without_waits(compiled):
    """A dependent kernel that does not wait for the launch before it."""
    from numba_marlin.compiler.assemble import assemble
    from numba_marlin.compiler.targets import target_named
    ptx = compiled.ptx.replace("griddepcontrol.wait;", "")
    assert ptx != compiled.ptx, f"{compiled.kernel} waits for no launch before it"
    return replace(compiled, ptx=ptx, cubin=assemble(ptx, target_named(compiled.target))[0])


@pytest.mark.parametrize("cells", [layers("decode", "decode", 1)], ids=["decode"])
def test_a_launch_that_does_not_wait_is_noticed(cells, run_on):
    """The test above can fail: with the wait taken out of the second layer some launches read the other x's h."""
    need_gpu(run_on, "on the machine a launch ends before the next begins")
    from tests.kernels.on_gpu import Streams
    with Streams(1) as (stream,):
        chain = Chain(cells, stream, without_waits)
        assert count_different(chain.row(LAUNCHES, in_graph=True), chain.lone()) > 0
