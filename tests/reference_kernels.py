"""Products as tensor cores may add them up, at their crudest."""

import numpy as np


def truncate_to_24_bits(values):
    """Round float64 towards zero to a 24-bit significand: the crudest fp32 accumulator there is."""
    significand, exponent = np.frexp(values)
    return np.ldexp(np.trunc(np.ldexp(significand, 24)), exponent - 24)


def truncating_dot(x, w):
    """x [m, k] @ w [k, n] term by term, every sum truncated to 24 bits."""
    total = np.zeros((x.shape[0], w.shape[1]))
    for i in range(x.shape[1]):
        total = truncate_to_24_bits(total + x[:, i : i + 1] * w[i])
    return total


def tensor_core_dot(x, w):
    """The same in steps of 8 terms, aligned with the sum to the largest of them and cut off below
    its 24 bits."""
    total = np.zeros((x.shape[0], w.shape[1]))
    for start in range(0, x.shape[1], 8):
        terms = np.concatenate(
            [x[:, start : start + 8, None] * w[start : start + 8], total[:, None]], axis=1
        )
        exponent = np.frexp(np.abs(terms).max(axis=1, keepdims=True))[1]
        aligned = np.ldexp(np.trunc(np.ldexp(terms, 24 - exponent)), exponent - 24)
        total = truncate_to_24_bits(aligned.sum(axis=1))
    return total
