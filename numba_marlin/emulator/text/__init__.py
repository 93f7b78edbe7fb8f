"""From PTX text to kernels made of decoded instructions and basic blocks."""
