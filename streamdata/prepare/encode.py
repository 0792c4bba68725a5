"""Encodes texts: `texts → the tokenizer's own batch encoder, or gigatoken → uint32 arrays`.

Gigatoken is used only if it agrees with the tokenizer itself on a sample of the input.
"""

import functools
import itertools
import json
import os
import re
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamdata.errors import PrepareError, needs, shown
from streamdata.prepare.config import PrepareConfig
from streamdata.prepare.extract import Extractor, TextPart
from streamdata.prepare.inputs import BadRecordError, DroppedRecordError, Task, TaskInput
from streamdata.run.publish import publish

Ids = npt.NDArray[np.uint32]
_PARALLEL: Final = "TOKENIZERS_PARALLELISM"
_CHECKED_TASKS: Final = 8
_CHECKED_TEXTS: Final = 100
"""Texts of each of these tasks that are compared."""


def fast_tokenizer(tokenizer: Any) -> Any:
    """The compiled tokenizer behind one of transformers.

    Raises:
        PrepareError: It has none.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise PrepareError(
            f"tokenizer: expected a fast tokenizer, got {type(tokenizer).__name__}\n"
            "  Convert it, so that its directory has a tokenizer.json."
        )
    return backend


@functools.lru_cache(maxsize=1)
def vocabulary_size(tokenizer: Any) -> int:
    """One more than the largest id: a vocabulary may have gaps, so that it has fewer tokens than that.

    Raises:
        PrepareError: The tokenizer is not fast.
    """
    ids: list[int] = list(fast_tokenizer(tokenizer).get_vocab(with_added_tokens=True).values())
    return max(ids) + 1


class TextTokenizer:
    """A tokenizer for texts alone, which loads in a moment, without transformers.

    Args:
        backend: The compiled tokenizer, as JSON.
        eos_token_id: The end of sequence, if there is one.
        pad_token_id: The padding, if there is one.
    """

    def __init__(self, backend: str, eos_token_id: int | None, pad_token_id: int | None) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_str(backend)
        self.eos_token_id, self.pad_token_id = eos_token_id, pad_token_id

    @staticmethod
    def save(tokenizer: Any, path: Path) -> None:
        """Write what `load` reads of one of transformers' tokenizers."""
        ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        publish(path, [json.dumps({"backend": fast_tokenizer(tokenizer).to_str(), **ids}).encode()])

    @classmethod
    def load(cls, path: Path) -> "TextTokenizer":
        """The tokenizer that was saved there."""
        return cls(**json.loads(path.read_bytes()))


class TokenizersBackend:
    """Encodes by the tokenizer itself.

    Args:
        tokenizer: One of transformers, with a compiled tokenizer behind it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = fast_tokenizer(tokenizer)

    def __call__(self, texts: list[str], *, is_data: bool, add_special_tokens: bool) -> list[Ids]:
        """The ids of each text, uint32 (n,)."""
        self._tokenizer.no_truncation()  # transformers keeps the settings of its last call there
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = is_data
        before = os.environ.get(_PARALLEL)
        os.environ[_PARALLEL] = "false"  # asked for at each call: the cores belong to the workers
        try:
            found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        finally:
            if before is None:
                del os.environ[_PARALLEL]
            else:
                os.environ[_PARALLEL] = before
        # An array of Python's own takes a list of integers three times as fast as one of NumPy's.
        return [np.frombuffer(array("I", encoding.ids), np.uint32) for encoding in found]


class GigatokenBackend:
    """Encodes by gigatoken what has no special tokens, the rest by the tokenizer.

    Args:
        tokenizer: The reference.

    Raises:
        ImportError: gigatoken is not installed.
        PrepareError: It does not support this kind of tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        with needs("gigatoken", "fast", "backend: gigatoken: it"):
            import gigatoken
        self._reference = TokenizersBackend(tokenizer)
        self._has_special = special_finder(tokenizer)
        try:
            self._tokenizer = gigatoken.Tokenizer.from_json(fast_tokenizer(tokenizer).to_str())
        except Exception as error:
            raise PrepareError(
                f"backend: gigatoken: it cannot take this tokenizer: {error}\n  Use backend: tokenizers."
            ) from error

    def __call__(self, texts: list[str], *, is_data: bool, add_special_tokens: bool) -> list[Ids]:
        """The ids of each text, uint32 (n,)."""
        if add_special_tokens:
            return self._reference(texts, is_data=is_data, add_special_tokens=True)
        slow = [number for number, text in enumerate(texts) if self._has_special(text)]
        layout = self._tokenizer.encode_batch(texts, parallel=False).layout
        flat, offsets = np.asarray(layout.content.data), np.asarray(layout.offsets).tolist()
        found: list[Ids] = [flat[begin:end] for begin, end in itertools.pairwise(offsets)]
        for number in slow:
            found[number] = self._reference([texts[number]], is_data=is_data, add_special_tokens=False)[0]
        return found

    def check(self, texts: Sequence[str], locations: Sequence[str]) -> None:
        """Raise unless it agrees with the tokenizer.

        Args:
            texts: A sample of the input.
            locations: The file and line of each.

        Raises:
            PrepareError: It does not, on some text.
        """
        ours = self(list(texts), is_data=True, add_special_tokens=False)
        theirs = self._reference(list(texts), is_data=True, add_special_tokens=False)
        for number, (got, expected) in enumerate(zip(ours, theirs, strict=True)):
            if not np.array_equal(got, expected):
                raise PrepareError(
                    f"backend: gigatoken: {locations[number]}: expected the tokenizer's ids "
                    f"{shown(expected.tolist())}, got {shown(got.tolist())}\n  Use backend: tokenizers."
                )


def special_finder(tokenizer: Any) -> Callable[[str], bool]:
    """Whether a text holds what the tokenizer would take for a special token."""
    names = [str(token.content) for token in fast_tokenizer(tokenizer).get_added_tokens_decoder().values()]
    if not names:
        return lambda _: False
    common = os.path.commonprefix(names)  # noqa: RUF071 (no paths)
    pattern = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
    return lambda text: common in text and pattern.search(text) is not None


Backend = TokenizersBackend | GigatokenBackend


def make_backend(config: PrepareConfig, tokenizer: Any) -> Backend:
    """The encoder of texts that the config names."""
    return GigatokenBackend(tokenizer) if config.backend == "gigatoken" else TokenizersBackend(tokenizer)


def check_backend(config: PrepareConfig, tokenizer: Any, tasks: Sequence[Task]) -> None:
    """Compare gigatoken, where the config names it, with the tokenizer, on records from all over the input.

    Raises:
        PrepareError: They differ.
    """
    if config.backend != "gigatoken" or not tasks:
        return
    backend = GigatokenBackend(tokenizer)
    extract = Extractor(config, special_finder(tokenizer), tokenizer.eos_token)
    count = min(_CHECKED_TASKS, len(tasks))
    for place in range(count):
        # The first, the last, and some between.
        source = TaskInput(tasks[place * (len(tasks) - 1) // max(count - 1, 1)])
        texts: list[str] = []
        locations: list[str] = []
        for number, record in source.records():
            with suppress(BadRecordError, DroppedRecordError):  # its task meets it again, and counts it
                found = [part.text for part in extract(record).parts() if isinstance(part, TextPart)]
                texts += found
                locations += [source.location(number)] * len(found)
            if len(texts) >= _CHECKED_TEXTS:
                break
        backend.check(texts[:_CHECKED_TEXTS], locations[:_CHECKED_TEXTS])
