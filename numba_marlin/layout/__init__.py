"""Who holds which element: fragment maps of instructions, shared-memory swizzles, stripes of work.

Everything here is integers and NumPy; the room imports nothing else of the package. Whatever packs
bytes for an instruction (``formats``), checks an address pattern (tests) or explains a run
(``trace``) asks these maps, so that no permutation table is ever transcribed by hand.

- ``fragments``: which lane holds which matrix element in which register (``mma.m16n8k16``,
  ``ldmatrix``).
- ``swizzle``: the XOR swizzle of the activation tile in shared memory, and a bank-conflict counter
  to prove it.
- ``wgmma``: fragments of ``wgmma``, its matrix descriptors, and where they say that elements lie in
  shared memory.
- ``sparsity``: which lane's register holds the metadata of which part of a sparse operand.
- ``w4a8``: Marlin's 4-bit words as operands of 8-bit products, and the order of k in x for them.
- ``offsets``: where sums of groups of fp8 activations lie, and which they are.
- ``tcgen05``: Blackwell's tensor memory: descriptors, and where block scales are kept in it.
- ``tensor_map``: tensor maps (TMA): what a copy of a box moves, and where its bytes lie in shared
  memory.
- ``block_scales``: the 128x4 order of the scales of block-scaled matrices.
- ``stripes``: Marlin's striped partitioning of the weight tiles over thread blocks, and the order
  of its reductions.
"""
