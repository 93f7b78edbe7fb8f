"""From packed codes to 16-bit floats: device functions that several kernels share.

``verbs``       4-bit codes to float16: ``ampere``, and constants for ``expand``
``expand``      4- and 8-bit codes to float16 and bfloat16: ``decode``, ``wgmma``
``expand_fp4``  FP4 codes and scales, and which bits of a word they are: the same, ``lookup_fp4``
``lookup``      one code, scale, zero point, found by its row and column: ``general``
``lookup_fp4``  the same of FP4: ``general``

``naive``, ``tiled`` and ``buffered`` use none of them: each is one file. The kernels of NVFP4 times
NVFP4 (kernels/nvfp4) have their own, since their operands are not in Marlin's order.
"""
