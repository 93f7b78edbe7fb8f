"""Warp instructions that a tile costs the faithful kernel, brought by cp.async and by TMA: those
that eight more tiles of a block execute on the PTX machine, by the kernel's verbs."""

import datetime
import json
from collections import Counter

from faithful import FAITHFUL

from numba_marlin import compiler, counts, testing
from numba_marlin.emulator import Machine
from numba_marlin.testing import launches

TILES = 8
ROWS = (16, 64)  # of a tile of A, all of them used


def executed(definition, config, m, tiles):
    """-> Counter of warp instructions by verb of one block that multiplies that many tiles, with
    its results checked."""
    problem = testing.exact_problem(m, config.tile_n, config.tile_k * tiles, 128, seed=0)
    prepared = launches.prepare(config, problem.x, problem.weight, kernel=definition, sms=1)
    compiled = compiler.build(definition, config, line_info=True)
    machine = Machine(compiled.ptx)
    found = counts.count(machine, **launches.launch_on(machine, prepared, compiled))[1]
    if not (prepared.buffers["c"] == problem.expected).all():
        raise ValueError(f"{definition.name}, m={m}: the product is wrong")
    return Counter({phase.name: phase.tally.executed for phase in found.phases})


def of_a_tile(name, m, tiles=TILES):
    """-> a row."""
    definition = FAITHFUL[name].definition
    config = definition.config_type(m // 16, 16, 4)
    few, many = (executed(definition, config, m, count * tiles) for count in (1, 2))
    verbs = {verb: (many[verb] - few[verb]) / tiles for verb in many}
    return {
        "kernel": name,
        "way": FAITHFUL[name].way,
        "m": m,
        "stages": config.stages,
        "verbs": {verb: count for verb, count in verbs.items() if count},
        "registers": compiler.build(definition, config).resources.registers,
        "date": datetime.date.today().isoformat(),
    }


def write(path):
    rows = [of_a_tile(name, m) for m in ROWS for name in FAITHFUL]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
