"""What a proof that a mutant changes nothing is made of, and the names that proofs share."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from numba_marlin.mutation.mutants import Mutant
from numba_marlin.mutation.program import Program

ALL = (
    "general",
    "tiled",
    "buffered",
    "ampere",
    "decode",
    "wgmma",
    "wgmma_int8",
    "wgmma_fp8",
    "decode_int8",
    "decode_fp8",
    "moe",
    "moe_wgmma",
    "moe_wgmma_int8",
    "moe_wgmma_fp8",
    "block_scaled",
    "block_decode",
    "tcgen05",
    "block_mma",
)
BLOCKS = ALL[-4:]  # both operands block-scaled
BYTES = ("wgmma_int8", "wgmma_fp8")  # activations in 8 bits
MOE_BYTES = ("moe_wgmma_int8", "moe_wgmma_fp8")  # such ones, of experts
FEW_ROWS = ("decode_int8", "decode_fp8")
OF_DECODE = ("decode", *FEW_ROWS, "moe")  # its main loop, and its reduction between blocks
BRANCH, NEVER, TURNED = ("predicate",), "never taken", "turned round"


@dataclass(frozen=True)
class Proof:
    """kernels: names; kinds, changes: of the mutants; opcode: pattern that the whole opcode fits;
    holds(cell, program, instruction) -> bool."""

    name: str
    kernels: tuple
    kinds: tuple
    changes: tuple
    opcode: str
    holds: Callable
    reason: str

    def covers(self, cell, program: Program, mutant: Mutant) -> bool:
        if (
            cell.kernel not in self.kernels
            or mutant.kind not in self.kinds
            or mutant.change not in self.changes
            or not re.fullmatch(self.opcode, mutant.opcode)
        ):
            return False
        ins = next(
            ins
            for ins in program.instructions
            if ins.opcode == mutant.opcode and program.numbers[ins.pc] == mutant.number
        )
        return self.holds(cell, program, ins)
