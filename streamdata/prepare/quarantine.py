"""The first record that was put aside, as a message says it: what is wrong with one is mostly wrong with all."""

import json

from streamdata.prepare.errors import shown
from streamdata.prepare.layout import Layout

_MAX_FIELDS = 20


def first_bad(layout: Layout) -> str:
    """Where the first bad record of a run is, what is wrong with it and which fields it has; empty without one."""
    for path in (layout.quarantine, *sorted(layout.tasks.glob("*.quarantine.jsonl"))):
        if path.exists():
            with path.open("rb") as file:
                entry = json.loads(file.readline())
            where = f"{entry['place']}: {entry['field']}: " if entry["field"] else f"{entry['place']}: "
            return f"\n  The first is {where}{entry['reason']}: {entry['message']}{_fields(entry)}"
    return ""


def _fields(entry: dict[str, str]) -> str:
    """The names of the record's fields, where it has any and they are not named yet."""
    if "the fields" in entry["message"]:
        return ""
    try:
        found = json.loads(entry["record"])
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return f"\n  It is {shown(found)}."
    more = ", …" if len(found) > _MAX_FIELDS else ""
    return f"\n  Its fields are {', '.join(shown(name) for name in list(found)[:_MAX_FIELDS])}{more}." if found else ""
