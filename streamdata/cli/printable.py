"""Text that comes from data, for a terminal: control characters are shown as such."""


def printable(value: object) -> str:
    """The text with what is not printable written as an escape: a name may not move the cursor or set a title."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode() for one in text
    )
