"""Who runs next, and one run from its first instruction to its last.

``execution``: the state of a run, which handlers bind to; ``placing`` says where its variables lie,
``special_registers`` what %tid and its kin read as. ``blocks``: basic blocks made executable;
``undefined`` follows values that are none, ``provenance`` which variables addresses are of.
``scheduler`` runs bundles of warps block by block; ``gathering`` holds lanes that wait for a
collective, ``calls`` has the stacks of recursive functions, ``schedules`` chooses other legal
interleavings, ``late_loads`` does loads behind later accesses, ``spinning`` and ``standstill`` find
and explain that no warp can go on. Imports every other group.
"""
