"""``route``, ``load_experts``, ``moe_matmul`` and ``moe_mlp``: mixtures of experts. Arguments are
checked here; ``execution.experts`` runs the products."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from numba_marlin.api.checks import (
    check_choice,
    check_launch,
    check_no_gradient,
    check_same_place,
    refuse_torch_compile,
)
from numba_marlin.api.matmul import check_beside, hand_back, matmul
from numba_marlin.api.packing import pack
from numba_marlin.api.surgery import concat
from numba_marlin.compiler import COMPILERS
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, driver
from numba_marlin.execution.scratch import Workspace
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.floats import HALF_TYPES, round_to
from numba_marlin.formats.residence import HOST
from numba_marlin.formats.routing import Routing
from numba_marlin.hardware import devices
from numba_marlin.problems.experts import ExpertsProblem
from numba_marlin.reference.experts import ACTIVATIONS, check_routed
from numba_marlin.reference.routing import SCORINGS

BACKENDS = ("auto", "cuda", "emulator", "reference")
LOOP = "loop"


def route(
    logits,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias=None,
    normalize: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
) -> Routing:
    """The experts of each token, as the usual routers choose them, and the lists that
    ``moe_matmul`` reads.

    logits: [m, experts], of NumPy or torch; the arithmetic is fp32.
    top_k: experts of a token.
    scoring: "softmax" over all experts, or "sigmoid".
    bias: [experts], added to scores for the choice only (DeepSeek-V3's e_score_correction_bias).
    normalize, scale: weights are divided by their sum, and multiplied by a number.
    groups, top_groups: only experts of the best groups are chosen from (DeepSeek-V3: 8 and 4).

    Mixtral and gpt-oss: ``normalize=True``; Qwen3-30B-A3B: the same; DeepSeek-V3:
    ``scoring="sigmoid", bias=b, normalize=True, scale=2.5, groups=8, top_groups=4``; Kimi K2:
    ``scoring="sigmoid", bias=b, normalize=True, scale=2.827``.

    Of torch tensors on a device the result is there too, nothing waits, and a CUDA graph can
    capture it. TypeError or ValueError for wrong arguments; on the host also for logits that are
    not finite. ``reference.routing`` defines the result; equal scores go to the expert with the
    lower number.
    """
    check_choice("scoring", scoring, SCORINGS)
    options = {"scoring": scoring, "normalize": normalize, "scale": scale, "groups": groups}
    options["top_groups"] = top_groups
    if isinstance(logits, np.ndarray):
        from numba_marlin.reference.routing import chosen_experts
    elif _is_tensor(logits):
        from numba_marlin.execution.routing import chosen_experts
    else:
        raise TypeError(f"logits is a {type(logits).__name__}, must be of NumPy or torch")
    ids, weights = chosen_experts(logits, top_k, bias=bias, **options)
    return Routing.of(ids, weights, logits.shape[1])


def load_experts(checkpoint: Mapping, *names: str, dtype: str | None = None) -> PackedExperts:
    """The experts of a layer of a checkpoint, packed, on the host.

    checkpoint: of ``load_checkpoint``, or any mapping of names to weights. names: of the layer of
        expert number {}, "model.layers.0.mlp.experts.{}.down_proj"; of several ("...gate_proj",
        "...up_proj") the columns side by side. Numbers count from 0 to the last that is there.
    dtype: as in ``pack``.

    KeyError or ValueError for names without a {} or without a layer. Experts are read and packed
    one at a time.
    """
    if not names:
        raise ValueError("names must not be empty: pass 'model.layers.0.mlp.experts.{}.down_proj'")
    for each in names:
        if not isinstance(each, str) or each.count("{}") != 1:
            raise ValueError(f"name {each!r} must have one {{}}, for the expert's number")
    found: list[Any] = []
    while names[0].format(len(found)) in checkpoint:
        parts = [
            part if isinstance(part, (PackedWeight, PackedBlocks)) else pack(part, dtype=dtype)
            for part in (checkpoint[name.format(len(found))] for name in names)
        ]
        found.append(concat(parts) if len(parts) > 1 else parts[0])
    if not found:
        raise KeyError(f"no layer {names[0].format(0)!r} in the checkpoint")
    return PackedExperts.of(found)


def moe_matmul(
    x,
    experts: PackedExperts,
    routing: Routing,
    *,
    bias=None,
    combine: bool = False,
    activation: str | None = None,
    backend: str = "auto",
    kernel: str | None = None,
    config=None,
    stream=None,
    workspace: Workspace | None = None,
    batch_invariant: bool = False,
):
    """The products of tokens with the weights of their experts, [k, n] each, in one launch.

    x: float16 or bfloat16 [m, k], a row for each token, or [m, top_k, k], one for each of its
        experts; of NumPy or torch. Rows are read where they lie: nothing is sorted or padded.
    experts: a ``PackedExperts``. One on the host is copied to the GPU by its first product there.
    routing: of ``route``, or ``Routing.of(ids, weights, experts)``; where x is.
    bias: [E, n], of x's type, where x is.
    combine: False: the result is [m, top_k, n]. True: [m, n], each token's rows times the routing's
        weights, added up in fp32 in the order of its experts, and rounded once: the same bits on
        every run.
    activation: as in ``moe_mlp``: the result is [m, top_k, n / 2], activation(gate) * up of the
        product's columns, gate's being before up's; products are rounded to x's type before, and
        the result. Within the launch where the kernel can (n a multiple of 128; in "moe_wgmma" no
        zero points).
    backend: as in ``matmul``.
    kernel: "moe" and "moe_wgmma": one persistent launch, ragged over experts (compute capability
        9.0; integers in groups of 32, 64, 128, 256 or all of k, and FP4), the second for many
        tokens (k a multiple of 64, n of 8). "loop": ``matmul`` for one expert after the other, for
        every format and GPU; it waits until the host knows the routing. None: "moe_wgmma" from 32
        rows per expert on (a rule from counts, not measured), else "moe", if they take the
        problem, else "loop".
    config: a ``kernels.experts.moe.MoeConfig`` or ``kernels.experts.moe_wgmma.MoeWgmmaConfig``, of
        the kernel to be run; default: that of its ``choose``.
    stream, workspace: as in ``matmul``.
    batch_invariant: a token's result has the same bits whatever the other tokens are.

    With a routing to some of the experts (``routing.local``) rows of others are 0; ``combine``
    then adds up what is there. Errors are bounded in ``reference.experts``. Raises TypeError or
    ValueError for arguments that break these rules, CapabilityMissing if the backend or the kernel
    asked for cannot run.
    """
    refuse_torch_compile()
    check_launch(COMPILERS[0], workspace, stream)
    from numba_marlin.execution import experts as room

    check_choice("backend", backend, BACKENDS)
    if kernel is not None:
        check_choice("kernel", kernel, (*room.KERNELS, LOOP))
    if activation is not None:
        check_choice("activation", activation, ACTIVATIONS)
    _check_experts("experts", experts)
    view, problem, bias_view = _checked(x, experts, routing, bias, combine, activation)
    options = {"stream": stream, "workspace": workspace, "batch_invariant": batch_invariant}
    options |= {"bias": bias, "backend": backend, "kernel": kernel}
    if combine and not routing.complete:
        # the kernels count all of a token's experts
        return _summed(moe_matmul(x, experts, routing, **options), routing)
    if backend == "reference":
        return _by_reference(view, experts, routing, bias_view, combine, activation)
    ordinal = _ordinal(view, experts)
    on_gpu = _on_gpu(backend, ordinal)
    device = driver.describe(ordinal or 0) if on_gpu else devices.MODEL
    plain = replace(problem, activation=None)
    if config is None:
        name = kernel or room.taken(plain, device, batch_invariant) or LOOP
        refusals = () if name == LOOP else room.refusals(name, plain, device)
        if refusals:
            raise CapabilityMissing(
                f"kernel={name!r} does not take {', '.join(refusals)}: use 'loop'"
            )
        if name == LOOP:
            rows = _loop(x, experts, routing, bias, combine, backend, stream, batch_invariant)
            return rows if activation is None else _activated(rows, activation)
        if activation is not None and room.refusals(name, problem, device):
            rows = moe_matmul(x, experts, routing, **{**options, "kernel": name})
            return _activated(rows, activation)
        config = room.chosen(problem, batch_invariant, name)
    elif config.activation != activation:
        raise ValueError(f"config.activation={config.activation!r} must be {activation!r}")
    rows, columns = problem.result_shapes["c"][0]
    shape = (rows, columns) if combine else (problem.m, problem.top_k, columns)
    flat = view if len(view.shape) == 2 else arrays.view("x", _flat(x))
    if not on_gpu:
        host = experts.to(HOST)
        product = room.ExpertsProduct(problem, flat, host, routing.on_host(), bias_view)
        return hand_back(room.on_machine(product, config).reshape(shape), view, None)
    if view.on_host:
        raise CapabilityMissing(
            "x is on the host, must be on the GPU with backend='cuda': pass a torch tensor there"
        )
    result = arrays.empty_like(view, shape)
    out = replace(arrays.view("out", result), shape=(rows, columns))
    product = room.ExpertsProduct(problem, flat, experts, routing, bias_view)
    room.on_device(product, config, out, stream, workspace)
    return result


def moe_mlp(
    x,
    gate_up: PackedExperts,
    down: PackedExperts,
    routing: Routing,
    *,
    activation: str = "silu",
    gate_up_bias=None,
    down_bias=None,
    **options,
):
    """The experts' part of a layer: x [m, k] -> [m, k].

    gate_up: [E, k, 2 h], gate's columns before up's (``nm.concat([gate, up])``); down: [E, h, k].
    activation: "silu" (gate's sigmoid linear unit times up) or "swiglu-oai" (gpt-oss: both limited
        to 7, sigmoid of 1.702 gate, up + 1).
    options: of ``moe_matmul``, for both products: backend, kernel, stream, batch_invariant.

    The products between are rounded to x's type, as is the activation of them, in fp32: in the
    first product's launch, where its kernel can (``moe_matmul``).
    """
    check_choice("activation", activation, ACTIVATIONS)
    for name, each in (("gate_up", gate_up), ("down", down)):
        _check_experts(name, each)
    if gate_up.n != 2 * down.k:
        raise ValueError(
            f"gate_up has n={gate_up.n} columns, must be 2 x {down.k}: gate's and up's, of as many"
            " rows as down has"
        )
    hidden = moe_matmul(x, gate_up, routing, bias=gate_up_bias, activation=activation, **options)
    return moe_matmul(hidden, down, routing, bias=down_bias, combine=True, **options)


def _is_tensor(array: object) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(array, tensor)


def _check_experts(name: str, experts: object) -> None:
    if not isinstance(experts, PackedExperts):
        raise TypeError(
            f"{name} is a {type(experts).__name__}, must be a PackedExperts: pass"
            " nm.PackedExperts.of([nm.pack(...), ...])"
        )


def _checked(x, experts: PackedExperts, routing: Routing, bias, combine: bool, activation):
    """-> (view of x, ExpertsProblem, view of bias or None)"""
    view = arrays.view("x", x)
    check_no_gradient("x", view)
    if view.type_name not in HALF_TYPES:
        raise TypeError(f"x.dtype={view.dtype} must be one of {', '.join(HALF_TYPES)}")
    if not isinstance(routing, Routing):
        raise TypeError(f"routing is a {type(routing).__name__}, must be a Routing: nm.route(...)")
    check_routed(view, routing, len(experts))
    if view.shape[-1] != experts.k:
        raise ValueError(f"x.shape={view.shape} must end in k={experts.k}, the weights'")
    packed_for = experts.facts[0].get("dtype", view.type_name)
    if packed_for != view.type_name:
        raise ValueError(f"x.dtype={view.type_name} must be {packed_for}, which experts are for")
    check_same_place("routing.ids", arrays.view("routing.ids", routing.ids), view, "x")
    problem = ExpertsProblem.of(
        experts,
        routing,
        view.type_name,
        bias=bias is not None,
        x_of_pairs=len(view.shape) == 3,
        combine=bool(combine),
        activation=activation,
    )
    if activation is not None and (combine or experts.n % 2):
        raise ValueError(
            f"activation={activation!r} must be without combine, and of gate's and up's columns, as"
            f" many of each: n={experts.n}"
        )
    bias_view = None
    if bias is not None:
        bias_view = check_beside("bias", bias, view, (len(experts), experts.n), "(experts, n)")
    return view, problem, bias_view


def _flat(x):
    """[m, top_k, k] -> [m top_k, k]; a copy only where it cannot be a view."""
    return x.reshape(-1, x.shape[-1])


def _ordinal(view: arrays.ArrayView, experts: PackedExperts) -> int | None:
    """The ordinal of the GPU that holds x or the experts; None if both are on the host."""
    if experts.place == HOST:
        return view.device
    ordinal = int(experts.place.partition(":")[2])
    if view.device not in (None, ordinal):
        raise ValueError(f"experts are on {experts.place}, must be where x is, or on the host")
    return ordinal


def _on_gpu(backend: str, ordinal: int | None) -> bool:
    """CapabilityMissing if the backend needs a GPU that is not there. Arrays on the host stay there
    with "auto"."""
    if backend == "emulator" or (backend == "auto" and ordinal is None):
        return False
    probe = driver.probe()
    if not probe.usable:
        raise CapabilityMissing(f"backend={backend!r}: {probe.reason}")
    return True


def _by_reference(view, experts, routing, bias, combine, activation):
    from numba_marlin.reference.experts import activate
    from numba_marlin.reference.experts import moe_matmul as exact

    x, bias = (None if each is None else arrays.to_host(each, exact=True) for each in (view, bias))
    with np.errstate(over="ignore", invalid="ignore"):
        y = exact(x, experts.to(HOST), routing.on_host(), bias, combine=combine)
        if activation is not None:
            y = activate(y, activation)
        return hand_back(round_to(y, view.type_name), view, None)


def _loop(x, experts, routing, bias, combine, backend, stream, batch_invariant):
    """``matmul`` for one expert after the other, on its rows, gathered and scattered."""
    view = arrays.view("x", x)
    rows, top_k = (x if len(x.shape) == 2 else _flat(x)), routing.top_k
    result = arrays.empty_like(view, (routing.m * top_k, experts.n))
    offsets = routing.on_host().offsets
    if offsets[-1] < len(result):
        result[...] = 0
    for expert in range(len(experts)):
        begin, end = int(offsets[expert]), int(offsets[expert + 1])
        if begin == end:
            continue
        pairs = routing.pairs[begin:end]
        taken = rows[pairs // top_k if len(x.shape) == 2 else pairs]
        of_expert = None if bias is None else bias[expert]
        result[pairs] = matmul(
            taken,
            experts[expert],
            backend,
            bias=of_expert,
            stream=stream,
            batch_invariant=batch_invariant,
        )
    result = result.reshape(routing.m, top_k, experts.n)
    return _summed(result, routing) if combine else result


def _summed(rows: Any, routing: Routing):
    """[m, top_k, n] -> [m, n]: in fp32, expert after expert, rounded once."""
    numpy = isinstance(rows, np.ndarray)
    total = 0
    for slot in range(routing.top_k):
        row = rows[:, slot].astype(np.float32) if numpy else rows[:, slot].float()
        total = total + routing.weights[:, slot, None] * row
    return round_to(total, rows.dtype) if numpy else total.to(rows.dtype)


def _activated(rows: Any, activation: str):
    if isinstance(rows, np.ndarray):
        from numba_marlin.reference.experts import activate

        return round_to(activate(rows.astype(np.float32), activation), rows.dtype)
    torch = sys.modules["torch"]
    gate, up = rows.float().chunk(2, dim=-1)
    if activation == "silu":
        return (torch.nn.functional.silu(gate) * up).to(rows.dtype)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).to(rows.dtype)
