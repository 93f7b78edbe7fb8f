"""Kernels for mixtures of experts, a package each: products that are ragged over experts, in one
launch. ``moe`` is for few rows of an expert, ``moe_wgmma`` for many; ``choose`` takes one of them.
What both share lies here: ``tables`` (which tile has which rows), ``sums`` (over a token's experts)
and ``activation`` (of gate and up)."""
