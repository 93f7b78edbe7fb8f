"""``record``: run a kernel on the machine with a ``Recorder``, and combine its data with the launch
and the contents of the buffers."""

from __future__ import annotations

from collections.abc import Iterable

from numba_marlin.counts.instructions import class_of
from numba_marlin.counts.liveness import reads_and_writes
from numba_marlin.counts.phases import phases, sources
from numba_marlin.emulator import Machine
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.trace.record import SCHEMA, Trace
from numba_marlin.trace.recorder import ROWS, Recorder
from numba_marlin.trace.sources import lines_of


def record(
    machine: Machine,
    entry: str | None = None,
    *,
    blocks: Iterable[int] | None = None,
    about: dict | None = None,
    rows: int = ROWS,
    **launch,
) -> Trace:
    """Run a kernel and record it. ``blocks``: whose registers and addresses are kept (default:
    all; accesses to the weights and to the result are kept of every block); ``about``: plain data
    about the problem, kept with the record; ``launch``: the arguments of Machine.run other than
    its listener. Raises ValueError for blocks that the grid does not have.
    """
    kernel = machine.kernel(entry)
    kept = None if blocks is None else tuple(sorted(set(blocks)))
    before = {buffer.name: buffer.data.copy() for buffer in machine.memory.buffers}
    recorder = Recorder(machine, entry, kept, rows)
    result = machine.run(
        entry,
        listener=Listener(
            started=recorder.started,
            before=recorder.step,
            after=recorder.after,
            access=recorder.access,
            request=recorder.access,
        ),
        **launch,
    )
    if kept is not None and not (kept and set(kept) <= set(range(result.blocks))):
        raise ValueError(
            f"blocks={kept} must be some of the grid's blocks 0 to {result.blocks - 1}"
        )
    header = {
        "schema": SCHEMA,
        "kernel": kernel.name,
        "target": machine.module.target,
        "launch": recorder.launch,
        "about": about or {},
        "result": {
            "instructions": result.instructions,
            "steps": result.steps,
            "blocks": result.blocks,
            "shared_bytes": result.shared_bytes,
        },
        "blocks": list(range(result.blocks) if kept is None else kept),
        "complete": recorder.complete,
        "instructions": described(machine, kernel, recorder.named),
        "source": lines_of(sources(kernel)),
        "registers": recorder.names,
        "buffers": [
            {
                "name": each.name,
                "address": each.address,
                "nbytes": each.nbytes,
                "dtype": str(each.array.dtype),
                "shape": list(each.array.shape),
            }
            for each in machine.memory.buffers
        ],
        "counts": recorder.observer.counts(result).as_dict(),
    }
    contents = {f"words_{name}": data for name, data in before.items()} | {
        f"after_{each.name}": each.data.copy()
        for each in machine.memory.buffers
        if not each.readonly
    }
    return Trace(header, recorder.arrays() | contents)


def described(machine: Machine, kernel, named) -> list[dict]:
    """Each instruction as plain data."""
    names, lines = phases(machine.module, kernel), sources(kernel)
    found = []
    for ins in kernel.instructions:
        read, written = reads_and_writes(ins)
        found.append(
            {
                "line": ins.line,
                "text": ins.text,
                "root": ins.root,
                "phase": names[ins.pc],
                "source": lines[ins.pc],
                "kind": class_of(ins),
                "reads": [named(each) for each in read],
                "writes": [named(each) for each in written],
                "guarded": ins.guard is not None,
            }
        )
    return found
