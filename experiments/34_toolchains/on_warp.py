"""Warp: kernels of our own, compiled ahead of time to PTX by its own package, and its launches made
by hand: bounds, then the arguments as Warp packs them. Written against warp-lang 1.19."""

import json
import re
import struct
import tempfile
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np

TARGETS = ("sm_80", "sm_90")
BLOCK = 256  # Warp's default


def version() -> str:
    return f"warp-lang {installed('warp-lang')}"


def cases():
    import warp

    warp.config.quiet = True
    warp.init()
    import warp_cases

    for name, function in warp_cases.CASES:
        for target in TARGETS:
            yield name, target, function


@cache
def compiled(kernel, target: str, block: int) -> tuple[str, dict]:
    """(PTX, shared memory by kernel's name) of the module of ``kernel``."""
    import warp

    folder = Path(tempfile.mkdtemp(prefix="warp"))
    kernel.module.options["block_dim"] = block
    kernel.module.options["enable_mathdx_gemm"] = False  # would be linked, as machine code
    architecture = int(target.removeprefix("sm_"))
    made = warp.compile_aot_module(
        kernel.module, arch=architecture, module_dir=str(folder), use_ptx=True
    )
    meta = next(folder.glob("*.meta"))
    return made[0].read_text(encoding="utf-8"), json.loads(meta.read_text(encoding="utf-8"))


def bounds(dim: tuple, threads_each: int) -> bytes:
    """launch_bounds_t: the extents, their product, and how many threads share each place."""
    extents = struct.pack(f"<{len(dim)}I", *dim)
    extents = extents.ljust(-(-len(extents) // 8) * 8, b"\0")
    return extents + struct.pack("<2Q", int(np.prod(dim)) * threads_each, threads_each)


def array_of(case, array, gradient=None) -> bytes:
    """An array's descriptor; vectors and matrices of NumPy's last dimensions are given by kind."""
    from warp._src.types import array_t

    kind, values = array if isinstance(array, tuple) else (0, array)
    dims = values.ndim - kind
    slope = 0 if gradient is None else case.put(gradient)
    return bytes(array_t(case.put(values), slope, dims, values.shape[:dims], values.strides[:dims]))


def launch(case, kernel, dim, *args, adjoints=(), tiled: int = 0, gradients=()) -> None:
    """args: arrays, (dimensions of an element, array), or what Warp's scalars, vectors and structs
    take. adjoints: for the backward kernel, one for each of args. tiled: threads of a block, where
    blocks are launched, not threads. gradients: arrays behind those of ``args``."""
    from warp._src.context import pack_arg

    block = tiled or BLOCK
    text, shared = compiled(kernel, case.target, block)
    way = "backward" if adjoints else "forward"
    entry = re.search(rf"\.entry ({kernel.key}\w*_cuda_kernel_{way})\b", text)[1]
    dim = (dim,) if isinstance(dim, int) else dim
    values = [bounds(dim, tiled or 1)]
    slopes = dict(zip(range(len(args)), gradients))
    for group in (args, adjoints):
        for number, value in enumerate(group):
            if isinstance(value, np.ndarray | tuple):
                values.append(array_of(case, value, slopes.get(number)))
            else:
                argument = kernel.adj.args[number]
                packed = pack_arg(kernel, argument.type, argument.label, value, "cpu")
                values.append(bytes(packed))
    threads = int(np.prod(dim)) * (tiled or 1)
    case.launch(
        text,
        entry,
        (-(-threads // block), 1, 1),
        (block, 1, 1),
        values,
        shared=shared.get(f"{entry}_smem_bytes", 0),
    )
