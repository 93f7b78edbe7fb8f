"""How the programs of ``words`` and ``file_words`` are made and launched: ``PACK`` and ``UNPACK``,
configured by the bits of a code, and ``READ_WORDS``, by the words of a file.

They are KernelDefinitions, so that they are compiled, cached and launched as all kernels are, but
no product is theirs: the registry does not have them, and of a problem's sizes m is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.kernels.language.about import About, MachineCost
from numba_marlin.kernels.language.definition import KernelDefinition, ceil_div
from numba_marlin.kernels.language.plain import body_of

THREADS = 128
WARPS = THREADS // 32
BLOCK_K, BLOCK_N = 16, 64  # of Marlin's blocks of codes: one for each warp


@dataclass(frozen=True)
class CodeBits:
    """What is to be chosen: nothing. What the weight says: 4 or 8 bits of a code."""

    #: Of a code.
    bits: int = 4

    def __post_init__(self):
        if self.bits not in (4, 8):
            raise ValueError(f"bits={self.bits} must be 4 or 8")


WORDS = ("along_k", "transposed", "interleaved")


@dataclass(frozen=True)
class FileWords(CodeBits):
    """What the words of a file are."""

    #: One of WORDS, which ``file_words`` explains.
    order: str = "along_k"

    def __post_init__(self):
        super().__post_init__()
        if self.order not in WORDS:
            raise ValueError(f"order={self.order!r} must be one of {', '.join(WORDS)}")
        if self.order == "interleaved" and self.bits != 4:
            raise ValueError(f"bits={self.bits} must be 4 with order='interleaved'")


def _make_read_words(lang, config):
    from numba_marlin.kernels.packing import file_words

    return body_of(getattr(file_words, f"{config.order}_{config.bits}"), lang)


def _file_shapes(config: FileWords, m: int, n: int, k: int) -> dict[str, tuple[int, ...]]:
    along = k * config.bits // 32
    words = {"along_k": (along, n), "transposed": (n, along), "interleaved": (k, n // 8)}
    return {"words": words[config.order], "rows": (k,), "codes": (k, n // 4)}


def _file_grid(config: FileWords, m: int, n: int, k: int, sms: int) -> tuple[int, int, int]:
    along = k * config.bits // 32
    return {
        "along_k": (along, ceil_div(n, 4 * THREADS), 1),
        "transposed": (ceil_div(along, 8), ceil_div(n, 64), 1),
        "interleaved": (k, ceil_div(n, 8 * THREADS), 1),
    }[config.order]


def _make_pack(lang, config):
    # imports Numba
    from numba_marlin.kernels.packing import words

    return body_of({4: words.pack_4, 8: words.pack_8}[config.bits], lang)


def _make_unpack(lang, config):
    from numba_marlin.kernels.packing import words

    return body_of({4: words.unpack_4, 8: words.unpack_8}[config.bits], lang)


def shapes(config: CodeBits, m: int, n: int, k: int) -> dict[str, tuple[int, int]]:
    """Of the arrays, in words of 32 bits: four codes of a row side by side, a byte each; and the
    packed words."""
    columns = ceil_div(n, BLOCK_N) * BLOCK_N
    return {"codes": (k, n // 4), "words": (k // BLOCK_K, columns * config.bits // 2)}


def _definition(name: str, summary: str, make) -> KernelDefinition:
    return KernelDefinition(
        name=name,
        summary=summary,
        config_type=CodeBits,
        parameters=(("codes", "int32[:, ::1]"), ("words", "int32[:, ::1]")),
        shapes=shapes,
        make=make,
        threads=lambda config: THREADS,
        shared_bytes=lambda config: 0,
        # x has room for any k, y for 16 million columns
        grid=lambda config, m, n, k, sms: (k // BLOCK_K, ceil_div(n, BLOCK_N * WARPS), 1),
        about=About(machine_cost=MachineCost(weight=0.22, warp=0.14)),
    )


PACK = _definition("pack", "codes, a byte each, into Marlin's words", _make_pack)
UNPACK = _definition("unpack", "Marlin's words into codes, a byte each", _make_unpack)

READ_WORDS = KernelDefinition(
    name="read_words",
    summary="codes, a byte each, out of a file's words",
    config_type=FileWords,
    parameters=(
        ("words", "int32[:, ::1]"),
        ("rows", "int32[::1]"),
        ("codes", "int32[:, ::1]"),
    ),
    shapes=_file_shapes,
    make=_make_read_words,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    grid=_file_grid,
    about=About(machine_cost=MachineCost(weight=0.5, warp=0.14)),
)
