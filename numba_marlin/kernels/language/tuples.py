"""Device verbs over tuples of registers, cut into pieces at compile time: accumulators never see an
array, nor an index at run time. (For kernels with wide accumulators, ``wgmma`` and those of
kernels/nvfp4; the others do not use it.)

    for_each       a verb that returns nothing, for each piece of a tuple
    map_each       a verb that returns a tuple, for each piece; the results joined to one tuple
    numbered_each  for_each, with a verb of its own for each piece
    numbered       map_each, with a verb of its own for each piece
    together       map_each over two tuples at a time
    repeat         a tuple of the results of ``width`` calls

A verb takes (tuple of ``piece`` values, where) and is applied to one piece after the other, from
the first to the last: ``for_each(lang, width, piece, verb, stride)`` makes a device function of
(values, where) that does what this would do for a tuple of ``width``::

    for i in range(width // piece):
        verb(values[i * piece : (i + 1) * piece], where + i * stride)

So a verb gets a tuple even where ``piece`` is 1: ``value[0]`` is its one value. ``where`` is an
address, say, and ``stride`` the bytes from piece to piece. With stride 0 ``where`` may have any
type, a record too, and every piece gets it as it is; a verb that does not need it is given a 0.
(Tuples are halved again and again, since Numba unrolls no loop over slices of a tuple.)
"""


def for_each(lang, width, piece, verb, stride=0):
    """-> device function (values, where), for a verb that returns nothing."""
    if width == piece:
        return verb
    half, moved = _halve(lang, width, piece, stride)
    first, second = (
        for_each(lang, half, piece, verb, stride),
        for_each(lang, width - half, piece, verb, stride),
    )

    @lang.device
    def both(values, where):
        first(values[:half], where)
        second(values[half:], moved(where))

    return both


def map_each(lang, width, piece, verb, stride=0):
    """-> device function (values, where) that returns the verb's tuples, joined to one."""
    if width == piece:
        return verb
    half, moved = _halve(lang, width, piece, stride)
    first, second = (
        map_each(lang, half, piece, verb, stride),
        map_each(lang, width - half, piece, verb, stride),
    )

    @lang.device
    def both(values, where):
        return first(values[:half], where) + second(values[half:], moved(where))

    return both


def numbered(lang, width, piece, verb_of, first=0):
    """-> device function (values, where) that returns the tuples of verb_of(i)(piece i of values,
    where), put together: each piece has a verb of its own."""
    if width == piece:
        return verb_of(first)
    pieces = (width // piece + 1) // 2
    half = pieces * piece
    before, behind = (
        numbered(lang, half, piece, verb_of, first),
        numbered(lang, width - half, piece, verb_of, first + pieces),
    )

    @lang.device
    def both(values, where):
        return before(values[:half], where) + behind(values[half:], where)

    return both


def numbered_each(lang, width, piece, verb_of, first=0):
    """``numbered`` for verbs that return nothing."""
    if width == piece:
        return verb_of(first)
    pieces = (width // piece + 1) // 2
    half = pieces * piece
    before, behind = (
        numbered_each(lang, half, piece, verb_of, first),
        numbered_each(lang, width - half, piece, verb_of, first + pieces),
    )

    @lang.device
    def both(values, where):
        before(values[:half], where)
        behind(values[half:], where)

    return both


def together(lang, width, piece, verb):
    """-> device function (left, right, where) that returns the tuples of verb(piece of left, piece
    of right, where), joined to one. ``where`` is the same for all pieces."""
    if width == piece:
        return verb
    half = (width // piece + 1) // 2 * piece
    first, second = together(lang, half, piece, verb), together(lang, width - half, piece, verb)

    @lang.device
    def both(left, right, where):
        return first(left[:half], right[:half], where) + second(left[half:], right[half:], where)

    return both


def repeat(lang, width, verb):
    """-> device function () -> tuple of the results of ``width`` calls of verb()."""

    @lang.device
    def one():
        return (verb(),)

    if width == 1:
        return one
    rest = repeat(lang, width - 1, verb)

    @lang.device
    def more():
        return one() + rest()

    return more


def _halve(lang, width, piece, stride):
    if width % piece:
        raise ValueError(f"width={width} must be a multiple of piece={piece}")
    pieces = (width // piece + 1) // 2
    skipped = pieces * stride

    @lang.device
    def same(where):
        return where

    @lang.device
    def moved(where):
        return where + skipped

    return pieces * piece, moved if skipped else same
