"""Triton: kernels of our own, compiled by its own package for two targets."""

from importlib.metadata import version as installed

import triton_kit


def version() -> str:
    return f"triton {installed('triton')}"


def cases():
    import triton_attention  # noqa: F401
    import triton_conversions  # noqa: F401
    import triton_memory  # noqa: F401
    import triton_pointwise  # noqa: F401
    import triton_products  # noqa: F401
    import triton_reductions  # noqa: F401

    for name, targets, function in triton_kit.CASES:
        for target in targets:
            yield name, target, lambda case, function=function: function(case, triton_kit.Values())
