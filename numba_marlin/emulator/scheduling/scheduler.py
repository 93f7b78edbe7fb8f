"""Who runs next. Warps of all resident blocks that stand at one pc run together, a basic block at a
time.

The bundle with the lowest (round, pc) goes on; a backward branch begins a bundle's next round, so
loops turn in step and a warp that spins on a lock gives way to those it waits for. With a
``schedule`` the choice is its own and bundles are torn apart: other interleavings, equally legal.

Where nobody can go on, or all only spin, lanes that wait for others of their warp behind a branch
go on alone first (``paths.Joins``). Raises Deadlock when even so no warp can go on, when all of
them only repeat (same pcs, registers and memory), or when the instruction budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence

from numba_marlin.emulator.asynchronous.barriers import Barriers
from numba_marlin.emulator.asynchronous.clusters import ClusterBarriers
from numba_marlin.emulator.errors import DivergentCollective, MachineError, describe_lanes
from numba_marlin.emulator.scheduling.blocks import Code, compile_blocks
from numba_marlin.emulator.scheduling.calls import CallStack
from numba_marlin.emulator.scheduling.execution import Execution
from numba_marlin.emulator.scheduling.gathering import Gathering
from numba_marlin.emulator.scheduling.schedules import APART, Chooser, Schedule
from numba_marlin.emulator.scheduling.spinning import SpinDetector
from numba_marlin.emulator.scheduling.standstill import at, deadlock, stray
from numba_marlin.emulator.state.ends import Barrier, Branch, Call, Leave, Return, WarpgroupWait
from numba_marlin.emulator.state.lanes import FULL, Lanes, error_at, mask_lanes, pack_masks
from numba_marlin.emulator.state.listener import Listener, watcher
from numba_marlin.emulator.state.paths import WARP_OF, Bundle, Joins, Path, merge, parted
from numba_marlin.emulator.text.cfg import EXIT


class Scheduler:
    def __init__(
        self,
        execution: Execution,
        schedule: Schedule | None,
        listener: Listener,
        budget: int,
    ) -> None:
        self.execution, self.placement = execution, execution.placement
        self.apart = schedule is not None and schedule.order == APART
        if execution.races is not None:
            execution.races.apart = self.apart
        self.coarse, self.fine = compile_blocks(execution, listener, self.apart)
        self.barriers, self.gathering = (
            Barriers(self.placement, execution.races),
            Gathering(self.placement),
        )
        self.cluster_barriers = ClusterBarriers(execution.cluster, execution.races)
        self.ready: dict[tuple[int, bool, bool], Bundle] = {}
        self.random = None if schedule is None else schedule.random()
        groups = execution.cluster.groups()
        if schedule is not None:
            if schedule.order == "reverse":
                groups.reverse()
            elif schedule.order != "in turn":
                self.random.shuffle(groups)
            for engine in (execution.bulk, execution.tensor_cores):
                engine.random, engine.early = (
                    (self.random if schedule.copies == "any" else None),
                    schedule.copies == "early",
                )
            execution.mbarriers.late = schedule.copies == "late"
        self.chooser = None if schedule is None else Chooser(schedule, self.random, self.placement)
        self.order = [number for group in reversed(groups) for number in reversed(group)]
        self.budget, self.instructions, self.steps, self.events, self.round = budget, 0, 0, 0, 0
        self.spinning, self.progress = SpinDetector(execution), watcher()
        self.calls, self.joins = CallStack(execution), Joins()
        self.warps_left = [0] * self.placement.slots
        self.begun, self.together = 0, 0  # the first pc of what runs, and how many warps run it
        execution.clock = lambda pc: self.instructions + (pc - self.begun) * self.together

    def run(self) -> None:
        self._launch(list(range(self.placement.slots)))
        while self.ready or self._open_joins():
            self._turn(self._pick())
        if self.gathering.parked:
            raise stray(self)
        waiting = (
            self.barriers.waiting()
            + self.cluster_barriers.waiting()
            + self.execution.warpgroups.waiting()
        )
        if waiting:
            _, path, ins = waiting[0]
            raise deadlock(self, "no warp can go on", path, ins)
        if any(self.warps_left):
            raise MachineError(
                f"{sum(self.warps_left)} warps got lost: a defect of the machine, not of the"
                " program"
            )
        self.execution.bulk.finish()

    def _open_joins(self) -> bool:
        """Lanes that wait where they diverged go on without the others; False if there are none."""
        going = self.joins.open()
        if going:
            self.events += 1
        for pc, path in going:
            self._add(pc, [path])
        return bool(going)

    def _launch(self, free: Sequence[int]) -> None:
        """The next blocks in order move into ``free`` slots."""
        slots = free[: len(self.order)]
        numbers = [self.order.pop() for _ in slots]
        self.execution.place(slots, numbers)
        if self.chooser is not None:
            self.chooser.place(slots, numbers)
        self.cluster_barriers.forget(slots)
        paths, per_block = [], self.placement.warps_per_block
        for slot in slots:
            self.warps_left[slot] = per_block
            paths += [
                Path(warp, self.placement.live[warp])
                for warp in range(slot * per_block, (slot + 1) * per_block)
            ]
        self._add(0, paths)

    def _add(self, pc: int, paths: list[Path], gathered: bool = False) -> None:
        """Paths that may go on at ``pc`` join those that are there already."""
        if pc == EXIT:
            self._exit(paths)
            return
        whole = [path for path in paths if path.mask == FULL]
        if whole:
            self._insert(Bundle(pc, whole, self.round, True))
        if len(whole) < len(paths):
            self._insert(
                Bundle(
                    pc, [path for path in paths if path.mask != FULL], self.round, False, gathered
                )
            )

    def _insert(self, bundle: Bundle) -> None:
        other = self.ready.get(bundle.key)
        if other is None:
            self.ready[bundle.key] = bundle
            return
        other.paths += bundle.paths
        other.round, other.lanes = min(other.round, bundle.round), None
        if not bundle.full and not bundle.gathered:
            paths = merge(other.paths)
            # lanes of one warp have met: perhaps it is whole again
            if len(paths) < len(other.paths):
                del self.ready[bundle.key]
                whole = [path for path in paths if path.mask == FULL]
                if whole:
                    self._insert(Bundle(bundle.pc, whole, other.round, True))
                if len(whole) < len(paths):
                    rest = [path for path in paths if path.mask != FULL]
                    self.ready[bundle.key] = Bundle(bundle.pc, rest, other.round, False)

    def _pick(self) -> Bundle:
        if self.chooser is None:
            return self.ready.pop(min(self.ready, key=lambda k: (self.ready[k].round, k)))
        return self.chooser.pick(self.ready, self.execution.memory.progress + self.events)

    def _turn(self, bundle: Bundle) -> None:
        """Run ``bundle`` until it splits, blocks, ends, or another bundle's turn comes."""
        self.execution.bulk.drift()
        self.execution.tensor_cores.drift()
        while True:
            code = self.coarse.get(bundle.pc) if bundle.full and not self.apart else None
            if code is None:
                code = self.fine[bundle.pc]
                if code.members is not None and not bundle.full and not bundle.gathered:
                    self._add(bundle.pc, self.gathering.come(bundle.paths, code), gathered=True)
                    return
            if bundle.lanes is None:
                bundle.paths.sort(key=WARP_OF)
                masks = None if bundle.full else [path.mask for path in bundle.paths]
                bundle.lanes = Lanes.of(self.placement, [path.warp for path in bundle.paths], masks)
            lanes, count = bundle.lanes, len(bundle.paths)
            self.begun, self.together = code.start, count
            for step in code.steps:
                step(lanes)
            code.executed += count
            self.instructions += count * code.length
            self.steps += code.length
            if self.chooser is not None:
                self.chooser.spend(bundle, code.length)
            self.round = bundle.round
            self._watch_progress(bundle)
            if code.end is None:
                following = code.next
            else:
                following = ACTIONS[type(code.end)](self, bundle, code)
                if following is None:
                    return
            if not self._advance(bundle, following):
                return

    def _advance(self, bundle: Bundle, pc: int) -> bool:
        """Move the whole bundle to ``pc``. False if its turn is over (it has then been put where it
        belongs)."""
        if pc <= bundle.pc:
            bundle.round += 1
        self.round = bundle.round
        if not bundle.full or any(path.join is not None for path in bundle.paths):
            moved = self.joins.all_arrive(bundle.paths, pc)
            if moved != bundle.paths:
                self._add(pc, moved)
                return False
        if pc == EXIT:
            self._exit(bundle.paths)
            return False
        bundle.pc, bundle.gathered = pc, False
        if self.ready:
            if self.random is not None or bundle.key in self.ready:
                self._insert(bundle)
                return False
            key = bundle.key
            if any((other.round, k) < (bundle.round, key) for k, other in self.ready.items()):
                self._insert(bundle)
                return False
        return True

    def _branch(self, bundle: Bundle, code: Code) -> int | None:
        """Where all go; None if they part."""
        taken = self._guard(bundle, code.end.guard)
        if taken is True:
            return code.end.target
        if taken is False:
            return code.next
        return self._part(bundle, taken, code.end.target, code)

    def _guard(self, bundle: Bundle, guard):
        """True or False if all lanes agree, else the mask of taking lanes for each path."""
        if guard is None:
            return True
        lanes = bundle.lanes
        active = guard[lanes.sel]
        if active.all():
            return True
        if not active.any():
            return False
        if bundle.full:
            return pack_masks(active).tolist()
        masks = [0] * len(bundle.paths)
        for owner, lane in zip(lanes.owner[active].tolist(), lanes.columns[active].tolist()):
            masks[owner] |= 1 << lane
        return masks

    def _part(self, bundle: Bundle, taken: list[int], target: int, code: Code) -> None:
        going, staying = [], []
        for path, mask in zip(bundle.paths, taken):
            if mask == path.mask:
                going.append(path)
            elif not mask:
                staying.append(path)
            else:
                one, other = self.joins.split(path, mask, code.join)
                going.append(one)
                staying.append(other)
        turn = bundle.round
        for pc, paths in ((target, going), (code.next, staying)):
            self.round = turn + (pc <= bundle.pc)
            self._add(pc, self.joins.all_arrive(paths, pc))

    def _leave(self, bundle: Bundle, code: Code) -> int | None:
        taken = self._guard(bundle, code.end.guard)
        if taken is False:
            return code.next
        if taken is True:
            self._exit(bundle.paths)
            return None
        return self._part(bundle, taken, EXIT, code)

    def _call(self, bundle: Bundle, code: Code) -> None:
        paths = self.calls.enter(bundle.paths, bundle.lanes, code.end, code.next)
        self.events += 1
        self.round = bundle.round + (code.end.target <= bundle.pc)
        self._add(code.end.target, paths)

    def _return(self, bundle: Bundle, code: Code) -> int | None:
        taken = self._guard(bundle, code.end.guard)
        if taken is False:
            return code.next
        going, staying = parted(bundle.paths, taken)
        self._release([(code.next, path) for path in staying] + self.calls.leave(going))
        return None

    def _exit(self, paths: list[Path]) -> None:
        """All lanes of ``paths`` are done. Collectives and barriers no longer wait for them."""
        live, emptied, per_block = self.placement.live, [], self.placement.warps_per_block
        for path in paths:
            live[path.warp] &= ~path.mask
            if not live[path.warp]:
                slot = path.warp // per_block
                self.warps_left[slot] -= 1
                emptied.append(slot)
        self.events += 1
        for pc, others in self.gathering.recheck({path.warp for path in paths}).items():
            self._add(pc, others, gathered=True)
        self._release(
            self.barriers.recheck({path.warp // per_block for path in paths})
            + self.cluster_barriers.recheck(set(emptied))
        )
        done, size = (
            sorted({slot for slot in emptied if not self.warps_left[slot]}),
            self.execution.cluster.size,
        )
        for slot in done:
            self.execution.block_ended(slot)
        groups = [
            range(number * size, (number + 1) * size)
            for number in sorted({slot // size for slot in done})
        ]
        free = [
            slot
            for group in groups
            if not any(self.warps_left[slot] for slot in group)
            for slot in group
        ]
        if free and self.order:
            self._launch(free)

    def _barrier(self, bundle: Bundle, code: Code) -> int | None:
        end = code.end
        taken = self._guard(bundle, end.guard)
        if taken is False:
            return code.next
        quiet = taken is True and bundle.full and self.chooser is None
        if quiet and self.barriers.at_once(bundle.lanes, end):
            self.execution.proxy.announce(bundle.lanes.warps.tolist())
            self.events += 1
            return code.next
        paths, masks = bundle.paths, taken
        if taken is True:
            masks = [path.mask for path in paths]
        skipping = [path for path, mask in zip(paths, masks) if not mask]
        coming = [path for path, mask in zip(paths, masks) if mask]
        for path, mask in zip(paths, masks):
            missing = (self.placement.live[path.warp] if end.aligned else path.mask) & ~mask
            if mask and missing:
                raise error_at(
                    DivergentCollective,
                    f"reached without {describe_lanes(mask_lanes(missing))} of the warp; here are"
                    " only",
                    end.ins,
                    self.placement,
                    path.warp,
                    mask_lanes(mask),
                )
        self._add(code.next, skipping)
        self.execution.proxy.announce(path.warp for path in coming)
        barriers = self.cluster_barriers if end.kind.startswith("cluster") else self.barriers
        going_on, released = barriers.arrive(coming, end, code.next)
        if released:
            self.events += 1
        self._release(released)
        self._add(code.next, going_on)
        return None

    def _warpgroup_wait(self, bundle: Bundle, code: Code) -> int | None:
        released = self.execution.warpgroups.wait(bundle.paths, code.end, code.next)
        if len(released) == len(bundle.paths) and all(path in bundle.paths for _, path in released):
            return code.next
        if released:
            self.events += 1
        self._release(released)
        return None

    def _release(self, released: list[tuple[int, Path]]) -> None:
        for pc in dict.fromkeys(pc for pc, _ in released):
            paths = [path for other, path in released if other == pc]
            self._add(pc, self.joins.all_arrive(paths, pc))

    def _watch_progress(self, bundle: Bundle) -> None:
        if self.progress is not None:
            self.progress(self.instructions)
        if self.instructions > self.budget:
            raise deadlock(
                self,
                f"the budget of {self.budget} warp instructions is spent; a larger one:"
                " max_instructions of Machine.run, --budget of numba-marlin machine run",
                bundle.paths[0],
                at(self, bundle),
            )
        if self.spinning.idle(self.execution.memory.progress + self.events):
            bundles = [bundle, *self.ready.values()]
            if self.joins.waiting and self.spinning.long():
                self._open_joins()
            elif self.spinning.repeats(bundles) and not self._open_joins():
                said = "all warps that can run only repeat themselves"
                raise deadlock(self, said, bundle.paths[0], at(self, bundle))


ACTIONS = {
    Branch: Scheduler._branch,
    Call: Scheduler._call,
    Leave: Scheduler._leave,
    Return: Scheduler._return,
    Barrier: Scheduler._barrier,
    WarpgroupWait: Scheduler._warpgroup_wait,
}
