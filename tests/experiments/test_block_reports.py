"""Contract under test: the reports of experiments 06 and 11 say what the rows of their cells say.
The rows here are invented."""

import pytest

from tests import experiment_results


def cells_of(table):
    return [
        [each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


@pytest.fixture
def weights(monkeypatch):
    return experiment_results.module("06_nvfp4", "report", monkeypatch)


@pytest.fixture
def blocks(monkeypatch):
    return experiment_results.module("11_block_scaled", "report", monkeypatch)


def timed(tb_per_s, us=2.0):
    return {
        "tb_per_s": tb_per_s,
        "us": us,
        "speedup": 30 / us,
        "cublas_us": 30.0,
        "kernel": "decode",
    }


FOUND = {
    (4096, 8192): {
        1: {"int4-g128": timed(2.0, 1.5), "nvfp4": timed(2.2), "mxfp4": timed(1.0)},
        16: {"int4-g128": timed(2.0), "nvfp4": timed(1.8)},
        64: {"int4-g128": timed(2.0), "nvfp4": timed(1.79)},
    }
}


def test_cells_are_counted_from_nine_tenths_on(weights):
    said = weights.sentence(FOUND, "nvfp4")
    assert said == (
        "NVFP4: 2 of 3 cells at 90% or more of INT4's bytes a second (g=128), the median cell at"
        " 90%; below it: 4096 x 8192 m=64 (90%)."
    )
    assert weights.sentence({(1, 2): {1: FOUND[4096, 8192][1]}}, "nvfp4").endswith("at 110%.")
    assert "0 of 1 cells" in weights.sentence(FOUND, "mxfp4")
    assert weights.sentence({}, "mxfp4") == ""


def test_the_overview_marks_what_is_reached(weights):
    assert cells_of(weights.overview(FOUND, "nvfp4")) == [
        ["4096 x 8192", "15.00 (**110%**)", "15.00 (**90%**)", "15.00 (90%)"]
    ]
    assert cells_of(weights.overview(FOUND, "mxfp4")) == [["4096 x 8192", "15.00 (50%)", "", ""]]


def test_details_have_times_and_rates_of_every_kind(weights):
    first, second, _ = cells_of(weights.details(FOUND))
    assert first == [
        *("4096 x 8192", "1", "2.00", "2.00", "1.50", "", "2.20", "1.00", "2.00", "", "30.00"),
        "decode",
    ]
    assert second[:6] == ["", "16", "2.00", "", "2.00", ""]


def test_errors_stand_beside_the_bits_they_cost(weights):
    rows = [
        {"weights": "nvfp4", "data": data, "bits_per_weight": 4.5, "relative_rms": error}
        for data, error in (("normal", 0.0951), ("heavy", 0.1))
    ]
    assert cells_of(weights.accuracy_table(rows)) == [["nvfp4", "4.500", "9.51%", "10.00%"]]


def row_of(blocks, shape, us, part="whole", kernel="block_scaled", **epilogue):
    m, n, k = shape
    config = {"tile_m": 128, "tile_n": 256, "tokens": 8, "k_warps": 4, "split": 2}
    return {
        **{"m": m, "n": n, "k": k, "part": part, "kernel": kernel, "us": us, "cublas_us": 100.0},
        **{"speedup": 100 / us, "tflops": 2 * m * n * k / us / 1e6},
        "config": config | blocks.PLAIN | epilogue,
    }


def test_the_newest_row_of_a_cell_counts_and_earlier_kernels_do_not(blocks):
    shape = blocks.LARGE[0]
    rows = [row_of(blocks, shape, us) for us in (90.0, 50.0)]
    found = blocks.newest([*rows, row_of(blocks, shape, 1.0, part="of an earlier kernel")])
    assert [each["us"] for each in found.values()] == [50.0]
    m, n, k = shape
    assert cells_of(blocks.speed_table(found)) == [
        [
            *(f"{m} x {n} x {k}", "128 x 256", "50.0", f"{2 * m * n * k / 50e6:.0f}", "100.0"),
            "2.000",
        ]
    ]


def test_few_rows_are_rated_by_the_bytes_of_codes_and_scales(blocks):
    m, n, k = shape = blocks.FEW[0]
    few = row_of(blocks, shape, 10.0, kernel="block_decode")
    nbytes = n * k // 2 + n * k // 16  # codes of four bits, a byte for sixteen of them
    for rows, other in (([few], ""), ([few, row_of(blocks, shape, 20.0)], "20.0")):
        assert cells_of(blocks.few_table(blocks.newest(rows))) == [
            [
                *(f"{n} x {k}", str(m), "8 tokens, k by 4 x 2", "10.0"),
                *(f"{nbytes / 10e-6 / 1e12:.2f}", "100.0", "10.00", other),
            ]
        ]


def test_epilogues_are_set_beside_none(blocks):
    shape, other = blocks.LARGE[0], blocks.EPILOGUES[0]
    rows = [row_of(blocks, shape, 50.0), row_of(blocks, shape, 51.0, **other)]
    lines = cells_of(blocks.epilogue_table(blocks.newest(rows)))
    assert [line[1:] for line in lines] == [["50.0", "+0.0%"], ["51.0", "+2.0%"]]
    assert lines[0][0] == "float16" and lines[1][0] != "float16"


def test_what_is_left_of_a_kernel_takes_its_time_for_128_of_k(blocks):
    m, n, k = shape = blocks.LARGE[1]
    rounds = -(-(-(-m // 128) * -(-n // 256)) // 132)
    lines = cells_of(blocks.roles_table(blocks.newest([row_of(blocks, shape, 640.0)])))
    assert lines == [["whole", "640", f"{640e3 / (rounds * (k / 128)):.0f}"]]


def test_the_chosen_arrangement_is_set_beside_the_best(blocks):
    m, n = 8, 8192
    chosen = blocks.choose_few_rows(m, n, 132)

    def arrangement(us, k_warps, stages):
        config = {"k_warps": k_warps, "split": chosen.split, "stages": stages}
        return {"m": m, "n": n, "k": 8192, "us": us, "config": config}

    best = arrangement(10.0, chosen.k_warps + 1, 1)
    others = arrangement(10.5, chosen.k_warps, chosen.stages + 1)
    same = arrangement(11.0, chosen.k_warps, chosen.stages)
    said = blocks.arrangements_line([best, others, same])
    assert "10% slower than the best at most (m = 8, n = 8192), and within 9.5% in 0." in said
    said = blocks.arrangements_line([best, others])  # another number of stages stands for it
    assert "5% slower than the best at most (m = 8, n = 8192), and within 9.5% in 1." in said


def test_the_worst_of_several_shapes_is_named(blocks):
    rows = []
    for n, loss in ((4096, 1.02), (8192, 1.2), (16384, 1.05)):
        chosen = blocks.choose_few_rows(8, n, 132)
        for us, k_warps in ((10.0, chosen.k_warps + 1), (10.0 * loss, chosen.k_warps)):
            config = {"k_warps": k_warps, "split": chosen.split, "stages": chosen.stages}
            rows.append({"m": 8, "n": n, "k": 8192, "us": us, "config": config})
    assert blocks.arrangements_line(rows) == (
        "Of 3 shapes with k = 8192 and n from 4096 to 16384, all arrangements measured, the chosen"
        " one is 20% slower than the best at most (m = 8, n = 8192), and within 9.5% in 2."
    )


def test_parts_of_a_kernel_are_told_apart(blocks):
    shape, part = blocks.LARGE[1], next(each for each in blocks.VARIANTS if each != "whole")
    rows = [row_of(blocks, shape, 640.0), row_of(blocks, shape, 320.0, part=part)]
    lines = cells_of(blocks.roles_table(blocks.newest(rows)))
    assert sorted(line[:2] for line in lines) == sorted([["whole", "640"], [part, "320"]])
