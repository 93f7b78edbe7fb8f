"""The meaning of a quantised weight's bits, and the layouts in which they are packed.

- ``types``: ``QuantizedWeight`` (plain codes and scales) and ``PackedWeight`` (the bytes a kernel
  reads), both checked when they are made.
- ``FORMATS``: name -> the object that packs and unpacks a layout that kernels read;
  ``find_format(name)`` looks one up, and its ValueError lists the known ones. A module that defines
  a layout registers it; a new layout needs a module and an import here.
- ``marlin``: the published Marlin layout and its relatives; ``marlin_order`` derives their order
  from the fragment maps in ``layout``.
- ``block_weight``: ``BlockWeight``, a weight of 4- or 8-bit floats with one scale per block;
  ``fp4_marlin``: the 4-bit ones in Marlin's order (``PackedBlocks``); ``fp4_words``: the bits of
  one packed word.
- ``surgery``: packed weights cut and joined; ``marlin_tiles``: their columns, moved as bytes.
- ``files``: the formats of checkpoint files (``STORED``, ``find_stored``), imported on first use.
  ``stored`` defines what a format specifies, ``streams`` locates the bits of packed codes,
  ``changes`` makes a weight fit a format and reports what is lost.
- ``operands``: ``BlockScaled``, a matrix of 4- or 8-bit floats whose blocks share a scale (NVFP4,
  MXFP4, MXFP8): operands and results of block-scaled products; ``small_floats``: their number
  formats.
- ``activations``: ``QuantizedActivations``, x in 8 bits with a scale per row (W4A8).
- ``floats``: float16 and bfloat16 by name, and rounding to them.

The NumPy code here is the specification. The fast loops of ``hostloops`` must give the same bytes.
This room imports ``layout`` and NumPy, never Numba.
"""

from numba_marlin.formats import marlin  # registers itself
from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.fp4_marlin import PackedBlocks  # registers itself
from numba_marlin.formats.registry import FORMATS, Format, find_format, register
from numba_marlin.formats.types import PackedWeight, QuantizedWeight

__all__ = [
    "BlockWeight",
    "FORMATS",
    "Format",
    "PackedBlocks",
    "PackedWeight",
    "QuantizedWeight",
    "find_format",
    "marlin",
    "register",
]
