"""Contract under test: decode and wgmma are right on a GPU in every configuration that
``heuristics`` would choose, and give the same bits every time: launch after launch, on any stream,
in a graph, and where a launch begins before the one has ended whose result it reads.

Every output of a small problem is held under its own bound (``reference``) or, where nothing is
rounded, must match bit for bit; of a large one every output must be finite, and rows and blocks of
64 columns drawn at random, with the first and the last, are held under theirs. Guard bands, NaN in
C and partial sums, locks zero: ``on_gpu``. Large weights are random words, repeated at a distance
that is no multiple of a row: to make them otherwise would take longer than all the rest.

    pytest -n 8 --run-on cuda tests/kernels/test_hopper_on_gpu.py      # compiles some 150
        configurations first, with all cores

On the PTX machine one small case of each kind that it can do runs; the others are skipped by name.
"""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import testing
from numba_marlin.execution import driver
from numba_marlin.testing.launches import Prepared
from tests.kernels.harness import prepare, run_kernel, sms_of
from tests.kernels.hopper_cells import (
    CHOICES,
    LAYERS,
    RAGGED,
    REPEATED,
    STREAMED,
    TABLE,
    TYPED,
    invariant_cells,
    ragged_cells,
    table_cells,
)
from tests.kernels.hopper_data import at_home, judge, need_gpu, random_packed, random_x
from tests.kernels.warming import warm_cache_once

LAUNCHES = 1000


@pytest.fixture(scope="module", autouse=True)
def compiled(request, run_on):
    """The cells of all tests that were asked for, compiled."""
    if run_on == "cuda":
        cells = [
            cell
            for item in request.session.items
            if item.path == request.path
            for cell in (
                *item.callspec.params.get("cells", ()),
                *TYPED.get(item.callspec.params.get("name"), ()),
            )
        ]
        warm_cache_once([(cell.kernel, cell.config) for cell in cells], driver.describe(0).target)


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


@pytest.mark.parametrize(
    "cells", [table_cells(k, n) for k, n in TABLE], ids=[f"{k}x{n}" for k, n in TABLE]
)
def test_shapes_of_the_table(cells, run_on):
    need_gpu(run_on, f"{cells[0].problem.k * cells[0].problem.n / 1e6:.0f} million weights")
    run_all(cells)


@pytest.mark.parametrize(
    "cells",
    [ragged_cells(kernel, *shape) for shape in RAGGED for kernel in CHOICES],
    ids=[f"{kernel}-{k}x{n}-g{g}" for k, n, g in RAGGED for kernel in CHOICES],
)
def test_tails_of_every_size(cells, run_on):
    need_gpu(
        run_on,
        f"{cells[0].problem.k * cells[0].problem.n / 1e6:.0f} million weights, {len(cells)}"
        " batches",
    )
    run_all(cells)


ON_THE_MACHINE = ("decode-g64-float16-4bit-None",)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TYPED)
def test_every_type_is_exact(name, run_on):
    """On the machine with one row, in the first and last of the cells' configurations, and for one
    type of one kernel."""
    cells = TYPED[name]
    if run_on != "cuda":
        if name not in ON_THE_MACHINE:
            need_gpu(run_on, "other types, and larger batches")
        cells = (cells[0], replace(cells[-1], problem=replace(cells[-1].problem, m=1)))
    for cell in cells:
        p = cell.problem
        exact = testing.exact_problem(
            p.m,
            p.n,
            p.k,
            p.group_size,
            seed=p.m,
            dtype=p.dtype,
            bits=p.bits,
            zeros_kind=p.zeros,
            scale_dtype=p.scale_dtype,
            bias=p.bias,
        )
        found = run_kernel(
            cell.definition,
            exact.x,
            exact.weight,
            config=cell.config,
            bias=exact.bias,
            sms=sms_of(run_on),
            run_on=run_on,
        ).c
        assert (found == exact.expected).all(), (
            f"{cell}: {(found != exact.expected).sum()} of {found.size} differ, first"
            f" {np.argwhere(found != exact.expected)[0]}"
        )


@pytest.mark.parametrize(
    "cells",
    [invariant_cells(576, 7168, 128), invariant_cells(7392, 10944, 64)],
    ids=("few tiles", "many"),
)
def test_a_row_has_the_same_bits_in_every_batch(cells, run_on):
    """The batch-invariant mode, across the kernels and configurations that it chooses."""
    need_gpu(
        run_on,
        f"{len(cells)} batches of {cells[0].problem.k * cells[0].problem.n / 1e6:.0f} million"
        " weights",
    )
    packed = random_packed(cells[0].problem)
    x = random_x(cells[-1].problem.m, cells[-1].problem.k)
    found = [
        run_kernel(
            cell.definition,
            x[: cell.problem.m],
            packed,
            config=cell.config,
            sms=sms_of("cuda"),
            run_on="cuda",
        ).c
        for cell in cells
    ]
    judge(found[-1], x, packed, cells[-1])
    for cell, c in zip(cells, found):
        assert np.array_equal(c.view(np.uint16), found[-1][: len(c)].view(np.uint16)), (
            f"{cell}: other bits than {cells[-1]}"
        )


def assert_all_alike(bits, expected, what):
    differing = np.flatnonzero((bits != expected).any(axis=(1, 2)))
    assert differing.size == 0, (
        f"{what}: {differing.size} of {len(bits)} launches differ, first {differing[:10]}, in up to"
        f" {(bits != expected).sum(axis=(1, 2)).max()} outputs"
    )


@pytest.mark.parametrize(
    "cells", [(cell,) for cell in REPEATED], ids=[cell.name for cell in REPEATED]
)
def test_every_launch_gives_the_same_bits(cells, run_on):
    """With C and workspace poisoned between them; and adjacent, so that they may overlap, and share
    the workspace."""
    need_gpu(run_on, f"{LAUNCHES} launches; the machine is deterministic")
    from tests.kernels.on_gpu import Streams

    packed = random_packed(cells[0].problem)
    with Streams(1) as (stream,):
        x, problem = at_home(cells[0], packed, stream=stream)
        alone = problem.launched().collect()["c"]
        judge(alone, x, packed, cells[0])
        for what, bits in (
            ("poisoned between", problem.repeat(LAUNCHES // 10)),
            ("on a stream", problem.repeat_adjacent(LAUNCHES)),
            ("in a graph", problem.repeat_adjacent(LAUNCHES, in_graph=True)),
        ):
            assert_all_alike(bits, alone.view(np.uint16), f"{cells[0]}, {what}")
        problem.collect()


@pytest.mark.parametrize(
    "cells",
    (STREAMED, STREAMED[:1] * 4, STREAMED[2:3] * 4),
    ids=("each another kernel", "decode", "wgmma"),
)
def test_streams_do_not_disturb_each_other(cells, run_on):
    need_gpu(run_on, "the machine has no streams")
    from tests.kernels.on_gpu import Streams

    packed = random_packed(cells[0].problem)
    with Streams(len(cells)) as streams:
        problems = [
            at_home(cell, packed, seed=index, stream=stream)
            for index, (cell, stream) in enumerate(zip(cells, streams))
        ]
        alone = [problem.launched().collect()["c"].view(np.uint16) for _, problem in problems]
        for _ in range(200):
            for _, problem in problems:
                problem.launch()
        for (x, problem), expected, cell in zip(problems, alone, cells):
            together = problem.collect()["c"]
            assert np.array_equal(together.view(np.uint16), expected), (
                f"{cell} gave other bits beside other streams"
            )
            judge(together, x, packed, cell)


@pytest.mark.parametrize(
    "cells", [(cell,) for cell in STREAMED], ids=[cell.name for cell in STREAMED]
)
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


class Chain:
    """x -> h -> y by two layers, on two x in turns, one launch behind the other and nothing
    between: the second layer's launch may begin before h is there, and the next one's first layer
    while h is still read. ``edit``: what becomes of the second kernel once it is compiled; ``sms``:
    multiprocessors that each launch is for, all if None."""

    def __init__(self, cells, stream, edit=lambda compiled: compiled, sms=None):
        from tests.kernels.on_gpu import DeviceProblem, GuardedArray

        packed = [random_packed(cell.problem) for cell in cells]
        self.stream, self.first = stream, at_home(cells[0], packed[0], stream=stream, sms=sms)[1]
        hidden = np.full((cells[1].problem.m, cells[1].problem.k), np.nan, np.float16)
        second = prepare(
            cells[1].definition,
            hidden,
            packed[1],
            config=cells[1].config,
            sms=sms or sms_of("cuda"),
            run_on="cuda",
        )
        self.second = DeviceProblem(
            Prepared.of(replace(second.binding, compiled=edit(second.compiled))),
            stream,
            held={"a": self.first.arrays["c"]},
        )
        self.inputs = [
            GuardedArray(random_x(cells[0].problem.m, cells[0].problem.k, seed)) for seed in (1, 2)
        ]
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
@pytest.mark.parametrize("cells", LAYERS.values(), ids=LAYERS)
def test_what_the_launch_before_wrote_is_what_is_read(cells, in_graph, run_on):
    need_gpu(run_on, "on the machine a launch ends before the next begins")
    from tests.kernels.on_gpu import Streams

    with Streams(1) as (stream,):
        chain = Chain(cells, stream)
        expected = chain.lone()
        assert not np.array_equal(*expected), "the two x must differ"
        wrong = count_different(chain.row(LAUNCHES, in_graph), expected)
        assert wrong == 0, (
            f"{cells[1]} read h too early, or {cells[0]} wrote it too early, in {wrong} of"
            f" {LAUNCHES} launches"
        )
        chain.first.collect()
        chain.second.collect()


def without_waits(compiled):
    """A dependent kernel that does not wait for the launch before it."""
    from numba_marlin.compiler.assemble import assemble
    from numba_marlin.hardware.targets import target_named

    ptx = compiled.ptx.replace("griddepcontrol.wait;", "")
    assert ptx != compiled.ptx, f"{compiled.kernel} waits for no launch before it"
    return replace(compiled, ptx=ptx, cubin=assemble(ptx, target_named(compiled.target))[0])


@pytest.mark.parametrize("cells", [LAYERS["decode-decode-m1"]], ids=["decode"])
def test_a_launch_that_does_not_wait_is_noticed(cells, run_on):
    """The test above can fail: with the wait taken out of the second layer launches read the other
    x's h. Each takes a quarter of the GPU, so that the next begins on the rest of it at once,
    whatever else the GPU does."""
    need_gpu(run_on, "on the machine a launch ends before the next begins")
    from tests.kernels.on_gpu import Streams

    with Streams(1) as (stream,):
        chain = Chain(cells, stream, without_waits, sms=sms_of("cuda") // 4)
        expected = chain.lone()
        assert any(count_different(chain.row(LAUNCHES, in_graph=True), expected) for _ in range(10))
