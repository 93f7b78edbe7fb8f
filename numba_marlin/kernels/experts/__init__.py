"""Kernels for mixtures of experts, a package each: products that are ragged over experts, in one
launch. ``moe`` is for few rows of an expert, ``moe_wgmma`` for many, ``moe_wgmma_int8`` and
``moe_wgmma_fp8`` for x in 8 bits; ``sum_experts`` is the pass behind them that adds up a token's
rows. What they share lies here: ``tables`` (which tile has which rows), ``tiles`` (sizes of tiles
of gathered rows), ``activation`` (of gate and up), ``about`` (of their declarations), ``choice``
(of their choosers) and ``w4a8`` (all of the two kernels for 8 bits)."""

KIND = "experts"  # of the problems that they take (``problems.protocol``)
BUILT_OF = ("decode", "wgmma", "w4a8")  # kernels for one weight, of whose verbs they are made
