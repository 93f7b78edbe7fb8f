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


REGISTERS = {1: "%q", 16: "%h", 32: "%r", 64: "%rd"}  # by width, as ``ptx_cases.frame`` declares
PLACES = (  # addresses: of an array, of shared memory, of nothing
    *("%p0", "%p0", "%p0+4", "%p0+16", "%p0+4096", "%p1", "s", "s+16", "s+64", "%r0", "%r0+8"),
    *("%rd0", "%rd1", "0", "p0", "p0+8"),
)
SPECIALS = ("%tid.x", "%laneid", "%ctaid.y", "%clock64", "%lanemask_lt", "%nsmid", "%globaltimer")


class Programs:
    """Bodies of random instructions: opcodes that the machine knows, with operands of the kinds
    that they take, or of others. ``known``: decoded instructions that show what they take."""

    def __init__(self, known, seed) -> None:
        self.random = random.Random(f"{seed}")
        shapes: dict[str, list] = {}
        for each in known:
            shapes.setdefault(each.opcode, []).append(each.operands)
        self.shapes = [(opcode, operands[0]) for opcode, operands in sorted(shapes.items())]

    def draw(self) -> str:
        """A body for ``ptx_cases.frame``, with two parameters."""
        lines = [self.instruction() for _ in range(self.random.randint(1, 9))]
        at = self.random.randrange(len(lines) + 1)
        return "\n".join(
            [
                ".shared .align 128 .b8 s[1024];",
                "mov.u32 %r0, s;",
                "setp.lt.u32 %q1, %t, 7;",
                *lines[:at],
                "L:",
                *lines[at:],
            ]
        )

    def instruction(self) -> str:
        draw = self.random
        opcode, operands = draw.choice(self.shapes)
        if draw.random() < 0.03:
            opcode += "." + draw.choice(draw.choice(self.shapes)[0].split("."))
        if draw.random() < 0.03:
            operands = draw.choice(self.shapes)[1]
        if draw.random() < 0.03:
            operands = operands[:-1]
        guard = draw.choice(("", "", "", "@%q1 ", "@!%q1 ", "@%q3 "))
        given = "L" if opcode.startswith("bra") else ", ".join(map(self.operand, operands))
        return f"{guard}{opcode} {given};"

    def operand(self, like) -> str:
        draw, kind = self.random, type(like).__name__
        if draw.random() < 0.02:
            kind = draw.choice(("Immediate", "Special", "Address", "Sink", "Not", "Symbol"))
        if kind == "Vector":
            return "{" + ", ".join(map(self.operand, like.items)) + "}"
        if kind == "Pair":
            return f"{self.operand(like.first)}|{self.operand(like.second)}"
        if kind == "Address":
            index = f", {self.operand(like.index)}" if getattr(like, "index", None) else ""
            return f"[{draw.choice(PLACES)}{index}]"
        if kind == "Immediate":
            usual = getattr(like, "value", 0)
            return draw.choice(NUMBERS) if draw.random() < 0.3 else f"{usual}"
        if kind == "Register":
            width = like.width if draw.random() < 0.98 else draw.choice((1, 16, 32, 64))
            return f"{REGISTERS[width]}{draw.randrange(6)}"
        return {"Not": "!%q1", "Sink": "_", "Symbol": "s"}.get(kind, draw.choice(SPECIALS))
