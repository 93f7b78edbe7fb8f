"""``parallelize_``: the quantised layers of a model over the ranks of a group, by a plan.

A plan is {pattern: style}, as transformers has it (``model.config.base_model_tp_plan`` is one).
Patterns are those of ``fnmatch`` over the end of a layer's name. Styles:

    colwise                ``ColumnParallelLinear``
    colwise_gather_output  the same, and every rank has all columns of the result
    rowwise                ``RowParallelLinear`` of what a colwise layer gives
    rowwise_split_input    the same of an input that every rank has whole
    experts                ``ParallelExperts`` by number, of a mixture's ``Experts``
    experts_colwise        the same by column
"""

from __future__ import annotations

import fnmatch
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from numba_marlin.formats.residence import on_host
from numba_marlin.torch.experts import Experts
from numba_marlin.torch.linear import Linear
from numba_marlin.torch.parallel import ColumnParallelLinear, Membership, RowParallelLinear
from numba_marlin.torch.parallel_experts import ParallelExperts

log = logging.getLogger("numba_marlin")

STYLES: dict[str, tuple[type, dict[str, Any]]] = {
    "colwise": (ColumnParallelLinear, {}),
    "colwise_gather_output": (ColumnParallelLinear, {"gather_output": True}),
    "rowwise": (RowParallelLinear, {}),
    "rowwise_split_input": (RowParallelLinear, {"input_is_parallel": False}),
    "experts": (ParallelExperts, {"by": "number"}),
    "experts_colwise": (ParallelExperts, {"by": "column"}),
}
LLAMA_PLAN: dict[str, str] = {
    "self_attn.q_proj": "colwise",
    "self_attn.k_proj": "colwise",
    "self_attn.v_proj": "colwise",
    "self_attn.o_proj": "rowwise",
    "mlp.gate_proj": "colwise",
    "mlp.up_proj": "colwise",
    "mlp.down_proj": "rowwise",
}
"""Of a decoder of Llama's shape (Llama, Mistral, Qwen ...): two sums over ranks a layer."""
MIXTURE_PLAN: dict[str, str] = {
    **{name: style for name, style in LLAMA_PLAN.items() if name.startswith("self_attn")},
    "mlp.experts": "experts",
}
"""Of one with a mixture of experts (Mixtral, Qwen3-MoE) in every layer: two sums too."""


@dataclass(frozen=True)
class _Layer:
    """What ranks must agree on. checksum: of the scales and the bias of the whole layer."""

    name: str
    style: str
    sizes: tuple[int, ...]
    signature: str
    device: str
    checksum: int


def parallelize_(
    model: nn.Module,
    plan: Mapping[str, str] = LLAMA_PLAN,
    group: dist.ProcessGroup | None = None,
    *,
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> nn.Module:
    """Replace each quantised ``Linear`` that the plan names by this rank's part. Returns the model.

    Every rank calls it with the same whole model: quantised (``quantize_``), with the same numbers,
    on the host or on the rank's device; a part stays where its layer was, so a model on the host
    needs ``model.cuda()`` afterwards, and then takes 1 / world of the memory.

    plan: {pattern: style}; see this module.
    group: default, all processes.
    sizes: {pattern: columns or rows of each rank} for layers whose parts should not be equal.

    The model must calculate with what a layer gives, not with configured sizes (transformers' does:
    it asks for heads with ``view(..., -1, head_dim)``). Layers of one attention that count heads
    must be divided in whole ones.

    RuntimeError without torch.distributed. TypeError or ValueError, which names layer, value and
    rule, on all ranks if on one, and before anything of the model is changed on any.
    """
    member = Membership.of(group)
    made: dict[str, nn.Module] = {}
    layers: list[_Layer] = []
    problem: Exception | None = None
    try:
        layers, made = _parts(model, plan, group, sizes or {})
    except Exception as error:  # the other ranks wait to hear of it
        problem = error
    _agree(member, group, layers, problem)
    for name, layer in made.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)
    log.info("rank %d of %d has its part of %d layers", member.rank, member.world, len(made))
    return model


def _parts(model: nn.Module, plan, group, sizes) -> tuple[list[_Layer], dict[str, nn.Module]]:
    styles = _styles(model, plan)
    cuts = _matches(sizes, styles, "sizes")
    made: dict[nn.Module, Any] = {}
    first_name: dict[nn.Module, str] = {}
    layers: list[_Layer] = []
    found: dict[str, nn.Module] = {}
    for name, style in styles.items():
        layer = model.get_submodule(name)
        kind, options = STYLES[style]
        try:
            _check(layer, style)
            first = first_name.setdefault(layer, name)
            if styles[first] != style:
                raise ValueError(
                    f"it is layer {first!r} too, which is {styles[first]!r}, must have one style,"
                    f" not {style!r}"
                )
            if layer not in made:
                made[layer] = kind.from_whole(
                    layer, group=group, sizes=sizes[cuts[name]] if name in cuts else None, **options
                )
            _check_heads(model.get_submodule(name.rpartition(".")[0]), made[layer])
            described = _described(name, style, layer, made[layer])
        except (TypeError, ValueError) as error:
            raise type(error)(f"layer {name!r}: {error}") from error
        if layers and described.device != layers[0].device:
            raise ValueError(
                f"layer {name!r} is on {described.device}, must be where {layers[0].name!r} is:"
                f" {layers[0].device}; a rank has one device"
            )
        layers.append(described)
        found[name] = made[layer]
    return layers, found


def _styles(model: nn.Module, plan) -> dict[str, str]:
    """{name of a layer: style}, of all that the plan names."""
    if not isinstance(plan, Mapping):
        raise TypeError(f"plan is a {type(plan).__name__}, must be {{pattern: style}}: LLAMA_PLAN")
    for pattern, style in plan.items():
        if style not in STYLES:
            raise ValueError(f"plan[{pattern!r}]={style!r} must be one of {', '.join(STYLES)}")
    # of a module that stands in several places, all
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    found = {name: plan[pattern] for name, pattern in _matches(plan, names, "plan").items()}
    if not found:
        raise ValueError("plan={} names no layer")
    return found


def _matches(patterns: Mapping[str, object], names, what: str) -> dict[str, str]:
    """{name: the pattern that it matches}. ValueError for two patterns of one name, and for one
    without a name, which is misspelt or of another model."""
    found: dict[str, str] = {}
    for pattern in patterns:
        mine = [
            name
            for name in names
            if any(fnmatch.fnmatchcase(name, each) for each in (pattern, f"*.{pattern}"))
        ]
        if not mine:
            raise ValueError(f"{what}[{pattern!r}] matches no layer of the model")
        for name in mine:
            if name in found:
                raise ValueError(
                    f"layer {name!r} matches {what}[{found[name]!r}] and {what}[{pattern!r}],"
                    " must match one"
                )
            found[name] = pattern
    return found


def _check(layer: nn.Module, style: str) -> None:
    if isinstance(layer, (ColumnParallelLinear, RowParallelLinear, ParallelExperts)):
        raise ValueError(f"it is a {type(layer).__name__} already, must be a whole layer")
    wanted = Experts if style.startswith("experts") else Linear
    if not isinstance(layer, wanted):
        raise TypeError(
            f"it is a {type(layer).__module__}.{type(layer).__name__}, must be a"
            f" numba_marlin.torch.{wanted.__name__}: call quantize_(model) first"
        )
    tensors = {**dict(layer.named_buffers()), **dict(layer.named_parameters())}
    first, *_ = tensors
    for name, tensor in tensors.items():
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{name} is on {tensor.device}, must be on the CPU or a GPU")
        if tensor.device != tensors[first].device:
            raise ValueError(
                f"{name} is on {tensor.device}, must be where {first} is: {tensors[first].device}"
            )


def _check_heads(parent: nn.Module, part: Any) -> None:
    """An attention that counts heads by ``head_dim`` would see other heads."""
    head = getattr(parent, "head_dim", None)
    if not isinstance(head, int) or not head or sum(part.sizes) % head:
        return
    for rank, size in enumerate(part.sizes):
        if size % head:
            raise ValueError(
                f"{part.dim}={sum(part.sizes)} in world={len(part.sizes)} parts gives rank {rank}"
                f" {size}, must be whole heads of {head}"
            )


def _described(name: str, style: str, layer: Any, part: Any) -> _Layer:
    banks = [layer] if isinstance(layer, Linear) else [layer.gate_up, layer.down]
    checksum = 0
    for bank in banks:
        checksum = zlib.crc32(on_host(bank.scales).tobytes(), checksum)
        if bank.bias is not None:
            bias = bank.bias.detach().double().cpu().numpy()
            checksum = zlib.crc32(bias.tobytes(), checksum)
    signature, device = " ".join(each.signature for each in banks), banks[0].qweight.device
    return _Layer(name, style, part.sizes, signature, str(device), checksum)


def _agree(member: Membership, group, layers: list[_Layer], problem: Exception | None) -> None:
    """Raise on every rank what any rank has found, or what their models differ in: a rank that went
    on alone would wait for the others for ever."""
    if member.world > 1:
        said: list[Any] = [None] * member.world
        text = None if problem is None else f"{type(problem).__name__}: {problem}"
        dist.all_gather_object(said, (text, layers), group=group)
    if problem is not None:
        raise problem
    if member.world == 1:
        return
    for rank, (text, _) in enumerate(said):
        if text is not None:
            raise ValueError(f"rank {rank} cannot be parallelised, so none is: {text}")
    first = said[0][1]
    for rank, (_, theirs) in enumerate(said):
        names = [layer.name for layer in theirs]
        if names != [layer.name for layer in first]:
            raise ValueError(
                f"rank {rank} has the layers {_some(names)}, must have those of rank 0:"
                f" {_some([layer.name for layer in first])}"
            )
        for mine, its in zip(first, theirs):
            for what in ("style", "sizes", "signature", "checksum"):
                if getattr(mine, what) != getattr(its, what):
                    raise ValueError(
                        f"layer {its.name!r}: rank {rank} has {what}={getattr(its, what)!r}, must"
                        f" be rank 0's, {getattr(mine, what)!r}: all ranks load the same model"
                    )
            if mine.device.partition(":")[0] != its.device.partition(":")[0]:
                raise ValueError(
                    f"layer {its.name!r} is on {its.device} in rank {rank}, must be on a device"
                    f" of the kind of rank 0's, {mine.device}"
                )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
