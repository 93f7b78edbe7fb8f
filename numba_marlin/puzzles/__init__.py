"""Puzzles: small kernels to complete, from a thread's number to ``wgmma``, checked on the PTX
machine. No GPU is needed; numba-cuda is.

    numba-marlin puzzles                 the list
    numba-marlin puzzles start 1         a file to complete, in ./puzzles
    numba-marlin puzzles check 1         is it right? if not, what it did, and where

A puzzle is one file of ``tasks/``: the text, what the kernel must compute in NumPy (``spec``), the
kernel with the learner's lines marked, and how it is checked. ``template`` makes the learner's file
of it (and a notebook), ``launch`` compiles and runs what they wrote, with every check that the
machine has (races, unwritten shared memory, copies that nobody waited for), ``judge`` compares with
``spec`` and says what is wrong, ``picture`` draws which thread wrote what. In a notebook:

    from numba_marlin import puzzles
    print(puzzles.check(add_ten))

Results are exact: inputs are small integers, so no order of sums matters.
"""

from numba_marlin.puzzles.judge import Verdict, check, check_file
from numba_marlin.puzzles.template import Puzzle, find, puzzles

__all__ = ["Puzzle", "Verdict", "check", "check_file", "find", "puzzles"]
