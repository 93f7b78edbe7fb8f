"""What a running kernel has: lanes, registers, memory, and how numbers are rounded."""
