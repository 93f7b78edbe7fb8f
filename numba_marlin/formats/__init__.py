"""What the bits of a quantised weight mean, and the layouts that they are packed in.

- ``types``: ``QuantizedWeight`` (plain codes and scales) and ``PackedWeight`` (the bytes a kernel
  reads), both checked when they are made.
- ``FORMATS``: name -> the object that packs and unpacks a layout that kernels read;
  ``find_format(name)`` looks it up or says what there is. A module that defines a layout registers
  it; adding a layout adds a module and an import here.
- ``marlin``: the published Marlin layout and its relatives; ``marlin_order`` derives their order
  from the fragment maps in ``layout``.
- ``block_weight``: ``BlockWeight``, small floats with scales for blocks; ``fp4_marlin``: those of 4
  bits in Marlin's order (``PackedBlocks``), ``fp4_words`` the bits of a word.
- ``files``: the formats of files (``STORED``, ``find_stored``), loaded when they are needed;
  ``stored`` says what one is, an executable specification, ``streams`` where the bits of packed
  codes are, ``changes`` what it costs to make a weight fit a format.
- ``block_scaled``: matrices of small floats whose blocks share a scale (NVFP4, MXFP4, MXFP8),
  operands and results of block-scaled products; ``block_weight`` what files hold of such weights;
  ``small_floats`` the numbers themselves.
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
