"""Checkpoints: files and directories of quantised weights, read lazily, written whole or not at
all, converted from one format to another.

- ``safetensors_file``, ``source``: files and directories, checked before anything in them is
  believed.
- ``checkpoint``: ``load_checkpoint(path)`` -> layer name -> weight.
- ``safetensors_writer``, ``configuration``, ``save``: ``save_checkpoint`` and ``convert``.

What a layer's tensors mean is the business of ``formats``. Imports ``formats``, ``errors`` and
NumPy; ``hostloops`` where a layer is large.
"""

from numba_marlin.checkpoints.checkpoint import Checkpoint, load_checkpoint
from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.save import convert, save_checkpoint

__all__ = ["Checkpoint", "CheckpointError", "convert", "load_checkpoint", "save_checkpoint"]
