"""Changes to a file: of bytes, of numbers in it, and of a tree that it holds as JSON or YAML."""

import re
from random import Random
from typing import Any

EXTREMES = (
    0, 1, -1, 2, 127, 128, 255, 256, 511, 513, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48,
    2**53, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63),
)  # fmt: skip
_NUMBER = re.compile(rb"[0-9]+")
_LEAVES: tuple[Any, ...] = (
    *EXTREMES, None, True, False, 0.5, -0.0, 1e308, -1e-308, float("inf"), float("nan"), 2**64, 10**30, "", "0", "-1",
    "x", "..", "../x", "/", "a/b", "\0", "\ud800", "é" * 60, "x" * 300, "1e9", "null", "${a}", "<u2", [], {}, [[]],
    [0], {"": 0}, {"0": {}}, "nan", "__key__",
)  # fmt: skip
_MOST_EDITS = 5
_MOST_BYTES = 1 << 17


def mutate(content: bytes, rng: Random, words: tuple[bytes, ...] = ()) -> bytes:
    """The content after one to five changes; one in fifty has nothing of it any more."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.choice((0, 1, 7, 64, 512, 1024, 5000)))
    data = bytearray(content)
    edits = [_flip, _set, _cut, _delete, _insert, _repeat, _copy, _write_integer, _write_digits, _write_digits, _fill]
    edits += [lambda data, rng: _insert_word(data, rng, words)] * (2 if words else 0)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, _MOST_EDITS))):
        rng.choice(edits)(data, rng)
        del data[_MOST_BYTES:]
    return bytes(data)


def _place(data: bytearray, rng: Random) -> int:
    """A position; most often of a byte that is not zero, since archives are mostly padding."""
    if not data:
        return 0
    for _ in range(8 if rng.random() < 0.8 else 0):
        if data[at := rng.randrange(len(data))]:
            return at
    return rng.choice((0, len(data) - 1, rng.randrange(len(data))))


def _span(data: bytearray, rng: Random) -> slice:
    begin = _place(data, rng)
    return slice(begin, begin + rng.choice((1, 2, 4, 8, 16, 100, 512, 1024, len(data))))


def _flip(data: bytearray, rng: Random) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: Random) -> None:
    if data:
        data[_place(data, rng)] = rng.choice((0, 1, 10, 32, 34, 127, 128, 255, rng.randrange(256)))


def _cut(data: bytearray, rng: Random) -> None:
    del data[rng.choice((_place(data, rng), len(data) - rng.randrange(1, 9), len(data) // 512 * 512 - 512)) :]


def _delete(data: bytearray, rng: Random) -> None:
    del data[_span(data, rng)]


def _insert(data: bytearray, rng: Random) -> None:
    at = _place(data, rng)
    data[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 8, 512)))


def _insert_word(data: bytearray, rng: Random, words: tuple[bytes, ...]) -> None:
    at = _place(data, rng)
    data[at : at + rng.choice((0, 0, 1, 8))] = rng.choice(words)


def _repeat(data: bytearray, rng: Random) -> None:
    span = _span(data, rng)
    data[span.start : span.start] = bytes(data[span]) * rng.choice((1, 1, 2, 20))


def _copy(data: bytearray, rng: Random) -> None:
    source, target = _span(data, rng), _place(data, rng)
    part = bytes(data[source])
    data[target : target + (len(part) if rng.random() < 0.5 else 0)] = part


def _fill(data: bytearray, rng: Random) -> None:
    span = _span(data, rng)
    data[span] = bytes([rng.choice((0, 255, 32))]) * len(data[span])


def _write_integer(data: bytearray, rng: Random) -> None:
    width, at = rng.choice((1, 2, 4, 8)), _place(data, rng)
    at -= at % rng.choice((1, width))
    number = rng.choice((*EXTREMES, len(data), len(data) + 1, rng.randrange(len(data) + 1)))
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))


def _write_digits(data: bytearray, rng: Random) -> None:
    """Replace a number that is written in digits, whether or not as many are needed for the other one."""
    found = [match.span() for match in _NUMBER.finditer(data)]
    if found:
        begin, end = rng.choice(found)
        number = rng.choice((*EXTREMES, 10**30, len(data)))
        text = rng.choice((b"%d", b"%o", b"%e"))
        digits = text % (float(number) if text == b"%e" else number)
        data[begin:end] = digits[: end - begin].rjust(end - begin, b"0") if rng.random() < 0.5 else digits


def mutate_tree(tree: Any, rng: Random, leaves: tuple[Any, ...] = ()) -> Any:
    """The tree after one to five changes: values and keys are replaced, removed, moved, repeated."""
    box = [tree]
    for _ in range(rng.choice((1, 1, 1, 2, 3, _MOST_EDITS))):
        holder, key = rng.choice(places := _places(box))
        edit = rng.randrange(6)
        if edit <= 1:
            holder[key] = rng.choice((*_LEAVES, *leaves))
        elif edit == 2:
            other, name = rng.choice(places)
            holder[key] = _copied(other[name])
        elif edit == 3 and holder is not box:
            del holder[key]
        elif isinstance(holder, dict):
            holder[str(rng.choice((*_LEAVES, *leaves, *holder)))] = holder[key] if edit == 4 else holder.pop(key)
        elif holder is not box:
            holder.insert(rng.randrange(len(holder) + 1), _copied(holder[key]))
    return box[0]


def _places(holder: Any) -> list[tuple[Any, Any]]:
    keys = range(len(holder)) if isinstance(holder, list) else list(holder)
    own = [(holder, key) for key in keys]
    return own + [place for key in keys if isinstance(holder[key], dict | list) for place in _places(holder[key])]


def _copied(node: Any) -> Any:
    """Not the node itself, which would then be in itself."""
    if isinstance(node, dict):
        return {key: _copied(child) for key, child in node.items()}
    return [_copied(child) for child in node] if isinstance(node, list) else node
