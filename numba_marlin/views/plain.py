"""A page as JSON: {"schema": "numba-marlin/page/1", "title", "subtitle", "sections": [...]}; a part
is its fields and "part", its class in lower case."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass

from numba_marlin.views.page import Figure, Page, Text

SCHEMA = "numba-marlin/page/1"


def as_dict(page: Page) -> dict:
    return {"schema": SCHEMA, **plain(page)}


def render(page: Page) -> str:
    return json.dumps(as_dict(page), indent=1, allow_nan=False)


def plain(value):
    """Dataclasses become dicts, tuples lists; numbers that JSON lacks null."""
    if is_dataclass(value):
        named = {"part": type(value).__name__.lower()} if isinstance(value, (Text, Figure)) else {}
        return named | {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def nested_deeper(value, most: int) -> bool:
    """Whether lists and dicts lie in each other more than ``most`` deep."""
    level = [value]
    for _ in range(most + 1):
        within = [each for each in level if isinstance(each, (dict, list))]
        level = [
            entry
            for each in within
            for entry in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)
