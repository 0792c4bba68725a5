"""Texts that a prompt begins, without a chat template: `prompt, completion → token ids, and which are trained`.

text      The sky is blue.<end>
trained             ^^^^^^^^^^^

Both are encoded as one text, as the model will meet them, with the tokenizer's own special tokens and its end token
last. The prompt is what the ids of the whole begin with and those of the prompt alone too.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.text.formats import Texts
from streamdata.text.tokenizer import tokenizer_of

Int64s = npt.NDArray[np.int64]


class Trained(NamedTuple):
    """Token ids, int64 (n,), and which of them are trained, bool (n,)."""

    input_ids: Int64s
    train: npt.NDArray[np.bool_]


def encode_text(tokenizer: Any, texts: Texts) -> Trained:
    """A prompt and its completion; all of a text without a prompt is trained.

    Raises:
        ValueError: The tokenizer has no end token.
    """
    ids = _ended(tokenizer, texts)
    return _trained(ids, shared_ids(ids, _ids(tokenizer, texts.prompt)) if texts.prompt else 0)


def encode_text_pair(tokenizer: Any, chosen: Texts, rejected: Texts) -> tuple[Trained, Trained]:
    """Two completions of a prompt; without one, it is what the ids of both begin with.

    Raises:
        ValueError: The tokenizer has no end token.
    """
    one, other = _ended(tokenizer, chosen), _ended(tokenizer, rejected)
    if chosen.prompt:
        alone = _ids(tokenizer, chosen.prompt)
        shared = min(shared_ids(one, alone), shared_ids(other, alone))
    else:
        shared = shared_ids(one, other)
    return _trained(one, shared), _trained(other, shared)


def _ended(tokenizer: Any, texts: Texts) -> Int64s:
    end = tokenizer_of(tokenizer).eos_token
    if end is None:
        raise ValueError("text: expected a tokenizer with an end token, got one without\n  Set its eos_token.")
    text = texts.prompt + texts.completion
    return _ids(tokenizer, text if text.endswith(end) else text + end)


def _ids(tokenizer: Any, text: str) -> Int64s:
    return np.array(tokenizer_of(tokenizer)(text, return_attention_mask=False, verbose=False)["input_ids"], np.int64)


def shared_ids(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> int:
    """How many ids both begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


def _trained(ids: Int64s, begin: int) -> Trained:
    return Trained(ids, np.arange(len(ids)) >= begin)
