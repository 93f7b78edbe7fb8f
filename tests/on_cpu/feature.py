"""What a feature of numba.cuda is: a program that uses it, given the module ``cuda`` of a compiler,
and that fails where a result is not right. ``FEATURES`` has them by what they are called, as the
modules ``features`` and ``device_features`` register them.
"""

import contextlib
import io
from collections.abc import Callable

FEATURES: dict[str, Callable] = {}
REFUSALS = ("NOT_SUPPORTED", "UnknownInstruction", "without a GPU", "NotImplementedError")


def feature(name: str):
    def keep(function):
        FEATURES[name] = function
        return function

    return keep


def outcome(name: str, cuda) -> tuple[str, str]:
    """("pass", ""), ("refuse", message) or ("fail", message) of a feature."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            FEATURES[name](cuda)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".strip()
        kind = "refuse" if any(word in said for word in REFUSALS) else "fail"
        return kind, " ".join(said.split())
    return "pass", ""
