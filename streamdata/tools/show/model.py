"""A sample as it is shown: plain values that a terminal, JSON, an HTML file and a browser print alike.

What is left out of a long text or sequence is said in its midst, so that the end is always there. Texts stand here as
they are in the sample; who sends them anywhere does so through `visible`.
"""

import base64
import io
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from PIL import Image

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is shown at most.

    Attributes:
        tokens: Of a sequence.
        chars: Of a text.
        frames: Of a video or a list of images.
        items: Of lists: messages, sequences.
        records: Raw records of a sample.
        numbers: Of an array.
    """

    tokens: int
    chars: int
    frames: int
    items: int
    records: int
    numbers: int = 12


IN_TERMINAL: Final = Limits(tokens=240, chars=800, frames=4, items=12, records=2)
ON_PAGE: Final = Limits(tokens=600, chars=3000, frames=8, items=40, records=6)
WHOLE: Final = Limits(**dict.fromkeys(("tokens", "chars", "frames", "items", "records", "numbers"), sys.maxsize))
_FEW_COLOURS: Final = 64
"""Colours up to which PNG is smaller, and exact: drawings, masks, tiny images."""
_QUALITY: Final = 82
"""Quality of a JPEG."""
_MAX_NAME: Final = 100
"""Characters of the name of a field, or of who says a message."""


def short_name(name: str) -> str:
    """A name, cut where it is long: data may call a field anything."""
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}… {len(name) - _MAX_NAME:,} more characters"


def both_ends(values: Sequence[_T], most: int) -> tuple[list[_T], int, list[_T]]:
    """The first of some values, how many are left out, and the last ones; at most so many are given."""
    if len(values) <= most:
        return list(values), 0, []
    first = most // 2
    return list(values[:first]), len(values) - most, list(values[len(values) - most + first :])


def short_text(text: str, limit: int) -> tuple[str, dict[str, int]]:
    """The beginning and the end of a text, and how many characters it has and how many of them are left out."""
    first, cut, last = both_ends(text, limit)
    shown = f"{''.join(first)} … {cut:,} more characters … {''.join(last)}" if cut else text
    return shown, {"characters": len(text), "cut": cut}


@dataclass(frozen=True, kw_only=True)
class TokenRun:
    """Tokens side by side that are alike; or that some are padding, or left out.

    Attributes:
        ids: The tokens.
        pieces: The text of each; "" for one that continues a character begun before it. Empty without a tokenizer.
        trained: Whether they are trained; None where nothing says it.
        reason: Why they are or are not, in words; "" where nobody knows.
        padding: How many tokens only fill the sequence up here; then there is nothing else.
        cut: How many tokens are left out here; the same.
    """

    ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()
    trained: bool | None = None
    reason: str = ""
    padding: int = 0
    cut: int = 0

    @property
    def text(self) -> str:
        """Their text; ids where there is no tokenizer."""
        return "".join(self.pieces) if self.pieces else " ".join(map(str, self.ids))


@dataclass(frozen=True, kw_only=True)
class ShownImage:
    """An image.

    Attributes:
        width: In pixels, of the sample's.
        height: The same.
        mode: Of Pillow, such as RGB.
        image: It, at most `MAX_SIDE` wide and high; None where it could not be decoded.
        problem: Why not.
    """

    width: int = 0
    height: int = 0
    mode: str = ""
    image: Image.Image | None = None
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
class ShownSegment:
    """A whole sequence of tokens, a document of a packed row, or a message of a chat.

    Attributes:
        runs: Of tokens.
        role: Of a message, who says it.
        text: Of a message that is no tokens yet.
        images: What it shows.
        more: Its other keys, as JSON, or how many messages are left out; "" for none.
    """

    runs: tuple[TokenRun, ...] = ()
    role: str = ""
    text: str = ""
    images: tuple[ShownImage, ...] = ()
    more: str = ""


@dataclass(frozen=True, kw_only=True)
class ShownField:
    """A field of a sample or of a record.

    Attributes:
        name: Its name.
        kind: text, json, numbers, tokens, chat, image or frames: what its value is.
        type: The name of its type, such as Tensor; of an array its dtype.
        shape: Of an array; None of other things.
        text: Of text, json and numbers.
        summary: What there is of it, in words.
        segments: Of tokens and chats.
        images: Of an image or of frames, at most as many as are shown.
        counts: How much there is in all, by what is counted.
    """

    name: str
    kind: str
    type: str
    shape: tuple[int, ...] | None = None
    text: str = ""
    summary: str = ""
    segments: tuple[ShownSegment, ...] = ()
    images: tuple[ShownImage, ...] = ()
    counts: dict[str, Any]

    @property
    def about(self) -> str:
        """Its type in short: `int64 (1024)`, `str`."""
        return self.type if self.shape is None else f"{self.type} ({', '.join(map(str, self.shape))})"

    @property
    def reasons(self) -> Counter[str]:
        """Why tokens that are shown are trained or not, each reason with how many they are."""
        counts: Counter[str] = Counter()
        for run in (run for segment in self.segments for run in segment.runs if run.reason):
            counts[run.reason] += len(run.ids)
        return counts


def shown_field(name: str, kind: str, value: Any, **content: Any) -> ShownField:
    """A field, with its type, or its dtype and shape."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    is_array = shape is not None and dtype is not None
    return ShownField(
        name=short_name(name),
        kind=kind,
        type=str(dtype).removeprefix("torch.") if is_array else type(value).__name__,
        shape=tuple(map(int, shape or ())) if is_array else None,
        **{"counts": {}} | content,
    )


@dataclass(frozen=True, kw_only=True)
class ShownSample:
    """A sample, or a raw record.

    Attributes:
        number: In what is shown, or the record's in a store.
        step: Of the run; None where that is not known.
        source: The path of names of its source; "" of a store.
        where: Url and key, or index, of the record that it came from (the last one, where there are several).
        url: Of that record; "" where it has none.
        key: The same.
        index: The same; None where it has none.
        fields: Its fields, without those that streamdata adds.
        num_records: How many raw records were read for it, where it is something else than its record.
        records: The first of these.
    """

    number: int
    step: int | None = None
    source: str = ""
    where: str
    url: str = ""
    key: str = ""
    index: int | None = None
    fields: tuple[ShownField, ...]
    num_records: int = 0
    records: tuple["ShownSample", ...] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """Samples that are shown together: in a terminal, as JSON, or in a file.

    Attributes:
        title: What is shown.
        about: What of it.
        samples: In the order of delivery.
        sources: The paths of a recipe's sources.
    """

    title: str
    about: str
    samples: Sequence[ShownSample]
    sources: Sequence[str] = ()


def as_json(value: Any) -> Any:
    """Plain JSON values of a sample, or of a part of one, without what is empty; of an image its size alone.

    Texts are as they are in the sample: JSON writes control characters by their numbers.
    """
    if isinstance(value, tuple):
        return [as_json(each) for each in value]
    if not is_dataclass(value):
        return None if isinstance(value, Image.Image) else value
    found = {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    counts = found.pop("counts", {})
    return {name: each for name, each in found.items() if each not in (None, "", [])} | counts


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

    def escaped(found: re.Match[str]) -> str:
        letter, digits = ("x", 2) if found[0] <= "\xff" else ("u", 4) if found[0] <= "\uffff" else ("U", 8)
        return f"\\{letter}{ord(found[0]):0{digits}x}"

    return _CONTROL.sub(escaped, text)
