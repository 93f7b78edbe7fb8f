"""W4A8 of a mixture of experts: Marlin's bytes times x in 8 bits, ragged over
experts in one launch.

``moe_wgmma_int8`` and ``moe_wgmma_fp8`` are one kernel with two types of x, as ``wgmma_int8`` and
``wgmma_fp8`` are: ``kernel`` is what to read, after ``kernels.w4a8`` and ``moe_wgmma``, of whose
verbs it is made; ``config`` holds its sizes, ``choose`` says which of them a problem gets,
``definition`` what others want to know."""
