"""`streamdata inspect`: a record of a finished store, as text."""

from pathlib import Path

import typer

from streamdata.cli.tokens_text import show
from streamdata.errors import StoreError
from streamdata.prepare.preview import manifest_of, stored_record
from streamdata.text.tokenizer import load_tokenizer


def show_record(store: Path, record: int, tokenizer: str | None) -> None:
    """Decode and show a record.

    Raises:
        StoreError: It is no store, or nothing says which tokenizer it was made with.
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
    show(shown, load_tokenizer(name))
