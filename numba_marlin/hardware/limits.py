"""Limits that hold on every GPU from compute capability 8.0 on. Pure numbers.

Source, unless a line says otherwise: CUDA C++ programming guide, "Technical specifications per
compute capability",
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
"""

WARP_LANES = 32
ALL_LANES = (1 << WARP_LANES) - 1
"""The membermask that names every lane of a warp."""

BLOCK_THREADS = 1024
"""Most threads of a block."""

THREAD_REGISTERS = 255
"""Most 32-bit registers of a thread."""

WARP_REGISTER_UNIT = 256
"""Registers are handed out to a warp in multiples of this (CUDA occupancy calculator)."""

SETMAXNREG_LEAST, SETMAXNREG_MOST, SETMAXNREG_STEP = 24, 256, 8
"""Registers per thread that ``setmaxnreg`` takes:
https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
"""

WARPGROUP_WARPS = 4
"""Consecutive warps that execute ``wgmma`` together, and ``setmaxnreg`` alike."""

SYSTEM_SHARED_BYTES = 1024
"""Shared memory that CUDA keeps for itself in every block."""

STATIC_SHARED_BYTES = 48 * 1024
"""A kernel with more shared memory than this needs an opt-in before its launch, and all beyond must
be dynamic."""

CONSTANT_BYTES = 64 * 1024
"""Constant memory of a device."""

PARAMETER_BYTES = 32764
"""Of all parameters of a kernel together:
https://docs.nvidia.com/cuda/parallel-thread-execution/#kernel-function-parameters
"""

GRID_BLOCKS = (2**31 - 1, 65535, 65535)
"""Most blocks of a grid in x, y and z."""

PORTABLE_CLUSTER_BLOCKS = 8
"""Blocks of a cluster that every GPU with clusters can hold."""

SM_SCHEDULERS = 4
"""Warp schedulers of an SM; each issues one instruction per cycle."""

TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = 128, 64
"""Of a ``CUtensorMap``, which ``cuTensorMapEncodeTiled`` of the CUDA driver API defines:
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
"""

BOX_ELEMENTS = 256
"""Most elements of a tensor copy's box along each dimension (``cuTensorMapEncodeTiled``)."""
