"""Activations to 8 bits on a GPU: no rung of a ladder, because nothing is multiplied. ``rows`` has
the kernels in plain Numba; ``definitions`` says how they are made and launched,
``execution.quantizing`` launches them, ``quantizers.activations`` specifies the bytes. Importing
this imports no Numba."""

from numba_marlin.kernels.quantize_activations.definitions import (
    QUANTIZE,
    WITH_OFFSETS,
    RowTypes,
    definition_of,
)

__all__ = ["QUANTIZE", "WITH_OFFSETS", "RowTypes", "definition_of"]
