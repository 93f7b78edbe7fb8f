"""Tensor cores: how they add, and what is in flight in them.

``tensor_sums`` is the rounding of mma and wgmma, ``integer_sums`` their sums of integers,
``block_scales`` the rounding of block-scaled products, ``sparsity`` what sparse operands stand for;
``wgmma_forms`` says which types wgmma has, ``wgmma_products`` what one of its instructions says.
``warpgroups``: wgmma, whose registers ``wgmma_registers`` guards. ``tensor_cores``: tcgen05, with
``tensor_memory``, ``scale_cells``, ``tensor_hazards`` (who may touch which columns when) and
``tensor_registers``.
Imports ``asynchronous``, ``state``, ``text`` and ``errors``.
"""
