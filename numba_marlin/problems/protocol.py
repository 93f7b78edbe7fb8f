"""``Problem``: the interface of every kind of problem."""

from __future__ import annotations

from typing import Any, Protocol

WEIGHTS = "weights"  # activations times a quantised weight
OPERANDS = "operands"  # two block-scaled matrices
ACTIVATIONS = "activations"  # 8-bit activations times a quantised weight
EXPERTS = "experts"  # activations times the weights of the experts that they are routed to
KINDS = (WEIGHTS, OPERANDS, ACTIVATIONS, EXPERTS)


class Problem(Protocol):
    """A product of a matrix [m, k] and a matrix with n columns, before a kernel is chosen."""

    @property
    def kind(self) -> str:
        """One of KINDS: which kernels may take it (``kernels.registry.kernels``)."""

    @property
    def m(self) -> int:
        """Rows of the first operand and of the result."""

    @property
    def n(self) -> int:
        """Columns of the second operand."""

    @property
    def k(self) -> int:
        """The dimension that is summed over."""

    @property
    def weights(self) -> int:
        """Elements of the second operand, of all experts of a mixture."""

    @property
    def bits(self) -> int:
        """Bits of a stored code of the second operand."""

    @property
    def group_size(self) -> int:
        """Elements along k that share a scale; -1 for all of them."""

    @property
    def peer_dtype(self) -> str:
        """The type in which cuBLAS multiplies the same numbers."""

    @property
    def bytes_of(self) -> dict[str, int]:
        """{what: bytes} of everything that must move at least once; the sum is ``least_bytes``."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row of the result must have the same bits whatever m is."""

    @property
    def flops(self) -> int:
        """Multiplications and additions, two for each of m * n * k."""

    @property
    def least_bytes(self) -> int:
        """Bytes moved if each byte of the problem moves exactly once."""

    @property
    def operand_names(self) -> tuple[str, ...]:
        """Kernel parameters of the operands, which no kernel writes."""

    @property
    def result_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """{kernel parameter: (shape, type)} of the outputs; the first one is the result."""

    @property
    def launch_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The same of what the kernel's launch leaves: ``result_shapes``, unless a pass behind it
        makes the result of that."""

    @property
    def zero_before(self) -> tuple[str, ...]:
        """Those that must be zero before a launch: the kernel does not write all of them."""

    def to_dict(self) -> dict[str, Any]:
        """The fields and what follows from them, as values that JSON can hold."""

    def in_words(self) -> str:
        """The product in one line, for people."""
