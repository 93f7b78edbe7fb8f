"""Features of CUDA C++, in groups: a module has those of one."""

from features import (
    atomics,
    cooperation,
    functions,
    integers,
    language,
    library,
    memory,
    numbers,
    warps,
)

MODULES = (
    *(language, memory, warps, atomics, integers),
    *(numbers, functions, cooperation, library),
)
FEATURES = [feature for module in MODULES for feature in module.FEATURES]
