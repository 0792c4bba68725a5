"""Keys that an object of a JSON line gives twice: RFC 8259 leaves open which counts, and parsers take the last."""

import json
from typing import Any


def twice_given(line: bytes) -> list[str]:
    """The keys that some object in a line of valid JSON has more than once, at any depth.

    Raises:
        RecursionError: It is nested deeper than Python's parser reads.
    """
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > len({key for key, _ in pairs}):
            keys = [key for key, _ in pairs]
            found.extend(sorted({key for key in keys if keys.count(key) > 1}))

    json.loads(line, object_pairs_hook=look)
    return found
