"""The files of a step: one of each rank, and one of what the run had come to under earlier sizes.

Both are JSON, compressed by gzip, whose sum shows when one is torn or damaged. A rank's file has its cursors as a list
for each field, which reads many times as fast as a dict for each cursor. The other file may be large; it is the same
for all ranks, and named by its digest.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from streamdata.errors import StateError
from streamdata.progress.deal_header import canonical, digest_of
from streamdata.progress.header import count
from streamdata.progress.states_table import StatesTable, columns_of, rows_of, table_of
from streamdata.progress.to_state import header_of_text
from streamdata.run import MAX_RANKS

_VERSION: Final = 3
_DAMAGE: Final = (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError)
"""All that reading a value of any type as one of ours can raise."""
_TORN: Final = (OSError, EOFError, zlib.error)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Of which rank, of how many, and at which step a file is."""

    rank: int
    size: int
    step: int
    group: str | None = None
    """Names the ranks that saved together, as far as they have a process group; None where nobody knows."""


@dataclass(frozen=True, kw_only=True)
class RankStates:
    """What one rank saved, in a file or for the other ranks."""

    name: str
    """For messages: the file's path, or the rank."""
    origin: Origin
    table: StatesTable = field(default_factory=StatesTable)


def encode(origin: Origin, table: StatesTable) -> bytes:
    """Write a rank's file."""
    columns, rare = columns_of(table.rows)
    others = table.others.items()
    content = {
        "streamdata_states": _VERSION,
        **asdict(origin),
        # As texts: headers are the same in most files, and parsed once.
        "headers": {key: canonical(value) for key, value in others if key.startswith("generation/")},
        "entries": {key: value for key, value in others if key.startswith(("worker/", "idle/"))},
        "paths": table.paths,
        "rows": len(table.rows),
        "columns": columns,
        # The standard library's JSON for what functions return: orjson would read long integers as floats.
        "rare": json.dumps(rare),
    }
    return gzip.compress(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), 1, mtime=0)


def decode(name: str, content: bytes) -> RankStates:
    """Read a rank's file.

    Raises:
        StateError: It is torn, damaged, or not such a file; the message begins with its name.
    """
    try:
        value = orjson.loads(gzip.decompress(content))
        version = value["streamdata_states"]
    except (*_TORN, *_DAMAGE) as error:
        raise StateError(
            f"{name}: expected a rank's states, got {len(content)} bytes that are not such a file from end to end: it "
            f"is torn or damaged ({error})\n  Restore it, or delete it: then its rank is missing at this step."
        ) from error
    if version != _VERSION:
        raise StateError(f"{name}: written by another version of streamdata\n  Read it with that version.")
    try:
        origin = Origin(**{field: value[field] for field in ("rank", "size", "step", "group")})
        if not count(origin.rank) < count(origin.size) <= MAX_RANKS:
            raise ValueError(f"rank {origin.rank} of {origin.size}")
        rows = rows_of(count(value["rows"]), value["columns"], json.loads(value["rare"]))
        headers = {key: header_of_text(header) for key, header in value["headers"].items()}
        # The rows are as they were when they were checked, in saving: the sum says so. What is beside them is looked at
        # in joining.
        others = table_of({**headers, **value["entries"]}).others
        return RankStates(name=name, origin=origin, table=StatesTable(tuple(value["paths"]), rows, others))
    except _DAMAGE as error:
        why = f"{type(error).__name__}: {str(error)[:100]}"
        raise StateError(
            f"{name}: does not come from save_states ({why})\n  Delete it: then its rank is missing."
        ) from error


def is_rank_file(content: bytes) -> bool:
    """Whether it begins like a rank's file, be it torn."""
    return content.startswith(b"\x1f\x8b")


def encode_deal(value: Mapping[str, Any]) -> tuple[str, bytes]:
    """Digest and content of the file of what a run had come to under earlier sizes: the same of equal ones."""
    text = canonical(value)
    # Without a time: the same bytes from each rank, whichever is first.
    return digest_of(text), gzip.compress(text.encode(), 6, mtime=0)


def decode_deal(name: str, digest: str, content: bytes) -> Any:
    """Read such a file.

    Raises:
        StateError: It is torn, damaged, or not the one of this digest; the message begins with its name.
    """
    try:
        text = gzip.decompress(content).decode()
        if digest_of(text) != digest:
            raise ValueError("it is not the one of its name")
        return json.loads(text)
    except (*_DAMAGE, *_TORN) as error:
        raise StateError(
            f"{name}: expected what the run had come to under earlier sizes, got {len(content)} bytes that are not "
            f"such a file from end to end ({error})\n  Restore it, or load another step."
        ) from error
