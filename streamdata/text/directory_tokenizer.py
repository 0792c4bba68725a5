"""Tokenizers of a directory, read by the tokenizers library alone where transformers would add nothing to it.

Importing transformers takes seconds, in each worker; what turns texts into ids is the compiled library below it.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from streamdata.errors import shown
from streamdata.recipe.regular_files import check_regular

_RULES, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_HUB_NAME: Final = re.compile(r"[\w.\-]+(/[\w.\-]+)?")
_OLD_MAP: Final = "special_tokens_map.json"
_FILES: Final = {_RULES, _CONFIG, _OLD_MAP, "chat_template.jinja", "README.md", "LICENSE"}
"""Beside others, such as a model's `config.json`, transformers may take another class than the configuration says."""

_CLASSES: Final = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Those of transformers that take `tokenizer.json` as it is. Others build parts of it anew, as they think right."""

_NAMED_TOKENS: Final = {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
_TOKEN_LISTS: Final = {"extra_special_tokens", "additional_special_tokens"}
_OF_NO_EFFECT: Final = {
    "chat_template",
    "clean_up_tokenization_spaces",
    "is_local",
    "local_files_only",
    "model_input_names",
    "model_max_length",
    "name_or_path",
    "processor_class",
}
"""Settings that change nothing in what `encode` gives."""
_CHECKED: Final = {"tokenizer_class", "backend", "padding_side", "truncation_side", "added_tokens_decoder"}
_KNOWN: Final = _NAMED_TOKENS | _TOKEN_LISTS | _OF_NO_EFFECT | _CHECKED


class DirectoryTokenizer:
    """Texts to the ids that transformers would give for this directory; see `load_directory`.

    Args:
        backend: The compiled tokenizer.
        config: The directory's `tokenizer_config.json`.
    """

    def __init__(self, backend: Any, config: dict[str, Any]) -> None:
        self._backend = backend
        self._backend.encode_special_tokens = True  # what looks like a special token in a text is text
        self._truncation_side = config.get("truncation_side", "right")
        self.eos_token_id: int | None = self._id_of(config.get("eos_token"))
        self.pad_token_id: int | None = self._id_of(config.get("pad_token"))
        self.cleans_up: bool = bool(config.get("clean_up_tokenization_spaces"))
        """Whether transformers would remove spaces before commas and the like from what it decodes."""

    def _id_of(self, token: str | None) -> int | None:
        found: int | None = None if token is None else self._backend.token_to_id(token)
        return found

    def decode(self, ids: list[int]) -> str:
        """The text of tokens, special ones among them."""
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    def __len__(self) -> int:
        """Tokens of the vocabulary, with those added to it."""
        size: int = self._backend.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, max_tokens: int | None, *, with_special_tokens: bool) -> list[int]:
        """See `streamdata.text.tokenize`."""
        if max_tokens is None:
            self._backend.no_truncation()
        else:
            self._backend.enable_truncation(max_tokens, direction=self._truncation_side)
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=with_special_tokens)
        ids: list[int] = encoding.ids
        return ids


def load_directory(name: str) -> DirectoryTokenizer | None:
    """Load a directory's tokenizer without transformers; None where it is not certain that this gives the same ids.

    It is where `tokenizer.json` says all: the configuration names a class of transformers that takes this file as is,
    has no setting that is unknown here (such as `add_bos_token` or `add_prefix_space`), and no special or added token
    that the file lacks; and the directory has nothing else that transformers reads.

    Raises:
        ValueError: It has a fifo, a socket or a device.
    """
    folder = Path(name)
    check_files(folder)
    names = {entry for entry in os.listdir(folder) if not entry.startswith(".")} if folder.is_dir() else set()
    if not {_RULES, _CONFIG} <= names <= _FILES:
        return None
    config = _config_of(folder)
    if config is None or (_OLD_MAP in names and "added_tokens_decoder" not in config):
        return None  # transformers reads the old map where the configuration does not list its tokens

    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_file(str(folder / _RULES))
    except Exception:
        return None  # transformers has the word, and the error
    plain = backend.truncation is None and backend.padding is None
    return DirectoryTokenizer(backend, config) if plain and _has_all_tokens(backend, config) else None


def is_hub_name(name: str) -> bool:
    """Whether a name may be one of the hub's: one or two words, where no folder here has the first of two."""
    path = Path(name)
    return bool(_HUB_NAME.fullmatch(name)) and not name.startswith(".") and not ("/" in name and path.parent.exists())


def check_name(name: str | os.PathLike[str]) -> None:
    """Raise FileNotFoundError where a name can only be a path, and nothing is there: a hub is asked for minutes."""
    if not os.path.exists(name) and not is_hub_name(os.fspath(name)):
        raise FileNotFoundError(
            f"tokenizer {shown(os.fspath(name))}: expected a directory, got none\n"
            "  Name one that `save_pretrained` wrote."
        )


def check_files(folder: Path) -> None:
    """Raise ValueError where a tokenizer's folder has a fifo, say: transformers would wait for who writes into it."""
    for path in folder.iterdir() if folder.is_dir() else [folder]:
        if path.exists() and (path.name in _FILES or not path.is_dir()):
            check_regular(path, ValueError)


def _config_of(folder: Path) -> dict[str, Any] | None:
    """The configuration, if all that it asks for is known here."""
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        return None
    is_known = (
        isinstance(config, dict)
        and config.keys() <= _KNOWN
        and config.get("tokenizer_class") in _CLASSES
        and config.get("backend", "tokenizers") == "tokenizers"
        and all(config.get(f"{what}_side", "right") in ("left", "right") for what in ("padding", "truncation"))
    )
    return config if is_known else None


def _has_all_tokens(backend: Any, config: dict[str, Any]) -> bool:
    """Whether transformers would find nothing to add to the vocabulary."""
    from tokenizers import AddedToken

    present = backend.get_added_tokens_decoder()
    contents = {token.content for token in present.values()}
    named = [config.get(name) for name in _NAMED_TOKENS]
    lists = [config.get(name) or [] for name in _TOKEN_LISTS]
    if not all(isinstance(tokens, list) for tokens in lists):
        return False
    if not all(token is None or (isinstance(token, str) and token in contents) for token in sum(lists, named)):
        return False
    # As text: two of them are equal when their contents are, and their other settings decide ids, too.
    ours = {str(number): repr(token) for number, token in present.items()}
    try:
        listed = {number: repr(AddedToken(**token)) for number, token in config.get("added_tokens_decoder", {}).items()}
    except (AttributeError, TypeError):
        return False
    return listed.items() <= ours.items()
