"""The part ``seventy``: the decoder of 70B shape, layer by layer, on one GPU and on two.

A graph holds ``APPLIED`` blocks, which take turns of two that are different; a block's weights are
several times the L2 cache, so none is found there. A step is the time of a block times their
number, and the time of the layer of logits.

On two GPUs each rank has half of the heads and of the mlp (q, k, v, gate, up and logits divided by
columns, o and down by rows): two all-reduces a block, and the logits are gathered. All ranks replay
the same graphs in the same order; a round's time is the shortest of the ranks, since one that comes
first waits in the first all-reduce.
"""

from __future__ import annotations

import datetime
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import clock
import prediction
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
import whole
from decoder import (
    Block,
    Decoder,
    Place,
    four_bit,
    glue_named,
    half,
    random_decoder,
    same,
)
from sizes import GROUP, Shape
from sums import agreed, everywhere, gathered

import numba_marlin as nm
import numba_marlin.torch as nmt
from numba_marlin.bench.clocks import ClockWatch

DIFFERENT, APPLIED = 2, 8
KINDS = {"fp16": half, "int4": four_bit}


# ---- one process


def block_models(shape, place: Place) -> dict[str, Decoder]:
    """{kind: decoder of APPLIED blocks, of which DIFFERENT are different}"""
    found = {}
    for kind, make in KINDS.items():
        made = random_decoder(shape, make, place, DIFFERENT)
        blocks = made.blocks * (APPLIED // DIFFERENT)
        found[kind] = Decoder(shape, blocks, made.embedding, made.head)
    return found


def timers_of(options, model: Decoder, batch: int, name: str) -> dict:
    """{(name, "block" or "head"): timer}; both are of one block or one layer of logits."""
    tokens, cache, position = whole.inputs(model, batch, options.context)
    x = model.embedding[tokens]
    more = torch.randn_like(x)
    head = clock.timer(options.device, lambda index: model.logits(x, more), APPLIED)
    # more: so that as many sums are in a body as in so many blocks of a whole decoder
    body = clock.timer(options.device, lambda index: model.body(x, cache, position, more), 1)
    return {(name, "block"): body, (name, "head"): head}


def here(options) -> Place:
    """This process's device, with its number: "cuda" alone is the first one to some."""
    on_gpu = options.device == "cuda"
    device = f"cuda:{torch.cuda.current_device()}" if on_gpu else options.device
    return Place(device, torch.float16)


def measure(options, rows, ranks: int = 1) -> None:
    """In each of ``ranks`` processes: every contender at every batch. Only rank 0 has rows."""
    place = here(options)
    made = {("1 GPU", kind): each for kind, each in block_models(options.seventy, place).items()}
    if ranks > 1:
        made |= divided_models(options, place, ranks)
    glue = glue_named(options.glue[-1])
    for batch in options.batches:
        if ("seventy", glue.name, batch, ranks, None) in options.done:
            continue
        timers = {}
        for name, model in made.items():
            found = {}
            with whole.told(f"{name} at m={batch}"):
                found = timers_of(options, model.with_glue(glue), batch, name)
            if everywhere(options, ranks, bool(found)):
                timers |= found
        times = whole.in_rounds(options, timers)
        times = {
            ((where, kind), what): each if where == "1 GPU" else shortest(options, each)
            for ((where, kind), what), each in times.items()
        }
        if rows is not None:
            add_rows(options, rows, batch, glue.name, times, ranks)


def divided_models(options, place: Place, ranks: int) -> dict:
    """{(how many GPUs and how they sum, kind): decoder}"""
    shape = options.seventy.on(ranks)
    models = block_models(shape, place)
    found, world = {}, f"{ranks} GPUs"
    for name in options.reduce:
        sums = agreed(name, options, shape, place, ranks)
        if sums:
            for kind, each in models.items():
                model = Decoder(shape, each.blocks, each.embedding, each.head)
                model.gather = gathered(ranks)
                for attribute, function in sums.items():
                    setattr(model, attribute, function)
                found[f"{world}, {name}", kind] = model
    return found


def shortest(options, times: list[float]) -> list[float]:
    """Of all ranks, round by round."""
    tensor = torch.tensor(times, dtype=torch.float64, device=options.device)
    distributed.all_reduce(tensor, distributed.ReduceOp.MIN)
    return tensor.tolist()


def steps(times: dict, name: tuple, layers: int) -> list[float]:
    """Microseconds of a whole step in each round."""
    blocks, heads = times[name, "block"], times[name, "head"]
    return [layers * block / APPLIED + head for block, head in zip(blocks, heads)]


def add_rows(options, rows, batch: int, glue: str, times: dict, ranks: int) -> None:
    shape = options.seventy
    clocks = options.watch.summary()
    options.watch.clear()
    names = list(dict.fromkeys(name for name, _ in times))
    for name in names:
        where, kind = name
        world = 1 if where == "1 GPU" else ranks
        local, each = shape.on(world), steps(times, name, shape.layers)
        row = {
            "part": "seventy",
            "shape": shape.name,
            "contender": kind,
            "where": where,
            "gpus": world,
            "glue": glue,
            "m": batch,
            "context": options.context,
            "n": shape.vocabulary,
            "k": shape.hidden,
            "layers": shape.layers,
            "linears": {layer: list(size) for layer, size in local.linears().items()},
            "group_size": 128,
            "kernel": options.kernels(local, batch) if kind == "int4" else "cublas",
            **clock.spread(each),
            "block_us": clock.spread([one / APPLIED for one in times[name, "block"]])["us"],
            "head_us": clock.spread(times[name, "head"])["us"],
            "clocks": clocks,
        }
        row["tokens_per_s"] = round(batch / row["us"] * 1e6, 1)
        if kind != "fp16" and (where, "fp16") in names:
            row |= clock.ratio(steps(times, (where, "fp16"), shape.layers), each)
        if world > 1 and ("1 GPU", kind) in names:
            alone = clock.ratio(steps(times, ("1 GPU", kind), shape.layers), each)
            row |= {f"{field}_over_one_gpu": value for field, value in alone.items()}
        expected = (
            prediction.step(shape, batch, options.context, kind)
            if world == 1
            else prediction.divided(local, batch, options.context, kind, where.rpartition(", ")[2])
        )
        row["floor_us"] = round(expected.floor * 1e6, 1)
        row["expected_us"] = round(expected.expected * 1e6, 1)
        said = whole.sentence(row | {"contender": f"{kind}, {where}"})
        over = row.get("speedup_over_one_gpu")
        rows.add(row, said + (f"  {over:.2f} x one GPU" if over else ""))


# ---- a decoder and its parts


def divided_is_right(options, rows, rank: int, ranks: int) -> None:
    """A small decoder on all ranks gives the logits that it gives on one, by every kind of sum and
    glue that is measured, and on all ranks the same."""
    shape = Shape("small", 2, 1024, 8, 4, 2048, 512)
    place = here(options)
    torch.manual_seed(0)  # the same numbers on every rank
    numbers = random_decoder(shape, half, Place("cpu", torch.float32))
    alone = quantised(numbers, shape, place, None)
    part = quantised(numbers, shape.on(ranks), place, own_places(shape, rank, ranks))
    tokens, position = torch.tensor([3, 5, 7]), torch.tensor([15])
    cache = [each.half().to(place.device) for each in numbers.cache(3, 16)]
    kv, own = shape.kv_heads, shape.kv_heads // ranks
    mine = torch.arange(rank * own, (rank + 1) * own)
    own_cache = [each[:, :, torch.cat([mine, kv + mine])].contiguous() for each in cache]
    tokens, position = tokens.to(place.device), position.to(place.device)
    expected = alone.step(tokens, cache, position)
    glue = glue_named(options.glue[-1])
    for name in options.reduce:
        sums = agreed(name, options, shape, place, ranks)
        if not sums:
            continue
        part.reduce, part.join, part.gather = same, None, gathered(ranks)
        for attribute, function in sums.items():
            setattr(part, attribute, function)
        part.with_glue(glue)
        again = [part.step(tokens, whole.copies(own_cache), position) for _ in range(3)]
        error = max(whole.relative(found, expected) for found in again)
        said = f"a decoder on {ranks} ranks, {name}, {glue.name}: error {error:.1e}, bound"
        said = f"{said} {whole.LARGEST_ERROR}"
        row = {
            "part": "check",
            "what": "divided",
            "shape": shape.name,
            "where": f"{ranks} GPUs, {name}",
            "glue": glue.name,
            "gpus": ranks,
            "m": len(tokens),
            "relative_error": error,
            "bound": whole.LARGEST_ERROR,
        }
        if rows is not None:
            rows.add(row, said)
        whole.fail_unless(options, error < whole.LARGEST_ERROR, said)
    if options.failures:
        raise SystemExit("wrong: " + "; ".join(options.failures))  # nothing is timed then


def own_places(shape, rank: int, ranks: int) -> dict[str, tuple]:
    """{layer: (rows or None, columns or None) of W [k, n] that are this rank's}"""
    size, heads, kv = shape.head, shape.heads, shape.kv_heads

    def part(count: int) -> torch.Tensor:
        return torch.arange(rank * count // ranks, (rank + 1) * count // ranks)

    def columns(of_heads: torch.Tensor) -> torch.Tensor:
        return (of_heads[:, None] * size + torch.arange(size)).flatten()

    rows_of_heads = torch.arange(0, heads, kv)  # h = row * kv + key head
    queries = (rows_of_heads[:, None] + part(kv)).flatten()
    keys = heads + part(kv)
    mlp = part(shape.mlp)
    return {
        "qkv": (None, columns(torch.cat([queries, keys, kv + keys]))),
        "o": (columns(queries), None),
        "gate_up": (None, torch.cat([mlp, shape.mlp + mlp])),
        "down": (mlp, None),
        "head": (None, part(shape.vocabulary)),
    }


def quantised(numbers: Decoder, shape, place: Place, places: dict | None) -> Decoder:
    """A decoder of these float numbers at 4 bits, or the part of it at ``places``. Groups are
    divided whole, so that the codes of a part are those of the whole."""

    def layer(linear, name: str):
        w = linear.weight.t()
        if places is not None:
            rows, columns = places[name]
            w = w if rows is None else w[rows]
            w = w if columns is None else w[:, columns]
        q = nm.quantize(w.contiguous().numpy(), group_size=GROUP)
        return nmt.Linear.from_packed(nm.pack(q).to(place.device, "torch"))

    blocks = [
        Block(
            {name: layer(getattr(block, name), name) for name in shape.linears()},
            tuple(
                each.to(place.device, place.dtype)
                for each in (block.before_attention, block.before_mlp)
            ),
        )
        for block in numbers.blocks
    ]
    embedding = numbers.embedding.to(place.device, place.dtype)
    return Decoder(shape, blocks, embedding, layer(numbers.head, "head"))


# ---- several processes


def seventy(options, rows) -> None:
    ranks = options.gpus
    if ranks == 1:
        return measure(options, rows)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    plain = {
        name: getattr(options, name)
        for name in ("device", "context", "rounds", "batches", "glue", "seventy", "reduce", "done")
    }
    where = (str(rows.path), rows.common, options.kernel_names)
    multiprocessing.spawn(process, (ranks, port, plain, where), nprocs=ranks)


def process(rank: int, ranks: int, port: int, plain: dict, where: tuple) -> None:
    """One rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # no sum here uses NVLink's multicast, which both libraries would set up
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    path, common, names = where
    options = SimpleNamespace(**plain, failures=[])
    options.kernels = lambda shape, m: names.get(f"{shape.name}/{shape.world}/{m}")
    options.watch = ClockWatch()
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
        **({"device_id": torch.device("cuda", rank)} if on_gpu else {}),
    )
    rows = clock.Rows(Path(path), common) if rank == 0 else None
    torch.set_grad_enabled(False)
    whole.same_attention()
    divided_is_right(options, rows, rank, ranks)
    measure(options, rows, ranks)
    if options.failures:
        raise SystemExit("; ".join(options.failures))
    if on_gpu:
        os._exit(0)  # graphs that hold NCCL's launches can keep the group from ending
    distributed.destroy_process_group()
