"""Errors that every room may raise. Imports nothing."""


class CapabilityMissing(RuntimeError):
    """This machine lacks something the call needs: a GPU, a driver, a compiler, a library. The
    message says what to do.

    The command line turns it into exit code 3.
    """
