"""Rewrites the array parameters in the PTX of numba-cuda-mlir to those of numba-cuda
(``kernels.language.arrays``), so that launches are the same for both.

numba-cuda-mlir passes an array as a memref: pointer, pointer to the first element, offset, lengths,
and strides in elements.
"""

from __future__ import annotations

import re

from numba_marlin.kernels.language.arrays import array_type, flat_parameters


def with_array_words(ptx: str, entry: str, parameters) -> str:
    """Return the rewritten PTX. parameters: as in a KernelDefinition; arrays are C-contiguous and
    have one or two dimensions. Raises ValueError for PTX that does not have this form."""
    if not any(array_type(kind) for _, kind in parameters):
        return ptx
    passed = [name for name, _ in flat_parameters(parameters)]
    sources = [source for name, kind in parameters for source in _sources(name, kind)]
    head = re.search(rf"\.entry {re.escape(entry)}\(\n(.*?)\n\)", ptx, re.DOTALL)
    if head is None or len(re.findall(r"\.param ", head[1])) != len(sources):
        raise ValueError(f"PTX does not declare {len(sources)} words for {parameters}")
    declared = ",\n".join(f"\t.param .u64 {entry}_param_{i}" for i in range(len(passed)))
    body = ptx[head.end() :]

    def load(match):
        source = sources[int(match["index"])]
        if isinstance(source, int):
            return f"mov.u{match['width']} {match['register']}, {source};"
        place = f"[{entry}_param_{passed.index(source)}]"
        return f"ld.param.u{match['width']} {match['register']}, {place};"

    body, count = re.subn(
        rf"ld\.param\.[ub](?P<width>32|64)\s+(?P<register>%\w+),"
        rf" \[{re.escape(entry)}_param_(?P<index>\d+)\];",
        load,
        body,
    )
    if count != len(re.findall(rf"\b{re.escape(entry)}_param_\d+", ptx[head.end() :])):
        raise ValueError(
            f"PTX reads parameters of {entry} other than as words of 64 bits or their lower halves"
        )
    return ptx[: head.start(1)] + declared + ptx[head.end(1) : head.end()] + body


def _sources(name, kind):
    """Return, for each word of the memref, the name of the word that a launch passes instead, or a
    constant."""
    found = array_type(kind)
    if found is None:
        return [name]
    if found[1] > 2:
        raise ValueError(f"parameter {name} of type {kind} has more than two dimensions")
    lengths = [f"{name}.length{i}" for i in range(found[1])]
    return [name, name, 0, *lengths, *lengths[1:], 1]
