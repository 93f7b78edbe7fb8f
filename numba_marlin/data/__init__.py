"""Measurements that the package shows, and PTX that it runs without a compiler, installed with it.

``measured(name)`` gives the rows of ``data/measured/{name}.jsonl``. The files are extracts of what
the repository's experiments recorded; ``experiments/package_data.py`` writes them, and a test holds
them against the experiments:

``weight_times``
    launches of kernels with packed weights, timed on a GPU: kernel, configuration, problem, us.
``ladder_times``
    the same, of every kernel of the ladder, the plain ones included.
``block_times``
    launches of kernels with two block-scaled operands, the newest of each configuration.
``witness``
    probes that a GPU and the PTX machine both ran: what each covers and whether they agreed.
``levels``
    how far away each level of a GPU's memory is: in rows with the unit "cycles", the latency of a
    load that needs the address which the load before it gave; in the others ``per_cycle_and_sm``,
    the bytes or operations that an SM takes in a cycle (``per_cycle``: of all SMs).

``shipped_index()`` and ``shipped_ptx(name)`` give what ``.ci/ship_ptx.py`` wrote to data/shipped/;
``compiler.shipped`` says what it is for.

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


@functools.cache
def shipped_index() -> dict:
    """What is shipped: ``sources``, the digest of the sources; ``versions``, {distribution:
    version} of the tools; ``kernels``, a row each: kernel, target, line_info, config {field:
    value}, resources {field: value}, commands (of numba-marlin, that want it), key, and ptx, its
    name for ``shipped_ptx``."""
    import json
    from importlib.resources import files

    path = files("numba_marlin.data").joinpath("shipped", "index.json")
    return json.loads(path.read_text(encoding="utf-8"))


def shipped_ptx(name: str) -> str:
    """The PTX with this name. KeyError if there is none."""
    import zipfile
    from importlib.resources import files

    with (
        files("numba_marlin.data").joinpath("shipped", "ptx.zip").open("rb") as file,
        zipfile.ZipFile(file) as archive,
    ):
        return archive.read(name).decode()
