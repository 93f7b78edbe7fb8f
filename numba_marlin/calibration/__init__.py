"""Calibration: what a layer's inputs say of its weights' errors, for whole models.

- ``model``: ``calibrate(model, batches)`` listens to a torch model and returns a Hessian for every
  linear layer;
- ``store``: ``Hessians``, layer -> Hessian, in memory or in a file: ``save_hessians``,
  ``load_hessians``;
- ``methods``: ``compare_methods``, the error of each layer's outputs by every method of quantising.

``quantizers.hessian`` defines what a Hessian is. torch is never imported here: who passes a model
has it.
"""

from numba_marlin.calibration.methods import MethodComparison, compare_methods
from numba_marlin.calibration.model import NeverCalled, calibrate
from numba_marlin.calibration.store import Hessians, load_hessians, save_hessians

__all__ = [
    "Hessians",
    "MethodComparison",
    "NeverCalled",
    "calibrate",
    "compare_methods",
    "load_hessians",
    "save_hessians",
]
