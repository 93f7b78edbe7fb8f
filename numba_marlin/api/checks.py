"""Argument checks that several public functions share."""

from __future__ import annotations

from numba_marlin.compiler import COMPILERS
from numba_marlin.execution.arrays import ArrayView
from numba_marlin.execution.scratch import Workspace


def check_choice(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, allowed))}")


def check_launch(compiler: object, workspace: object) -> None:
    """TypeError or ValueError for a compiler or a workspace that no launch accepts."""
    check_choice("compiler", compiler, COMPILERS)
    if workspace is not None and not isinstance(workspace, Workspace):
        raise TypeError(
            f"workspace is a {type(workspace).__name__}, must be a numba_marlin.Workspace"
        )


def place_name(view: ArrayView) -> str:
    return "the host" if view.on_host else f"cuda:{view.device}"


def check_same_place(name: str, view: ArrayView, wanted: ArrayView, whose: str) -> None:
    if view.device != wanted.device:
        raise ValueError(
            f"{name} is on {place_name(view)}, must be where {whose} is: {place_name(wanted)}"
        )
