"""The sizes of ``decode_int8`` and ``decode_fp8``: of ``decode``, with x of one byte. Pure."""

from dataclasses import dataclass
from typing import ClassVar

from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.w4a8.config import SUMS_ORDER
from numba_marlin.layout.w4a8 import UNIT

EXACT_IN_FP32 = 2**24  # integers up to here, and multiples of UNIT up to UNIT times as many


def most_exact_k(zeros):
    """Of int8: how deep sums of all k may be for fp32 to have them exactly."""
    return EXACT_IN_FP32 // (8 if zeros is None else 15) // 127 // 16 * 16


@dataclass(frozen=True)
class DecodeBytesConfig(DecodeConfig):
    """As ``DecodeConfig``, of 4-bit codes with integer zero points or none. Of either type of
    activations."""

    #: one of ``formats.activations.KINDS``
    activations: ClassVar[str]

    def __post_init__(self):
        super().__post_init__()
        if self.bits != 4 or self.codes != "integer":
            raise ValueError(f"bits={self.bits}, codes={self.codes!r} must be 4 and 'integer'")
        if self.zeros == "float16":
            raise ValueError(f"zeros={self.zeros!r} must be None or 'integer'")
        if self.group_blocks not in (-1, 2, 4, 8):
            raise ValueError(
                f"group_blocks={self.group_blocks} must be -1, 2, 4 or 8 (group sizes 32, 64, 128)"
            )
        if self.scale_dtype != self.dtype:
            raise ValueError(f"scale_dtype={self.scale_dtype!r} must be dtype={self.dtype!r}")

    @property
    def x_element_bytes(self):
        return 1

    @property
    def unit(self):
        """1 in the units of what weights are multiplied as."""
        return 1


@dataclass(frozen=True)
class DecodeInt8Config(DecodeBytesConfig):
    """Of ``decode_int8``."""

    activations = "int8"

    #: with one scale per column k may be more than ``most_k``, and sums rounded in fp32
    deep: bool = False

    @property
    def unit(self):
        """Of a weight's byte (``kernels.w4a8.elements``)."""
        return UNIT if self.zeros is None else 1

    @property
    def promoted(self):
        """Sums are int32."""
        return True

    @property
    def most_k(self):
        """With one scale per column: as deep as every sum of parts is exact in fp32, so that the
        order in which blocks and warps add theirs up does not matter."""
        return most_exact_k(self.zeros)

    @property
    def order_of_sums(self):
        """That of ``wgmma_int8`` where sums are exact, or where a warp has whole groups in
        ascending order: the same bits then."""
        in_order = (
            self.whole and self.warps_k == 1 and self.stage_rows % self.k16_rows_per_scale_row == 0
            if self.grouped
            else not self.deep
        )
        if in_order:
            return SUMS_ORDER.format(self.activations)
        return super().order_of_sums

    def grid(self, m, n, k, sms):
        if not self.grouped and not self.deep and k > self.most_k:
            raise ValueError(
                f"k={k} must be {self.most_k} at most with one scale per column and deep=False:"
                " more are rounded when they are added up in fp32"
            )
        return super().grid(m, n, k, sms)


@dataclass(frozen=True)
class DecodeFp8Config(DecodeBytesConfig):
    """Of ``decode_fp8``."""

    activations = "fp8"

    @property
    def product_dtype(self):
        """Whatever ``dtype`` is: of e4m3 and of a code less its zero point it has all bits."""
        return "float16"


CONFIGS = {each.activations: each for each in (DecodeInt8Config, DecodeFp8Config)}
