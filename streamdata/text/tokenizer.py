"""Tokenizers by name, one per name and process: those of transformers and, for bare texts, what they wrap."""

import functools
import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.errors import shown
from streamdata.text.directory_tokenizer import DirectoryTokenizer, check_files, check_name, load_directory

_PROBE = "The quick brown fox, 3.14 \u2014 na\u00efve caf\u00e9\n\tdef f(x): return x ** 2  # \u6771\u4eac \U0001f98a"


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


@functools.cache
def _directory_tokenizer(name: str) -> DirectoryTokenizer | None:
    return load_directory(name)


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


def as_tokenizer(tokenizer: Any) -> Any:
    """Returns the tokenizer of a name or path, loaded once in this process; any other object as it is."""
    return load_tokenizer(os.fspath(tokenizer)) if isinstance(tokenizer, str | os.PathLike) else tokenizer


def tokenizer_of(processor: Any) -> Any:
    """Returns a processor's tokenizer; a tokenizer as it is."""
    return getattr(processor, "tokenizer", processor)


def token_ids(tokenizer: Any, text: str) -> npt.NDArray[np.int64]:
    """Turns a text that a template rendered into token ids, shape (n,): its special tokens are special, none is added.

    Args:
        tokenizer: The object.
        text: Any.
    """
    backend = _bare_backend(tokenizer)
    if backend is None:
        encoded = tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return np.array(encoded["input_ids"], dtype=np.int64)
    # The same ids in two thirds of the time: no mask, no offsets, no checks of settings that are not there.
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    return np.array(encoding.ids, dtype=np.int64)


def _bare_backend(tokenizer: Any) -> Any:
    """Returns what a fast tokenizer hands texts to, where it does nothing else with them; None where it may."""
    from transformers import PreTrainedTokenizerFast

    backend = getattr(tokenizer, "backend_tokenizer", None)
    own = type(tokenizer)
    if (
        backend is None
        or own.__call__ is not PreTrainedTokenizerFast.__call__
        or own._encode_plus is not PreTrainedTokenizerFast._encode_plus  # noqa: SLF001  # what a subclass may override
        or tokenizer.split_special_tokens
        or backend.truncation is not None
        or backend.padding is not None
    ):
        return None
    if backend.encode_special_tokens:  # an earlier call left it so; transformers sets it for each call
        backend.encode_special_tokens = False
    return backend


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
        parts += [getattr(tokenizer, "chat_template", None), *_media_settings(tokenizer)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _media_settings(processor: Any) -> list[Any]:
    parts = [getattr(processor, name, None) for name in ("image_processor", "video_processor", "feature_extractor")]
    return [*(part and _settings(part) for part in parts), _own_settings(processor)]


def _own_settings(processor: Any) -> dict[str, Any]:
    """What a processor is told beside its parts, such as the size of a patch: by it, it counts an image's tokens."""
    settings = _settings(processor) if hasattr(processor, "to_dict") else {}
    return {key: value for key, value in settings.items() if isinstance(value, str | int | float)}


def _settings(part: Any) -> dict[str, Any]:
    return {key: value for key, value in part.to_dict().items() if key[0] != "_"}
