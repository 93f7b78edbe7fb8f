"""Runs a program that ``building`` made, or reads its kernels; a line of JSON for each event.

    python one_program.py FOLDER EVENTS RACES run ARGUMENT ...
    python one_program.py FOLDER EVENTS RACES load

RACES: on or off. The program's main ends the process, with its own exit code.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from runtime import Runtime

from numba_marlin.emulator import Deadlock, MachineError, UnknownInstruction

ENDLESS = 64  # warp instructions of a kernel that is bound only


def bind(machine, entry: str) -> str:
    """What the machine says of a kernel when it is read and its instructions are bound; "" if
    nothing. It begins to run, with zeros for arguments: what it does then is of no interest."""
    try:
        kernel = machine.kernel(entry)
        machine.run(
            entry,
            block=min(32, kernel.max_threads or 32),
            args=[bytes(each.size) for each in kernel.parameters],
            max_instructions=ENDLESS,
            shared_bytes=1024,
        )
    except UnknownInstruction as error:
        return str(error)
    except MachineError as error:
        return "" if error.block is not None or isinstance(error, Deadlock) else str(error)
    return ""


def main() -> int:
    folder, events, races, what, *arguments = sys.argv[1:]
    log = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: dict) -> None:
        os.write(log, (json.dumps(event) + "\n").encode())

    library = ctypes.CDLL(str(Path(folder, "runtime.so")), ctypes.RTLD_GLOBAL)
    runtime = Runtime(library.numba_marlin_properties, races == "on", note)
    prototype = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.POINTER(ctypes.c_long))
    hook = prototype(lambda name, given: runtime.call(name.decode(), given))
    ctypes.c_void_p.in_dll(library, "numba_marlin_hook").value = ctypes.cast(
        hook, ctypes.c_void_p
    ).value
    program = ctypes.CDLL(str(Path(folder, "program.so")))
    if what == "load":
        for module in runtime.modules:
            for entry in module.machine.entries if module.code else ():
                note({"event": "kernel", "name": entry, "said": bind(module.machine, entry)})
        return 0
    words = [b"program", *(each.encode() for each in arguments)]
    values = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    code = program.main(len(words), values)
    ctypes.CDLL(None).fflush(None)
    return code & 0xFF


if __name__ == "__main__":
    os._exit(main())
