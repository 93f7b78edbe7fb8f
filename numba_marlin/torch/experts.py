"""``Experts``: the packed experts of a layer; ``Mixture``: a router, experts, and an expert that
all tokens share.

    layer = nmt.Mixture(router, nmt.Experts.from_float(gate_up, down, group_size=128), top_k=2)
    y = layer(x)  # x [..., k] -> [..., k]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import numba_marlin as nm
from numba_marlin.execution.routing import chosen_experts
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.torch import expert_operators as operators
from numba_marlin.torch.linear import Packed
from numba_marlin.torch.operators import is_plain_call


class ExpertLinear(Packed):
    """A weight [k, n] for each of E experts, packed, and a bias [E, n] if there is one. ``Experts``
    multiplies by it."""

    _ARRAYS = operators.ARRAYS

    def __init__(self, weight: PackedExperts, bias: Tensor | None = None):
        super().__init__()
        self.experts, self.in_features, self.out_features = weight.shape
        self._hold(operators.signature_of(weight), weight.arrays)
        if bias is not None and tuple(bias.shape) != (self.experts, self.out_features):
            raise ValueError(
                f"bias.shape={tuple(bias.shape)} must be (experts, n)="
                f"({self.experts}, {self.out_features})"
            )
        self._hold_bias(bias)
        self.part = ""  # which, of ``ParallelExperts``

    def _identity(self) -> str:
        return f"{self.part} {self.signature}".lstrip()

    @property
    def weight(self) -> PackedExperts:
        """The packed weights over this layer's buffers, where they are."""
        return operators.parsed(self.signature).weights(self.arrays)

    @property
    def arrays(self) -> list[Tensor]:
        """The buffers that there are, in the order of the signature."""
        held = (getattr(self, name) for name in self._ARRAYS)
        return [each for each in held if each is not None]

    def extra_repr(self) -> str:
        said = repr(self.weight)
        return f"{said[1:-1]}{'' if self.bias is None else ', bias'}"


class Experts(nn.Module):
    """y = sum over a token's experts e of weight * (act(x @ gate_up[e]) @ down[e]), in one
    call, as ``numba_marlin.moe_mlp``: ``experts(x, ids, weights)`` with x [m, k], ids and weights
    [m, top_k] -> [m, k]. transformers calls its experts the same way.

    gate_up: [E, k, 2 h], gate's columns before up's; down: [E, h, k], both PackedExperts. They are
        submodules, whose arrays are buffers as a ``Linear``'s are: frozen.
    activation: "silu", or "swiglu-oai" (gpt-oss).
    gate_up_bias, down_bias: [E, 2 h] and [E, k], or None.

    Gradients flow to x, weights and biases. batch_invariant: a token's result has the same bits
    whatever the other tokens are. TypeError or ValueError for what does not fit together.
    """

    def __init__(
        self,
        gate_up: PackedExperts,
        down: PackedExperts,
        *,
        activation: str = "silu",
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ):
        super().__init__()
        for name, each in (("gate_up", gate_up), ("down", down)):
            if not isinstance(each, PackedExperts):
                raise TypeError(
                    f"{name} is a {type(each).__name__}, must be a PackedExperts: pass"
                    " nm.PackedExperts.of([nm.pack(...), ...]), or use Experts.from_float"
                )
        if activation not in operators.ACTIVATIONS:
            raise ValueError(
                f"activation={activation!r} must be one of {', '.join(operators.ACTIVATIONS)}"
            )
        if down.shape != (len(gate_up), gate_up.n // 2, gate_up.k) or gate_up.n % 2:
            raise ValueError(
                f"down.shape={down.shape} must be (E, h, k) of gate_up's (E, k, 2 h)="
                f"{gate_up.shape}"
            )
        if gate_up.place != down.place:
            raise ValueError(f"down is on {down.place}, must be where gate_up is: {gate_up.place}")
        self.activation, self.batch_invariant = activation, False
        self.gate_up = ExpertLinear(gate_up, gate_up_bias)
        self.down = ExpertLinear(down, down_bias)
        self.first, self.whole = 0, len(gate_up)  # see ``ParallelExperts``

    @classmethod
    def from_float(
        cls,
        gate_up: Tensor,
        down: Tensor,
        *,
        activation: str = "silu",
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        **options: Any,
    ) -> Experts:
        """Quantise float tensors [E, k, 2 h] and [E, h, k], expert after expert; on their device.
        options: those of ``numba_marlin.quantize``. Raises as it and ``pack`` do; the error names
        tensor and expert."""
        packed = [
            _packed(name, each, options) for name, each in (("gate_up", gate_up), ("down", down))
        ]
        biases = {"gate_up_bias": gate_up_bias, "down_bias": down_bias}
        return cls(*packed, activation=activation, **biases).to(gate_up.device)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        gate_up, down = self.gate_up, self.down
        biases = [None if each.bias is None else each.bias.to(x.dtype) for each in (gate_up, down)]
        weights = weights.float()
        plain = all(is_plain_call(x, each) for each in (weights, *biases))
        if plain and len(x) and self.whole == gate_up.experts:
            # the same as below, without the dispatcher
            return nm.moe_mlp(
                x,
                gate_up._cached(),
                down._cached(),
                nm.Routing.of(ids, weights, self.whole),
                activation=self.activation,
                gate_up_bias=biases[0],
                down_bias=biases[1],
                batch_invariant=self.batch_invariant,
            )
        return torch.ops.numba_marlin.moe_mlp(
            x,
            gate_up.arrays,
            down.arrays,
            ids,
            weights,
            *biases,
            gate_up.signature,
            down.signature,
            self.activation,
            self.batch_invariant,
            self.first,
            self.whole,
        )

    def extra_repr(self) -> str:
        some = "" if self.whole == self.gate_up.experts else self._some()
        return f"activation={self.activation!r}{some}"

    def _some(self) -> str:
        return f", experts {self.first} to {self.first + self.gate_up.experts - 1} of {self.whole}"


class Mixture(nn.Module):
    """A mixture of experts: x [..., k] -> [..., k].

    router: a module, x [m, k] -> logits [m, E], as torch.nn.Linear(k, E).
    experts: ``Experts``, or any module that is called as they are.
    top_k, routing: as of ``numba_marlin.route``; routing: scoring, normalize (default True), scale,
        groups, top_groups.
    bias: [E], added to scores for the choice only; a buffer.
    shared: a module, x -> [..., k], which is added for every token.

    Gradients reach the router through the weights of the experts that are chosen.
    """

    def __init__(
        self,
        router: nn.Module,
        experts: nn.Module,
        top_k: int,
        *,
        shared: nn.Module | None = None,
        bias: Tensor | None = None,
        **routing: Any,
    ):
        super().__init__()
        known = {"scoring", "normalize", "scale", "groups", "top_groups"}
        if set(routing) - known:
            wrong = ", ".join(sorted(set(routing) - known))
            raise TypeError(f"Mixture takes no {wrong}; of routing: {', '.join(sorted(known))}")
        self.router, self.experts, self.shared = router, experts, shared
        self.top_k, self.routing = top_k, {"normalize": True} | routing
        self.register_buffer("bias", bias)
        if isinstance(experts, Experts):  # before the first token comes
            nm.route(torch.zeros(1, experts.whole), top_k, bias=_on_host(bias), **self.routing)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        logits = self.router(rows)
        if len(rows):
            ids, weights = chosen_experts(logits, self.top_k, bias=self.bias, **self.routing)
        else:  # as a rank without tokens has it, whose router takes part all the same
            weights = logits[:, : self.top_k].float()
            ids = torch.zeros_like(weights, dtype=torch.int32)
        y = self.experts(rows, ids, weights).reshape(x.shape)
        return y if self.shared is None else y + self.shared(x)

    def extra_repr(self) -> str:
        said = {"top_k": self.top_k, **self.routing}
        return ", ".join(f"{name}={value!r}" for name, value in said.items())


def _on_host(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().cpu()


def _packed(name: str, tensor: Tensor, options: dict[str, Any]) -> PackedExperts:
    if tensor.dim() != 3 or not tensor.is_floating_point():
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, must be floats (E, k, n)"
        )
    if tensor.device.type == "meta":
        raise ValueError(f"{name} is on the meta device: it has no numbers to quantise")
    dtype = "bfloat16" if tensor.dtype == torch.bfloat16 else "float16"
    found = []
    for expert, each in enumerate(tensor.detach()):
        try:
            q = nm.quantize(each.float().cpu().contiguous().numpy(), **options)
            found.append(nm.pack(q, dtype=dtype if isinstance(q, nm.BlockWeight) else None))
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}[{expert}]: {error}") from error
    return PackedExperts.of(found)
