"""Broken copies of a compiled kernel, each with one guard deleted or weakened, and the judge that
must notice.

``mutants.mutants(ptx)`` makes them: PTX text in, every ``Mutant`` of it out. ``rules`` says what
one instruction may lose, ``flow`` what takes a look at the whole kernel: parities, swizzles,
branches. ``judge`` runs one on the PTX machine under several schedules and says what caught it. The
room knows no kernel of ours and imports ``emulator``, nothing else of the package; which kernels,
on which problems, and why a mutant is equivalent is the business of ``experiments/16_mutants``.
"""
