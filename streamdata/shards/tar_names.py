"""Names of tar members → key and field, by the convention of webdataset.

A member's key is its name up to the first dot of its base name, with its directory; its field is the lower-cased rest.
Names are keys, never paths.
"""

import hashlib


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Key and field of a member; None where its base name has no dot or begins with one."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    return (name[:dot], name[dot + 1 :]) if dot > base else None


def as_text(name: bytes) -> str:
    """A name as text; bytes that are not UTF-8 become lone surrogates, as in the standard library's tarfile."""
    return name.decode("utf-8", "surrogateescape")


def field_name(suffix: bytes) -> str:
    """The field of a member whose name goes on with `suffix` after its key."""
    return as_text(suffix).lower()


def key_hash(key: str) -> int:
    """64 bits by which keys are told apart."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
