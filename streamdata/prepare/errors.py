"""What can go wrong while preparing: with the whole run, or with one record."""

from typing import Any

from streamdata.errors import StreamdataError


class PrepareError(StreamdataError, ValueError):
    """A run cannot go on because of its output directory, its inputs, a worker, or a record that must not be bad."""


class BadRecordError(Exception):
    """One record cannot become tokens; it ends the run, or is quarantined and counted.

    Args:
        reason: What `quarantine.jsonl` and the manifest count it under, such as "missing field".
        field: The path of the field, empty where it is the record as a whole.
        message: What was expected, and what was found.
    """

    def __init__(self, reason: str, field: str, message: str) -> None:
        super().__init__(reason, field, message)  # its arguments: exceptions are pickled with these
        self.reason, self.field, self.message = reason, field, message


class DroppedRecordError(Exception):
    """One record is left out as the config asks; its reason is counted.

    Args:
        reason: What the manifest counts it under, such as "fewer than min_chars".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def shown(value: Any, max_length: int = 60) -> str:
    """A value in a message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= max_length else f"{text[:max_length]}…"
