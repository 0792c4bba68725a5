"""Text that comes from data, for a terminal: control characters are shown as such."""

from streamdata.errors import printable


def one_line(value: object) -> str:
    """The text with what is not printable, line ends too, written as an escape: a name may not steer a terminal."""
    return printable(str(value)).replace("\n", "\\n")
