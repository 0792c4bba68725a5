"""Text with ``${…}`` in it ⇄ its parts, by OmegaConf's rules of escaping.

Before ``${`` every two backslashes stand for one, and an odd one makes the ``${`` literal; elsewhere a backslash is
only a backslash.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_BEFORE_OPENING = re.compile(r"(?<!\\)(\\*)\$\{")  # from the first backslash on, or a long run of them takes for ever


@dataclass(frozen=True)
class LiteralPart:
    """Text that stands for itself, with nothing escaped in it."""

    text: str


@dataclass(frozen=True)
class Interpolation:
    """One interpolation, from its ``${`` to its ``}``."""

    text: str


Part = LiteralPart | Interpolation


def closing(text: str, start: int) -> int | None:
    """Returns the index after the brace that closes the ``${`` at ``start``, or None if none does.

    Braces inside quotes do not count; a quote opens only where a value may begin, so that ``it's`` needs no escape.
    """
    depth = 0
    index = start + 1
    before = ""  # the last character that is no space
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1
        elif character in "\"'" and before in (",", ":", "[", "{"):
            end = _quote_end(text, index)
            index = index if end is None else end
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return index + 1
        before = before if text[index : index + 1].isspace() else text[index : index + 1]
        index += 1
    return None


def _quote_end(text: str, start: int) -> int | None:
    index = start + 1
    while index < len(text) and text[index] != text[start]:
        index += 2 if text[index] == "\\" else 1
    return index if index < len(text) else None


def split(text: str) -> list[Part]:
    """Splits text into literal parts and interpolations; an unclosed ``${`` takes all the rest."""
    parts: list[Part] = []
    index = 0
    while match := _BEFORE_OPENING.search(text, index):
        backslashes = len(match[1])
        literal = text[index : match.start()] + "\\" * (backslashes // 2)
        if backslashes % 2:
            parts.append(LiteralPart(literal + "${"))
            index = match.end()
            continue
        parts.append(LiteralPart(literal))
        opening = match.end() - 2
        index = closing(text, opening) or len(text)
        parts.append(Interpolation(text[opening:index]))
    parts.append(LiteralPart(text[index:]))
    return _merged(parts)


def join(parts: Iterable[Part]) -> str:
    """Puts parts together, so that OmegaConf reads the literal ones as they are."""
    merged = _merged(parts)
    text = ""
    for index, part in enumerate(merged):
        if isinstance(part, Interpolation):
            text += part.text
            continue
        escaped = _BEFORE_OPENING.sub(lambda match: match[1] * 2 + r"\${", part.text)
        if index + 1 < len(merged):
            escaped += "\\" * (len(escaped) - len(escaped.rstrip("\\")))
        text += escaped
    return text


def _merged(parts: Iterable[Part]) -> list[Part]:
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, LiteralPart) and merged and isinstance(merged[-1], LiteralPart):
            merged[-1] = LiteralPart(merged[-1].text + part.text)
        elif part.text:
            merged.append(part)
    return merged


def parsing_cost(text: str) -> int:
    """What OmegaConf's parser takes for a text, about: as long as for so many characters of plain interpolations.

    It is quadratic in how deep they nest, and four times as fast between them.
    """
    expressions = (part.text for part in split(text) if isinstance(part, Interpolation))
    return len(text) // 4 + sum(len(part) * part.count("${") for part in expressions)
