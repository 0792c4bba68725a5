"""Columns of text."""

from collections.abc import Sequence

from streamdata.errors import one_line


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of cells: the first and last column to the left, those between, which are numbers, to the right."""
    rows = [[one_line(cell) for cell in row] for row in rows]  # a line end in a name would end the row
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def percent_text(share: float) -> str:
    """A share in percent, to three digits: 0.75 is "75 %"."""
    return f"{100 * share:.3g} %"
