"""Tokenizers by name, one per name and process: those of transformers and, for bare texts, what they wrap.

A directory's `tokenizer.json` is read by the tokenizers library alone where transformers would add nothing to it:
importing transformers takes seconds, in each worker, and what turns texts into ids is the compiled library below it.
"""

import functools
import hashlib
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamdata.errors import shown
from streamdata.recipe.limits import check_regular

_PROBE = "The quick brown fox, 3.14 \u2014 na\u00efve caf\u00e9\n\tdef f(x): return x ** 2  # \u6771\u4eac \U0001f98a"
_RULES, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_HUB_NAME: Final = re.compile(r"[\w.\-]+(/[\w.\-]+)?")
_OLD_MAP: Final = "special_tokens_map.json"
_FILES: Final = {_RULES, _CONFIG, _OLD_MAP, "chat_template.jinja", "README.md", "LICENSE"}
"""Beside others, such as a model's `config.json`, transformers may take another class than the configuration says."""
_CLASSES: Final = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of transformers that take `tokenizer.json` as it is. Others build parts of it anew, as they think right."""
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
        tokens = (config.get("eos_token"), config.get("pad_token"))
        ids: list[int | None] = [None if token is None else backend.token_to_id(token) for token in tokens]
        self.eos_token_id, self.pad_token_id = ids
        self.cleans_up: bool = bool(config.get("clean_up_tokenization_spaces"))
        """Whether transformers would remove spaces before commas and the like from what it decodes."""

    def decode(self, ids: list[int]) -> str:
        """The text of tokens, special ones among them."""
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    def __len__(self) -> int:
        """Tokens of the vocabulary, with those added to it."""
        size: int = self._backend.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, max_tokens: int | None, *, with_special_tokens: bool) -> list[int]:
        """See `streamdata.text.tokenizer.tokenize`."""
        if max_tokens is None:
            self._backend.no_truncation()
        else:
            self._backend.enable_truncation(max_tokens, direction=self._truncation_side)
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=with_special_tokens)
        ids: list[int] = encoding.ids
        return ids


@functools.cache
def load_tokenizer(name: str) -> Any:
    """Loads a tokenizer on first use in this process; it never travels to a worker, its name does.

    Args:
        name: What `transformers.AutoTokenizer` takes: a local directory or a name on its hub. No remote code is run.

    Raises:
        OSError: There is no such tokenizer; transformers' own message says where it looked.
        ValueError: It is nothing without code of its own, or its folder has a fifo, a socket or a device.
    """
    from transformers import AutoTokenizer

    return load_without_code(AutoTokenizer, name)


def load_without_code(auto: Any, name: str | os.PathLike[str]) -> Any:
    """Loads what is pretrained by one of transformers' Auto classes; code that comes with the files is not run.

    Without a word about it, transformers would ask on the terminal whether to run the code.

    Raises:
        OSError: There is none of that name; where it can only be a path, no hub is asked.
        ValueError: It is nothing without code of its own, or its folder has a fifo, a socket or a device.
    """
    check_name(name)
    check_files(Path(name))
    try:
        return auto.from_pretrained(name, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" in str(error):
            error.add_note(
                f"  streamdata runs no code out of '{os.fspath(name)}': load it yourself, and pass the object, in a "
                "recipe by ${dynamic_objs:…}."
            )
        raise


def tokenizer_of(processor: Any) -> Any:
    """Returns a processor's tokenizer; a tokenizer as it is."""
    return getattr(processor, "tokenizer", processor)


def token_ids(tokenizer: Any, text: str, *, with_special_tokens: bool = False) -> npt.NDArray[np.int64]:
    """Turns a text, such as one that a template rendered, into token ids, shape (n,): its special tokens are special.

    Args:
        tokenizer: The object.
        text: Any.
        with_special_tokens: Whether the tokenizer adds those of its own format; a template writes them itself.
    """
    from transformers import PreTrainedTokenizerFast

    backend, own = getattr(tokenizer, "backend_tokenizer", None), type(tokenizer)
    # Where a tokenizer may do more with texts than to hand them to its backend, it is asked itself.
    if (
        backend is None
        or own.__call__ is not PreTrainedTokenizerFast.__call__
        or own._encode_plus is not PreTrainedTokenizerFast._encode_plus  # noqa: SLF001  # what a subclass may override
        or tokenizer.split_special_tokens
        or backend.truncation is not None
        or backend.padding is not None
    ):
        encoded = tokenizer(text, add_special_tokens=with_special_tokens, return_attention_mask=False, verbose=False)
        return np.array(encoded["input_ids"], dtype=np.int64)
    if backend.encode_special_tokens:  # an earlier call left it so; transformers sets it for each call
        backend.encode_special_tokens = False
    # The same ids in two thirds of the time: no mask, no offsets, no checks of settings that are not there.
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=with_special_tokens)
    return np.array(encoding.ids, dtype=np.int64)


def tokenize(
    name: str, text: str, max_tokens: int | None = None, *, with_special_tokens: bool
) -> npt.NDArray[np.int64]:
    """Turns text into token ids, shape (n,).

    What looks like a special token in the text is text: data cannot end a document.

    Args:
        name: The tokenizer's.
        text: Any.
        max_tokens: Cut to this many; special tokens that the tokenizer puts at the end are kept.
        with_special_tokens: Whether the tokenizer adds those of its own format, such as a start and an end.
    """
    plain = _directory_tokenizer(name)
    if plain is not None:
        return np.array(plain.encode(text, max_tokens, with_special_tokens=with_special_tokens), dtype=np.int64)
    ids = load_tokenizer(name).encode(
        text,
        add_special_tokens=with_special_tokens,
        split_special_tokens=True,
        truncation=max_tokens is not None,
        max_length=max_tokens,
        verbose=False,  # a document longer than the model's context is normal here
    )
    return np.array(ids, dtype=np.int64)


def end_token(name: str) -> int:
    """Returns the id that ends a document: the tokenizer's end of sequence.

    Raises:
        ValueError: The tokenizer has none.
    """
    token: int | None = (_directory_tokenizer(name) or load_tokenizer(name)).eos_token_id
    if token is None:
        raise ValueError(
            f"tokenizer {shown(name)}: expected an end-of-sequence token to put between documents, it has none\n"
            "  Set eos_token in its tokenizer_config.json, or use another tokenizer."
        )
    return token


@functools.cache
def tokenizer_fingerprint(name: str) -> int:
    """Returns 32 bits that differ between tokenizers, and do not depend on where their files lie."""
    tokenizer = _directory_tokenizer(name) or load_tokenizer(name)
    ids = tokenize(name, _PROBE, with_special_tokens=True)
    return zlib.crc32(np.append(ids, [len(tokenizer), end_token(name)]).astype("<i8").tobytes())


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns 64 hex digits of what decides the tokens of texts and chats, wherever its files lie.

    That is its vocabulary, rules, special tokens and chat template; of a processor, its settings for media too.

    Args:
        tokenizer: A tokenizer or processor, the object.
    """
    inner = tokenizer_of(tokenizer)
    backend = getattr(inner, "backend_tokenizer", None)
    rules: Any = sorted(inner.get_vocab().items())
    if backend is not None:
        rules = json.loads(backend.to_str())
        for state in ("truncation", "padding"):  # what the last call left there
            rules.pop(state, None)
    parts = [rules, inner(_PROBE)["input_ids"], inner.special_tokens_map, inner.chat_template]
    if inner is not tokenizer:
        media = [getattr(tokenizer, name, None) for name in ("image_processor", "video_processor", "feature_extractor")]
        settings = [part and part.to_dict() for part in media]
        # What it is told beside its parts, such as the size of a patch: by it, it counts an image's tokens.
        own = tokenizer.to_dict() if hasattr(tokenizer, "to_dict") else {}
        settings.append({key: value for key, value in own.items() if isinstance(value, str | int | float)})
        parts.append(getattr(tokenizer, "chat_template", None))
        parts += [each and {key: value for key, value in each.items() if key[0] != "_"} for each in settings]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def load_directory(name: str) -> DirectoryTokenizer | None:
    """Loads a directory's tokenizer without transformers; None where it is not certain that this gives the same ids.

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
        # transformers reads the old map where the configuration does not list its tokens
        and (_OLD_MAP not in names or "added_tokens_decoder" in config)
    )
    if not is_known:
        return None

    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_file(str(folder / _RULES))
    except Exception:
        return None  # transformers has the word, and the error
    plain = backend.truncation is None and backend.padding is None
    return DirectoryTokenizer(backend, config) if plain and _has_all_tokens(backend, config) else None


_directory_tokenizer = functools.cache(load_directory)


def check_name(name: str | os.PathLike[str]) -> None:
    """Raises FileNotFoundError where a name can only be a path, and nothing is there: a hub is asked for minutes.

    One of the hub's is one or two words, where no folder here has the first of two.
    """
    text = os.fspath(name)
    is_below = "/" in text and Path(text).parent.exists()
    if not os.path.exists(text) and (is_below or text.startswith(".") or not _HUB_NAME.fullmatch(text)):
        raise FileNotFoundError(
            f"tokenizer {shown(text)}: expected a directory, got none\n  Name one that `save_pretrained` wrote."
        )


def check_files(folder: Path) -> None:
    """Raises ValueError where a tokenizer's folder has a fifo, say: transformers would wait for who writes into it."""
    for path in folder.iterdir() if folder.is_dir() else [folder]:
        if path.exists() and (path.name in _FILES or not path.is_dir()):
            check_regular(path, ValueError)


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
