"""All kinds of files, by name."""

from tests.fuzz import foreign, shards, stores, texts
from tests.fuzz.case import Kind

KINDS: dict[str, Kind] = {kind.name: kind for room in (shards, stores, texts, foreign) for kind in room.KINDS}
