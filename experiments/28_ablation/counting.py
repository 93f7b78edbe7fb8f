"""What every ablation does, counted on the PTX machine: first the product, compared bit for bit
with the float64 one under the race detector, then the counts of the same launch."""

from collections import Counter

import numpy as np
from ablations import EVERY, Ablation
from plain_layout import plain_words

from numba_marlin import counts
from numba_marlin.emulator import Machine
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.testing import exact, launches

TARGET = launches.TARGET
SMS = 5
# m, n, k; the configuration, which the heuristics would choose for as many rows of a large weight
PROBLEMS = (
    ((16, 384, 1024), AmpereConfig(1, 8, 8, group_blocks=8)),
    ((64, 384, 512), AmpereConfig(4, 8, 8, group_blocks=8)),
)
GROUP_SIZE = 128


def prepared(ablation: Ablation, sizes, base) -> tuple[launches.Prepared, np.ndarray]:
    """(the launch, its result as it must be)"""
    m, n, k = sizes
    problem = exact.exact_problem(m, n, k, GROUP_SIZE, seed=1)
    config = ablation.configured(base)
    launch = launches.prepare(
        config, problem.x, problem.weight, kernel=ablation.kernel, sms=SMS, target=TARGET
    )
    if ablation.plain:
        launch.buffers["b"] = plain_words(launch.buffers["b"])
    return launch, problem.expected


def check(ablation: Ablation, sizes, base) -> None:
    """AssertionError, or the machine's error, unless the product is right and there is no race."""
    launch, expected = prepared(ablation, sizes, base)
    launches.on_machine(launch, races=True)
    launches.check_locks(launch.buffers)
    wrong = int(np.count_nonzero(launch.buffers["c"] != expected))
    assert not wrong, f"{ablation.name}: {wrong} of {expected.size} elements are wrong"


def count(ablation: Ablation, sizes, base) -> dict:
    """One object of counts.jsonl. Instructions are those of warps; wavefronts those of shared
    memory; ``asked`` and ``distinct``: bytes of global memory, ``distinct`` counted once."""
    launch, _ = prepared(ablation, sizes, base)
    machine = Machine(launch.compiled.ptx)
    result, found = counts.count(machine, **launches.launch_on(machine, launch))
    tally, config = found.total.tally, launch.config
    wavefronts: Counter = Counter()
    conflicts: Counter = Counter()
    opcodes: Counter = Counter()
    for each in found.instructions:
        if each.tally.executed:
            opcode = each.text.removeprefix("@").split()[each.text.startswith("@")]
            opcodes[opcode.rstrip(";")] += each.tally.executed
            if each.tally.shared.requests:
                kind = use(each.text)
                wavefronts[kind] += each.tally.shared.wavefronts
                conflicts[kind] += each.tally.shared.conflicts
    m, n, k = sizes
    k_tiles = -(-k // config.tile_k)
    tiles = k_tiles * -(-n // config.tile_n) * -(-m // config.tile_m)
    share = -(-tiles // launch.grid[0])
    if config.whole:
        share = -(-tiles // k_tiles // launch.grid[0]) * k_tiles
    return {
        "name": ablation.name,
        "m": m,
        "n": n,
        "k": k,
        "sms": SMS,
        "blocks": found.blocks,
        "busiest_bytes": share * config.b_stage_bytes,
        "instructions": tally.executed,
        "classes": dict(sorted(tally.classes.items())),
        "barriers": sum(count for name, count in opcodes.items() if name.startswith("bar.sync")),
        "waits": sum(n for name, n in opcodes.items() if name.startswith("cp.async.wait")),
        "wavefronts": dict(sorted(wavefronts.items())),
        "conflicts": dict(sorted((key, n) for key, n in conflicts.items() if n)),
        "buffers": {
            each.name: {
                "asked": each.reads.bytes,
                "distinct": each.read_distinct,
                "written": each.writes.bytes,
            }
            for each in found.buffers
        },
        "registers": launch.compiled.resources.registers,
        "shared_bytes": launch.compiled.shared_bytes,
    }


def use(text: str) -> str:
    """What an access to shared memory is: copied, ldmatrix, loaded or stored."""
    for opcode, name in (("cp.async", "copied"), ("ldmatrix", "ldmatrix"), ("ld.", "loaded")):
        if opcode in text:
            return name
    return "stored"


def rows():
    """The objects of counts.jsonl."""
    for sizes, base in PROBLEMS:
        for ablation in EVERY.values():
            check(ablation, sizes, base)
            yield count(ablation, sizes, base)
