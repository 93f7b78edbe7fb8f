"""Operands and entrants of experiment 26, on a device, or on the CPU for a try."""

import math
from dataclasses import dataclass

import numpy as np
from layers import expected_touched, expert_bytes, rows_per_expert

from numba_marlin.problems.experts import ExpertsProblem

COLD_BYTES = 150e6  # that the launches of a lap of routings read: three times an H200's L2
# experts touched, and rows of one, above which ``loop`` would take too long to build
MOST_LOOPED, MOST_ROWS = 64, 32
CHECKED_TOKENS = 8
DIFFERENCE = 4e-3  # of the largest number, between two fp16 products of other orders of sums


def random_experts(problem, device, generator):
    """A PackedExperts of torch tensors on the device: random codes, scales near 2**-6. (FP4:
    words of scales from a real weight.)"""
    import torch

    from numba_marlin.formats.experts import PackedExperts
    from numba_marlin.formats.types import PackedWeight

    n_packed = -(-problem.n // 64) * 64
    groups = 1 if problem.group_size == -1 else problem.k // problem.group_size
    shape = (problem.experts, problem.k // 16, 2 * n_packed)
    words = torch.randint(
        -(2**31), 2**31, shape, dtype=torch.int32, device=device, generator=generator
    )
    facts = {"group_size": problem.group_size if groups > 1 else -1, "k": problem.k, "n": problem.n}
    if problem.codes != "integer":
        from numba_marlin.api import pack
        from numba_marlin.formats import BlockWeight
        from numba_marlin.formats.fp4_marlin import PackedBlocks

        rng = np.random.default_rng(0)
        codes, scales = rng.integers(0, 16, (512, 64)), rng.integers(124, 129, (16, 64))
        weight = BlockWeight(
            codes.astype(np.uint8), "e2m1", scales.astype(np.uint8), "e8m0", (32, 1)
        )
        some = torch.from_numpy(pack(weight).scales)
        shape = (problem.experts, n_packed // 64, -(-problem.k // 32) * 16)
        drawn = torch.randint(0, some.numel(), shape, device=device, generator=generator)
        arrays = {
            "qweight": words,
            "scales": some.to(device).reshape(-1)[drawn],
            "factors": torch.full((problem.experts, n_packed), 2.0**-6, device=device),
        }
        facts |= {"layout": "marlin-fp4", "scale_grid": "e8m0"}
        return PackedExperts(arrays, PackedBlocks, (facts,) * problem.experts)
    scales = (
        torch.rand((problem.experts, groups, n_packed), device=device, generator=generator)
        .add_(0.5)
        .mul_(2**-6)
        .half()
    )
    facts |= {"layout": "marlin", "bits": 4}
    arrays = {"qweight": words, "scales": scales}
    return PackedExperts(arrays, PackedWeight, (facts,) * problem.experts)


def random_routings(problem, count, device, generator):
    """As many, every token to other experts, each expert as likely."""
    import torch

    from numba_marlin.formats.routing import Routing

    found = []
    for _ in range(count):
        shape = (problem.m, problem.experts)
        ids = torch.rand(shape, device=device, generator=generator).argsort(dim=1)
        ids = ids[:, : problem.top_k].contiguous()
        weights = torch.rand(ids.shape, device=device, generator=generator)
        found.append(Routing.of(ids, weights, problem.experts))
    return found


@dataclass(eq=False)
class Cell:
    """The operands of a cell."""

    problem: ExpertsProblem
    experts: object
    x: object
    routings: list
    touched: float  # experts, on average
    dense: list  # packed weights of the experts, views

    @property
    def looped(self):
        """Whether ``loop`` is an entrant."""
        return self.touched <= MOST_LOOPED and rows_per_expert(self.problem) <= MOST_ROWS / 2

    def routing(self, index):
        return self.routings[index % len(self.routings)]


def cell_of(problem, experts, device, generator):
    import torch

    shape = (problem.m, problem.top_k) if problem.x_of_pairs else (problem.m,)
    x = torch.randn((*shape, problem.k), device=device, generator=generator).half()
    read = expected_touched(problem) * expert_bytes(problem)
    count = min(32, max(3, math.ceil(COLD_BYTES / read)))
    if read > COLD_BYTES:
        count = 2
    routings = random_routings(problem, count, device, generator)
    touched = [int((each.offsets.diff() > 0).sum()) for each in routings]
    return Cell(problem, experts, x, routings, sum(touched) / len(touched), [])


def launch_moe(cell, config):
    import numba_marlin as nm

    def launch(index):
        return nm.moe_matmul(
            cell.x,
            cell.experts,
            cell.routing(index),
            combine=cell.problem.combine,
            activation=cell.problem.activation,
            config=config,
            backend="auto" if cell.x.is_cuda else "emulator",
        )

    return launch


def launch_loop(cell):
    """Our dense kernels; offsets are known to the host, pairs are sorted on the device."""
    import numba_marlin as nm

    problem = cell.problem
    if not cell.dense:
        cell.dense = list(cell.experts)
    plans = []
    for routing in cell.routings:
        offsets = routing.offsets.tolist()
        pairs = routing.pairs.long()
        plan = []
        for expert, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:])):
            if begin < end:
                taken = pairs[begin:end]
                plan.append(
                    (expert, taken, taken if problem.x_of_pairs else taken // problem.top_k)
                )
        plans.append(plan)
    rows_of_x = cell.x.reshape(-1, problem.k)
    backend = "auto" if cell.x.is_cuda else "emulator"

    def launch(index):
        out = cell.x.new_empty((problem.pairs, problem.n))
        for expert, pairs, taken in plans[index % len(plans)]:
            product = nm.matmul(rows_of_x.index_select(0, taken), cell.dense[expert], backend)
            out.index_copy_(0, pairs, product)
        return out

    return launch


def launch_grouped(cell):
    import torch

    problem = cell.problem
    shape = (problem.experts, problem.n, problem.k)
    weights = torch.empty(shape, dtype=torch.bfloat16, device=cell.x.device).normal_()
    weights = weights.transpose(1, 2)
    gathered = []
    for routing in cell.routings:
        pairs = routing.pairs.long()
        taken = pairs if problem.x_of_pairs else pairs // problem.top_k
        x = cell.x.reshape(-1, problem.k).index_select(0, taken).bfloat16()
        gathered.append((x, routing.offsets[1:].contiguous()))

    def launch(index):
        x, offsets = gathered[index % len(gathered)]
        return torch._grouped_mm(x, weights, offs=offsets)

    return launch


def launch_humming(cell):
    """Humming's grouped kernel on rows that are sorted already, as ``launch_grouped``; random
    weights of its own, whose product with a few rows is checked."""
    import torch
    from humming.layer import HummingLayer
    from humming.ops.weight import pack_weight

    problem = cell.problem
    if problem.codes != "integer":
        raise ValueError("this peer is set up for INT4 only")
    layer = HummingLayer(
        shape_n=problem.n,
        shape_k=problem.k,
        weight_config={"dtype": "uint4", "group_size": problem.group_size},
        num_experts=problem.experts,
        torch_dtype=torch.float16,
        pad_n_to_multiple=64,
    ).cuda()
    codes = torch.randint(0, 16, (problem.n, problem.k), dtype=torch.int32, device="cuda")
    scales = torch.rand((problem.n, problem.k // problem.group_size), device="cuda").half() / 64
    one = {"weight": pack_weight(codes, 4), "weight_scale": scales}
    shapes = {name: (problem.experts, *each.shape) for name, each in one.items()}
    layer.load_from_tensors({name: each.expand(shapes[name]) for name, each in one.items()})
    layer.transform()
    gathered = []
    for routing in cell.routings:
        pairs = routing.pairs.long()
        taken = pairs if problem.x_of_pairs else pairs // problem.top_k
        x = cell.x.reshape(-1, problem.k).index_select(0, taken)
        gathered.append((x, routing.offsets.long()))

    def launch(index):
        x, offsets = gathered[index % len(gathered)]
        grouped = {"gemm_type": "grouped_contiguous"}
        return layer(x, expert_layout=offsets, top_k=1, compute_config=grouped)

    # all experts have the same codes: every row's product is with one matrix
    some = slice(0, len(gathered[0][0]), max(1, len(gathered[0][0]) // 64))
    weight = (codes - 8).float() * scales.float().repeat_interleave(problem.group_size, dim=1)
    wanted = gathered[0][0][some].float() @ weight.T
    error = ((launch(0)[some].float() - wanted).abs().max() / wanted.abs().max()).item()
    if not error < DIFFERENCE:
        raise ValueError(f"its result is wrong: error {error:.3g} of the largest number")
    return launch


def launch_summed(cell, rows_of):
    """What a user of a kernel that leaves sorted rows adds to it: a gather into the order of
    tokens, and a batched product with the weights, which tensor cores add up in fp32. (Weights in
    the rows' type, and where each row is, are there already.)"""
    import torch

    problem = cell.problem
    lists = [(each.pairs.argsort(), each.weights[:, None]) for each in cell.routings]
    dtype = rows_of(0).dtype
    lists = [(order, weights.to(dtype)) for order, weights in lists]

    def launch(index):
        order, weights = lists[index % len(lists)]
        rows = rows_of(index).index_select(0, order)
        return torch.bmm(weights, rows.view(problem.m, problem.top_k, problem.n))[:, 0]

    return launch


PEERS = {"loop": launch_loop, "grouped": launch_grouped, "humming": launch_humming}
SUMMED = {"grouped + sum": "grouped", "humming + sum": "humming"}  # of which peer


def takes_part(label, cell, launches):
    """Whether a peer does, ``launches`` being those that do so far."""
    if label in SUMMED:
        return cell.problem.combine and SUMMED[label] in launches
    return cell.problem.activation is None and (label != "loop" or cell.looped)


def launch_of_peer(label, cell, launches):
    if label in SUMMED:
        return launch_summed(cell, launches[SUMMED[label]])
    return PEERS[label](cell)


def launch_sorted_rows(cell, config):
    """``launch_moe``'s rows, in the order of experts: what peers leave."""
    import numba_marlin as nm

    def launch(index):
        routing = cell.routing(index)
        backend = "auto" if cell.x.is_cuda else "emulator"
        rows = nm.moe_matmul(cell.x, cell.experts, routing, config=config, backend=backend)
        return rows.reshape(-1, cell.problem.n).index_select(0, routing.pairs)

    return launch


def wanted_of(cell, tokens):
    """The result of these tokens, by our dense kernels, a row at a time, in fp32."""
    import torch

    import numba_marlin as nm

    problem, routing = cell.problem, cell.routing(0)
    backend = "auto" if cell.x.is_cuda else "emulator"
    if not cell.dense:
        cell.dense = list(cell.experts)
    rows = torch.empty((len(tokens), problem.top_k, problem.n), device=cell.x.device)
    ids = routing.ids.tolist()
    for i, token in enumerate(tokens):
        for slot in range(problem.top_k):
            x = cell.x[token, slot] if problem.x_of_pairs else cell.x[token]
            rows[i, slot] = nm.matmul(x[None], cell.dense[ids[token][slot]], backend)[0].float()
    if problem.combine:
        return (routing.weights[tokens][:, :, None] * rows).sum(dim=1)
    if problem.activation is not None:
        gate, up = rows.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    return rows


def check(cell, launch, other=None):
    """ValueError unless a launch gives the same bits twice, near those of the dense kernels for
    some tokens and, for all of them, near ``other``, another kernel's result. -> (error, of the
    largest number; result)."""
    import torch

    first, again = launch(0), launch(0)
    what = cell.problem.in_words()
    if not torch.equal(first, again):
        raise ValueError(f"{what}: two launches differ")
    last = cell.problem.m - 1
    tokens = sorted({last * i // max(1, CHECKED_TOKENS - 1) for i in range(CHECKED_TOKENS)})
    pairs = [(first[tokens].float(), wanted_of(cell, tokens))]
    if other is not None:
        pairs.append((first.float(), other.float()))
    errors = [((mine - wanted).abs().max() / wanted.abs().max()).item() for mine, wanted in pairs]
    if not max(errors) < DIFFERENCE:
        raise ValueError(f"{what}: errors {errors} of the largest number")
    return max(errors), first
