"""What can go wrong on the PTX machine. Every error names where: PTX line and its text, block, warp
and lanes.

All are subclasses of MachineError, with the same facts as attributes (``None`` where they do not
apply): ``detail`` (the sentence), ``line`` (1-based), ``text``, ``block`` (x, y, z), ``warp`` (in
its block), ``lanes`` (tuple), ``check`` (its name in ``checks``, if it has one of its own).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

UNREADABLE = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
"""What Python raises where a word is missing, or stands where another kind must: whoever reads text
makes a PtxSyntaxError of them."""


class MachineError(Exception):
    """Base of everything the machine raises about a program. ``kind``: a name for reports that does
    not change, "pending-copy-read"."""

    kind = ""

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__(**options)
        cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(
        self,
        detail: str,
        *,
        line: int | None = None,
        text: str | None = None,
        block: tuple[int, int, int] | None = None,
        warp: int | None = None,
        lanes: tuple[int, ...] | None = None,
    ) -> None:
        self.detail, self.line, self.text = detail, line, text
        self.block, self.warp, self.lanes = block, warp, lanes
        self.check = ""  # the name of the check that found it, where it has one of its own
        message = f"{type(self).__name__}: {detail}"
        if line is not None:
            message += f"\n  PTX line {line}: {text}"
        if block is not None:
            message += f"\n  block {block}, warp {warp}, {describe_lanes(lanes or ())}"
        super().__init__(message)

    def advise(self, advice: str) -> None:
        """Say at the end of the message what can be done."""
        self.args = (f"{self}\n  {advice}",)


class PtxSyntaxError(MachineError):
    """The text is not PTX as this machine reads it."""


class LimitExceeded(MachineError):
    """The text or the launch asks for more than the machine takes on (``limits``)."""


class UnknownInstruction(MachineError):
    """An opcode, or a modifier of one, that the machine does not implement."""

    ADVICE = (
        "compile for another target or without what needs it, or teach the machine: one handler in"
        " numba_marlin/emulator/instructions"
    )

    def __init__(self, detail: str, **where) -> None:
        super().__init__(f"{detail}\n  what to do: {self.ADVICE}", **where)
        self.detail = detail


TEXTURES = ("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep")


def unknown(opcode: str) -> str:
    """What is said of an instruction that has no handler."""
    if opcode.split(".")[0] in TEXTURES:
        return (
            f"{opcode!r}: there are no textures and surfaces here; read such an array by ld.global"
        )
    if opcode.startswith("multimem."):
        return f"{opcode!r}: a multimem address is one of several GPUs' memory; here is one GPU"
    return f"unknown instruction {opcode!r}"


@contextmanager
def in_kernel(name: str) -> Iterator[None]:
    """Errors about the text say that it is the text of kernel ``name``."""
    try:
        yield
    except (PtxSyntaxError, UnknownInstruction, LimitExceeded) as error:
        raise type(error)(
            f"{error.detail} (in kernel {name})", line=error.line, text=error.text
        ) from error


class OutOfBounds(MachineError):
    """An access that does not lie wholly within one buffer, or within the block's shared or the
    thread's local memory."""


class Misaligned(MachineError):
    """An address that is not a multiple of the size of the access."""


class ReadOnlyWrite(MachineError):
    """A write to a buffer that was registered read-only, or to constant memory."""


class UninitializedRead(MachineError):
    """A read of shared or local bytes that nothing has written."""


class PendingCopyRead(MachineError):
    """Touching shared bytes that an asynchronous copy is still on its way to, or writing ones that
    it may be reading: nobody waited for it."""


class BarrierMisuse(MachineError):
    """An mbarrier used against its rules, or ordinary access to the bytes of a live one."""


class RegisterHazard(MachineError):
    """A register of a wgmma or tcgen05.ld touched before the wait for it. One of a wgmma written
    without a wgmma.fence before it is an error of this kind too, of check ``wgmma-fence``."""


class ProxyHazard(MachineError):
    """An asynchronous operation on what ordinary instructions wrote, with no proxy fence in
    between."""


class BadDescriptor(MachineError):
    """A matrix or instruction descriptor of a tcgen05 instruction that means nothing, or something
    that this machine does not do."""


class BadMetadata(MachineError):
    """Metadata of a sparse product (mma.sp, wgmma.mma_async.sp) that the ISA calls invalid: the
    same place twice; the later one first, where they are said to be ordered."""


class TensorMemoryMisuse(MachineError):
    """Tensor memory that is not allocated, not given back, or not this warp's."""


class TensorMemoryHazard(MachineError):
    """Tensor memory touched while an asynchronous operation may be using it, or without the fence
    that puts the two in order."""


class Race(MachineError):
    """Two accesses that nothing orders. ``kind`` is what is missing
    (``ordering.race_report.MISSING``); ``first`` and ``first_thread`` are the earlier instruction
    and its (block, warp, lane), None where it is of another kernel. The line, block, warp and lane
    of the error are those of the later one."""

    def __init__(self, detail: str, *, kind: str, first, first_thread: tuple, **where) -> None:
        super().__init__(detail, **where)
        self.kind, self.first, self.first_thread = kind, first, first_thread


class DivergentCollective(MachineError):
    """A warp-wide or block-wide instruction that not all participating lanes reached together."""


class Deadlock(MachineError):
    """No warp can make progress any more, or the instruction budget is spent."""


class Trap(MachineError):
    """The program executed ``trap`` or ``brkpt``."""


def describe_lanes(lanes: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) -> "lanes 0-2, 5"; one lane is "lane 5"."""
    if not lanes:
        return "no lanes"
    return f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {ranges(lanes)}"


def ranges(numbers: Sequence[int]) -> str:
    """(0, 1, 2, 5) -> "0-2, 5"."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
