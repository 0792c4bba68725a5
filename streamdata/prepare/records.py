"""The bytes of a record → the record: a line of JSON, or a text file, which is `{"text": …}`."""

from typing import Any, Final

from streamdata.prepare.errors import BadRecordError
from streamdata.shards.jsonl.rows import Flaw, row_or_flaw

TEXT_SUFFIX: Final = ".txt"


def parse(raw: bytes, url: str, *, exact: bool = False) -> dict[str, Any]:
    """The record of a line, or of a text file.

    Args:
        raw: The line as it is in the file, or all of the file.
        url: Of the file, whose name says which.
        exact: Whether to refuse an integer beyond 64 bits, which would become a float.

    Raises:
        BadRecordError: It is no JSON object, or has such an integer; or it is a text that is not UTF-8.
    """
    if url.endswith(TEXT_SUFFIX):
        return _text(raw)
    record = row_or_flaw(raw, doubtful=exact, takes_nan=True)
    if isinstance(record, Flaw):
        detail = f"column {record.column}: expected {record.expected}, got {record.got}"
        raise BadRecordError("broken line", "", detail)
    return record


def _text(content: bytes) -> dict[str, Any]:
    try:
        return {"text": content.decode("utf-8-sig")}  # an editor's byte order mark is no part of the document
    except UnicodeDecodeError as error:
        detail = f"expected UTF-8, got the byte 0x{content[error.start]:02x} at offset {error.start}"
        raise BadRecordError("not UTF-8", "text", detail) from error
