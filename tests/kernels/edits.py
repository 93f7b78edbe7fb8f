"""Edits of a compiled kernel's PTX, for kernels that are broken on purpose."""

import re


def change(pattern, by="", which=0):
    """Edit: what matches ``pattern`` for the ``which``-th time becomes ``by``; of all of them if
    that is None."""

    def edit(ptx):
        found = list(re.finditer(pattern, ptx))
        assert found, f"there is no {pattern}"
        for match in reversed(found if which is None else [found[which]]):
            ptx = ptx[: match.start()] + match.expand(by) + ptx[match.end() :]
        return ptx

    return edit


def both(*edits):
    def edit(ptx):
        for each in edits:
            ptx = each(ptx)
        return ptx

    return edit
