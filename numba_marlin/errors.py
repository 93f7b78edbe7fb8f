"""Errors that every package may raise. Imports nothing."""


class CapabilityMissing(RuntimeError):
    """This computer lacks something that the call needs: a GPU, a driver, a compiler, a library.
    The message says what to do.

    The command line turns it into exit code 3.
    """
