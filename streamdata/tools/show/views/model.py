"""Values that stand for what is shown of a sample, the same for a terminal, JSON, an HTML file and a browser.

Texts stand here as they are in the sample; who sends them anywhere does so through `visible`. `Limits` says how much
of a long value is shown.
"""

import base64
import io
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from PIL import Image


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is shown at most.

    Attributes:
        tokens: Of a sequence.
        chars: Of a text.
        frames: Of a video or a list of images.
        items: Of lists: messages, sequences, fields.
        records: Raw records of a sample.
    """

    tokens: int
    chars: int
    frames: int
    items: int
    records: int


IN_TERMINAL: Final = Limits(tokens=240, chars=800, frames=4, items=12, records=2)
ON_PAGE: Final = Limits(tokens=600, chars=3000, frames=8, items=40, records=6)
_FEW_COLOURS: Final = 64
"""Colours up to which PNG is smaller, and exact: drawings, masks, tiny images."""
_QUALITY: Final = 82
"""Quality of a JPEG."""
_MAX_NAME: Final = 100
"""Characters of the name of a field, or of who says a message."""


def short_name(name: str) -> str:
    """A name, cut where it is long: data may call a field anything."""
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}… {len(name) - _MAX_NAME:,} more characters"


@dataclass(frozen=True, kw_only=True)
class RunView:
    """Tokens side by side that are alike.

    Attributes:
        ids: The tokens.
        pieces: The text of each; "" for one that continues a character begun before it. Empty without a tokenizer.
        trained: Whether they are trained; None where nothing says it.
        reason: Why they are or are not, in words; "" where nobody knows.
        is_padding: Whether they only fill the sequence up.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...] = ()
    trained: bool | None = None
    reason: str = ""
    is_padding: bool = False

    @property
    def text(self) -> str:
        """Their text; ids where there is no tokenizer."""
        return "".join(self.pieces) if self.pieces else " ".join(map(str, self.ids))


@dataclass(frozen=True, kw_only=True)
class SegmentView:
    """A document of a packed row, a message of a chat, or a whole sequence.

    Attributes:
        runs: Its tokens, at most as many as are shown.
        num_tokens: How many it has.
        role: Of a message, who says it; "" of a document, and of what a template writes between messages.
    """

    runs: tuple[RunView, ...]
    num_tokens: int
    role: str = ""

    @property
    def num_cut(self) -> int:
        """How many of its tokens are not shown."""
        return self.num_tokens - sum(len(run.ids) for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class TokensView:
    """A sequence of tokens.

    Attributes:
        segments: Its documents or messages, in order; those beyond what is shown are missing.
        num_tokens: Of the sequence, padding included.
        num_trained: How many are trained; None where nothing says it.
        num_padding: How many only fill it up.
        num_segments: How many segments it has, without padding.
        is_chat: Whether segments are messages.
        is_packed: Whether there are borders of documents in it.
    """

    segments: tuple[SegmentView, ...]
    num_tokens: int
    num_trained: int | None = None
    num_padding: int = 0
    num_segments: int = 1
    is_chat: bool = False
    is_packed: bool = False

    @property
    def reasons(self) -> tuple[tuple[str, int], ...]:
        """Why tokens that are shown are trained or not, each reason with how many they are."""
        counts: Counter[str] = Counter()
        for run in (run for segment in self.segments for run in segment.runs if run.reason):
            counts[run.reason] += len(run.ids)
        return tuple(counts.items())

    @property
    def num_cut(self) -> int:
        """How many tokens are not shown."""
        return self.num_tokens - sum(len(run.ids) for segment in self.segments for run in segment.runs)


@dataclass(frozen=True, kw_only=True)
class TextView:
    """A text, cut where it is long: `num_cut` characters are missing at its end."""

    text: str
    num_cut: int = 0


@dataclass(frozen=True, kw_only=True)
class ImageView:
    """An image.

    Attributes:
        width: In pixels, of the sample's.
        height: The same.
        mode: Of Pillow, such as RGB.
        image: It, at most `MAX_SIDE` wide and high; None where it could not be decoded.
        problem: Why not.
    """

    width: int
    height: int
    mode: str
    image: Image.Image | None
    problem: str = ""

    @property
    def alt(self) -> str:
        """A text that stands for the image where it cannot be seen."""
        return self.problem or f"image of {self.width} × {self.height} pixels, {self.mode}"

    @cached_property
    def data_uri(self) -> str:
        """The image as a `data:` URI: a PNG if it has few colours or transparency, else a JPEG; "" if not decoded."""
        if self.image is None:
            return ""
        is_exact = self.image.mode == "RGBA" or self.image.getcolors(_FEW_COLOURS) is not None
        kind, file = "png" if is_exact else "jpeg", io.BytesIO()
        # Without anything that the original had beside pixels.
        pixels = Image.frombytes(self.image.mode, self.image.size, self.image.tobytes())
        pixels.save(file, kind, **({} if is_exact else {"quality": _QUALITY}))
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


@dataclass(frozen=True, kw_only=True)
class FramesView:
    """Several images: those of a video, or of a list; `num_frames` of which some are shown."""

    frames: tuple[ImageView, ...]
    num_frames: int


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """A message that is no tokens yet.

    Attributes:
        role: Who says it.
        text: What.
        images: What it shows.
        more: Its other keys, as JSON; "" for none.
    """

    role: str
    text: TextView
    images: tuple[ImageView, ...] = ()
    more: str = ""


@dataclass(frozen=True, kw_only=True)
class ChatView:
    """Messages that are no tokens yet: of a prompt, or a raw record."""

    messages: tuple[MessageView, ...]
    num_messages: int


@dataclass(frozen=True, kw_only=True)
class NumbersView:
    """Numbers: their first and last as text, and what they come to in words."""

    text: str
    summary: str = ""


Value = TextView | TokensView | ImageView | FramesView | ChatView | NumbersView


@dataclass(frozen=True, kw_only=True)
class FieldView:
    """A field of a sample or of a record.

    Attributes:
        name: Its name.
        kind: text, tokens, image, frames, chat, numbers or json: what its value is.
        type: The name of its type, such as Tensor.
        value: What there is to show of it; json is a `TextView`.
        shape: Of an array; None of other things.
        dtype: Of an array; "" of other things.
    """

    name: str
    kind: str
    type: str
    value: Value
    shape: tuple[int, ...] | None = None
    dtype: str = ""

    @property
    def about(self) -> str:
        """Its type in short: `int64 (1024)`, `str`."""
        return self.type if self.shape is None else f"{self.dtype} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True, kw_only=True)
class RecordView:
    """A raw record.

    Attributes:
        where: Its url and key, or its index.
        fields: Its fields.
    """

    where: str
    fields: tuple[FieldView, ...]


@dataclass(frozen=True, kw_only=True)
class SampleView:
    """A sample.

    Attributes:
        number: In what is shown, or the record's in a store.
        source: The path of names of its source; "" of a store.
        where: Of the record that it came from (the last one, where there are several): url and key, or index.
        url: Of that record; "" where it has none.
        key: The same.
        index: The same; None where it has none.
        fields: Its fields, without those that streamdata adds.
        records: The raw records that were read for it, where it is something else than its record, the first of them.
        num_records: How many there are.
        step: Of the run; None where that is not known.
    """

    number: int
    source: str
    where: str
    fields: tuple[FieldView, ...]
    url: str = ""
    key: str = ""
    index: int | None = None
    records: tuple[RecordView, ...] = ()
    num_records: int = 0
    step: int | None = None


_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of direction
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # separators that some take for a newline, and what is invisible
    "\xad\u115f\u1160\u180e\u200b\u2060-\u2064\u206a-\u206f\u3164\uffa0"  # too; joiners stay, which change what is seen
    "\ud800-\udfff"  # surrogates alone, which no encoding has
    "\U000e0000-\U000e007f]"  # tags: invisible letters
)


def visible(text: str) -> str:
    """The text with each control character as its number, as Python writes it."""
    return _CONTROL.sub(lambda found: _escaped(ord(found[0])), text)


def in_one_line(text: str) -> str:
    """Makes newlines and tabs visible too: for names and places."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(code: int) -> str:
    if code <= 0xFF:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
