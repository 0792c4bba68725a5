"""Joining the fields of sidecar lines to the records of a tar shard."""

from collections.abc import Sequence

from streamdata.errors import ShardError
from streamdata.fields import KEY, URL, is_reserved
from streamdata.shards.json_rows import parse_row
from streamdata.shards.readers import Record
from streamdata.shards.sidecar_keys import SIDECAR_KEYS, line_key, names_of


def checked_names(meta_names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple.

    Raises:
        ValueError: One is no name, comes twice, or is reserved.
    """
    if isinstance(meta_names, str):
        raise ValueError(f"meta_names: expected a list of names, got the text {meta_names!r}\n  Write [{meta_names}].")
    for place, name in enumerate(meta_names):
        if not isinstance(name, str) or name in meta_names[:place] or is_reserved(name):
            raise ValueError(
                f"meta_names: expected different names, without two underscores at both ends, got {name!r}\n"
                "  Name each field of the sidecar once."
            )
    return tuple(meta_names)


def checked_sidecar_key(sidecar_key: str | None, meta_names: Sequence[str]) -> str | None:
    """What the keys of sidecars are; None where each shard has to tell.

    Raises:
        ValueError: It is neither of the two, or there are no fields to join.
    """
    if sidecar_key not in (None, *SIDECAR_KEYS):
        raise ValueError(
            f"sidecar_key: expected {' or '.join(map(repr, SIDECAR_KEYS))}, got {sidecar_key!r}\n"
            "  The keys of sidecars are the texts of '.id' members, or the records' keys. Without it, each shard tells."
        )
    if sidecar_key is not None and not meta_names:
        raise ValueError(
            f"sidecar_key: expected meta_names with it, got {sidecar_key!r} alone\n"
            "  Name the fields of the sidecar, or drop it."
        )
    return sidecar_key


def join(
    record: Record, line: bytes | None, meta_names: Sequence[str], by: str | None, sidecar: str, offset: int
) -> None:
    """Add the fields `meta_names` of a sidecar's line to a record; all None where the record has no line.

    Raises:
        ShardError: The line is not the record's, or a field is there already.
    """
    url = record[URL]
    row = {} if line is None else parse_row(line, f"{sidecar} (at offset {offset})", 1)
    if line is not None:
        names = names_of(record[KEY], record.get("id"), url, by)
        if (got := line_key(row, sidecar, 1)) not in (names.by_id, names.by_key):
            expected = " or ".join(dict.fromkeys([f"'{names.by_id}'", f"'{names.by_key}'"]))
            raise ShardError(
                f"sidecar '{sidecar}': offset {offset}: expected the line of key {expected}, got that of '{got}'\n"
                "  Delete the index of the shard; it is then built again."
            )
    for name in meta_names:
        if name in record:
            raise ShardError(
                f"shard '{url}': record '{record[KEY]}': expected no field '{name}', since meta_names asks for "
                f"it, got one in the archive\n  Rename the field in '{sidecar}', or drop it from meta_names."
            )
        record[name] = row.get(name)
