"""Tokenizers of Hugging Face transformers, one per name and process."""

import functools
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

_PROBE = "The quick brown fox, 3.14 \u2014 na\u00efve caf\u00e9\n\tdef f(x): return x ** 2  # \u6771\u4eac \U0001f98a"


@functools.cache
def load_tokenizer(name: str) -> Any:
    """Loads a tokenizer on first use in this process; it never travels to a worker, its name does.

    Args:
        name: what `transformers.AutoTokenizer` takes: a local directory or a name on its hub. No remote code is run.

    Raises:
        OSError: there is no such tokenizer; transformers' own message says where it looked.
    """
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def tokenize(
    name: str, text: str, max_tokens: int | None = None, *, with_special_tokens: bool
) -> npt.NDArray[np.int64]:
    """Turns text into token ids, shape (n,).

    What looks like a special token in the text is text: data cannot end a document.

    Args:
        name: the tokenizer's.
        text: any.
        max_tokens: cut to this many; special tokens that the tokenizer puts at the end are kept.
        with_special_tokens: whether the tokenizer adds those of its own format, such as a start and an end.
    """
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
        ValueError: the tokenizer has none.
    """
    token: int | None = load_tokenizer(name).eos_token_id
    if token is None:
        raise ValueError(
            f"tokenizer {name!r}: expected an end-of-sequence token to put between documents, it has none\n"
            "  Set eos_token in its tokenizer_config.json, or use another tokenizer."
        )
    return token


@functools.cache
def tokenizer_fingerprint(name: str) -> int:
    """Returns 32 bits that differ between tokenizers, and do not depend on where their files lie."""
    tokenizer = load_tokenizer(name)
    ids = tokenize(name, _PROBE, with_special_tokens=True)
    return zlib.crc32(np.append(ids, [len(tokenizer), end_token(name)]).astype("<i8").tobytes())
