"""The fuzzing kit: strategies, exact problems and ready-made tests for code that reads, writes or
multiplies these formats. Needs ``hypothesis``.

Tests for a new packing, kernel or pipeline:

    from numba_marlin import testing

    # a packing: every bit in its place
    test_packing = testing.packing_test(
        testing.Packing(my_pack, my_unpack, bits=4, k_step=8, n_step=16)
    )
    # a formats.Format
    test_layout = testing.layout_test(my_format, testing.quantized_weights(**testing.EVERY_TYPE))
    # a formats.stored.StoredFormat
    test_file_format = testing.stored_test(my_stored_format)
    # a kernel: exact results, every weight in its place, real data within their error bound
    test_kernel = testing.kernel_test(my_matmul, testing.problems(max_m=16))
    # a pipeline: every order of events
    TestRing = testing.ring_machine(my_pipeline_verbs, stages=3, consumers=2).TestCase

The strategies can be used in other tests:

    @given(testing.quantized_weights())
    def test_my_packer_writes_marlin_bytes(weight):
        assert (my_pack(weight.codes) == marlin.pack(weight).qweight).all()

    @given(testing.exact_problems())
    def test_my_kernel_is_exact_on_small_integers(problem):
        testing.check_exact(my_matmul(problem.x, problem.weight), problem)

    @given(testing.schedules())
    def test_my_kernel_is_right_in_every_schedule(schedule):
        machine = Machine(my_ptx, races=True)
        machine.run("my_kernel", seed=schedule, ...)

experiments/08_fuzz_your_own applies all of this to a toy format and a toy kernel, with bugs that
the kit finds.

- ``contents``: arrays of kinds that have found bugs, plain functions: ``make_codes``,
  ``make_scales`` (denormal, powers of two, extremes, ...), ``make_zeros`` ...
- ``weights``: strategies: ``problems``, ``codes``, ``scales``, ``weights``, ``quantized_weights``,
  ``permutations``, ``seeds``
- ``blocks``: ``make_blocks``, ``exact_blocks``, ``block_weights``: weights of block-scaled FP4, and
  exact problems with them
- ``exact``: ``exact_problem`` and its strategy: products with one correct result, bit for bit
- ``schedules``: interleavings of a run on the PTX machine
- ``launches``, ``operands``, ``trials``: the package's own kernels on the PTX machine with every
  trap set; products of two block-scaled operands; the small problems that each kernel declares
- ``packing``, ``kernels``, ``pipelines``: the checks, and the tests made of them. A new kind of
  thing to fuzz is a new module beside them.

Shapes are small: index bugs show on small shapes, and failing examples stay readable. Arrays come
from a drawn seed, not element by element: drawing a million elements is slow and shrinks to nothing
useful. Hypothesis draws what is worth shrinking: shape, group size, kind of content, seed. The
plain functions (``exact_problem``, ``check_packing`` ...) also serve parametrised tests.

By default shapes and types are those of the published Marlin kernel: float16, 4 bits, symmetric, n
a multiple of 64. For code that supports more, pass ``**EVERY_SHAPE`` to ``problems`` and
``**EVERY_TYPE`` to ``quantized_weights`` and ``exact_problems``, or a part of them.
"""

from numba_marlin.testing.blocks import KINDS_OF_BLOCKS, block_weights, exact_blocks, make_blocks
from numba_marlin.testing.contents import (
    CODE_KINDS,
    EVERY_TYPE,
    SCALE_KINDS,
    WEIGHT_KINDS,
    make_codes,
    make_quantized,
    make_scales,
    make_weights,
    make_zeros,
)
from numba_marlin.testing.exact import ExactProblem, exact_problem, exact_problems
from numba_marlin.testing.kernels import (
    candidates,
    check_exact,
    check_near,
    check_places,
    configurations,
    kernel_test,
)
from numba_marlin.testing.packing import (
    Packing,
    check_layout,
    check_packing,
    check_stored,
    formats,
    layout_test,
    packing_test,
    stored_formats,
    stored_test,
)
from numba_marlin.testing.pipelines import PythonLanguage, RingMachine, ring_machine
from numba_marlin.testing.schedules import schedules
from numba_marlin.testing.weights import (
    EVERY_SHAPE,
    Problem,
    codes,
    permutations,
    problems,
    quantized_weights,
    scales,
    seeds,
    weights,
)

__all__ = [
    "CODE_KINDS",
    "EVERY_SHAPE",
    "EVERY_TYPE",
    "ExactProblem",
    "KINDS_OF_BLOCKS",
    "Packing",
    "Problem",
    "PythonLanguage",
    "RingMachine",
    "SCALE_KINDS",
    "WEIGHT_KINDS",
    "block_weights",
    "candidates",
    "check_exact",
    "check_layout",
    "check_near",
    "check_packing",
    "check_places",
    "check_stored",
    "codes",
    "configurations",
    "exact_blocks",
    "exact_problem",
    "exact_problems",
    "formats",
    "kernel_test",
    "layout_test",
    "make_blocks",
    "make_codes",
    "make_quantized",
    "make_scales",
    "make_weights",
    "make_zeros",
    "packing_test",
    "permutations",
    "problems",
    "quantized_weights",
    "ring_machine",
    "scales",
    "schedules",
    "seeds",
    "stored_formats",
    "stored_test",
    "weights",
]
