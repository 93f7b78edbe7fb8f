"""The CuTe DSL without a driver: its compiled host code runs as it is, on top of a runtime that
records.

What that host code calls (launches, tensor maps, attributes) are functions of one library,
``libcute_dsl_runtime``; here is another with the same names, whose functions all call Python. A
tensor's data is an address of a Case. Written against nvidia-cutlass-dsl 4.8.
"""

import ctypes
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from recording import Missing

from numba_marlin.hardware.architectures import HOPPER

ARCHITECTURES = {"sm_80": "sm_80", "sm_90": "sm_90a"}
SLOTS = 16  # arguments of a call at most
HOOK = """typedef long (*Hook)(const char *, long *);
extern "C" { Hook numba_marlin_hook = 0; void cuda_dialect_assert_success(int) {} }
"""
MAP_BYTES = 128
SWIZZLES = (0, 32, 64, 128)
DLPACK = {"i": 0, "u": 1, "f": 2}  # type codes; bfloat16 is 4
ATTRIBUTE_CLUSTER = 4


def runtime() -> Path:
    """The library, compiled here."""
    origin = importlib.util.find_spec("cutlass").origin  # importing it would load the other one
    found = Path(origin).parents[2].glob("cu*/lib/libcute_dsl_runtime.so")
    command = ["nm", "-D", "--defined-only", str(next(found))]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in said.splitlines()]
    given = [f"a{number}" for number in range(SLOTS)]
    code = HOOK + "".join(
        f'extern "C" long {name}({", ".join(f"long {each}" for each in given)}) {{\n'
        f"  long all[] = {{{', '.join(given)}}};"
        f' return numba_marlin_hook("{name}", all); }}\n'
        for name in names
        if name.startswith(("_cu", "CuteDSLRT"))
    )
    folder = Path(tempfile.mkdtemp(prefix="cute_runtime"))
    (folder / "runtime.cc").write_text(code, encoding="utf-8")
    library = folder / "libruntime.so"
    command = ["g++", "-shared", "-fPIC", "-w", "-o", str(library), str(folder / "runtime.cc")]
    subprocess.run(command, check=True)
    return library


def own_map(found: bytes) -> bytes:
    """A tensor map as the DSL's host code writes it for the hardware, as one of the machine's.

    Its fields, seen by what host code writes for known tensors: the address; a word of rank - 1
    (3 bits from bit 4), the type by tensormap.replace's numbers (4 bits from bit 7) and the swizzle
    (2 bits from bit 13); strides in units of 16 bytes; sizes - 1; element strides and sizes of
    the box - 1, a byte each from byte 55 on. Innermost dimension first.
    """
    from numba_marlin.layout.tensor_map import _PTX_TYPES, ELEMENT_BYTES, TensorMap

    words = np.frombuffer(found, np.uint32).tolist()
    rank, of = 1 + (words[2] >> 4 & 7), _PTX_TYPES[words[2] >> 7 & 15]
    strides = [16 * each for each in words[3 : 2 + rank]]
    shape = [1 + each for each in words[8 : 8 + rank]]
    box = [1 + each for each in found[55 : 55 + rank]]
    return TensorMap(
        of,
        shape[::-1],
        [*strides[::-1], ELEMENT_BYTES[of]],
        box[::-1],
        SWIZZLES[words[2] >> 13 & 3],
    ).encode(words[0] | words[1] << 32)


class Recorder:
    """What the host code calls; ``case`` is filled."""

    def __init__(self) -> None:
        self.case, self.text, self.kernels, self.bytes = None, "", {}, {}

    def call(self, name: str, given) -> int:
        handler = getattr(self, name.lstrip("_"), None)
        return handler(given) if handler is not None else 0

    def cudaLibraryLoadData(self, given) -> int:
        ctypes.c_uint64.from_address(given[0]).value = 1
        return 0

    def cudaDeviceGetAttribute(self, given) -> int:
        """Of the attributes, the shared memory that a block may have."""
        ctypes.c_int32.from_address(given[0]).value = HOPPER.shared_bytes_per_block
        return 0

    def cuKernelGetAttribute(self, given) -> int:
        ctypes.c_int32.from_address(given[0]).value = 0
        return 0

    def cudaLibraryGetKernel(self, given) -> int:
        return self._kernel(given[0], given[2])

    def cuLibraryGetKernel(self, given) -> int:
        return self._kernel(given[0], given[2])

    def _kernel(self, out: int, name: int) -> int:
        handle = 16 * (1 + len(self.kernels))
        self.kernels[handle] = ctypes.string_at(name).decode()
        ctypes.c_uint64.from_address(out).value = handle
        return 0

    def cudaGetDeviceCount(self, given) -> int:
        ctypes.c_int32.from_address(given[0]).value = 1
        return 0

    def cudaGetDevice(self, given) -> int:
        ctypes.c_int32.from_address(given[0]).value = 0
        return 0

    def cudaMalloc(self, given) -> int:
        array = np.zeros(given[1], np.uint8)
        ctypes.c_uint64.from_address(given[0]).value = self.case.put(array)
        return 0

    def cudaLaunchKernelEx(self, given) -> int:
        """(configuration, kernel, addresses of the arguments)"""
        words = (ctypes.c_uint32 * 6).from_address(given[0])
        shared = ctypes.c_uint64.from_address(given[0] + 24).value
        attributes = ctypes.c_uint64.from_address(given[0] + 40).value
        count = ctypes.c_uint32.from_address(given[0] + 48).value
        cluster = None
        for number in range(count):  # of 4 bytes that name it, and 64 bytes at a multiple of 8
            at = attributes + 72 * number
            if ctypes.c_uint32.from_address(at).value == ATTRIBUTE_CLUSTER:
                cluster = tuple((ctypes.c_uint32 * 3).from_address(at + 8))
        self._launch(self.kernels[given[1]], words[:3], words[3:], given[2], shared, cluster)
        return 0

    def _launch(self, name, grid, block, arguments, shared, cluster) -> None:
        from numba_marlin.emulator import Machine

        cluster = None if cluster in (None, (0, 0, 0), (1, 1, 1)) else cluster
        pointers = (ctypes.c_uint64 * 64).from_address(arguments)
        values = [
            ctypes.string_at(pointers[number], parameter.size)
            for number, parameter in enumerate(Machine(self.text).kernel(name).parameters)
        ]
        values = [own_map(each) if len(each) == MAP_BYTES else each for each in values]
        self.case.launch(self.text, name, tuple(grid), tuple(block), values, shared, cluster)


RECORDER = Recorder()
_KEPT: list = []


def ready() -> None:
    """Before cutlass is imported, which looks for its library then."""
    if _KEPT:
        return
    os.environ.setdefault("CUTE_DSL_KEEP_PTX", "1")
    os.environ.setdefault("CUTE_DSL_DUMP_DIR", tempfile.mkdtemp(prefix="cute"))
    os.environ["CUTE_DSL_ARCH"] = "sm_90a"
    path = runtime()
    os.environ["CUTE_DSL_LIBS"] = str(path)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    prototype = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.POINTER(ctypes.c_long))
    hook = prototype(lambda name, given: RECORDER.call(name.decode(), given))
    pointer = ctypes.cast(hook, ctypes.c_void_p).value
    ctypes.c_void_p.in_dll(library, "numba_marlin_hook").value = pointer
    _KEPT.extend([library, hook])


class _Tensor(ctypes.Structure):
    """DLManagedTensor, of https://github.com/dmlc/dlpack"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class OnDevice:
    """What DLPack says of an array of the case: data at its address in device memory."""

    def __init__(self, case, array: np.ndarray, address: int | None = None) -> None:
        kind = array.dtype
        address = case.put(array) if address is None else address
        code = 4 if kind.name == "bfloat16" else DLPACK.get(kind.kind, 1)
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = [stride // kind.itemsize for stride in array.strides]
        strides = (ctypes.c_int64 * array.ndim)(*steps)
        self.tensor = _Tensor(
            address, (ctypes.c_int32 * 2)(2, 0), array.ndim, code, 8 * kind.itemsize, 1,
            shape, strides, 0, None, None,
        )  # fmt: skip
        _KEPT.append((self.tensor, shape, strides))

    def __dlpack__(self, **others):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return 2, 0


def tensor(case, array: np.ndarray, view=None, dynamic: int | None = None, align: int = 16):
    """A tensor of the DSL. ``view``: the array permuted or sliced, of the same memory; ``dynamic``:
    the innermost dimension, if sizes are known when it runs only."""
    from cutlass.cute.runtime import from_dlpack

    address = case.put(array)
    seen = array if view is None else view
    made = from_dlpack(OnDevice(case, seen, address), assumed_align=align)
    names = {"float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2"}
    if array.dtype.name in names:
        import cutlass

        made.element_type = getattr(cutlass, names[array.dtype.name])
    return made if dynamic is None else made.mark_layout_dynamic(leading_dim=dynamic)


def run(case, function, *args, compiled_with=None) -> None:
    """Compiles ``function`` for the case's target, and runs its host code. ``compiled_with``: its
    arguments, where some of them are constants that the run leaves out."""
    import cutlass.cute as cute

    ready()
    os.environ["CUTE_DSL_ARCH"] = ARCHITECTURES[case.target]
    given = args if compiled_with is None else compiled_with
    made = cute.compile(function, *given)
    made.__dict__["num_devices"] = 1  # it would ask a driver
    RECORDER.case, RECORDER.text = case, made.__ptx__
    if RECORDER.text is None:
        raise Missing("the compiler kept no PTX")
    made(*args)
