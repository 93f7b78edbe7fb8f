"""What a feature is: a few lines of CUDA C++ and the values that NumPy or plain arithmetic says
they have. ``of(group)`` collects them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NAMES = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "__half",
    "float32": "float",
    "float64": "double",
}
THREADS = 64
I = np.arange(THREADS, dtype=np.int32)  # noqa: E741  what the kernels call i
X = (37 * I + 11) % 101 - 50
U = X.astype(np.uint32) * np.uint32(2654435761)
F = (X / 8).astype(np.float32)
P = np.abs(F) + np.float32(0.5)  # positive
D = X / 7.0
H = F.astype(np.float16)


@dataclass(frozen=True)
class Feature:
    """``body``: of a kernel ``k(const GIVEN *x, WANTED *y)``, whose thread ``i`` is one of all that
    there are; ``before``: what stands before it. ``value``: (declaration, bytes) of one more
    parameter. ``ulps``: by how much a float may be off, as the CUDA C++ Programming Guide has it
    for the function. ``printed``: what printf must write. ``reported``: the kind of what the
    machine must report, where the feature is to stop a kernel."""

    group: str
    name: str
    body: str
    wanted: np.ndarray
    given: np.ndarray
    before: str = ""
    threads: int | tuple[int, ...] = THREADS
    blocks: int | tuple[int, ...] = 1
    shared: int = 0
    arch: str = "compute_90"
    options: tuple[str, ...] = ()
    attributes: str = ""
    value: tuple[str, bytes] | None = None
    ulps: int = 0
    printed: str = ""
    reported: str = ""

    @property
    def source(self) -> str:
        given, wanted = NAMES[self.given.dtype.name], NAMES[self.wanted.dtype.name]
        more = f", {self.value[0]}" if self.value else ""
        half = "#include <cuda_fp16.h>\n" if "__half" in (given, wanted) else ""
        return (
            f'{half}{self.before}\nextern "C" __global__ void {self.attributes}\n'
            f"k(const {given} *x, {wanted} *y{more}) {{\n"
            f"  int i = blockIdx.x * blockDim.x + threadIdx.x;\n{self.body}\n}}\n"
        )


def of(group: str, known: list[Feature]) -> Callable[..., None]:
    """feature(name, body, wanted, given=X, ...) enters one in ``known``."""

    def feature(name: str, body: str, wanted, given=X, **more) -> None:
        value = np.array(wanted, np.int32) if isinstance(wanted, list) else np.asarray(wanted)
        known.append(Feature(group, name, body, value, given, **more))

    return feature
