"""Domains: the value of a record's field becomes the name of a directory."""

from urllib.parse import quote

from streamdata.prepare.errors import BadRecordError

_MOST_BYTES = 200
"""File systems stop at 255."""


def directory_name(domain: str) -> str:
    """A domain's name as one of a directory, so that no name leads elsewhere or is hidden.

    Raises:
        BadRecordError: It is too long for a file system.
    """
    name = quote(domain, safe=" ")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > _MOST_BYTES:
        raise BadRecordError(
            "wrong type", "domain_key", f"expected a name of at most {_MOST_BYTES} bytes, got {len(name)}"
        )
    return name
