"""Tensor cores: how they add, wgmma and tcgen05 in flight, tensor memory."""
