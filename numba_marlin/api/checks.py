"""Argument checks that several public functions share."""

from __future__ import annotations

import sys

from numba_marlin.compiler import COMPILERS
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution.arrays import LEGACY_STREAM, ArrayView, stream_handle
from numba_marlin.execution.scratch import Workspace


def check_choice(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, allowed))}")


def check_launch(compiler: object, workspace: object, stream: object) -> None:
    """TypeError or ValueError for a compiler, a workspace or a stream that no launch accepts, also
    where none is needed."""
    check_choice("compiler", compiler, COMPILERS)
    stream_handle(stream, LEGACY_STREAM)
    if workspace is not None and not isinstance(workspace, Workspace):
        raise TypeError(
            f"workspace is a {type(workspace).__name__}, must be a numba_marlin.Workspace"
        )


def check_no_gradient(name: str, view: ArrayView) -> None:
    """ValueError for a torch tensor whose gradient autograd records: the product has none, and the
    result would lose it silently."""
    if (
        view.kind == "torch"
        and getattr(view.owner, "requires_grad", False)
        and sys.modules["torch"].is_grad_enabled()
    ):
        raise ValueError(
            f"{name} requires a gradient, which this product does not have: call"
            " numba_marlin.torch.matmul, which has, or this one under torch.no_grad() or"
            f" torch.inference_mode(), or pass {name}.detach()"
        )


def refuse_torch_compile() -> None:
    """CapabilityMissing if torch.compile runs the caller. It would trace into this package, down to
    the PTX machine, for minutes."""
    if "torch._dynamo" not in sys.modules:  # as long as nothing is compiled
        return
    frames = sys.modules["torch"]._C._dynamo.eval_frame
    # None: nothing is compiled; False: only what is compiled already runs so
    if getattr(frames, "get_eval_frame_callback", lambda: None)() not in (None, False):
        raise CapabilityMissing(
            "torch.compile cannot compile this product, which is no torch operator: call"
            " numba_marlin.torch.matmul, which is one (of block-scaled operands there is none yet:"
            " leave it out with torch.compiler.disable)"
        )


def place_name(view: ArrayView) -> str:
    return "the host" if view.on_host else f"cuda:{view.device}"


def check_same_place(name: str, view: ArrayView, wanted: ArrayView, whose: str) -> None:
    if view.device != wanted.device:
        raise ValueError(
            f"{name} is on {place_name(view)}, must be where {whose} is: {place_name(wanted)}"
        )
