"""All formats of files: ``STORED``, name -> ``StoredFormat``, and ``find_stored(name)``. A module
that defines formats is imported here."""

# Each registers its formats; the tables list them in this order.
# isort: off
from numba_marlin.formats import gptq  # noqa: F401
from numba_marlin.formats import marlin_files  # noqa: F401
from numba_marlin.formats import block_files  # noqa: F401

# isort: on
from numba_marlin.formats.stored import STORED, StoredFormat
from numba_marlin.wording import did_you_mean

__all__ = ["STORED", "find_stored"]


def find_stored(name: str) -> StoredFormat:
    """The format called ``name``; ValueError lists the known ones."""
    try:
        return STORED[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"format={name!r} must be one of {', '.join(sorted(STORED))}"
            f"{did_you_mean(name, STORED)}"
        ) from None
