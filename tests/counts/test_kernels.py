"""Contract under test: what the project's kernels move. No bank conflicts where none is documented,
whole sectors, weights read once, outputs written once.

Where a number is not the best there could be, it stands here with its reason.
"""

import json
import re
from dataclasses import replace

import pytest

from numba_marlin import compiler, counts, testing
from numba_marlin.emulator import Machine
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.testing.launches import launch_on
from tests.kernels import configurations
from tests.kernels.configurations import FAITHFUL, group_size_of
from tests.kernels.harness import prepare


def counted(name, m, n, k, group_size, *, config=None, seed=None, line_info=False, sms=3):
    problem = testing.exact_problem(m, n, k, group_size, seed=0)
    prepared = prepare(name, problem.x, problem.weight, config=config, sms=sms)
    kernel, config, compiled = prepared.kernel, prepared.config, prepared.compiled
    if line_info:
        compiled = compiler.build(kernel, config, line_info=True)
    machine = Machine(compiled.ptx)
    found = counts.count(machine, **launch_on(machine, prepared, compiled), seed=seed)[1]
    assert (prepared.buffers["c"] == problem.expected).all()
    return found


def packed_bytes(n, k):
    return n * k // 2


@pytest.fixture(scope="module")
def faithful():
    return counted(*FAITHFUL, line_info=True)


def test_the_faithful_kernel_wastes_nothing(faithful):
    _, m, n, k, group_size = FAITHFUL
    total = faithful.total.tally
    assert (
        total.shared.conflicts == 0
        and total.reads.coalescing == 100
        and total.writes.coalescing == 100
    )
    assert (
        faithful.buffer("b").reads.bytes == faithful.buffer("b").reads.traffic == packed_bytes(n, k)
    )
    assert faithful.buffer("scales").reads.bytes == 2 * n * k // group_size
    # every column slice reads the activations
    assert faithful.buffer("a").reads.bytes == 2 * m * k * (n // 128)
    assert (
        faithful.buffer("c").writes.bytes == 2 * m * n and not faithful.buffer("c").reads.requests
    )
    assert total.flops == 2 * m * n * k
    assert total.copied == {
        "cp.async": sum(
            faithful.phase(name).tally.shared.bytes for name in ("fetch_to_shared", "fetch_scales")
        )
    }


def test_phases_are_the_kernels_verbs(faithful):
    assert {
        "own_slice",
        "fetch_to_shared",
        "wait_for_stage",
        "fetch_to_registers",
        "dequantize",
        "multiply",
        "thread_block_reduce",
        "global_reduce",
        "write_result",
    } <= {phase.name for phase in faithful.phases}
    assert faithful.phase("multiply").tally.flops == faithful.total.tally.flops
    assert (
        faithful.phase("fetch_to_shared").tally.reads.bytes
        == faithful.buffer("a").reads.bytes + faithful.buffer("b").reads.bytes
    )
    assert (
        faithful.phase("fetch_to_registers").tally.shared.requests
        and not faithful.phase("dequantize").tally.shared.requests
    )
    assert sum(phase.tally.executed for phase in faithful.phases) == faithful.total.tally.executed
    assert {row.source.rpartition(":")[0] for row in faithful.instructions if row.source} == {
        f"numba_marlin/kernels/{name}.py"
        for name in (
            "ampere/kernel",
            "ampere/load",
            "ampere/output",
            "ampere/schedule",
            "dequantize/verbs",
        )
    }


@pytest.mark.thorough
def test_line_numbers_change_nothing_but_lines():
    def code(ptx):
        without_tables = re.sub(r"\n\s*\.section[^{]*\{[^}]*\}", "", ptx)
        return [
            line
            for line in without_tables.splitlines()
            if line.strip() and not re.match(r"\s*(\.loc|\.file|//|\$L__tmp\d+:)", line)
        ]

    plain, with_lines = (
        compiler.build(DECODE, configurations.DECODE, line_info=line_info).ptx
        for line_info in (False, True)
    )
    with pytest.raises(ValueError, match="line_info needs compiler='numba-cuda'"):
        compiler.build(DECODE, configurations.DECODE, compiler="numba-cuda-mlir", line_info=True)
    assert ".loc" not in plain and "inlined_at" in with_lines and code(plain) == code(with_lines)


def test_the_report_prints_and_becomes_json(faithful):
    text = str(faithful)
    assert "fetch_to_shared" in text and "100%" in text and max(map(len, text.splitlines())) <= 140
    data = json.loads(json.dumps(faithful.as_dict()))
    assert (
        data["total"]["tally"]["shared"]["conflicts"] == 0
        and data["total"]["tally"]["reads"]["coalescing"] == 100
    )
    assert (
        sum(row["tally"]["executed"] for row in data["instructions"])
        == faithful.total.tally.executed
    )
    assert "instructions" not in faithful.as_dict(instructions=False)


def test_the_decode_kernel_wastes_nothing_but_half_a_sector_of_an_output_row():
    m, n, k, config = 8, 512, 1024, configurations.DECODE
    found = counted(DECODE, m, n, k, group_size_of(config), config=config)
    assert found.total.tally.shared.conflicts == 0 and found.total.tally.reads.coalescing == 100
    assert found.buffer("b").reads.bytes == packed_bytes(n, k)
    assert found.buffer("scales").reads.bytes == 2 * n * k // group_size_of(config)
    # The product is transposed: a store of 16 bits has eight neighbouring columns of four rows, so
    # half of each sector is the next store's.
    c = found.buffer("c").writes
    assert (c.bytes, c.coalescing) == (2 * m * n, 50)


@pytest.mark.parametrize(
    "name, words",
    [
        pytest.param("one word, one warpgroup", 1, marks=pytest.mark.thorough),
        ("two words", 2),
        pytest.param("four words", 4, marks=pytest.mark.thorough),
    ],
)
def test_the_hopper_kernel_reads_weights_once_a_row_of_tiles(name, words):
    """Every lane reads ``words`` of its 16 bytes of weights from shared memory: with fewer than
    four, lanes lie four words apart and share banks, 4 / words of them each. (The more rows a tile
    has, the fewer words there are registers for: 256 rows leave one. There a k16 step of a
    warpgroup takes 16 wavefronts for weights instead of 4, beside 64 by which wgmma reads the
    activations.)
    """
    m, n, k = 32, 256, 256
    config = replace(configurations.ARRANGEMENTS[name], group_blocks=4)
    found = counted(WGMMA, m, n, k, 64, config=config)
    total, rows_of_tiles = found.total.tally, m // config.tile_m
    assert (
        total.reads.coalescing == 100
        and total.writes.coalescing == 100
        and found.buffer("b").reads.bytes == packed_bytes(n, k) * rows_of_tiles
    )
    assert total.flops == 2 * m * n * k and found.buffer("c").writes.bytes == 2 * m * n
    loads = [row for row in found.instructions if row.tally.shared.conflicts]
    assert {row.text.split()[0] for row in loads} == {
        1: {"ld.shared.b32"},
        2: {"ld.shared.v2.b32"},
        4: set(),
    }[words]
    assert all(row.tally.shared.wavefronts == 4 // words * row.tally.shared.ideal for row in loads)


def test_the_ladder_shows_what_each_rung_gains():
    naive, tiled = (counted(name, 16, 128, 128, 64) for name in ("naive", "tiled"))
    # naive: a thread an element of C, so a warp reads 8 words, each in a sector of its own, for
    # every weight; and all again for every row of C
    assert (
        naive.buffer("b").reads.bytes == 64 * packed_bytes(128, 128)
        and naive.buffer("b").reads.coalescing == 25
    )
    assert (
        tiled.buffer("b").reads.bytes == packed_bytes(128, 128)
        and tiled.buffer("b").reads.coalescing == 100
    )
    conflicts = {row.text.split()[0] for row in tiled.instructions if row.tally.shared.conflicts}
    # a warp takes one word of every 16-byte vector of weights; the faithful kernel takes all four
    # at once
    assert conflicts == {"ld.shared.u32"}
    assert naive.total.tally.flops == 0 and tiled.total.tally.flops == 2 * 16 * 128 * 128


def test_the_order_of_warps_changes_no_count():
    first, second = (counted("tiled", 16, 128, 256, 128, seed=seed).as_dict() for seed in (None, 7))
    assert first == second
