"""Contract under test: the batch-invariant mode settles on one kernel and one order of sums for all
m, says what it costs, and is part of what is kept of a product."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.bench import rows
from numba_marlin.cli.main import main
from numba_marlin.execution import repeat
from numba_marlin.hardware import devices
from numba_marlin.heuristics import LADDER, Problem, candidate, explain, rank, tuned
from numba_marlin.heuristics.candidates import invariant_order, order_of
from numba_marlin.heuristics.invariance import settle
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.problems import ActivationsProblem

H200 = devices.device("H200")
BATCHES = (1, 2, 15, 16, 17, 33, 64, 65, 100, 128, 129, 257, 500, 1024, 4096, 10000)
SAME = Problem(16, 8192, 8192, batch_invariant=True)


@pytest.mark.parametrize("device", devices.names())
@pytest.mark.parametrize(
    "n, k, types",
    (
        (8192, 8192, {}),
        (57344, 8192, {}),
        (576, 7168, {"group_size": 64}),
        (72, 272, {"group_size": -1, "bias": True}),
        (64, 128, {"bits": 8}),
    ),
)
def test_every_batch_has_one_kernel_and_one_order_of_sums(device, n, k, types):
    where = devices.device(device)
    found = [rank(Problem(m, n, k, batch_invariant=True, **types), where) for m in BATCHES]
    assert len({order_of(each.kernel, each.config) for ranked in found for each in ranked}) == 1


@pytest.mark.parametrize("device", ("A100", "H200", "RTX 4090"))
@pytest.mark.parametrize(
    "types", ({}, {"bits": 8, "bias": True}, {"group_size": 16, "codes": "e2m1"})
)
def test_a_part_of_the_columns_can_take_the_order_of_the_whole(device, types):
    where, differ = devices.device(device), 0
    for (n, k), world in itertools.product(((28672, 4096), (1024, 8192), (512, 512)), (2, 8)):
        part = Problem(1, n // world, k, batch_invariant=True, **types)
        order = invariant_order(replace(part, n=n), where)
        differ += invariant_order(part, where) != order
        for m in (1, 17, 1024):
            ranked = rank(replace(part, m=m), where, whole_n=n)
            assert {order_of(each.kernel, each.config) for each in ranked} == {order}
    assert differ or device != "H200", "else every part has it without being told"


def test_a_part_that_the_kernel_of_the_whole_does_not_take_is_refused():
    """Another kernel would, with other bits."""
    part, a100 = Problem(1, 72, 512, batch_invariant=True), devices.device("A100")
    with pytest.raises(ValueError, match="as for n=576, of which this is a part; .*multiple of 64"):
        rank(part, a100, whole_n=576)
    assert rank(part, a100)


@pytest.mark.parametrize("kernel", LADDER)
def test_a_kernel_asked_for_by_name_keeps_to_one_order_too(kernel):
    orders = {order_of(kernel, candidate(replace(SAME, m=m), H200, kernel).config) for m in BATCHES}
    assert len(orders) == 1 and None not in orders


def test_what_is_free_to_choose_would_mix_kernels_and_orders():
    """Else there were no need for a mode."""
    chosen = [rank(Problem(m, 8192, 8192), H200)[0] for m in BATCHES]
    assert len({each.kernel for each in chosen}) > 1 and None in {
        order_of(each.kernel, each.config) for each in chosen
    }


def test_what_the_mode_costs_is_said():
    free = explain(16, 8192, 8192).choice
    explanation = explain(16, 8192, 8192, batch_invariant=True)
    for each in explanation.candidates:
        assert each.figures["free_us"] == free.figures["predicted_us"]
        assert each.reasons[0].startswith(
            "batch-invariant: every m takes wgmma (whole tiles"
        ) and each.reasons[0].endswith(
            f"take {free.kernel}, {free.figures['predicted_us']:.1f} us by prediction"
        )
    said = " ".join(str(explanation).split())
    assert f"{free.figures['predicted_us']:.1f} us if free to choose" in said
    assert "the same bits for a row whatever m is" in said
    assert json.loads(json.dumps(explanation.to_dict()))["problem"]["batch_invariant"] is True
    assert "free_us" not in free.figures


def test_the_least_geometric_mean_over_all_batches_wins():
    assert settle([(1, "a", 1.0), (64, "a", 100.0), (1, "b", 5.0), (64, "b", 10.0)]) == "b", (
        "50 is less than 100"
    )
    assert (
        settle([(1, "a", 9.0), (1, "a", 1.0), (64, "a", 10.0), (1, "b", 2.0), (64, "b", 6.0)])
        == "a"
    ), "the fastest of an order counts"
    assert settle([(1, "a", 1.0), (1, "b", 50.0), (64, "b", 50.0)]) == "b", (
        "what does not run at every batch is no choice"
    )
    unknown = float("inf")
    assert settle([(1, "first", unknown), (1, "second", unknown)]) == "first"
    with pytest.raises(ValueError, match="no candidate"):
        settle([])


@pytest.mark.parametrize("kind", ("int8", "fp8"))
def test_activations_in_8_bits_have_one_order_too(kind):
    problem = ActivationsProblem(1, 4096, 8192, batch_invariant=True, activations=kind)
    found = [rank(replace(problem, m=m), H200) for m in BATCHES]
    orders = {order_of(each.kernel, each.config) for ranked in found for each in ranked}
    assert orders == {invariant_order(problem, H200)} and orders.pop()[0] == f"wgmma_{kind}"
    free = rank(replace(problem, m=16, batch_invariant=False), H200)[0].kernel
    assert f"free to choose, m=16 would take {free}" in found[BATCHES.index(16)][0].reasons[0]


@pytest.mark.parametrize(
    "changes, device, why",
    (
        ({"group_size": 256}, "H200", "'wgmma_int8' does not take group_size=256.*'decode_int8'"),
        ({}, "A100", "kernel 'wgmma_int8' needs sm_90a, A100 is sm_80: choose"),
        ({"k": 2**22, "group_size": -1}, "H200", "k=4194304 must be .* at most.*8' has no such"),
    ),
)
def test_where_no_kernel_has_such_an_order_the_error_says_why(changes, device, why):
    problem = ActivationsProblem(16, 512, 4096, batch_invariant=True, activations="int8")
    with pytest.raises(ValueError, match=f"batch_invariant=True needs a reduction order .*{why}"):
        rank(replace(problem, **changes), devices.device(device))


def test_a_configuration_whose_order_depends_on_m_is_refused():
    with pytest.raises(
        ValueError, match="reduction order is independent of m, WgmmaConfig.*split=True"
    ):
        candidate(SAME, H200, "wgmma", WgmmaConfig(split=True))
    assert candidate(SAME, H200, "wgmma", WgmmaConfig(split=False)).config.split is False


def test_a_batch_that_the_kernel_of_all_batches_cannot_count_is_refused():
    """Another kernel could, with other bits."""
    large, a100 = Problem(16 * 65536, 64, 128, 16, batch_invariant=True), devices.device("A100")
    with pytest.raises(
        ValueError,
        match="batch_invariant=True takes buffered .*, whatever m is; that does not run m=1048576",
    ):
        rank(large, a100)
    assert [each.kernel for each in rank(replace(large, batch_invariant=False), a100)] == [
        "naive",
        "general",
    ]


def test_a_winner_of_another_order_does_not_lead(monkeypatch):
    here = replace(H200, source="measured")
    other = candidate(SAME, here, "decode")
    monkeypatch.setattr(
        tuned,
        "stored_choice",
        lambda problem, device: (
            tuned.Choice(other.kernel, other.config, 1.0, "2026-11-21")
            if problem.batch_invariant
            else None
        ),
    )
    assert rank(SAME, here) == rank(SAME, H200)
    alike = rank(SAME, H200)[1]
    monkeypatch.setattr(
        tuned,
        "stored_choice",
        lambda problem, device: (
            tuned.Choice(alike.kernel, alike.config, 1.0, "2026-11-21")
            if problem.batch_invariant
            else None
        ),
    )
    assert rank(SAME, here)[0].config == alike.config


def test_winners_and_rows_of_the_mode_are_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(tmp_path))
    here, free = replace(H200, source="measured"), replace(SAME, batch_invariant=False)
    chosen = rank(SAME, H200)[0]
    tuned.remember(SAME, here, chosen.kernel, chosen.config, 1.0)
    assert tuned.stored_choice(SAME, here) is not None and tuned.stored_choice(free, here) is None
    row = {"m": 1, "n": 64, "k": 64, "group_size": 64}
    assert (
        rows.cell(row)
        == rows.cell(row | {"batch_invariant": False})
        != rows.cell(row | {"batch_invariant": True})
    )


@pytest.mark.parametrize("backend", ("emulator", "reference"))
def test_a_row_has_the_same_bits_in_every_batch(backend):
    generator = np.random.default_rng(0)
    p = nm.pack(nm.quantize(generator.standard_normal((192, 64)).astype(np.float32), group_size=64))
    x = generator.standard_normal((20, 192)).astype(np.float16)
    whole, info = nm.matmul(x, p, backend, batch_invariant=True, return_info=True)
    assert info.problem.batch_invariant
    for first, m in ((0, 1), (19, 1), (3, 16)):
        assert (
            nm.matmul(x[first : first + m], p, backend, batch_invariant=True).view(np.uint16)
            == whole[first : first + m].view(np.uint16)
        ).all()


def test_calls_are_told_apart_by_the_mode(monkeypatch):
    """A kept call of the one is none of the other."""
    asked = []
    monkeypatch.setattr(
        repeat, "again", lambda x, p, out, bias, choice, stream: asked.append(choice)
    )
    p = nm.pack(nm.quantize(np.ones((64, 64), np.float32), group_size=64))
    for mode in (False, True):
        nm.matmul(np.ones((1, 64), np.float16), p, "reference", batch_invariant=mode)
    assert len(set(asked)) == 2


def test_the_command_line_explains_the_mode(capsys):
    assert (
        main(
            [
                "explain",
                "--m",
                "16",
                "--n",
                "8192",
                "--k",
                "8192",
                "--device",
                "H200",
                "--batch-invariant",
                "--json",
            ]
        )
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["problem"]["batch_invariant"] and data["candidates"][0]["modelled"]["free_us"] > 0


def test_the_order_is_settled_whatever_m_is_asked_about():
    assert len({invariant_order(replace(SAME, m=m), H200) for m in BATCHES}) == 1
