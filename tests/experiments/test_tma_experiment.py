"""Contract under test: what experiment 03 times is right. Every loader leaves the XOR of exactly
the bytes that its threads were to read; every kernel with another way of copying its weights gives
the bits of the kernel that it was made from; rows that were measured become tables.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from numba_marlin import compiler, testing
from numba_marlin.emulator import Machine
from numba_marlin.formats import marlin
from tests.bench.invented import row
from tests.experiments.faithful_rows import faithful_rows
from tests.kernels import harness
from tests.kernels.configurations import ARRANGEMENTS, DECODE

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "03_tma"


def random_bytes(config, k_stages, n, seed=0):
    """-> (Marlin's bytes [k/16, 2 n], x [batch, k])"""
    rng = np.random.default_rng(seed)
    k = k_stages * config.stage_k
    return rng.integers(-(2**31), 2**31, (k // 16, 2 * n), np.int64).astype(
        np.int32
    ), rng.standard_normal((max(8, config.batch), k)).astype(np.float16)


def sinks(kernels, relayout, config, packed, x, blocks, seed=None):
    """What a loader leaves, run on the machine; c is poisoned before."""
    kernel = kernels.KERNELS[config.method]
    compiled = compiler.build(kernel, config)
    assert compiled.cubin is None or not compiled.resources.spills
    machine = Machine(compiled.ptx)
    c = np.full((blocks, kernels.THREADS, 4), 0xDEADBEEF, np.uint32)
    b = relayout.relaid(packed, config.stage_rows, config.columns) if config.relaid else packed
    addresses = {
        name: machine.memory.buffer(array, name=name, readonly=name != "c").address
        for name, array in (("a", x), ("b", b), ("c", c))
    }
    k, n = 16 * packed.shape[0], packed.shape[1] // 2
    arguments = kernel.arguments(
        config,
        addresses,
        config.batch,
        n,
        k,
        k,
        lambda tensor_map, address: tensor_map.encode(address),
    )
    machine.run(
        compiled.entry,
        grid=blocks,
        block=compiled.threads,
        shared_bytes=compiled.shared_bytes,
        args=arguments,
        seed=seed,
    )
    return c


@pytest.mark.thorough
@pytest.mark.parametrize(
    "relaid, columns, stages, batch",
    [
        (False, 64, 2, 0),
        pytest.param(False, 256, 4, 64, marks=pytest.mark.thorough),
        pytest.param(True, 128, 3, 0, marks=pytest.mark.thorough),
        (True, 256, 3, 16),
    ],
)
@pytest.mark.parametrize("method", ["cp_async", "bulk", "tensor"])
def test_a_loader_reads_every_byte_where_it_should(
    experiment, method, relaid, columns, stages, batch
):
    kernels, relayout = experiment["kernels"], experiment["relayout"]
    config = kernels.LoaderConfig(method, relaid, columns, stages, batch)
    # stripes that cross tile columns, of more stages than the ring has
    for k_stages, n, blocks, seed in ((5, 512, 3, None), (3, 768, 1, 1)):
        packed, x = random_bytes(config, k_stages, n)
        left = sinks(kernels, relayout, config, packed, x, blocks, seed)
        np.testing.assert_array_equal(left, relayout.expected_sinks(packed, x, config, blocks))
        if not batch:  # whoever read which byte
            np.testing.assert_array_equal(
                np.bitwise_xor.reduce(left.reshape(-1)),
                np.bitwise_xor.reduce(packed.view(np.uint32).reshape(-1)),
            )


def test_the_expectation_tells_one_byte_and_one_place(experiment):
    kernels, relayout = experiment["kernels"], experiment["relayout"]
    config = kernels.LoaderConfig("bulk", columns=64)
    packed, x = random_bytes(config, 2, 128)
    expected = relayout.expected_sinks(packed, x, config, 3)
    changed, moved = packed.copy(), packed.copy()
    changed[0, 0] ^= 1
    moved[0, :4], moved[0, 4:8] = packed[0, 4:8], packed[0, :4]
    for other in (changed, moved):
        assert not np.array_equal(relayout.expected_sinks(other, x, config, 3), expected)


def test_relaid_tiles_are_contiguous_and_nothing_is_lost(experiment):
    kernels, relayout = experiment["kernels"], experiment["relayout"]
    packed, _ = random_bytes(kernels.LoaderConfig(columns=64), 2, 256)
    again = relayout.relaid(packed, 8, 64)
    np.testing.assert_array_equal(again.reshape(-1)[: 8 * 128].reshape(8, 128), packed[:8, :128])
    np.testing.assert_array_equal(
        again.reshape(-1)[8 * 128 : 16 * 128].reshape(8, 128), packed[8:16, :128]
    )
    np.testing.assert_array_equal(np.sort(again.reshape(-1)), np.sort(packed.reshape(-1)))


@pytest.mark.parametrize(
    "wrong, rule",
    [
        ({"method": "copy"}, "method='copy'"),
        ({"columns": 32}, "columns=32"),
        ({"stages": 1}, "stages=1"),
        ({"batch": 12}, "batch=12"),
        ({"stages": 15}, "shared memory"),
    ],
)
def test_a_loader_that_cannot_be_is_refused(experiment, wrong, rule):
    with pytest.raises(ValueError, match=rule):
        experiment["kernels"].LoaderConfig(**wrong)


@pytest.mark.parametrize(
    "name",
    [
        "decode_tensor",
        pytest.param("decode_relaid", marks=pytest.mark.thorough),
        pytest.param("wgmma_bulk", marks=pytest.mark.thorough),
        pytest.param("wgmma_relaid", marks=pytest.mark.thorough),
    ],
)
def test_another_way_of_copying_changes_no_bit(experiment, name):
    variant = experiment["variants"].VARIANTS[name]
    original = experiment["variants"].VARIANTS[variant.engine]
    decode = variant.engine == "decode"
    m, n, k = 5, 512, 256
    # as other tests compile the originals
    config = (
        DECODE if decode else replace(ARRANGEMENTS["two warpgroups, two words"], group_blocks=4)
    )
    weight = testing.make_quantized("uniform", "ordinary", k, n, 64, seed=1)
    packed = marlin.pack(weight)
    x = np.random.default_rng(2).standard_normal((m, k)).astype(np.float16)
    expected = harness.run_kernel(original.definition, x, packed, config=config, sms=3).c
    ours = harness.run_kernel(
        variant.definition,
        x,
        replace(packed, qweight=variant.packed(config, packed.qweight)),
        config=config,
        sms=3,
    ).c
    np.testing.assert_array_equal(ours, expected)
    assert np.isfinite(expected).all() and expected.any()


def loader_row(kernels, tb_per_s, k=8192, n=4096, **config):
    config = kernels.LoaderConfig(**config)
    nbytes = k * n // 2
    return row(
        m=config.batch,
        n=n,
        k=k,
        us=nbytes / tb_per_s / 1e6,
        part="loader",
        kernel=f"load_{config.method}",
        group_size=-1,
        config=asdict(config),
        bytes=nbytes,
        tb_per_s=tb_per_s,
    )


def kernel_row(variants, name, m, us):
    variant = variants.VARIANTS[name]
    return row(
        m=m,
        n=4096,
        k=8192,
        us=us,
        part="kernel",
        kernel=name,
        engine=variant.engine,
        way=variant.way,
        relaid=variant.relaid,
    )


@pytest.fixture
def invented(experiment):
    kernels, variants = experiment["kernels"], experiment["variants"]
    loaders = [
        loader_row(kernels, 1.0, method="bulk", columns=64),
        loader_row(kernels, 2.0, method="bulk", columns=64),
        loader_row(kernels, 4.0, method="tensor", columns=256, stages=8),
        loader_row(kernels, 4.1, method="bulk", relaid=True),
        loader_row(kernels, 3.0, method="tensor", columns=256, batch=16),
    ]
    times = {
        1: {
            "ampere": 20.0,
            "decode": 10.0,
            "decode_relaid": 9.9,
            "wgmma": 15.0,
            "wgmma_relaid": 12.0,
        },
        4096: {"wgmma": 103.0, "wgmma_bulk": 200.0, "wgmma_relaid": 100.0},
    }
    return loaders + [
        kernel_row(variants, name, m, us) for m, cell in times.items() for name, us in cell.items()
    ]


def test_the_newest_row_of_a_loader_counts(experiment, invented):
    loaders, kernels = experiment["report"].newest(invented)
    assert len(loaders[8192, 4096]) == 4 and set(kernels[8192, 4096]) == {1, 4096}
    lines = experiment["report"].loader_table(loaders).splitlines()
    assert "with 4 / 8 stages" in lines[0] and lines[4:] == [
        "| 8192 x 4096 | tiles of 64 | - / - | 2.00 / - | - / - |",
        "|  | tiles of 128 | - / - | - / - | - / - |",
        "|  | tiles of 256 | - / - | - / - | - / 4.00 |",
        "|  | relaid | - / - | 4.10 / - | - / - |",
    ]
    assert (
        experiment["report"].x_table(loaders).splitlines()[-1]
        == "| 8192 x 4096 | 16 | - | - | 3.00 | - | - |"
    )


def test_the_verdict_sets_the_best_relaid_kernel_against_the_best_native_one(experiment, invented):
    report = experiment["report"]
    said = report.verdict(*report.newest(invented))
    assert "somewhere: no (at most +3.0%, 8192 x 4096 m=4096)**" in said and "in 2 cells" in said
    assert (
        "Within wgmma: +3.0% (8192 x 4096 m=4096) to +25.0% (8192 x 4096 m=1)" in said
        and "8192 x 4096 +2.5%" in said
    )
    faster = [*invented, kernel_row(experiment["variants"], "decode_relaid", 1, 9.0)]
    assert "somewhere: yes, 8192 x 4096 m=1 (+11.1%)**" in report.verdict(*report.newest(faster))


def test_the_fastest_on_native_bytes_is_bold(experiment, invented):
    report = experiment["report"]
    lines = report.kernel_table(report.newest(invented)[1]).splitlines()[4:]
    assert lines[0] == "| 8192 x 4096 | 1 | 20.0 | **10.0** | 9.9 | 15.0 | 12.0 | - | +1.0% |"
    assert lines[1] == "|  | 4096 | - | - | - | **103.0** | 100.0 | 200.0 | +3.0% |"


def test_the_readme_gets_all_parts(experiment, invented, tmp_path, monkeypatch):
    report = experiment["report"]
    monkeypatch.setattr(report, "plot", lambda loaders, path: None)
    readme, results = tmp_path / "README.md", tmp_path / "results.jsonl"
    readme.write_text((FOLDER / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    rows = [*invented, *faithful_rows(experiment["cells"])]
    results.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    for _ in range(2):  # writing twice changes nothing
        report.write(results, readme, tmp_path / "loaders.png")
    text = readme.read_text(encoding="utf-8")
    assert (
        "Not measured yet" not in text
        and text.count("A relayout wins more than 5% somewhere: no") == 1
        and "commit abc" in text
    )


def test_no_results_are_no_table(experiment, tmp_path):
    with pytest.raises(SystemExit, match="holds no results"):
        experiment["report"].write(
            tmp_path / "results.jsonl", tmp_path / "README.md", tmp_path / "loaders.png"
        )


def test_the_loaders_are_drawn(experiment, invented, tmp_path):
    pytest.importorskip("matplotlib")
    experiment["report"].plot(experiment["report"].newest(invented)[0], tmp_path / "loaders.png")
    assert (tmp_path / "loaders.png").read_bytes().startswith(b"\x89PNG")


def test_every_cell_has_a_loader_and_a_kernel_configuration(experiment):
    cells, variants = experiment["cells"], experiment["variants"]
    for amount in (cells.QUICK, cells.FULL):
        configs = cells.loader_configs(amount)
        assert len(set(configs)) == len(configs)
        for k, n in cells.LOADER_SHAPES:
            assert all(config.grid(1, n, k, 132) == (132, 1, 1) for config in configs)
    for k, n in cells.KERNEL_SHAPES:
        for m in cells.BATCHES:
            for variant in variants.VARIANTS.values():
                config = cells.kernel_config(variant.engine, m, n, k)
                variant.definition.check_config(config)
                tile = {
                    "ampere": lambda config: (64, 64),
                    "decode": lambda config: (config.columns, config.stage_k),
                    "wgmma": lambda config: (config.tile_n, 64),
                }[variant.engine](config)
                assert n % tile[0] == 0 and k % tile[1] == 0, "variants have no tails"
