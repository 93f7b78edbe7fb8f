"""What a statement loads, in a Python interpreter of its own."""

import subprocess
import sys


def loaded_by(statement, cwd=None):
    """Top-level names of the modules that ``statement`` loads. What Python loads whenever it starts
    is not among them: a file of an installed package may have it import another (those of
    cuda-bindings 12 has it import cuda)."""
    program = (
        f"import sys\nbefore = set(sys.modules)\n{statement}\n"
        "print(' '.join({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
