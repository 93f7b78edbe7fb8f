"""What can go wrong between a kernel and its machine code, apart from wrong arguments (ValueError,
TypeError)."""

from numba_marlin.errors import CapabilityMissing


class MissingCompiler(CapabilityMissing):
    """A compiler that is not installed; the message holds the command that installs it."""


class AssemblyError(RuntimeError):
    """PTX that no assembler took; the message holds its log."""
