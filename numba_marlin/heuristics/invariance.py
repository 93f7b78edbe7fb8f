"""The batch-invariant mode: the bits of a row of the result do not depend on the number of rows m,
nor on the row's position.

The bits of a row depend on the kernel and on its reduction order: how k is split between blocks
(split-K, stream-K), warps and stages, and where scales are applied.
``KernelDefinition.order_of_sums`` is a key for that order, None if it depends on m. The mode
chooses one kernel and one key for all m, given a weight's n, k and types and a device. Everything
else may
vary with m: rows of a tile, number of stages, assignment of tiles to blocks. Kernels cannot be
mixed: decode scales fp32 accumulators, wgmma scales fp16 weights. Another device, or another
version of these rules, may choose another order.

Every chooser has ``invariant_configurations(problem, device)``, the configurations whose reduction
order is independent of m. ``settle`` chooses the order with the least geometric mean of predicted
times over ``SPECTRUM``, all batch sizes weighted equally; without predictions it takes the first
kernel. ``rank`` reports the cost at each m with each candidate.
"""

from __future__ import annotations

import math

Order = tuple[str, str]  # kernel and its reduction-order key
SPECTRUM = (1, 16, 32, 64, 128, 256, 1024, 4096)  # rows: from one conversation to a long prompt


def settle(predictions: list[tuple[int, Order, float]]) -> Order:
    """Choose the order, from (m, order, predicted microseconds, or infinity if unknown) of
    candidates at each m of ``SPECTRUM``; the first one among equals. ValueError if there is
    none."""
    if not predictions:
        raise ValueError("no candidate has a reduction order that is independent of m")
    fastest: dict[Order, dict[int, float]] = {}
    for m, order, us in predictions:
        times = fastest.setdefault(order, {})
        times[m] = min(us, times.get(m, math.inf))

    def cost(order: Order) -> tuple[int, float]:
        times = fastest[order]
        # an order must run at every m at which another one runs
        return -len(times), math.fsum(map(math.log, times.values()))

    return min(fastest, key=cost)
