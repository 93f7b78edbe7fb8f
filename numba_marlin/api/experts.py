"""``route``, ``moe_matmul`` and ``moe_mlp``: mixtures of experts. Arguments are
checked here; ``execution.product`` runs the products."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from numba_marlin.api.checks import (
    check_choice,
    check_launch,
    check_no_gradient,
    check_same_place,
    refuse_torch_compile,
)
from numba_marlin.api.experts_loop import activated, looped
from numba_marlin.api.matmul import check_beside, hand_back, views_on_device
from numba_marlin.api.quantized_experts import Given, check_integers, given_quantised, quantised
from numba_marlin.api.reports import thread
from numba_marlin.compiler import COMPILERS
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, driver, repeat
from numba_marlin.execution import plan as planning
from numba_marlin.execution.binding import experts_operands, routing_operands
from numba_marlin.execution.product import Options, Product, run
from numba_marlin.execution.reference import experts_product
from numba_marlin.execution.scratch import Workspace
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.residence import HOST
from numba_marlin.formats.routing import Routing
from numba_marlin.hardware import devices
from numba_marlin.heuristics import gated, has_instructions, kernel_of
from numba_marlin.kernels import registry
from numba_marlin.problems import EXPERTS
from numba_marlin.problems.experts import ExpertsProblem
from numba_marlin.reference.experts import ACTIVATIONS, check_routed
from numba_marlin.reference.routing import SCORINGS

BACKENDS = ("auto", "cuda", "emulator", "reference")
LOOP = "loop"  # in place of a kernel: the dense one, expert by expert


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


def moe_matmul(
    x,
    experts: PackedExperts,
    routing: Routing,
    *,
    bias=None,
    combine: bool = False,
    activation: str | None = None,
    activations: str | None = None,
    backend: str = "auto",
    kernel: str | None = None,
    config=None,
    stream=None,
    compiler: str = COMPILERS[0],
    workspace: Workspace | None = None,
    batch_invariant: bool = False,
    return_info: bool = False,
):
    """The products of tokens with the weights of their experts, [k, n] each, in one launch.

    x: float16 or bfloat16 [m, k], a row for each token, or [m, top_k, k], one for each of its
        experts; of NumPy or torch. Rows are read where they lie: nothing is sorted or padded.
        Or the result of ``quantize_activations`` of such rows, one for each token, or for each pair
        of a token and one of its experts.
    experts: a ``PackedExperts``. One on the host is copied to the GPU by its first product there.
    routing: of ``route``, or ``Routing.of(ids, weights, experts)``; where x is.
    bias: [E, n], of x's type, where x is.
    combine: False: the result is [m, top_k, n]. True: [m, n], each token's rows times the routing's
        weights, added up in fp32 in the order of its experts, and rounded once: the same bits on
        every run. A pass behind the launch does it, which leaves the rows in the workspace.
    activation: as in ``moe_mlp``: the result is [m, top_k, n / 2], activation(gate) * up of the
        product's columns, gate's being before up's; products are rounded to x's type before, and
        the result. Within the launch where the kernel can (n a multiple of 128; in "moe_wgmma" no
        zero points), else in a pass behind it: it does not change the choice of the kernel.
    activations: "int8" or "fp8": x is quantised so before the product (W4A8), each row with a scale
        of its own; weights of 4 bits, symmetric or with integer zero points, in groups of 32, 64,
        128 or all of k.
    backend: as in ``matmul``.
    kernel: "moe" and "moe_wgmma": one persistent launch, ragged over experts (compute capability
        9.0; integers in groups of 32, 64, 128, 256 or all of k, and FP4), the second for many
        tokens (k a multiple of 64, n of 8). "loop": ``matmul`` for one expert after the other, for
        every format and GPU; it waits until the host knows the routing. None: "moe_wgmma" from 16
        rows per expert on (where they crossed on an H200), else "moe", if they take the
        problem, else "loop". With activations in 8 bits "moe_wgmma_int8" or "moe_wgmma_fp8" (k a
        multiple of 128, n of 8), for any number of rows; no GPU has timed them yet.
    config: the kernel's configuration; default: the choice of ``explain(..., experts=, top_k=)``.
    stream, compiler, workspace: as in ``matmul``.
    batch_invariant: a token's result has the same bits whatever the other tokens are.
    return_info: return (result, RunInfo); with "loop", that of the last expert's product.

    With a routing to some of the experts (``routing.local``) rows of others are 0; ``combine``
    then adds up what is there. Errors are bounded in ``reference.experts``. Raises TypeError or
    ValueError for arguments that break these rules, CapabilityMissing if the backend or the kernel
    asked for cannot run.
    """
    refuse_torch_compile()
    check_launch(compiler, workspace, stream)
    check_choice("backend", backend, BACKENDS)
    if kernel is not None:
        check_choice("kernel", kernel, (*registry.names(EXPERTS), LOOP))
    if activation is not None:
        check_choice("activation", activation, ACTIVATIONS)
    _check_experts("experts", experts)
    given = _given(x, experts, routing, activations, backend, stream)
    problem, bias_view = _checked(given, experts, routing, bias, combine, batch_invariant)
    problem = replace(problem, activation=activation)
    ordinal = _ordinal(given.view, experts)
    behind = _behind_the_launch(problem, backend, kernel, config, ordinal)
    if behind:
        rows = moe_matmul(
            x,
            experts,
            routing,
            bias=bias,
            activations=activations,
            backend=backend,
            kernel=kernel,
            config=config,
            stream=stream,
            compiler=compiler,
            workspace=workspace,
            batch_invariant=batch_invariant,
        )
        y = activated(rows, activation)
        if thread.last.candidate is not None:
            thread.last = replace(
                thread.last, candidate=gated.with_reason(thread.last.candidate, behind)
            )
        return (y, thread.last) if return_info else y
    if backend != "reference" and (kernel == LOOP or _refused(problem, backend, kernel, ordinal)):
        lists = routing.on_host() if isinstance(given.view.owner, np.ndarray) else routing
        y = looped(
            given.x,
            experts,
            lists,
            bias,
            combine,
            backend=backend,
            stream=stream,
            batch_invariant=batch_invariant,
        )
        if given.view.on_host:
            y = hand_back(y, given.answer, None, given.dtype)
        return (y, thread.last) if return_info else y
    named = None if kernel == LOOP else kernel
    plan = planning.plan(problem, backend, named, config, ordinal)
    product = _product(given, experts, routing, bias_view, problem, plan.backend, ordinal)
    outcome = run(product, plan, Options(compiler, stream, workspace))
    thread.last = outcome.info
    repeat.log_run(outcome.info)
    y = outcome.results["c"]
    if given.view.on_host or plan.backend != "cuda":
        y = hand_back(y, given.answer, None, given.dtype)
    y = y if combine else y.reshape(problem.m, problem.top_k, -1)
    return (y, outcome.info) if return_info else y


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
    options: of ``moe_matmul``, for both products: activations (of x, and of the products between;
        those of an x that is quantised already), backend, kernel, stream, batch_invariant.

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
    if isinstance(x, QuantizedActivations):
        options["activations"] = options.get("activations") or x.kind
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


def _given(x, experts: PackedExperts, routing: Routing, activations, backend: str, stream) -> Given:
    """x, checked, and quantised if that is asked for."""
    if not isinstance(routing, Routing):
        raise TypeError(f"routing is a {type(routing).__name__}, must be a Routing: nm.route(...)")
    if isinstance(x, QuantizedActivations):
        given = given_quantised(x, activations, backend)
        check_routed(x, routing, len(experts))
    else:
        view = arrays.view("x", x)
        check_no_gradient("x", view)
        if view.type_name not in HALF_TYPES:
            raise TypeError(f"x.dtype={view.dtype} must be one of {', '.join(HALF_TYPES)}")
        check_routed(view, routing, len(experts))
        given = Given(x, view, view, view.type_name)
    if given.view.shape[-1] != experts.k:
        raise ValueError(f"x.shape={given.view.shape} must end in k={experts.k}, the weights'")
    packed_for = experts.facts[0].get("dtype", given.dtype)
    if packed_for != given.dtype:
        raise ValueError(f"x.dtype={given.dtype} must be {packed_for}, which experts are for")
    check_same_place("routing.ids", arrays.view("routing.ids", routing.ids), given.view, "x")
    if activations is not None and given.kind is None:
        given = quantised(given.view, activations, stream)
    if given.kind is not None:
        check_integers(experts)
    return given


def _checked(
    given: Given, experts: PackedExperts, routing: Routing, bias, combine, batch_invariant
) -> tuple[ExpertsProblem, arrays.ArrayView | None]:
    """-> (the problem, a view of the bias or None)"""
    problem = ExpertsProblem.of_experts(
        experts,
        routing,
        given.dtype,
        bias=bias is not None,
        x_of_pairs=len(given.answer.shape) == 3 or given.view.shape[0] != routing.m,
        combine=bool(combine),
        batch_invariant=bool(batch_invariant),
        activations=given.kind,
    )
    if bias is None:
        return problem, None
    shape = (len(experts), experts.n)
    return problem, check_beside("bias", bias, given.view, shape, "(experts, n)", given.dtype)


def _ordinal(view: arrays.ArrayView, experts: PackedExperts) -> int | None:
    """The ordinal of the GPU that holds x or the experts; None if both are on the host."""
    if experts.place == HOST:
        return view.device
    ordinal = int(experts.place.partition(":")[2])
    if view.device not in (None, ordinal):
        raise ValueError(f"experts are on {experts.place}, must be where x is, or on the host")
    return ordinal


def _refusals(
    problem: ExpertsProblem, backend: str, kernel: str | None, ordinal: int | None
) -> tuple[str, ...]:
    """What every kernel, or ``kernel``, refuses of the problem or the device; () if one takes
    it."""
    on_gpu = backend in ("auto", "cuda") and driver.probe().usable
    device = driver.describe(ordinal or 0) if on_gpu else devices.MODEL
    refusals: tuple[str, ...] = ()
    for each in registry.kernels(EXPERTS) if kernel is None else (registry.find_kernel(kernel),):
        refusals = each.takes.refusals(problem)
        if not has_instructions(each.name, device):
            refusals += (f"{device.name}, which is {device.arch} and not {each.min_arch}",)
        if not refusals:
            break
    return refusals


def _refused(
    problem: ExpertsProblem, backend: str, kernel: str | None, ordinal: int | None
) -> bool:
    """Whether every kernel refuses the problem, or the device. CapabilityMissing, with what is
    refused, if it is ``kernel``."""
    refusals = _refusals(problem, backend, kernel, ordinal)
    if refusals and kernel is not None:
        raise CapabilityMissing(
            f"kernel={kernel!r} does not take {', '.join(refusals)}: use {LOOP!r}"
        )
    return bool(refusals)


def _behind_the_launch(
    problem: ExpertsProblem, backend: str, kernel: str | None, config, ordinal: int | None
) -> str | None:
    """Why an activation is applied to the rows that a launch has left: those of the loop, or of a
    kernel that does not activate them; None if it is not."""
    if problem.activation is None or backend == "reference":
        return None
    plain = replace(problem, activation=None)
    named = kernel_of(config) if kernel is None and config is not None else kernel
    if kernel == LOOP or (named is None and _refusals(plain, backend, None, ordinal)):
        return f"{problem.activation} is a pass of its own behind the loop over experts"

    def chosen(plain: ExpertsProblem) -> str:
        return named or planning.plan(plain, backend, ordinal=ordinal).candidate.kernel

    return gated.launched(problem, chosen)[1]


def _product(given, experts, routing, bias, problem, backend: str, ordinal: int | None) -> Product:
    """What runs: the routing's lists are inputs, the experts' arrays are kept on a device."""
    on_gpu = backend == "cuda"
    held = routing if on_gpu else routing.on_host()
    lists, behind = routing_operands(held), {"weights": held.weights} if problem.combine else {}
    kept = experts_operands(experts if on_gpu else experts.to(HOST))
    if on_gpu and experts.place != HOST:
        kept = views_on_device("experts", kept)
    inputs = given.inputs | {name: arrays.view(name, each) for name, each in lists.items()}

    def reference() -> dict[str, np.ndarray]:
        b = None if bias is None else arrays.to_host(bias, exact=True)
        options = (problem.combine, problem.activation)
        return {"c": experts_product(given.on_host(), experts.to(HOST), held, b, *options)}

    return Product(
        problem,
        inputs if bias is None else inputs | {"bias": bias},
        reference,
        {"a": "x"},
        weight=experts,
        kept=kept,
        behind={name: arrays.view(name, each) for name, each in behind.items()},
        ordinal=ordinal or 0,
    )
