"""Other profilers, and whether they are installed, as rows for a page. None of them is needed."""

from __future__ import annotations

import ctypes.util
import importlib.util
import shutil


def other_tools() -> list[dict]:
    ncu = shutil.which("ncu")
    cupti = (
        importlib.util.find_spec("cupti") is not None
        or ctypes.util.find_library("cupti") is not None
    )
    return [
        {
            "name": "Nsight Compute",
            "text": (
                f"{ncu}: the commands above run as they are, if this user may read counters"
                if ncu
                else (
                    "not found: hit rates of caches and stall reasons by hardware counters are not"
                    " known"
                )
            ),
        },
        {
            "name": "Nsight Systems",
            "text": shutil.which("nsys") or "not found: no time line of a program's launches",
        },
        {
            "name": "CUPTI",
            "text": (
                "found, not used: what it measures needs counters that only an administrator may"
                " read on most machines"
                if cupti
                else "not found"
            ),
        },
    ]
