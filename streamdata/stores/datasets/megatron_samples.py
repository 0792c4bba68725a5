"""The samples of Megatron-Core's `GPTDataset`: pieces of shuffled documents, in a shuffled order, index for index.

`lengths, range, window, number of samples, seed → document, sample and shuffle index → tokens of a sample`. As
`megatron/core/datasets/gpt_dataset.py` of version 0.16.1 has it, the documents of GPTDataset are the *sequences* of the
`.idx`. The rules:

1. Epochs are as many as give `num_samples · window + 1` tokens. The document index is the range of documents once for
   each, shuffled over all epochs; where the last one is needed for less than 80 % of its samples, it is shuffled apart.
2. Documents in that order are one run of tokens, which is cut every `window` tokens; a sample has one token more, the
   target of its last. Row k of the sample index says where sample k begins: a place in the document index, an offset.
3. Samples are shuffled, those of a last epoch that is apart by themselves.

All shuffles come from one `numpy.random.RandomState(seed)`.
"""

import errno
import logging
import os
import shutil
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import StoreError, shown
from streamdata.run import stable_seed
from streamdata.run.publish import make_directory, publish_written, temporary_beside
from streamdata.stores.dtypes import Values
from streamdata.stores.megatron_store import Sequences
from streamdata.stores.segments import StoredArray
from streamdata.stores.store import Store
from streamdata.stores.token_files import npy_layout

logger = logging.getLogger("streamdata")

_APART: Final = 0.80
_INT32_MAX: Final = np.iinfo(np.int32).max
_UINT32_MAX: Final = np.iinfo(np.uint32).max


class SampleRule(NamedTuple):
    """The settings that determine the indices, beside the lengths of the documents.

    Attributes:
        first: Of the documents that are read.
        last: The one after the last of them.
        window_size: Tokens of a sample, without the last target.
        num_samples: At least so many; None for those of one epoch.
        seed: Of the shuffles, `--seed` of Megatron.
    """

    first: int
    last: int
    window_size: int
    num_samples: int | None
    seed: int


class SampleIndices(NamedTuple):
    """The three indices.

    Attributes:
        documents: The documents in their order, int32 (epochs · documents,).
        samples: Where each sample begins, and where the last ends: place in `documents` and offset, (samples + 1, 2).
        shuffle: Which sample is at an index, uint32 or int64 (samples,).
    """

    documents: npt.NDArray[Any]
    samples: npt.NDArray[Any]
    shuffle: npt.NDArray[Any]


def build_indices(lengths: npt.NDArray[np.int32], rule: SampleRule) -> SampleIndices:
    """The indices over documents of these lengths.

    Args:
        lengths: Of all documents of the store, int32, in tokens.
        rule: Which of them, and how.

    Raises:
        ValueError: They have too few tokens for one sample.
    """
    size, count = rule.window_size, rule.last - rule.first
    tokens = int(lengths[rule.first : rule.last].sum(dtype=np.int64))
    asked = rule.num_samples or 0
    epochs = -(-(asked * size + 1) // tokens) if tokens else 1
    num_samples = (epochs * tokens - 1) // size
    if num_samples < 1:
        raise ValueError(f"expected at least {size + 1} tokens for one sample, got {tokens} in {count} documents")
    documents = np.tile(np.arange(rule.first, rule.last, dtype=np.int32), epochs)
    shuffle = np.arange(num_samples, dtype=np.uint32 if num_samples < _UINT32_MAX - 1 else np.int64)
    before = ((epochs - 1) * tokens - 1) // size  # samples of the epochs before the last
    is_apart = epochs > 1 and asked - before < int(_APART * ((tokens - 1) // size))
    random = np.random.RandomState(rule.seed)
    for values, border in ((documents, (epochs - 1) * count), (shuffle, before)):
        for part in (values[:border], values[border:]) if is_apart else (values,):
            random.shuffle(part)  # a view: it happens in place
    ends = np.cumsum(lengths[documents], dtype=np.int64)
    cuts = np.arange(num_samples + 1, dtype=np.int64) * size
    # The document that holds the token at a cut: empty ones are passed over, but for the first of all.
    places = np.searchsorted(ends, cuts, side="right")
    places[0] = 0
    offsets = cuts - np.where(places > 0, ends[places - 1], 0)
    widest = max(len(documents), int(lengths.max()))
    samples = np.stack((places, offsets), axis=1).astype(np.int32 if widest <= _INT32_MAX else np.int64)
    return SampleIndices(documents, samples, shuffle)


class MegatronSamples:
    """Reads the samples of one Megatron pair. Its indices are built once, and lie beside the pair in a hidden folder.

    Args:
        store: The pair, loaded.
        key: Of its tokens.
        rule: Which samples there are.

    Attributes:
        rule: The same.

    Raises:
        StoreError: The store is not one pair, its range has too few tokens, or its indices are damaged.
    """

    def __init__(self, store: Store, key: str, rule: SampleRule) -> None:
        segments = store.column(key).segments
        if len(segments) != 1 or not isinstance(segments[0].records, Sequences):
            raise StoreError.mismatch(
                "compat='megatron'", "one pair of .bin and .idx",
                f"{len(segments)} parts of format {shown(store.storage_type)} in '{store.path}'",
                "Name one pair, and blend several of them.",
            )  # fmt: skip
        self._store, self._size, self.rule = store, rule.window_size, rule
        self._data, self._sequences = segments[0].data, segments[0].records
        # Another index, or the same one written anew, has other samples: its size and time are in the name.
        index = Path(self._sequences.lengths.file)
        status = os.stat(index)
        name = stable_seed("megatron", status.st_size, status.st_mtime_ns, list(rule))
        self._folder = index.with_name(f".{index.stem}.samples") / f"{name:016x}"
        self._indices: tuple[Any, ...] = self._stored() if self._folder.is_dir() else self._built()
        shuffle = self._indices[2]
        self._count = shuffle.count if isinstance(shuffle, StoredArray) else len(shuffle)

    def __len__(self) -> int:
        return self._count

    @property
    def indices(self) -> SampleIndices:
        """All three, mapped from where they lie or, where they could not be written, in memory."""
        documents, samples, shuffle = (
            np.load(values.file, mmap_mode="r") if isinstance(values, StoredArray) else values
            for values in self._indices
        )
        return SampleIndices(documents, samples.reshape(-1, 2), shuffle)

    def read(self, numbers: Sequence[int]) -> Values:
        """The tokens of samples, (numbers, window_size + 1), in the dtype that they have on disk."""
        out = np.empty((len(numbers), self._size + 1), self._data.dtype)
        documents, samples, shuffle = (
            self._store.values(values) if isinstance(values, StoredArray) else values for values in self._indices
        )
        for row, number in zip(out, numbers, strict=True):
            # By slices, which are read as they are: what is next to them is of other samples.
            at = 2 * int(shuffle[number : number + 1][0])
            first, offset, last, end = samples[at : at + 4].tolist()
            self._read(row, documents[first : last + 1].tolist(), offset, end)
        return out

    def _read(self, row: Values, documents: list[int], offset: int, end: int) -> None:
        """Fill a row with the tokens from an offset in the first document to one in the last, this one included."""
        data, pointers = self._store.values(self._data), self._store.values(self._sequences.values)
        token_bytes, done = self._sequences.token_bytes, 0
        for place, document in enumerate(documents, 1):
            # By pointers alone: the documents are in no order, and each is read once.
            found = pointers[document : document + 2].tolist()
            (start, rest), stop = divmod(found[0], token_bytes), found[-1] // token_bytes
            if document + 1 == self._sequences.count:
                stop = self._sequences.end
            if rest or not 0 <= start <= stop <= self._sequences.end:
                raise self._sequences.damaged(document, start, stop)
            begin = start + offset if place == 1 else start
            until = start + end + 1 if place == len(documents) else stop
            if not start <= begin <= until <= stop or done + until - begin > len(row):
                raise self._unfit(f"tokens {begin - start} to {until - start} of document {document}")
            row[done : done + until - begin] = data[begin:until]
            done += until - begin
        if done < len(row):
            raise self._unfit(f"{done} tokens of a sample")

    def _unfit(self, got: str) -> StoreError:
        expected = f"samples of {self._size + 1} tokens of '{self._data.file}'"
        remedy = "They belong to other files: remove the folder, and they are built again."
        return StoreError.mismatch(f"indices '{self._folder}'", expected, got, remedy)

    def _stored(self) -> tuple[StoredArray, ...]:
        arrays = []
        for name in SampleIndices._fields:
            file = str(self._folder / f"{name}.npy")
            layout = npy_layout(file)
            if layout is None or layout.shape is None:
                raise self._unfit(f"no array in '{file}'")
            array = StoredArray(file, layout.dtype, prod(layout.shape), layout.offset)
            if os.path.getsize(file) != layout.offset + array.count * array.dtype.itemsize:
                raise self._unfit(f"{os.path.getsize(file)} bytes of '{file}' for {array.count} values")
            arrays.append(array)
        _, samples, shuffle = arrays
        if samples.count != 2 * (shuffle.count + 1):
            raise self._unfit(f"{samples.count} numbers for {shuffle.count} samples")
        return tuple(arrays)

    def _built(self) -> tuple[Any, ...]:
        lengths = np.asarray(self._store.values(self._sequences.lengths)[0 : self._sequences.count])
        if len(lengths) and int(lengths.min()) < 0:
            who, got = self._sequences.who, f"{lengths.min()} for sequence {int(lengths.argmin())}"
            raise StoreError.mismatch(who, "lengths of at least 0", got)
        try:
            indices = build_indices(lengths, self.rule)
        except ValueError as error:
            raise StoreError(
                f"store '{self._store.path}', compat='megatron': {error}\n  Choose a smaller window_size, or more data."
            ) from None
        try:
            self._publish(indices)
        except OSError as error:
            logger.warning(
                "store '%s': its sample indices cannot be kept (%s): each process builds them again, in its memory\n"
                "  Make the folder '%s' writable once.", self._store.path, error, self._folder.parent,
            )  # fmt: skip
            return indices.documents, indices.samples.reshape(-1), indices.shuffle
        return self._stored()

    def _publish(self, indices: SampleIndices) -> None:
        make_directory(self._folder.parent)
        temporary = temporary_beside(self._folder)
        temporary.mkdir()
        try:
            for name, array in indices._asdict().items():
                np.save(temporary / f"{name}.npy", array)
            publish_written(temporary, self._folder)
        except OSError as error:
            # Another process was faster: its indices are the same.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
