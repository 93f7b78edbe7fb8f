"""How much of anything the machine takes on, so that a text or a launch cannot take all the time or
all the memory. Every limit is checked before what it limits is made, and named by the error:
LimitExceeded, or Deadlock for the budget of a run.

Limits of the hardware are in ``numba_marlin.hardware.limits``.
"""

from numba_marlin.emulator.errors import LimitExceeded

MOST_WARP_INSTRUCTIONS = 100_000_000
"""Of a run, unless ``max_instructions`` or ``--budget`` says otherwise: one warp takes minutes."""

MOST_CHARACTERS, MOST_INSTRUCTIONS = 1 << 24, 1 << 17
"""Of a kernel's body with the bodies of all the functions that it calls, once for each call."""

MOST_CALLS = 100
"""Functions within functions: each takes a few frames of Python's stack."""

MOST_SCOPES = 1000
"""``{ }`` within ``{ }``, those of called functions included."""

STACK_BYTES, LEAST_FRAME = 8 << 10, 16
"""Local memory of a thread for the calls of recursive functions, unless ``stack_bytes`` says
otherwise; and what a call takes of it at least."""

MOST_GROUPS = 255
"""That cp.async.wait_group may leave in flight: the machine remembers so many for every thread."""

MOST_STATE_BYTES = 4 << 30
"""Registers, shared and local memory of all resident blocks together; and a module's variables."""

WARP_BYTES, BLOCK_BYTES = 20 << 10, 128
"""What the machine keeps for each resident warp beside its registers, and for each block of a grid;
about."""


def require_state(nbytes: int, what: str, advice: str, line: int, text: str) -> None:
    """LimitExceeded unless there is room for ``nbytes`` of ``what``, which the text asks for at
    ``line``."""
    if nbytes > MOST_STATE_BYTES:
        raise LimitExceeded(
            f"{what} would take {nbytes / 2**30:.1f} GiB, the machine takes"
            f" {MOST_STATE_BYTES >> 30} GiB at most; {advice}",
            line=line,
            text=text,
        )
