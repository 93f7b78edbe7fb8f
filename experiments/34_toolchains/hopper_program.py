"""A program of ``on_hopper`` in a process of its own: a line of JSON for each event.

    python hopper_program.py FOLDER EVENTS RACES ARGUMENT ...

Experiment 31's runtime, with what programs for Hopper call besides: launches with attributes, and
the driver's function that makes tensor maps. The program's main ends the process.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent / "31_programs")]

import numpy as np
from runtime import Runtime, at

from numba_marlin.layout.tensor_map import ELEMENT_BYTES, TensorMap

# cuTensorMapEncodeTiled's numbers
TYPES = ("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")
TYPES += ("bfloat16", "float32", "float32", "float32")
SWIZZLES = (0, 32, 64, 128)
CLUSTER = 4  # of enum cudaLaunchAttributeID
INVALID_VALUE = 1
ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    *[ctypes.c_void_p] * 5,
    *[ctypes.c_int] * 4,
)


def encode(out, kind, rank, address, dims, strides, box, steps, interleave, swizzle, *others):
    """cuTensorMapEncodeTiled: innermost dimension first."""

    def numbers(place, count, each):
        return list((each * count).from_address(place))[::-1] if count else []

    apart = numbers(steps, rank, ctypes.c_uint32)
    if interleave or any(each != 1 for each in apart):
        return INVALID_VALUE  # TensorMap has neither
    shape, boxes = numbers(dims, rank, ctypes.c_uint64), numbers(box, rank, ctypes.c_uint32)
    outer, of = numbers(strides, rank - 1, ctypes.c_uint64), TYPES[kind]
    try:
        made = TensorMap(of, shape, [*outer, ELEMENT_BYTES[of]], boxes, SWIZZLES[swizzle])
    except ValueError:
        return INVALID_VALUE
    ctypes.memmove(out, made.encode(address), 128)
    return 0


CALLED = ENCODE(encode)


class Hopper(Runtime):
    cluster: tuple | None = None

    def cudaGetDriverEntryPointByVersion(self, symbol, place, version, flags, status):
        if ctypes.string_at(symbol) != b"cuTensorMapEncodeTiled":
            return INVALID_VALUE
        at(place).value = ctypes.cast(CALLED, ctypes.c_void_p).value
        if status:
            at(status, ctypes.c_int).value = 0
        return 0

    def cudaGetDriverEntryPoint(self, symbol, place, flags, status):
        return self.cudaGetDriverEntryPointByVersion(symbol, place, 0, flags, status)

    def cuMemsetD32Async(self, target, value, count):
        self.bytes(target, 4 * count).view(np.uint32)[:] = value & 0xFFFFFFFF

    cuMemsetD32 = cuMemsetD32Async

    def cudaOccupancyMaxActiveClusters(self, place, function, configuration):
        at(place, ctypes.c_int).value = 1

    def cudaLaunchKernelExC(self, configuration, function, arguments):
        """The configuration: grid, block, shared memory, stream, attributes and how many."""
        words = (ctypes.c_uint32 * 6).from_address(configuration)
        attributes = at(configuration + 40).value
        for number in range(at(configuration + 48, ctypes.c_uint32).value):
            place = attributes + 72 * number
            if at(place, ctypes.c_uint32).value == CLUSTER:
                self.cluster = tuple((ctypes.c_uint32 * 3).from_address(place + 8))
        shared = at(configuration + 24).value
        return self.launch(function, tuple(words[:3]), tuple(words[3:]), arguments, shared)

    def launch(self, function, *others, **options):
        machine, cluster = self.kernels[function].module.machine, self.cluster
        self.cluster, run = None, machine.run
        machine.checks = "hardware"  # what is undefined, and works on chips, is a warning
        machine.run = lambda *given, **more: run(*given, **more, cluster=cluster)
        try:
            return super().launch(function, *others, **options)
        finally:
            machine.run = run


def main() -> int:
    folder, events, races, *arguments = sys.argv[1:]
    log = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: dict) -> None:
        os.write(log, (json.dumps(event) + "\n").encode())

    library = ctypes.CDLL(str(Path(folder, "runtime.so")), ctypes.RTLD_GLOBAL)
    runtime = Hopper(library.numba_marlin_properties, races == "on", note)
    prototype = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.POINTER(ctypes.c_long))
    hook = prototype(lambda name, given: runtime.call(name.decode(), given))
    pointer = ctypes.cast(hook, ctypes.c_void_p).value
    ctypes.c_void_p.in_dll(library, "numba_marlin_hook").value = pointer
    program = ctypes.CDLL(str(Path(folder, "program.so")))
    words = [b"program", *(each.encode() for each in arguments)]
    code = program.main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
    ctypes.CDLL(None).fflush(None)
    return code & 0xFF


if __name__ == "__main__":
    os._exit(main())
