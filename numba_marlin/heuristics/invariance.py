"""The batch-invariant mode: a row of x gets the same bits whatever the number of rows m that it is
multiplied with, and whatever its place among them.

What decides a row's bits is the kernel and the order in which it adds up products: how k is split
between blocks, warps and stages, and how scales come in. ``KernelDefinition.order_of_sums`` is that
order as a value, None where it hangs on m. So the mode settles on one kernel and one such value for
all m: for a weight's n, k and types, on one device; only what is left free may then follow m: how
many rows a tile has, how many stages there are, who takes which tile. Kernels cannot be mixed:
decode scales fp32 sums, wgmma fp16 weights. Another device, or another version of these rules, may
settle on another order.

Every chooser offers ``invariant_configurations(problem, device)``, those whose order does not hang
on m. The order that the mode settles on (``settle``) is the one whose predicted times have the
least geometric mean over ``SPECTRUM``, all batch sizes counting alike; where nobody knows a time,
the last resort is the kernel that comes first. What that costs at each m, ``rank`` says beside each
candidate.
"""

from __future__ import annotations

import math

Order = tuple[str, str]  # kernel and its order of sums
SPECTRUM = (1, 16, 32, 64, 128, 256, 1024, 4096)  # rows: from one conversation to a long prompt


def settle(predictions: list[tuple[int, Order, float]]) -> Order:
    """The order to settle on, from (m, order, microseconds, infinite where nobody knows) of
    candidates at the m of ``SPECTRUM``; of two alike the one that was named first. ValueError if
    there is none."""
    if not predictions:
        raise ValueError("no candidate has an order of sums that is the same for all m")
    fastest: dict[Order, dict[int, float]] = {}
    for m, order, us in predictions:
        times = fastest.setdefault(order, {})
        times[m] = min(us, times.get(m, math.inf))

    def cost(order: Order) -> tuple[int, float]:
        times = fastest[order]
        # what does not run at every m that another one runs at, is no choice
        return -len(times), math.fsum(map(math.log, times.values()))

    return min(fastest, key=cost)
