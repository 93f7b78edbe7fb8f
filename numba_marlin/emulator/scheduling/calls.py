"""Recursive functions while they run: a stack for each thread, a join for each call.

The lanes of a path that call together wait for each other at the function's return. A call puts
the function's registers away, as those of an earlier call that has not returned, and takes a frame
of local memory for its variables; the return gives both back.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import LimitExceeded
from numba_marlin.emulator.scheduling.execution import Execution
from numba_marlin.emulator.state.ends import Call, Transfer
from numba_marlin.emulator.state.lanes import Lanes, mask_lanes
from numba_marlin.emulator.state.paths import Join, Path
from numba_marlin.emulator.text.program import Symbol

RETURN = -2  # pc of the joins of calls: no branch leads there


class CallJoin(Join):
    """``registers``: by width, what the function's registers [registers, lanes] held before the
    call; ``frames`` [lanes] where the caller's frames begin; ``resume`` the pc behind the call."""

    __slots__ = ("call", "resume", "registers", "frames")

    def __init__(self, path: Path, call: Call, resume: int, registers: dict, frames) -> None:
        super().__init__(RETURN, path.warp, path.mask, path.join)
        self.call, self.resume, self.registers, self.frames = call, resume, registers, frames


class CallStack:
    def __init__(self, execution: Execution) -> None:
        self.execution, self.frames = execution, execution.frames
        self.saved = {
            name: {
                width: np.array([each.index for each in registers if each.width == width])
                for width in {each.width for each in registers}
            }
            for name, registers in execution.kernel.saved.items()
        }

    def enter(self, paths: list[Path], lanes: Lanes, call: Call, resume: int) -> list[Path]:
        """The paths that go on in the function."""
        m, site = self.execution, call.site
        size, values = m.frame_bytes[site.function], []
        for each in call.parameters:
            if not each.size:
                values.append((each.target, np.array(each.source[lanes.sel])))
        before = np.array(self.frames[lanes.sel])
        after = before + min(m.frame_bytes[site.caller], m.stack_bytes)
        full = after > m.stack_bytes - size
        if full.any():
            raise lanes.fault(
                LimitExceeded,
                f"{site.function} calls itself so deep that {m.stack_bytes} bytes of stack are"
                f" full (a call takes {size}): a larger one is stack_bytes of"
                " Machine.run, --stack of numba-marlin machine run; or rewrite it as a loop",
                call.ins,
                full,
            )
        warps, columns = (
            (lanes.warps, lanes.columns)
            if not lanes.full
            else (np.repeat(lanes.warps, 32), np.tile(np.arange(32), len(lanes.warps)))
        )
        for each in call.parameters:
            if each.size:
                self._copy(each, warps, columns, before.reshape(-1), after.reshape(-1), True)
        entered = []
        for path in paths:
            own = list(mask_lanes(path.mask))
            registers = {
                width: m.registers.arrays[width][index[:, None], path.warp, own]
                for width, index in self.saved[site.function].items()
            }
            frames = self.frames[path.warp, own]
            entered.append(
                Path(path.warp, path.mask, CallJoin(path, call, resume, registers, frames))
            )
        self.frames[lanes.sel] = after
        for target, value in values:
            target[lanes.sel] = value
        return entered

    def leave(self, paths: list[Path]) -> list[tuple[int, Path]]:
        """(pc, path) of those whose lanes have all returned, with the paths' lanes."""
        gone = []
        for path in paths:
            join = path.join
            join.arrived |= path.mask
            if join.arrived == join.mask:
                self._restore(join)
                gone.append((join.resume, Path(join.warp, join.mask, join.parent)))
        return gone

    def _restore(self, join: CallJoin) -> None:
        m, own = self.execution, list(mask_lanes(join.mask))
        where = np.full(len(own), join.warp), np.array(own)
        values = []
        for each in join.call.results:
            if each.size:
                self._copy(each, *where, join.frames, self.frames[where], False)
            else:
                values.append((each.target, np.array(each.source[where])))
        for width, held in join.registers.items():
            index = self.saved[join.call.site.function][width]
            m.registers.arrays[width][index[:, None], join.warp, own] = held
        self.frames[where] = join.frames
        for target, value in values:
            target[where] = value

    def _copy(self, what: Transfer, warps, columns, caller, callee, inwards: bool) -> None:
        """Between variables of the caller's frames [lanes] and the callee's, unwritten bytes as
        such."""
        local = self.execution.memory.local
        origin = local.origin[warps, columns] - local.base
        outside = origin + self._address(what.source, caller)
        inside = origin + self._address(what.target, callee)
        source, target = (outside, inside) if inwards else (inside, outside)
        span = np.arange(what.size)
        for array in (local.data, local.state):
            array[target[:, None] + span] = array[source[:, None] + span]
        self.execution.memory.progress += 1

    def _address(self, symbol: Symbol, frames: np.ndarray) -> np.ndarray:
        address = self.execution.address_of(symbol)
        return (
            frames + address
            if symbol.name in self.execution.framed
            else np.full(len(frames), address)
        )
