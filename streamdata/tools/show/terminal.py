"""Samples, as shown → text for a person in a terminal: in colour where there is colour, else with signs in its place.

In colour what is trained is green and what is not is dim, a token apart from the next by its shade, a document from the
next by a border. Without colour what is trained stands in «…», `│` ends a document and `┃` a row.
"""

from typing import Final

from rich.console import Console
from rich.text import Text

from streamdata.errors import one_line, shortened
from streamdata.tools.show.model import ShownField, ShownSample, ShownSegment, TokenRun, visible

_MARK: Final = "bold cyan"
_SOFT: Final = "dim"
_SHADES: Final = {True: ("green", "bright_green"), False: ("dim", "bright_black"), None: ("default", "bold")}
"""By whether tokens are trained."""
_ROLE: Final = "bold magenta"
_BORDER: Final = "bold yellow"
_SHORT: Final = 100
"""Characters of a value that stands beside its name."""
_PIECES: Final = 12
_LEAST_WIDTH: Final = 20


class SamplePrinter:
    """Prints samples, in as many columns as a console has.

    Args:
        console: Where to; whether it has colour, and how wide it is, is its own matter.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        # With NO_COLOR a terminal still has a system of colours, none of which is sent.
        self._in_colour = console.color_system is not None and not console.no_color

    def print_sample(self, sample: ShownSample) -> None:
        """A sample: its heading, its fields, and the records that it was made of."""
        number = f"step {sample.step:,}" if sample.step is not None else f"#{sample.number}" if sample.source else ""
        head = "".join(f"{one_line(word)}  " for word in (number, sample.source) if word)
        if self._in_colour:  # else there is nothing but fields between two headings: other programs read it, too
            self._console.print()
        self._place("── ", head, sample.where, _MARK)
        for field in sample.fields:
            self._field(field)
        for record in sample.records:
            self._place("┄┄ ", "raw record  ", record.where, _SOFT)
            for field in record.fields:
                self._field(field)
        if sample.num_records > len(sample.records):
            self._block(Text(f"… {sample.num_records - len(sample.records):,} more raw records", style=_SOFT))

    def _place(self, sign: str, head: str, where: str, style: str) -> None:
        start = f"{sign}{head}"[: self._console.width]
        line = start + shortened(one_line(where), self._console.width - len(start))
        self._console.print(Text(line.rstrip(), style=style, no_wrap=True))

    def _field(self, field: ShownField) -> None:
        head = Text.assemble((one_line(field.name), "bold"), (f"  {one_line(field.about)}", _SOFT))
        text, summary = Text(visible(field.text)), Text(visible(field.summary), style=_SOFT)
        # Numbers stand beside their name, and texts where they are short.
        is_beside = field.kind == "numbers" or ("\n" not in text.plain and len(text) <= _SHORT)
        self._console.print(Text("  ").join(filter(None, (head, text if is_beside else None, summary))))
        if not is_beside:
            self._block(text)
        self._segments(field)
        for image in field.images if field.kind == "frames" else ():  # of a single one the summary says it
            self._block(Text(visible(image.alt)))

    def _segments(self, field: ShownField) -> None:
        texts, is_chat = list(map(self._text, field.segments)), field.kind == "chat"
        if is_chat or self._in_colour:
            for segment, text in zip(field.segments, texts, strict=True):
                self._block(text, has_border=is_chat or len(texts) > 1)
                for image in segment.images:
                    self._block(Text(visible(image.alt)))
        elif texts:
            self._block(Text("│").join(texts).append("┃"))
        runs = (run for segment in field.segments for run in segment.runs)
        pairs = [pair for run in runs for pair in zip(run.ids, run.pieces, strict=False)]
        if pairs:
            words = [f"{number} {one_line(repr(piece))}" for number, piece in pairs[:_PIECES]]
            more = ["…"] if field.counts["tokens"] > len(words) else []
            self._block(Text("  ".join([f"pieces: {words[0]}", *words[1:], *more]), style=_SOFT))

    def _text(self, segment: ShownSegment) -> Text:
        text = Text(visible(segment.text)).append_text(Text.assemble(*map(self._run, segment.runs)))
        if segment.role:
            text = Text.assemble((f"{one_line(segment.role)}: ", _ROLE), text)
        return text.append(("\n" if text else "") + visible(segment.more) if segment.more else "", style=_SOFT)

    def _run(self, run: TokenRun) -> Text:
        if run.cut or run.padding:
            words = f" … {run.cut:,} more … " if run.cut else f"<pad> × {run.padding:,}"
            return Text(words, style=_SOFT if self._in_colour else "")
        if not self._in_colour:
            return Text(f"«{visible(run.text)}»" if run.trained else visible(run.text))
        shades = _SHADES[run.trained]
        pieces = [piece for piece in run.pieces if piece] or [run.text]
        return Text.assemble(*((visible(piece), shades[number % 2]) for number, piece in enumerate(pieces)))

    def _block(self, text: Text, *, has_border: bool = False) -> None:
        """A value below its name, in lines of the console's width."""
        indent, border = ("  ", has_border) if self._in_colour else ("", False)
        width = self._console.width - 4 if self._in_colour else self._console.width
        for number, line in enumerate(text.wrap(self._console, max(_LEAST_WIDTH, width))):
            sign = "" if not border else "│ " if number else "┌ "
            self._console.print(Text.assemble(indent, (sign, _BORDER), line), no_wrap=True)
