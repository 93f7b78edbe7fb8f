"""Checkpoints: files and directories of quantised weights. They are read lazily, written completely
or not at all, and converted between formats.

- ``safetensors_file``, ``source``: files and directories, validated before their contents are used.
- ``checkpoint``: ``load_checkpoint(path)`` -> layer name -> weight.
- ``scheme``, ``shares``: how each layer is stored, and what of it a rank holds, for an engine that
  makes its layers before their tensors arrive.
- ``save``: ``save_checkpoint`` and ``convert``; ``job`` and ``safetensors_writer`` write, under the
  locks and names of ``owner``; ``configuration`` and ``skipped`` say in config.json what was
  written; ``companions``: the small files that go along.

``formats`` defines what a layer's tensors mean. Imports ``formats``, ``errors`` and
NumPy; ``hostloops`` where a layer is large.
"""

from numba_marlin.checkpoints.checkpoint import Checkpoint, load_checkpoint
from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.save import convert, save_checkpoint

__all__ = ["Checkpoint", "CheckpointError", "convert", "load_checkpoint", "save_checkpoint"]
