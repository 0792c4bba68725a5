"""`streamdata inspect`: a record of a store as text, without torch, and without transformers where it adds nothing."""

from pathlib import Path
from typing import Any

import typer

from streamdata.cli.tokens_text import show
from streamdata.errors import StoreError
from streamdata.prepare.stored_record import manifest_of, stored_record
from streamdata.text.directory_tokenizer import load_directory


def show_record(store: Path, record: int, tokenizer: str | None) -> None:
    """Decode and show a record.

    Raises:
        StoreError: It is not a store, or nothing says which tokenizer it was made with.
    """
    manifest = manifest_of(store)
    name = tokenizer or (manifest["tokenizer"]["name"] if manifest else None)
    if name is None:
        raise StoreError(f"store '{store}': expected a manifest with its tokenizer, got none\n  Give --tokenizer.")
    try:
        shown = list(stored_record(store, record))
    except StoreError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--record") from error
    show(shown, _tokenizer(name))


def _tokenizer(name: str) -> Any:
    """What turns ids into text."""
    plain = load_directory(name)
    if plain is not None and not plain.cleans_up:
        return plain
    from streamdata.text.tokenizer import load_tokenizer  # it imports transformers, which takes seconds

    return load_tokenizer(name)
