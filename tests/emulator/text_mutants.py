"""PTX texts with mistakes, drawn from a seed: what a program that writes PTX might get wrong, and
what a hostile one would try."""

import random

from numba_marlin.emulator.text.lexer import tokenize

NUMBERS = (
    *("0", "1", "-1", "3", "7", "8", "31", "33", "255", "256", "65535", "4096", "48000"),
    *("2147483647", "2147483648", "4294967295", "4294967296", "1000000000", "-2147483648"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551615"),
    *("18446744073709551616", "0x7fffffff", "0f7FC00000", "0dFFF0000000000000", "1.5", "08"),
)
STRAY = ("{", "}", "[", "]", "(", ")", ";", ",", ":", "@", "<", ">", "|", "!", "-", "+", "%", ".")
MOST = 3  # mistakes of a text


class Mutants:
    """Of one text, the same ones for the same seed."""

    def __init__(self, text: str, seed) -> None:
        self.text, self.random = text, random.Random(f"{seed}")
        self.tokens = tokenize(text)
        self.numbers = [each for each in self.tokens if each.kind == "number"]
        self.lines = text.splitlines(keepends=True)

    def draw(self) -> str:
        """One text with a mistake or a few."""
        text = self.random.choice((self.of_tokens, self.of_tokens, self.of_lines))()
        return text if self.random.random() < 0.95 else text[: self.random.randrange(len(text))]

    def of_tokens(self) -> str:
        changes = [self.change() for _ in range(self.random.randint(1, MOST))]
        text = self.text
        for start, end, instead in sorted(changes, reverse=True):
            text = text[:start] + instead + text[end:]
        return text

    def change(self) -> tuple[int, int, str]:
        """(start, end, what stands there instead) of a token."""
        draw = self.random
        if draw.random() < 0.4:
            token = draw.choice(self.numbers)
            return token.start, token.end, draw.choice(NUMBERS)
        token = draw.choice(self.tokens)
        instead = draw.choice(
            (
                "",
                f"{token.text} {token.text}",
                draw.choice(self.tokens).text,
                draw.choice(STRAY),
                token.text.rpartition(".")[0],  # a modifier less
                f"{token.text}.{draw.choice(self.tokens).text.rpartition('.')[2]}",
            )
        )
        return token.start, token.end, f" {instead} "

    def of_lines(self) -> str:
        draw, lines = self.random, list(self.lines)
        for _ in range(draw.randint(1, MOST)):
            at = draw.randrange(len(lines))
            what = draw.randrange(4)
            if what == 0:
                del lines[at]
            elif what == 1:
                lines.insert(at, lines[at])
            elif what == 2:
                lines.insert(draw.randrange(len(lines)), lines.pop(at))
            else:
                other = draw.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
        return "".join(lines)
