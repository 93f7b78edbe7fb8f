"""Contract under test: a linear layer over the ranks of a group is the whole one: its columns bit
for bit, its sums the same on all ranks.

Two and three processes (``--thorough``): gloo on the CPU; with ``--run-on cuda`` NCCL, a GPU each,
skipped where there are too few. Skipped without torch."""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
import torch.distributed as dist  # noqa: E402  after the skip
from torch import nn  # noqa: E402

from numba_marlin.torch import collectives, operators  # noqa: E402
from tests.torch_room.layers import (  # noqa: E402
    KINDS,
    K,
    N,
    here,
    integers,
    numbers,
    rank,
    small_integers,
    tensor,
    weight,
)

# ---- one process


def test_without_a_group_it_says_what_to_do():
    for attempt in (
        lambda: nmt.ColumnParallelLinear.from_packed(weight()),
        lambda: nmt.RowParallelLinear.from_linear(nn.Linear(K, N), group_size=32),
        lambda: nmt.parallelize_(nn.Sequential()),
    ):
        with pytest.raises(RuntimeError, match="torchrun and call .*init_process_group"):
            attempt()


@pytest.mark.parametrize("kind", ("int4", "ordered", "nvfp4"))
def test_a_group_of_one_has_the_whole_layer(alone, kind):
    p, x, bias = weight(kind), tensor(3, K), tensor(N)
    whole = nmt.Linear.from_packed(p, bias)
    for parallel in (
        nmt.ColumnParallelLinear.from_packed(p, bias),
        nmt.ColumnParallelLinear.from_packed(p, bias, gather_output=True),
        nmt.RowParallelLinear.from_packed(p, bias, input_is_parallel=False),
    ):
        assert torch.equal(parallel(x), whole(x))
    row = nmt.RowParallelLinear.from_packed(p, bias)
    assert torch.equal(row(x), whole(x))


def test_options_of_the_layer_and_of_its_quantisation_go_together(alone):
    linear = nn.Linear(K, N)
    options = {"group_size": 32, "symmetric": False}
    column = nmt.ColumnParallelLinear.from_linear(linear, gather_output=True, **options)
    row = nmt.RowParallelLinear.from_linear(
        linear.eval(), input_is_parallel=False, deterministic=False, **options
    )
    assert column.gather_output and column.training
    assert not (row.input_is_parallel or row.deterministic or row.training)
    whole = nmt.Linear.from_linear(linear, **options)
    assert torch.equal(column.qweight, whole.qweight) and torch.equal(row.qweight, whole.qweight)
    with pytest.raises(TypeError, match="input_is_parallel"):
        nmt.ColumnParallelLinear.from_linear(linear, input_is_parallel=False, **options)


def test_it_says_which_part_it_is(alone):
    said = repr(nmt.ColumnParallelLinear.from_linear(nn.Linear(K, N), group_size=32))
    assert "ColumnParallelLinear(" in said and "rank 0 of 1: n 0 to 143 of 144" in said
    assert "groups of 32" in said and "bias" in said


@pytest.mark.parametrize("kind", (nmt.ColumnParallelLinear, nmt.RowParallelLinear))
def test_wrong_arguments_are_refused(alone, kind):
    with pytest.raises(TypeError, match="p is a Tensor, must be packed"):
        kind.from_packed(tensor(K, N))
    with pytest.raises(ValueError, match=r"bias.shape=\(8,\) must be \(n,\)=\(144,\)"):
        kind.from_packed(weight(), tensor(8))
    with pytest.raises(ValueError, match=r"sizes=\(64, 64\) must be world=1 numbers"):
        kind.from_packed(weight(), sizes=(64, 64))
    with pytest.raises(TypeError, match="group is a int, must be a torch.distributed.ProcessGroup"):
        kind.from_packed(weight(), group=-100)
    with pytest.raises(ValueError, match=r"x.shape=\(2, 100\) must be"):
        kind.from_packed(weight())(tensor(2, 100))


@pytest.mark.thorough
def test_a_part_takes_the_order_of_sums_of_the_whole(run_on):
    """On the PTX machine, where 64 columns alone take another kernel than 128."""
    if run_on == "cuda":
        pytest.skip("on the PTX machine, whatever GPUs there are")
    p, x = weight(k=512, n=128), tensor(3, 512)
    signature = operators.signature_of

    def product(p, whole_n=None):
        with nmt.cpu_backend("emulator"):
            return torch.ops.numba_marlin.matmul(
                x, *operators.tensors_of(p), None, signature(p), True, whole_n
            )

    part = nm.shard(p, 1, 2, "n")
    columns = product(p)[:, 64:]
    assert torch.equal(product(part, 128), columns)
    assert not torch.equal(product(part), columns), "else this test shows nothing"


# ---- several processes


def columns_of(kind, m, sizes, batch_invariant):
    """-> (whether the rank's columns, and the gathered ones, are the whole layer's; the columns)"""
    p, bias, x = weight(kind), tensor(N, seed=1), here(tensor(m, K, seed=2))
    whole = here(nmt.Linear.from_packed(p, bias))
    part = here(nmt.ColumnParallelLinear.from_packed(p, bias, sizes=sizes))
    gathered = nmt.ColumnParallelLinear.from_whole(whole, sizes=sizes, gather_output=True)
    for layer in (whole, part, gathered):
        layer.batch_invariant = batch_invariant
    y = part(x)
    mine = whole(x)[:, part.start : part.start + part.out_features]
    same = torch.equal(y, mine) and torch.equal(gathered(x), whole(x))
    assert gathered.out_features == N and y.shape == (m, part.out_features)
    return same, numbers(y)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_those_of_the_whole_layer_bit_for_bit(ranks, kind, run_on):
    even, uneven = None, (8, 136) if ranks.world == 2 else (80, 8, 56)
    for m, sizes in ((1, even), (3, uneven), (70, even)):
        # without the mode, GPUs choose kernels by size; the reference has one order
        for batch_invariant in (True,) if run_on == "cuda" else (True, False):
            answers = ranks(columns_of, kind, m, sizes, batch_invariant)
            assert all(same for same, _ in answers)
            parts = np.concatenate([y for _, y in answers], 1)
            x, bias = tensor(m, K, seed=2).numpy(), tensor(N, seed=1).numpy()
            if run_on != "cuda":
                assert np.array_equal(parts, nm.matmul(x, weight(kind), "reference", bias=bias))


def columns_on_the_machine():
    """What ``columns_of`` compares, by the kernels, which take 64 columns of 512 rows otherwise
    than 128 (``test_a_part_takes_the_order_of_sums_of_the_whole``)."""
    whole = nmt.Linear.from_packed(weight(k=512, n=128), tensor(128))
    part = nmt.ColumnParallelLinear.from_whole(whole)
    whole.batch_invariant = part.batch_invariant = True
    x = tensor(3, 512)
    with nmt.cpu_backend("emulator"):
        y = whole(x)[:, part.start : part.start + part.out_features]
        return torch.equal(part(x), y)


@pytest.mark.thorough
def test_columns_are_those_of_the_whole_layer_by_the_kernels_too(ranks, run_on):
    if ranks.world != 2 or run_on == "cuda":
        pytest.skip("of two ranks, on the PTX machine")
    assert ranks(columns_on_the_machine) == [True, True]


def rows_of(kind, m, sizes, one_step, runs=3):
    """-> (y of several runs; this rank's product; whether rows do not depend on others)"""
    collectives.ONE_STEP_BYTES = one_step
    p, bias, x = weight(kind), tensor(N, seed=1), here(tensor(m, K, seed=2))
    layer = here(nmt.RowParallelLinear.from_packed(p, bias, sizes=sizes, input_is_parallel=False))
    layer.batch_invariant = True
    found = [layer(x) for _ in range(runs)]
    alone = torch.cat([layer(x[row : row + 1]) for row in range(0, m, 7)])
    mine = layer._product(layer._own_columns(x), None)
    return (
        [numbers(y) for y in found],
        numbers(mine),
        torch.equal(alone, found[0][::7]),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_the_same_on_all_ranks_and_in_every_run(ranks, kind):
    uneven = (32, 160) if ranks.world == 2 else (96, 64, 32)
    bias = tensor(N, seed=1).numpy().astype(np.float32)
    # gathered whole; and in parts of the rows, where more than two ranks have many
    for m, sizes, one_step in ((1, None, 1 << 18), (3, uneven, 1 << 18), (70, None, 0)):
        answers = ranks(rows_of, kind, m, sizes, one_step)
        total = np.zeros((m, N), np.float32)
        for _, product, _ in answers:  # in the order of ranks, in fp32, rounded once
            total += product
        expected = (total + bias).astype(np.float16)
        for found, _, invariant in answers:
            assert all(np.array_equal(y, expected) for y in found) and invariant


@pytest.mark.thorough
def test_the_ranks_products_add_up_to_the_whole(ranks, run_on):
    """Exactly where nothing is rounded; the bias is added once."""
    answers = ranks(exact_rows)
    whole = nm.matmul(
        integers(5, K).numpy(), small_integers(), "reference", bias=integers(N, seed=1).numpy()
    )
    for found in answers:
        assert all(np.array_equal(y, whole) for y in found)


def summed(one_step):
    """Of fp32 numbers, whose sum shows its order."""
    collectives.ONE_STEP_BYTES = one_step
    x = here(tensor(50, 64, dtype=torch.float32, seed=rank()))
    return numbers(collectives.all_sum(x, None, dist.group.WORLD.group_name))


@pytest.mark.thorough
def test_ranks_are_added_up_in_their_order(ranks):
    parts = [tensor(50, 64, dtype=torch.float32, seed=seed).numpy() for seed in range(ranks.world)]
    expected, backwards = parts[0].copy(), parts[-1].copy()
    for part, other in zip(parts[1:], parts[-2::-1]):
        expected += part
        backwards += other
    assert ranks.world == 2 or not np.array_equal(expected, backwards)
    for one_step in (1 << 18, 0):
        assert all(np.array_equal(found, expected) for found in ranks(summed, one_step))


def exact_rows():
    p, bias, x = small_integers(), integers(N, seed=1), here(integers(5, K))
    found = []
    for deterministic in (True, False):
        layer = here(nmt.RowParallelLinear.from_packed(p, bias, deterministic=deterministic))
        found.append(numbers(layer(x.narrow(1, layer.start, layer.in_features))))
    return found


def ordered_rows():
    """Three ways to the sum of a weight with an activation order -> their results."""
    p, x = weight("ordered"), here(tensor(5, K))
    parallel = here(nmt.RowParallelLinear.from_packed(p))
    split = here(nmt.RowParallelLinear.from_packed(p, input_is_parallel=False))
    plain = here(nmt.RowParallelLinear.from_packed(p.sorted_rows))
    mine = slice(plain.start, plain.start + plain.in_features)
    order = torch.as_tensor(p.permutation.astype(np.int64), device=x.device)
    found = parallel(x[:, mine]), split(x), plain(x[:, order][:, mine])
    return [numbers(y) for y in found]


@pytest.mark.thorough
def test_activation_order_takes_the_columns_of_x_that_it_multiplies(ranks):
    answers = ranks(ordered_rows)
    first = answers[0][0]
    assert all(np.array_equal(y, first) for found in answers for y in found)
    p, x = weight("ordered"), tensor(5, K).numpy()
    exact = x.astype(np.float64) @ nm.dequantize(p, "float64")
    # each rank's product is rounded, and their sum: half a unit in the last place each
    sizes = np.abs(x).astype(np.float64) @ np.abs(nm.dequantize(p, "float64"))
    assert np.all(np.abs(first - exact) <= 2 * sizes * 2.0**-11 + ranks.world * 2.0**-24)


def gradients(kind, split):
    """-> gradients of x and of the biases, through a pair of layers, and through whole ones. On
    the CPU in float64 and of integers, so that nothing is rounded."""
    torch.manual_seed(0)
    first = nmt.Linear.from_packed(small_integers(64, K), torch.ones(K, dtype=torch.float64))
    p = small_integers(K, 48, seed=1)
    if kind == "ordered":
        p = replace(p, permutation=np.random.default_rng(1).permutation(K).astype(np.int32))
    second = nmt.Linear.from_packed(p, torch.ones(48, dtype=torch.float64))
    parts = (
        nmt.ColumnParallelLinear.from_whole(first, gather_output=split),
        nmt.RowParallelLinear.from_whole(second, input_is_parallel=not split),
    )
    seen = []
    for one, two in ((first, second), parts):
        x = integers(2, 3, 64, dtype=torch.float64).requires_grad_()
        y = two(one(x) * 2)
        y.backward(integers(2, 3, 48, dtype=torch.float64, seed=3))
        seen.append([y.detach(), x.grad, one.bias.grad, two.bias.grad])
    whole, mine = seen
    start = parts[0].start
    whole[2] = whole[2][start : start + parts[0].sizes[rank()]]
    return [torch.equal(a, b) for a, b in zip(whole, mine)]


@pytest.mark.thorough
@pytest.mark.parametrize("split", (False, True))
@pytest.mark.parametrize("kind", ("int4", "ordered"))
def test_gradients_are_those_of_the_whole_layers(ranks, kind, split, run_on):
    if run_on == "cuda":
        pytest.skip("float64 is the CPU's")
    for same in ranks(gradients, kind, split):
        assert same == [True] * 4


def states():
    """-> (what comes of this rank's state in its layer, of its neighbour's)"""
    said = []
    for kind in (nmt.ColumnParallelLinear, nmt.RowParallelLinear):
        made, other = (kind.from_packed(weight("ordered"), tensor(N)) for _ in range(2))
        with torch.no_grad():
            for name, each in (*other.named_buffers(), *other.named_parameters()):
                if name != "permutation":
                    each.zero_()
        other.load_state_dict(made.state_dict())
        x = tensor(2, made.in_features)
        said.append(torch.equal(other(x), made(x)))
        shared = [None] * dist.get_world_size()
        dist.all_gather_object(shared, made.state_dict())
        try:
            other.load_state_dict(shared[rank() - 1])
            said.append("loaded")
        except (ValueError, RuntimeError) as error:
            said.append(str(error))
    return said


@pytest.mark.thorough
def test_a_state_is_of_one_rank(ranks, run_on):
    if run_on == "cuda":
        pytest.skip("a state is the same there")
    for number, (column, refused, row, too) in enumerate(ranks(states)):
        assert column is row is True
        before = (number - 1) % ranks.world
        for message in (refused, too):
            assert f"the state is of a weight rank {before} of {ranks.world}" in message
            assert f"this layer's: rank {number} of {ranks.world}" in message


def uneven():
    try:
        nmt.ColumnParallelLinear.from_packed(weight(n=88))
    except ValueError as error:
        return str(error)


@pytest.mark.thorough
def test_parts_that_would_not_be_equal_are_asked_for(ranks):
    sizes = {2: "(48, 40)", 3: "(32, 32, 24)"}[ranks.world]
    for said in ranks(uneven):
        assert said.startswith(f"n=88 in world={ranks.world} equal parts must be a multiple")
        assert f"pass sizes=, such as {sizes}" in said


def in_a_smaller_group():
    """All but rank 0 have a layer together."""
    members = list(range(1, dist.get_world_size()))
    group = dist.new_group(members)
    try:
        layer = here(nmt.RowParallelLinear.from_packed(weight(), tensor(N), group=group))
    except (TypeError, ValueError) as error:
        return str(error)
    assert layer.member.rank == rank() - 1 and layer.member.world == len(members)
    x = here(tensor(3, K))
    return numbers(layer(x.narrow(1, layer.start, layer.in_features)))


@pytest.mark.thorough
def test_a_group_need_not_be_of_all(ranks):
    outside, *inside = ranks(in_a_smaller_group)
    assert "must be a torch.distributed.ProcessGroup that this process is in (rank 0" in outside
    assert all(np.array_equal(y, inside[0]) for y in inside)
