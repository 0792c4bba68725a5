"""Tokens as text for a person: trained ones in green, the rest dim; without colours, trained ones in «…»."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from streamdata.prepare.stored_record import Piece, Shown

_TRAINED, _MASKED, _MARK = "green", "dim", "bold cyan"


def show(records: Iterable[Shown], tokenizer: Any) -> None:
    """Print records, each with its name; `│` ends a document within a row, `┃` a row."""
    console = Console(highlight=False)
    for record in records:
        tokens = sum(len(piece.ids) for piece in record.pieces)
        trained = sum(int(piece.train.sum()) for piece in record.pieces if piece.train is not None)
        has_mask = any(piece.train is not None for piece in record.pieces)
        counts = f", {tokens} tokens" + (f", {trained} trained" if has_mask else "") if record.pieces else ""
        console.print(Text(f"── {record.name}{counts}", style=_MARK))
        console.print(_text(record, tokenizer, in_colour=console.color_system is not None), soft_wrap=True)


def _text(record: Shown, tokenizer: Any, *, in_colour: bool) -> Text:
    text = Text(record.note)
    for number, piece in enumerate(record.pieces):
        text.append_text(_piece(piece, tokenizer, in_colour=in_colour))
        text.append("┃" if number == len(record.pieces) - 1 else "│", style=_MARK)
    return text


def _piece(piece: Piece, tokenizer: Any, *, in_colour: bool) -> Text:
    ids = piece.ids.tolist()
    if _is_padding(ids, tokenizer) and (piece.train is None or not piece.train.any()):
        return Text(f"<pad> × {len(ids):,}", style=_MASKED)
    train = [None] * len(ids) if piece.train is None else piece.train.tolist()
    text = Text()
    for trained, run in groupby(zip(train, ids, strict=True), key=lambda pair: pair[0]):
        words = tokenizer.decode([token for _, token in run])
        if trained is None:
            text.append(words)
        elif trained:
            text.append(words if in_colour else f"«{words}»", style=_TRAINED)
        else:
            text.append(words, style=_MASKED)
    return text


def _is_padding(ids: list[int], tokenizer: Any) -> bool:
    """Whether it fills up a row: nothing but the token that `prepare` takes for that, more than once."""
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return len(ids) > 1 and ids.count(padding) == len(ids)
