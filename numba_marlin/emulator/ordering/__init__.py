"""Happens-before: which accesses nothing orders, and how a race is reported."""
