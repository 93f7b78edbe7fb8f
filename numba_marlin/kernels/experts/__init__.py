"""Kernels for mixtures of experts, a package each: products that are ragged over experts, in one
launch. ``moe`` is for few rows of an expert, ``moe_wgmma`` for many; ``sum_experts`` is the pass
behind them that adds up a token's rows. What both share lies here: ``tables`` (which tile has which
rows), ``activation`` (of gate and up), ``about`` (of their declarations) and ``choice`` (of their
choosers)."""

KIND = "experts"  # of the problems that they take (``problems.protocol``)
BUILT_OF = ("decode", "wgmma")  # kernels for one weight, of whose verbs they are made
