"""``Linear``: a torch.nn.Linear whose weight is packed; ``Packed``: what all layers over packed
arrays have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import numba_marlin as nm
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.residence import arrays_of
from numba_marlin.torch import operators


class Packed(nn.Module):
    """A layer whose buffers are a packed weight's arrays. ``to``, ``cuda`` and ``state_dict`` treat
    them as any; ``half`` and ``bfloat16`` change the type of the bias only."""

    _ARRAYS: tuple[str, ...] = operators.ARRAYS

    signature: str
    bias: nn.Parameter | None

    def _hold(self, signature: str, arrays: dict[str, Any]) -> None:
        self.signature = signature
        for name in self._ARRAYS:
            array = arrays.get(name)
            self.register_buffer(name, None if array is None else operators.tensor_over(array))

    def _hold_bias(self, bias: Tensor | None) -> None:
        held = None if bias is None else nn.Parameter(bias.detach().clone())
        self.register_parameter("bias", held)

    def _cached(self):
        """``weight``, made anew only where a buffer is another tensor than before."""
        held, buffers = self.__dict__.get("_made_of"), self._buffers
        now = [buffers[name] for name in self._ARRAYS]
        if held is None or any(one is not other for one, other in zip(held[0], now)):
            held = self.__dict__["_made_of"] = now, self.weight
        return held[1]

    def __getstate__(self) -> dict:
        return {name: each for name, each in self.__dict__.items() if name != "_made_of"}

    def _apply(self, fn, recurse=True):
        """Move the buffers, but change no type: ``half()`` would round bfloat16 scales."""
        self.__dict__.pop("_made_of", None)

        def moved(tensor):
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        for name, held in self._buffers.items():
            if held is not None:
                self._buffers[name] = moved(held)
        if self.bias is not None:
            self.bias = nn.Parameter(fn(self.bias.detach()), self.bias.requires_grad)
        return self

    def _identity(self) -> str:
        """What a state must be of to be this layer's."""
        return self.signature

    def get_extra_state(self) -> Tensor:
        return torch.frombuffer(bytearray(self._identity(), "utf-8"), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        identity = bytes(state.tolist()).decode("utf-8")
        if identity != self._identity():
            raise ValueError(
                f"the state is of a weight {identity}, must be of this layer's: {self._identity()}"
            )


class Linear(Packed):
    """y = x @ W + bias with W packed, x [..., in_features] -> [..., out_features].

    Made by ``from_linear`` or ``from_packed``. The arrays of the weight are buffers (``qweight``,
    ``scales``, and where there are any ``zeros``, ``factors``, ``permutation``), which are frozen:
    gradients flow to x and to the bias.

    batch_invariant: each row of y has the same bits whatever the other rows are.
    """

    def __init__(self, weight: PackedWeight | PackedBlocks, bias: Tensor | None = None):
        super().__init__()
        self.in_features, self.out_features = weight.shape
        self.batch_invariant = False
        self.whole_n = None  # see ``ColumnParallelLinear``
        self._hold(operators.signature_of(weight), arrays_of(weight))
        if bias is not None and tuple(bias.shape) != (weight.n,):
            raise ValueError(f"bias.shape={tuple(bias.shape)} must be (n,)=({weight.n},)")
        self._hold_bias(bias)

    @classmethod
    def from_packed(cls, p: PackedWeight | PackedBlocks, bias: Tensor | None = None) -> Linear:
        """A layer over a packed weight [in_features, out_features], where its arrays are: NumPy's
        become tensors over the same memory (a copy of a checkpoint's, which are read-only)."""
        if not isinstance(p, (PackedWeight, PackedBlocks)):
            raise TypeError(f"p is a {type(p).__name__}, must be packed: pass nm.pack(q)")
        return cls(p, bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> Linear:
        """Quantise a torch.nn.Linear, whose weight is [out_features, in_features]; on its device.
        options: those of ``numba_marlin.quantize`` (bits, group_size, symmetric, method, format,
        calibration ...). Raises as it and ``pack`` do."""
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear is a {type(linear).__name__}, must be a torch.nn.Linear")
        weight = linear.weight.detach()
        if weight.device.type == "meta":
            raise ValueError("linear.weight is on the meta device: it has no numbers to quantise")
        w = weight.float().cpu().t().contiguous().numpy()
        dtype = {torch.bfloat16: "bfloat16"}.get(weight.dtype, "float16")
        q = nm.quantize(w, **options)
        p = nm.pack(
            q,
            dtype=dtype if isinstance(q, nm.BlockWeight) else None,
            place=weight.device if weight.device.type == "cuda" else None,
        )
        made = cls.from_packed(p, linear.bias)
        made.train(linear.training)
        return made.to(weight.device)

    @property
    def weight(self) -> PackedWeight | PackedBlocks:
        """The packed weight over this layer's buffers, where they are."""
        held = {name: getattr(self, name) for name in operators.ARRAYS}
        return operators.parsed(self.signature).weight(
            {name: each for name, each in held.items() if each is not None}
        )

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x, self._parameters["bias"])

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if self.whole_n is None and operators.is_plain_call(x, bias):
            # the same product as below, without the dispatcher's 10 us
            rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
            if rows.shape[0]:
                product = nm.matmul(
                    rows, self._cached(), bias=bias, batch_invariant=self.batch_invariant
                )
                return product if x.dim() == 2 else product.reshape(*x.shape[:-1], -1)
        y = torch.ops.numba_marlin.matmul(
            x.reshape(-1, x.shape[-1]),
            self.qweight,
            self.scales,
            self.zeros,
            self.factors,
            self.permutation,
            bias,
            self.signature,
            self.batch_invariant,
            self.whole_n,
        )
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def extra_repr(self) -> str:
        said = repr(self.weight)
        return f"{said[1:-1]}{'' if self.bias is None else ', bias'}"
