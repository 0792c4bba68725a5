"""The base of datasets over stores: map-style, of one train type, checked against the keys of the store."""

import operator
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from torch.utils.data import Dataset

from streamdata.errors import StoreError, names_text, positive, shown
from streamdata.recipe.named_source import NamedSource, Percent
from streamdata.stores.dtypes import SOURCES, TRAIN_TYPES
from streamdata.stores.factory import open_store
from streamdata.stores.store import Store

Sample = dict[str, Any]


class BaseDataset(NamedSource, Dataset[Sample]):
    """Base of map-style datasets over a token store, for one train type.

    It works under a plain DataLoader, and as a source of a MergedDataset once it has `name` and `percent`.

    Args:
        load_path: A store: its directory, a file, or the common prefix of Megatron's `.bin` and `.idx`.
        window_size: The tokens in a window; for records, the length at which they are cut, None not to cut.
        storage_type: The store's format; None to detect it from its files.
        store: A loaded store, instead of a path.
        verify: Compare what is read with the checksums of the store's files; see `Store.load`.
        mapped: Read through memory maps; see `Store.load`.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        dtype: Of the tokens, such as "uint32", for a file of bare tokens that does not say it, as nanoGPT's `.bin`.

    Raises:
        FileNotFoundError: Nothing lies at the path.
        StoreError: The store is damaged, or does not serve this train type.
        ValueError: Not exactly one of `load_path` and `store`, a store together with options of loading, or a
            `window_size` that is not positive.
    """

    train_type: ClassVar[str]
    required_keys: ClassVar[Sequence[str]] = ()
    """The keys that a train type of somebody else's needs; see `DatasetFactory.register`."""

    def __init__(
        self,
        load_path: str | Path | None = None,
        window_size: int | None = None,
        storage_type: str | None = None,
        *,
        store: Store | None = None,
        verify: bool = True,
        mapped: bool = False,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        if (load_path is None) == (store is None):
            raise ValueError(f"{self._who}: expected a load_path or a store, got {shown(load_path)} and {shown(store)}")
        if store is not None and (mapped or not verify or dtype is not None):
            raise ValueError(
                f"{self._who}: expected verify, mapped and dtype with a load_path, got them with a store that is "
                "loaded\n  Give them to its load() or constructor."
            )
        if store is None:
            assert load_path is not None, "neither path nor store"
            store = open_store(load_path, storage_type, verify=verify, mapped=mapped, dtype=dtype)
        self.store = store
        self.window_size = None if window_size is None else positive(f"{self._who}: window_size", window_size)
        self._check_store()

    @classmethod
    def load(
        cls,
        path: str | Path,
        window_size: int | None = None,
        stride: int | None = None,
        storage_type: str | None = None,
        **options: Any,
    ) -> Self:
        """Load the dataset over the store at a path; `DatasetFactory.load` does so for a train type.

        Args:
            path: See `load_path` of the class.
            window_size: The tokens in a window; for records, the length at which they are cut.
            stride: Tokens from one window to the next.
            storage_type: The store's format; None to detect it from its files.
            options: Further arguments of the class.

        Raises:
            ValueError: See the class.
        """
        given: dict[str, Any] = {"window_size": window_size, "stride": stride, "storage_type": storage_type}
        return cls(path, **{name: value for name, value in given.items() if value is not None}, **options)

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def get_index(self, idx: int) -> tuple[int, int]:
        """The range [begin, end) of the store that sample `idx` reads."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Many samples at once."""

    def __getitem__(self, idx: int) -> Sample:
        """One sample; a negative index counts from the end, as in a list."""
        return self.__getitems__((idx,))[0]

    @cached_property
    def source_identity(self) -> str:
        """A text that identifies the samples, wherever the store lies; a resume compares it."""
        return f"{self.train_type} {self._cut}of store {self.store.identity}"

    @property
    def keys(self) -> list[str]:
        """The keys of the store."""
        return self.store.keys

    @property
    def count(self) -> int:
        """The number of tokens; an alias of `num_tokens`."""
        return self.num_tokens

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the store has for this train type, in samples or not."""
        sources = SOURCES.get(self.train_type, {})
        keys = [source.tokens for name, source in sources.items() if name != "rewards"] or self.required_keys[:1]
        return sum(len(self.store.column(key)) for key in keys)

    @property
    def _cut(self) -> str:
        """How samples are cut, where that is a choice: a part of `source_identity`."""
        return ""

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _number(self, idx: int) -> int:
        """The index as one from 0 on."""
        is_plain = type(idx) is int and 0 <= idx < len(self)
        return idx if is_plain else position_of(idx, len(self), self._who)

    def _numbers(self, indices: Sequence[int]) -> list[int]:
        count = len(self)
        # One comparison per index, since this is in the loop over batches.
        return [idx if type(idx) is int and 0 <= idx < count else self._number(idx) for idx in indices]

    def _check_store(self) -> None:
        """Raise StoreError unless the store serves this train type."""
        store, needed = self.store, TRAIN_TYPES.get(self.train_type, self.required_keys)
        if missing := [key for key in needed if key not in store.keys]:
            raise StoreError(
                f"{self._who}: train type {shown(self.train_type)} needs the keys {list(needed)}, "
                f"store '{store.path}' lacks {missing}\n  It has {names_text(store.keys)}, and can serve "
                f"{list(store.train_types)}."
            )
        if self.train_type in TRAIN_TYPES and self.train_type not in store.train_types:
            raise StoreError.mismatch(
                self._who, f"a store for train type {shown(self.train_type)}",
                f"one written for {list(store.train_types)}: '{store.path}'",
                "Choose one of these, or write it again for this one.",
            )  # fmt: skip


def position_of(index: Any, count: int, who: str) -> int:
    """An index of a list of `count` samples, from its end where it is negative, as one from 0 on.

    Raises:
        IndexError: It is outside.
        TypeError: It is no integer.
    """
    position = operator.index(index)
    if not -count <= position < count:
        raise IndexError(f"{who}: expected an index of {count} samples, got {position}")
    return position % count
