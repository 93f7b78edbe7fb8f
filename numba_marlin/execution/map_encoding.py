"""Tensor maps as the driver encodes them: 128 bytes, passed to a kernel by value.

``layout.tensor_map`` describes a map; ``cuTensorMapEncodeTiled`` makes the bytes. Encoding takes
microseconds, so a map's template is kept, and of it only the address changes from call to call.
"""

from __future__ import annotations

import ctypes
import functools

from numba_marlin.execution import driver

# The driver's names of a tensor map's element types and, with a number of bytes in them, of its
# swizzles and promotions.
_TENSOR_TYPES = {
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "int32": "INT32",
    "uint64": "UINT64",
    "int64": "INT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
}


def _encode(tensor_map, address: int, ordinal: int) -> bytes:
    types = driver.bindings()

    def member(kind: str, name: str):
        return getattr(getattr(types, f"CUtensorMap{kind}"), f"CU_TENSOR_MAP_{name}")

    def words(kind: str, values) -> list:
        return [getattr(types, kind)(value) for value in values]

    rank = len(tensor_map.shape)
    # the driver needs one even for a single dimension
    strides = tensor_map.strides_bytes[:-1] or (
        tensor_map.shape[0] * tensor_map.strides_bytes[0] + 15 & ~15,
    )
    with driver.on_device(ordinal):
        encoded = driver.call(
            "cuTensorMapEncodeTiled",
            member("DataType", f"DATA_TYPE_{_TENSOR_TYPES[tensor_map.dtype]}"),
            rank,
            address,
            words("cuuint64_t", reversed(tensor_map.shape)),
            words("cuuint64_t", reversed(strides)),
            words("cuuint32_t", reversed(tensor_map.box)),
            words("cuuint32_t", [1] * rank),
            member("Interleave", "INTERLEAVE_NONE"),
            member(
                "Swizzle",
                f"SWIZZLE_{tensor_map.swizzle}B" if tensor_map.swizzle else "SWIZZLE_NONE",
            ),
            member(
                "L2promotion",
                (
                    f"L2_PROMOTION_L2_{tensor_map.l2_promotion}B"
                    if tensor_map.l2_promotion
                    else "L2_PROMOTION_NONE"
                ),
            ),
            member("FloatOOBfill", "FLOAT_OOB_FILL_NONE"),
        )
    return ctypes.string_at(int(encoded.getPtr()), 128)


@functools.lru_cache(maxsize=1024)
def tensor_map_template(tensor_map, ordinal: int) -> tuple[bytes, int] | None:
    """(the driver's 128 bytes, offset of the 8-byte address in them); None if the address changes
    other bytes too.

    The encoding is undocumented, so this encodes two addresses that differ in nearly all bits and
    compares.
    """
    addresses = (0x2AAAAAAAAA00, 0x155555555500)
    first, second = (_encode(tensor_map, address, ordinal) for address in addresses)
    words = [address.to_bytes(8, "little") for address in addresses]
    for place in range(0, 128, 8):
        if (
            first[place : place + 8] == words[0]
            and first[:place] + words[1] + first[place + 8 :] == second
        ):
            return first, place
    return None


def encode_tensor_map(tensor_map, address: int, ordinal: int = 0) -> bytes:
    """The 128 bytes of ``tensor_map`` (layout/tensor_map.py) for memory at ``address`` (16-byte
    aligned, else ValueError)."""
    if address % 16:
        raise ValueError(f"address={address:#x} of a tensor map must be a multiple of 16")
    template = tensor_map_template(tensor_map, ordinal)
    if template is None:
        return _encode(tensor_map, address, ordinal)
    encoded, place = template
    return encoded[:place] + address.to_bytes(8, "little") + encoded[place + 8 :]
