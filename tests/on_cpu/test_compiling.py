"""Contract under test: the PTX of a launch, without the launch: what the machine runs of it gives
what a launch gives."""

import numpy as np
import pytest
from numba import cuda

from numba_marlin.emulator import Machine
from numba_marlin.on_cpu.compiling import compiled


@cuda.jit
def add_one(x, by):
    i = cuda.threadIdx.x
    x[i] += by


def test_the_text_is_that_of_the_kernel():
    made = compiled(add_one, (("float32", 1), ("int32", None)))
    assert (made.name, made.file, made.parameters) == ("add_one", __file__, ("x", "by"))
    machine = Machine(made.text, races=True)
    x = np.arange(8, dtype=np.float32)
    address = machine.memory.buffer(x, "x").address
    machine.run(made.entry, block=8, args=[0, 0, x.size, 4, address, x.size, 4, 3])
    assert x.tolist() == [i + 3 for i in range(8)]
    lines = {ins.source[1] for ins in machine.kernel().instructions if ins.source}
    assert add_one.py_func.__code__.co_firstlineno + 3 in map(int, lines)


def test_what_is_no_kernel_is_refused():
    with pytest.raises(TypeError, match="put @cuda.jit above"):
        compiled(add_one.py_func, ())
