"""Records made to hurt, and what is looked for in what is shown of them."""

import copy
import html.parser
import json
import sys

WORDS = (
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[31m",
    "\x9b31m\r\x08\x0c",
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "&lt;b&gt; ]]> --> </style></title>",
    "[bold red]x[/] [link=http://x]y[/link]",
    "\u202egnihton\u200b\u2066\ufeff",
    "\ud800",
    "\u0301" * 50 + "\U0001f600\u4e2d\u6587",
    "a\nb\r\nc\td\u2028e\x00",
    "{0} %s %(x)s {x!r:>{y}}",
    "x" * 20_000,
    "",
)
NUMBERS = (
    0,
    -1,
    1,
    0.0,
    -0.0,
    1e-320,
    1e308,
    -1e308,
    2**31,
    2**63,
    10**400,
    float("nan"),
    float("inf"),
    -float("inf"),
    True,
)
MANY = 100_000
MOST_CHARACTERS = 2_000_000  # of a list that is repeated


def others(random):
    """What may stand where something else should."""
    kind = random.integers(8)
    if kind < 3:
        return WORDS[random.integers(len(WORDS))]
    if kind < 6:
        return NUMBERS[random.integers(len(NUMBERS))]
    if kind < 7:
        return (None, [], {}, [[]], [None], {"x": {}}, [1, "2"], {"": 0})[random.integers(8)]
    deep = 0
    for _ in range(random.integers(2, 900)):
        deep = [deep] if random.integers(2) else {"x": deep}
    return deep


def places(value, way=()):
    """The way to every entry of nested dicts and lists; of long lists, to the first few."""
    if isinstance(value, (dict, list)):
        rows = value.items() if isinstance(value, dict) else list(enumerate(value))[:4]
        for key, each in rows:
            yield (*way, key)
            yield from places(each, (*way, key))


def mutated(record, random):
    """A copy of a record of plain data with one to three entries altered."""
    record = copy.deepcopy(record)
    for _ in range(random.integers(1, 4)):
        found = list(places(record))
        *way, last = found[random.integers(len(found))]
        holder = record
        for key in way:
            holder = holder[key]
        old, change = holder[last], random.integers(10)
        if change == 0:
            del holder[last]
        elif change == 1 and isinstance(holder, dict):
            holder[WORDS[random.integers(len(WORDS))]] = holder.pop(last)
        elif change == 2 and isinstance(old, list) and old:
            most = min(MANY // len(old), MOST_CHARACTERS // len(as_json(old)))
            holder[last] = old * (most if random.integers(2) else 3)
        elif change == 3 and isinstance(old, list):
            holder[last] = old[: len(old) // 2]
        elif isinstance(old, str) and change < 7:
            word = WORDS[random.integers(len(WORDS))]
            holder[last] = (old + word, word + old, word)[random.integers(3)]
        elif isinstance(old, (int, float)) and change < 7:
            holder[last] = NUMBERS[random.integers(len(NUMBERS))]
        else:
            holder[last] = others(random)
    return record


def unsafe(text: str) -> list[str]:
    """The characters of a terminal's text that it might obey, or that hide what stands there."""
    return sorted({each for each in text if not each.isprintable() and each not in "\n\t"})


class Shape(html.parser.HTMLParser):
    """The kinds of tags of a document, with their attributes; ``raw``: what stands in scripts and
    styles, ``links``: where attributes lead."""

    def __init__(self, document: str):
        super().__init__()
        self.kinds, self.raw, self.links, self.open = set(), [], set(), []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.kinds |= {(tag, name) for name, _ in attributes} | {(tag, "")}
        self.links |= {value for name, value in attributes if name in ("href", "src")}
        self.open.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style") and data.strip():
            self.raw.append(data)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def strict(text: str):
    """JSON without the numbers that JSON lacks."""

    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def as_json(record) -> str:
    """As JSON, however deep it is nested."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        return json.dumps(record)
    finally:
        sys.setrecursionlimit(usual)
