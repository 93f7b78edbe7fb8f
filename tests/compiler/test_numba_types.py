"""Contract under test: numba-cuda knows the types of the language, whoever imported what before."""

import subprocess
import sys

IMPORTED_BEFORE = """
import numba.types
from numba_marlin.compiler.builder import backend
from numba_marlin.hardware.targets import target_named

def make(lang):
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32

    def kernel(out):
        words = cuda.local.array(4, uint32)
        for i in range(4):
            words[i] = ptx.tid_x() + i
        ptx.st_global_v4_b32(out, (words[0], words[1], words[2], words[3]))

    return kernel

compiler = backend("numba-cuda")
body = make(compiler.language())
print(".entry" in compiler.to_ptx(body, (("out", "u64"),), target_named("sm_80"), 32))
"""


def test_arrays_have_these_types_whoever_imported_numba_types():
    """After ``import numba.types`` the attribute ``types`` of numba is a module that hands reading
    on to numba.core.types, and keeps to itself what is set on it."""
    done = subprocess.run([sys.executable, "-c", IMPORTED_BEFORE], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
