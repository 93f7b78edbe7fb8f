"""Experiment 26 with x in 8 bits (W4A8): ``run.py measure --activations int8`` (or fp8).

In the same rounds, for each cell: what is chosen for x in 16 bits; ``moe_wgmma_int8`` (or _fp8) on
codes that are there already; and ``quantise + moe_wgmma_int8``, which makes them of 16 bits first,
in a launch of its own. Checked before anything is timed: the same bits twice, and for some tokens
what the dense kernels of the same type give, in int8 bit for bit where nothing is summed or
activated. "modelled" in the table is the chooser's time.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
from entrants import CHECKED_TOKENS, DIFFERENCE, cell_of, check, launch_moe, random_experts
from layers import MODELS, TINY, cells

from numba_marlin.bench.tables import markdown

KINDS = ("int8", "fp8")
MARKERS = ("<!-- eight bits: begin -->", "<!-- eight bits: end -->")


def kernel_of(kind):
    return f"moe_wgmma_{kind}"


def with_quantising(kind):
    return f"quantise + {kernel_of(kind)}"


def problem_of(problem, kind):
    """The same in 8 bits; None if no kernel takes it."""
    from numba_marlin.kernels.registry import find_kernel

    found = replace(problem, activations=kind)
    return None if find_kernel(kernel_of(kind)).takes.refusals(found) else found


def config_of(problem):
    from numba_marlin.hardware.devices import device
    from numba_marlin.heuristics import default_config

    return default_config(kernel_of(problem.activations), problem, device("H200"))


def modelled_us(problem):
    from numba_marlin.hardware.devices import device
    from numba_marlin.heuristics import candidate

    found = candidate(problem, device("H200"), kernel_of(problem.activations))
    return found.figures["predicted_us"]


def codes_of(cell, kind):
    """x, quantised, where it is."""
    import torch

    import numba_marlin as nm

    q = nm.quantize_activations(cell.x.reshape(-1, cell.problem.k), kind)
    if cell.x.is_cuda:
        return q
    return replace(q, codes=torch.from_numpy(q.codes), scales=torch.from_numpy(q.scales))


def launches_of(cell, kind, config):
    """{label: launch} of the two entrants with x in 8 bits."""
    import numba_marlin as nm

    codes = codes_of(cell, kind)

    def launch(x, activations):
        return lambda index: nm.moe_matmul(
            x,
            cell.experts,
            cell.routing(index),
            combine=cell.problem.combine,
            activation=cell.problem.activation,
            activations=activations,
            config=config,
            backend="auto" if cell.x.is_cuda else "emulator",
        )

    return {
        kernel_of(kind): launch(codes, None),
        with_quantising(kind): launch(cell.x, kind),
    }, codes


def wanted_of(cell, kind, codes, tokens):
    """The result of these tokens by the dense kernel for such x, a row at a time, in fp32."""
    import torch

    import numba_marlin as nm

    problem, routing = cell.problem, cell.routing(0)
    dense, backend = list(cell.experts), "auto" if cell.x.is_cuda else "emulator"
    # not what is chosen for a row: decode_int8 adds up the groups of scales in another order
    kernel = f"wgmma_{kind}"
    rows = torch.empty((len(tokens), problem.top_k, problem.n), device=cell.x.device)
    ids = routing.ids.tolist()
    for i, token in enumerate(tokens):
        for slot in range(problem.top_k):
            row = token * problem.top_k + slot if problem.x_of_pairs else token
            one = slice(row, row + 1)
            x = codes.rows(one)
            product = nm.matmul(x, dense[ids[token][slot]], backend, kernel=kernel)
            rows[i, slot] = torch.as_tensor(product)[0].float()
    if problem.combine:
        return (routing.weights[tokens][:, :, None] * rows).sum(dim=1)
    if problem.activation is not None:
        gate, up = rows.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    return rows


def check_bytes(cell, kind, launches, codes):
    """ValueError unless both launches give the same bits, twice, as the dense kernels' for some
    tokens. -> error, of the largest number."""
    import torch

    given, made = launches[kernel_of(kind)], launches[with_quantising(kind)]
    first, what = given(0), f"{kind}, {cell.problem.in_words()}"
    if not (torch.equal(first, given(0)) and torch.equal(first, made(0))):
        raise ValueError(f"{what}: two launches differ")
    tokens = np.linspace(0, cell.problem.m - 1, CHECKED_TOKENS).astype(int)
    tokens = sorted(set(tokens.tolist()))
    wanted, mine = wanted_of(cell, kind, codes, tokens), first[tokens].float()
    error = ((mine - wanted).abs().max() / wanted.abs().max()).item()
    plain = not cell.problem.combine and cell.problem.activation is None
    if not error < DIFFERENCE or (kind == "int8" and plain and error):
        raise ValueError(f"{what}: error {error:.3g} of the largest number")
    return error


def of_cells(models, args):
    for model, product, problem in cells(models, args.m, args.products):
        eight = problem_of(problem, args.activations)
        if eight is not None:
            yield model, product, problem, eight


def compile_all(run, found, processes):
    """To the disk cache, on all cores. -> nothing; says what spills."""
    start, seen = time.perf_counter(), set()
    for _, _, problem, eight in found:
        seen |= {config_of(eight), *run.configurations(problem, False).values()}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for config, (_, spilled) in zip(seen, pool.map(run.build, seen)):
            if spilled:
                print("  spills:", config)
    print(f"{len(seen)} configurations in {time.perf_counter() - start:.0f} s", flush=True)


def measure(run, args):
    """run: the module of ``run.py``."""
    if args.tiny:
        return tiny(run, args)
    import torch

    from numba_marlin.bench import rows
    from numba_marlin.bench.environment import describe
    from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu
    from numba_marlin.execution.scratch import release_workspaces

    torch_on_gpu()
    torch.set_grad_enabled(False)
    kind, environment = args.activations, describe(torch.cuda.get_device_name())
    models = [each for each in MODELS if any(name in each.name for name in args.models)]
    found = list(of_cells(models, args))
    print(f"{len(found)} cells to measure", flush=True)
    compile_all(run, found, args.processes)
    generator = torch.Generator("cuda").manual_seed(0)
    start, held, experts = time.perf_counter(), None, None
    with rows.Recorder(run.OUT) as out:
        for model, product, problem, eight in found:
            if time.perf_counter() - start > args.seconds:
                print(f"stopped after {args.seconds} s", flush=True)
                return
            if held != (model, problem.n, problem.k):
                held, experts = (model, problem.n, problem.k), None
                torch.cuda.empty_cache()
                experts = random_experts(problem, "cuda", generator)
            cell, config = cell_of(problem, experts, "cuda", generator), config_of(eight)
            configs = run.configurations(problem, False)
            launches = {name: launch_moe(cell, each) for name, each in configs.items()}
            for launch in launches.values():
                check(cell, launch)
            of_bytes, codes = launches_of(cell, kind, config)
            error = check_bytes(cell, kind, of_bytes, codes)
            launches |= of_bytes
            least = max(20 if problem.m <= 64 else 4, len(cell.routings))
            timers = {name: GraphTimer(each, 1000.0, least) for name, each in launches.items()}
            times = interleave(timers, args.rounds)
            for name, us in times.items():
                what = (config, eight) if name in of_bytes else (configs[name], problem)
                row = run.row_of(
                    name, what[0], model.name, product, what[1], cell.touched, us, environment
                )
                out.write(row | {"kernel": name})
            timers.clear()
            launches.clear()
            torch.cuda.synchronize()
            release_workspaces()  # each graph had its own
            said = {name: round(sorted(us)[len(us) // 2], 1) for name, us in times.items()}
            rate = problem.flops / said[kernel_of(kind)] * 1e-6
            print(
                f"{model.name} {product} m={problem.m}: {rate:.0f} TFLOP/s with {kind}, error"
                f" {error:.2g}, {modelled_us(eight):.1f} us modelled; us {said}",
                flush=True,
            )


def tiny(run, args):
    """On the PTX machine, checked."""
    import torch

    generator = torch.Generator().manual_seed(0)
    args.m, args.products = [1, 27], (*args.products, "gate_up silu")
    for model, product, problem, eight in of_cells(TINY, args):
        experts = random_experts(problem, "cpu", generator)
        cell = cell_of(problem, experts, "cpu", generator)
        launches, codes = launches_of(cell, args.activations, config_of(eight))
        error = check_bytes(cell, args.activations, launches, codes)
        print(f"{model.name} {product} m={problem.m}: ok, of the largest number {error:.2g}")


def table(found):
    """A line for each cell with rows of 8 bits: the least of each entrant."""
    names = ("moe", "moe_wgmma", *(f(kind) for kind in KINDS for f in (kernel_of, with_quantising)))
    best = {}
    for row in found:
        key = row["model"], row["product"], row["m"], row["kernel"]
        best[key] = min(row["us"], best.get(key, row["us"]))
    lines = []
    for model in MODELS:
        for product, m in sorted({key[1:3] for key in best if key[0] == model.name}):
            us = {name: best.get((model.name, product, m, name)) for name in names}
            kinds = [kind for kind in KINDS if us[kernel_of(kind)] is not None]
            if not kinds:
                continue
            problem = replace(model.products(m)[product], activations=kinds[0])
            first = us[kernel_of(kinds[0])]
            lines.append(
                [
                    f"{model.name} {product}",
                    str(m),
                    *("" if each is None else f"{each:.1f}" for each in us.values()),
                    f"{problem.flops / first * 1e-6:.0f}",
                    f"{modelled_us(problem):.1f}",
                ]
            )
    if not lines:
        return "Not measured yet."
    header = ["product", "tokens", *(f"{name}: us" for name in names), "TFLOP/s in 8 bits"]
    return markdown([*header, "modelled: us"], lines)
