"""Views → text for a person in a terminal: in colour where there is colour, else with signs in its place.

In colour what is trained is green and what is not is dim, a token apart from the next by its shade, a document from the
next by a border. Without colour what is trained stands in «…», `│` ends a document and `┃` a row.
"""

from typing import Final

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.style import Style
from rich.text import Text

from streamdata.tools.show.views.model import (
    ChatView,
    FieldView,
    FramesView,
    ImageView,
    NumbersView,
    RunView,
    SampleView,
    SegmentView,
    TextView,
    TokensView,
    in_one_line,
    visible,
)

_MARK: Final = "bold cyan"
_SOFT: Final = "dim"
_TRAINED: Final = ("green", "bright_green")
_MASKED: Final = ("dim", "bright_black")
_UNSAID: Final = ("default", "bold")
_ROLE: Final = "bold magenta"
_BORDER: Final = "bold yellow"
_SHORT: Final = 100
"""Characters of a value that stands beside its name."""
_PIECES: Final = 12


class SamplePrinter:
    """Prints views.

    Args:
        console: Where to; whether it has colour, and how wide it is, is its own matter.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        # With NO_COLOR a terminal still has a system of colours, none of which is sent.
        self._in_colour = console.color_system is not None and not console.no_color
        self._has_shades = self._in_colour and console.color_system in ("truecolor", "256")

    def print_sample(self, view: SampleView) -> None:
        """A sample: its heading, its fields, and the records that it was made of."""
        step = "" if view.step is None else f"step {view.step:,}"
        self._heading(step or (f"#{view.number}" if view.source else ""), view.source, view.where)
        for field in view.fields:
            self._field(field)
        for record in view.records:
            self._line(Text(f"┄┄ raw record  {in_one_line(record.where)}", style=_SOFT))
            for field in record.fields:
                self._field(field)
        if view.num_records > len(view.records):
            self._line(Text(f"… {view.num_records - len(view.records):,} more raw records", style=_SOFT))

    def _heading(self, *parts: str) -> None:
        words = "  ".join(in_one_line(part) for part in parts if part)
        if not self._in_colour:
            self._line(Text(f"── {words}"))  # nothing but fields between two of them: other programs read it, too
        else:
            self._console.print()
            self._console.print(Rule(Text(f" {words} ", style=_MARK), align="left", style=_SOFT))

    def _field(self, field: FieldView) -> None:
        head = Text.assemble((in_one_line(field.name), "bold"), (f"  {in_one_line(field.about)}", _SOFT))
        value = field.value
        if isinstance(value, NumbersView | TextView):
            self._value(head, value)
            return
        if isinstance(value, TokensView):
            head.append(f"  {counts_of(value)}", style=_SOFT)
            self._line(head)
            self._tokens(value)
        elif isinstance(value, ChatView):
            self._line(head)
            self._chat(value)
        else:
            self._images(head, value)

    def _value(self, head: Text, value: NumbersView | TextView) -> None:
        if isinstance(value, NumbersView):
            head.append(f"  {visible(value.text)}" if value.text else "")
            head.append(f"   {value.summary}" if value.summary else "", style=_SOFT)
            self._line(head)
            return
        text = Text(visible(value.text))
        text.append(f" … {value.num_cut:,} more characters" if value.num_cut else "", style=_SOFT)
        if "\n" not in text.plain and len(text) <= _SHORT:
            self._line(Text.assemble(head, "  ", text))
        else:
            self._line(head)
            self._block(text)

    def _tokens(self, view: TokensView) -> None:
        if self._in_colour:
            for segment in view.segments:
                self._segment(segment, view)
        else:
            self._block(self._in_signs(view))
        if view.num_cut:
            self._block(Text(f"… {view.num_cut:,} more tokens", style=_SOFT))
        self._pieces(view)

    def _segment(self, segment: SegmentView, view: TokensView) -> None:
        text = Text()
        if segment.role:
            text.append(f"{in_one_line(segment.role)}: ", style=_ROLE)
        for run in segment.runs:
            text.append_text(_run(run))
        if view.is_chat and not segment.role:  # what the template writes begins and ends lines
            text = _stripped(text)
        if segment.num_cut:
            text.append(f" … {segment.num_cut:,} more", style=_SOFT)
        self._block(text, has_border=view.is_packed or view.is_chat)

    def _in_signs(self, view: TokensView) -> Text:
        segments = [self._segment_in_signs(segment, is_chat=view.is_chat) for segment in view.segments]
        end = "" if view.num_cut or view.is_chat else "┃"
        return Text(("\n" if view.is_chat else "│").join(filter(None, segments)) + end)

    def _segment_in_signs(self, segment: SegmentView, *, is_chat: bool) -> str:
        words = [f"{in_one_line(segment.role)}: " if segment.role else ""]
        for run in segment.runs:
            text = _padding(run) if run.is_padding else visible(run.text)
            words.append(f"«{text}»" if run.trained and not run.is_padding else text)
        words.append(" …" if segment.num_cut else "")
        return "".join(words).strip() if is_chat else "".join(words)

    def _pieces(self, view: TokensView) -> None:
        """The first tokens, one by one."""
        runs = [run for segment in view.segments for run in segment.runs if run.pieces]
        pairs = [pair for run in runs for pair in zip(run.ids, run.pieces, strict=True)][:_PIECES]
        if pairs:
            words = "  ".join(f"{number} {in_one_line(repr(piece))}" for number, piece in pairs)
            more = "  …" if view.num_tokens > len(pairs) else ""
            self._block(Text(f"pieces: {words}{more}", style=_SOFT))

    def _chat(self, view: ChatView) -> None:
        for message in view.messages:
            text = Text.assemble((f"{in_one_line(message.role)}: ", _ROLE), visible(message.text.text))
            text.append(f" … {message.text.num_cut:,} more characters" if message.text.num_cut else "", style=_SOFT)
            text.append(f"\n{visible(message.more)}" if message.more else "", style=_SOFT)
            self._block(text, has_border=True)
            for image in message.images:
                self._image(image)
        if view.num_messages > len(view.messages):
            self._block(Text(f"… {view.num_messages - len(view.messages):,} more messages", style=_SOFT))

    def _images(self, head: Text, value: ImageView | FramesView) -> None:
        frames = (value,) if isinstance(value, ImageView) else value.frames
        words = value.alt if isinstance(value, ImageView) else f"{value.num_frames:,} images"
        self._line(head.append(f"  {visible(words)}", style=_SOFT))
        for frame in frames:
            if self._has_shades:
                self._image(frame)
            elif frame is not value:
                self._block(Text(visible(frame.alt)))

    def _image(self, view: ImageView) -> None:
        if view.image is None or not self._has_shades:
            self._block(Text(visible(view.alt)))
        else:
            self._console.print(Padding(half_blocks(view.image, self._console.width - 4), (0, 0, 0, 2)))

    def _block(self, text: Text, *, has_border: bool = False) -> None:
        """A value below its name. Without colour lines are left whole, for other programs."""
        if not self._in_colour:
            self._line(text)
            return
        for number, line in enumerate(text.wrap(self._console, max(20, self._console.width - 4))):
            border = "" if not has_border else "│ " if number else "┌ "
            self._line(Text.assemble("  ", (border, _BORDER), line))

    def _line(self, line: RenderableType) -> None:
        self._console.print(line, soft_wrap=True)


def counts_of(view: TokensView) -> str:
    """How many tokens, trained ones, documents and padding."""
    parts = [f"{view.num_tokens:,} tokens"]
    parts += [] if view.num_trained is None else [f"{view.num_trained:,} trained"]
    plural = "" if view.num_segments == 1 else "s"
    parts += [f"{view.num_segments:,} document{plural}"] if view.is_packed else []
    parts += [f"{view.num_padding:,} padding"] if view.num_padding else []
    return ", ".join(parts)


def _run(run: RunView) -> Text:
    if run.is_padding:
        return Text(_padding(run), style=_SOFT)
    shades = _UNSAID if run.trained is None else _TRAINED if run.trained else _MASKED
    if not run.pieces:
        return Text(run.text, style=shades[0])
    return Text.assemble(
        *((visible(piece), shades[number % 2]) for number, piece in enumerate(filter(None, run.pieces)))
    )


def _stripped(text: Text) -> Text:
    plain = text.plain
    return text[len(plain) - len(plain.lstrip()) : len(plain.rstrip())]


def _padding(run: RunView) -> str:
    return f"<pad> × {len(run.ids):,}"


_UPPER: Final = "▀"
_MAX_WIDTH, _MAX_HEIGHT = 56, 32
"""In pixels: a cell is one pixel wide and two high."""


def half_blocks(image: Image.Image, width: int) -> Text:
    """The image in at most so many columns; what is transparent is on white, as it is trained."""
    small = image.copy()
    small.thumbnail((min(width, _MAX_WIDTH), _MAX_HEIGHT))
    if small.mode == "RGBA":
        small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small)
    pixels = np.asarray(small.convert("RGB"))
    text = Text(no_wrap=True)
    for row in range(0, len(pixels), 2):
        lower = pixels[row + 1] if row + 1 < len(pixels) else None
        for column, upper in enumerate(pixels[row]):
            back = None if lower is None else _colour(lower[column])
            text.append(_UPPER, Style(color=_colour(upper), bgcolor=back))
        text.append("\n" if row + 2 < len(pixels) else "")
    return text


def _colour(pixel: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> Color:
    return Color.from_rgb(*(int(value) for value in pixel))
