"""Measurements that the package shows, installed with it.

``measured(name)`` gives the rows of ``data/measured/{name}.jsonl``. The files are extracts of what
the repository's experiments recorded; ``experiments/package_data.py`` writes them, and a test holds
them against the experiments:

``weight_times``
    launches of kernels with packed weights, timed on a GPU: kernel, configuration, problem, us.
``block_times``
    launches of kernels with two block-scaled operands, the newest of each configuration.
``witness``
    probes that a GPU and the PTX machine both ran: what each covers and whether they agreed.

This room imports nothing of the package.
"""

from __future__ import annotations

import functools


@functools.cache
def measured(name: str) -> tuple[dict, ...]:
    """The rows, in the order of the experiment. ValueError if there is no such file."""
    import json
    from importlib.resources import files

    path = files("numba_marlin.data").joinpath("measured", f"{name}.jsonl")
    if not path.is_file():
        raise ValueError(f"name={name!r}: the package has no data/measured/{name}.jsonl")
    return tuple(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
