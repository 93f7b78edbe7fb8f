"""Contract under test: an activation changes nothing of which kernel multiplies a mixture's
experts, and what a router writes nothing of the memory that launches share."""

import re
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import heuristics
from numba_marlin.api.warmup import choose
from numba_marlin.execution.arrays import aligned_empty
from numba_marlin.formats.floats import round_to
from numba_marlin.hardware import devices
from numba_marlin.problems.experts import ExpertsProblem
from numba_marlin.quantizers.dequantize import as_quantized
from numba_marlin.reference.experts import activate, activated_bounds, moe_bounds
from tests.api.mixture import EXPERTS, RNG, ROUTING, E, K, M, X, experts, judged
from tests.kernels.harness import cases

pytest.importorskip("ml_dtypes")

BY_ROWS = ((64, "moe_wgmma"), (6, "moe"))


# zero points that moe_wgmma does not activate; columns that no kernel does
@pytest.mark.thorough
@pytest.mark.parametrize(
    "zeros, n, rows, kernel",
    [(zeros, n, *each) for zeros, n in (("integer", 128), (None, 96)) for each in BY_ROWS],
)
def test_an_activation_does_not_change_the_choice_of_the_kernel(zeros, n, rows, kernel):
    """It is a pass of its own where the kernel for so many rows has no place for it."""
    held = experts(K, n, 10, 2, zeros_kind=zeros)
    x = RNG.standard_normal((rows, K)).astype(np.float16)
    ids = np.arange(rows, dtype=np.int32)[:, None] % 2
    routing = nm.Routing.of(ids, np.ones((rows, 1), np.float32), 2)
    options = {"backend": "emulator", "return_info": True}
    y, info = nm.moe_matmul(x, held, routing, activation="silu", **options)
    assert nm.last_run() is info
    plain, without = nm.moe_matmul(x, held, routing, **options)
    assert info.candidate.kernel == without.candidate.kernel == kernel
    types = {"zeros": zeros, "experts": 2, "top_k": 1, "device": devices.MODEL}
    explained = nm.explain(rows, n, K, 32, activation="silu", **types)
    assert (explained.choice.kernel, explained.choice.config) == (kernel, info.candidate.config)
    assert explained.choice.reasons == info.candidate.reasons
    said = " is a pass of its own behind the launch: .* does not take activation='silu' with "
    behind = [each for each in info.candidate.reasons if re.search(said, each)]
    assert len(behind) == (kernel == "moe_wgmma" or zeros is None)
    method = "weights" if kernel == "moe_wgmma" else "sums"
    allowed = moe_bounds(x, held, routing, method=method, order="random")
    judged(y, activated_bounds(allowed, "silu", "float16"))
    if behind:
        wanted = round_to(activate(plain.astype(np.float32), "silu"), "float16")
        assert np.array_equal(y, wanted)


def test_explain_lists_those_that_activate_in_their_launch_too():
    types = {"zeros": "integer", "experts": 2, "top_k": 1, "device": "H200"}
    first, *others = nm.explain(64, 128, K, 32, activation="silu", **types).candidates
    assert (first.kernel, first.config.activation) == ("moe_wgmma", None)
    assert [(each.kernel, each.config.activation) for each in others] == [("moe", "silu")]
    plain = nm.explain(64, 128, K, 32, **types).candidates
    assert plain[0].config == first.config and plain[0].reasons == first.reasons[:-1]
    del types["device"]
    needed = choose(ExpertsProblem(64, 128, K, 32, activation="silu", **types), device="H200")
    assert [each.job.config for each in needed.kernels] == [first.config]


def test_the_pass_that_adds_up_a_token_s_rows_is_warmed_up_too():
    problem = ExpertsProblem(64, 128, 64, 32, experts=4, top_k=2, combine=True)
    needed = choose(problem, m=(64, 65), device="H200").kernels
    assert [each.job.kernel for each in needed] == ["moe_wgmma", "sum_experts"]
    assert needed[-1].m == (64, 65)
    (rows,) = choose(replace(problem, combine=False), device="H200").kernels
    assert rows.job.kernel == "moe_wgmma" and not rows.job.config.combine
    said = nm.explain(64, 128, 64, 32, experts=4, top_k=2, combine=True, device="H200").choice
    assert any("a pass of its own behind the launch adds up" in each for each in said.reasons)


@pytest.mark.thorough
def test_a_configuration_of_rows_that_are_activated_behind_is_theirs():
    held, problem = experts(K, 96), ExpertsProblem(M, 96, K, 32, experts=E, top_k=2)
    config = heuristics.rank(problem, devices.MODEL)[0].config
    options = {"activation": "silu", "backend": "emulator", "return_info": True}
    _, info = nm.moe_matmul(X, held, ROUTING, config=config, **options)
    assert info.candidate.config is config
    with pytest.raises(ValueError, match="top_k=3 must be the problem's top_k=2"):
        nm.moe_matmul(X, held, ROUTING, config=replace(config, top_k=3), **options)


@pytest.mark.parametrize(
    "kernel", cases((("moe",), ("moe_wgmma",)), lambda kernel: kernel == "moe")
)
def test_ids_of_torch_that_break_the_rules_add_nothing_and_leave_locks_as_they_were(kernel):
    """Nobody looks at ids on a device. Every pair is in a list nevertheless: the sum over a token's
    experts reads all of its rows, also of those whose weight is 0, and none may be left from the
    launch before."""
    torch = pytest.importorskip("torch")
    ids = torch.tensor([[0, 0], [-1, 1], [E, 2], [3, 3], [1, -7]])
    weights = torch.from_numpy(ROUTING.weights)
    workspace = nm.Workspace(
        aligned_empty((1 << 20,), np.float32), aligned_empty((4096,), np.int32)
    )
    workspace.locks[:] = 0
    options = {"kernel": kernel, "backend": "emulator", "workspace": workspace}
    y = nm.moe_matmul(
        torch.from_numpy(X), EXPERTS, nm.Routing.of(ids, weights, E), combine=True, **options
    )
    assert not workspace.locks.any()
    rows = np.stack([nm.dequantize(as_quantized(each), np.float64) for each in EXPERTS])
    taken = rows[ids.clamp(0, E - 1).numpy()]
    counted = ROUTING.weights * ((ids >= 0) & (ids < E)).numpy()
    wanted = np.einsum("ts,tk,tskn->tn", counted, X.astype(np.float64), taken)
    assert np.abs(y.numpy() - wanted).max() < 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "changes, side_by_side, stages",
    (
        ({}, 8, 3),
        ({"m": 255}, 4, 4),  # fewer than 8 rows of an expert
        # where three stages of eight warps do not fit
        ({"bits": 8}, 4, 2),
        ({"group_size": 32}, 4, 4),
    ),
)
def test_eight_warps_side_by_side_where_their_ring_fits(changes, side_by_side, stages):
    problem = replace(ExpertsProblem(256, 4096, 7168, experts=256, top_k=8), **changes)
    config = heuristics.default_config("moe", problem, devices.device("H200"))
    assert (config.batch, config.warps_n, config.stages) == (16, side_by_side, stages)
