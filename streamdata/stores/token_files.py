"""Files of bare tokens: numpy's `.npy` (OLMo's have no header), datatrove's `.ds`, and a `.bin` of llm.c or nanoGPT.

- `.npy`: numpy's header where it begins with its magic; else nothing but tokens, whose dtype must be given.
- `.ds`: tokens of 2 or 4 bytes. Beside it may lie `.ds.index`, uint64, where each document ends, in tokens;
  `.ds.metadata`, whose first line ends in `|` and the bytes of a token and whose second is the number of tokens; and
  `.ds.loss`, a byte per token that says whether it is trained on.
- `.bin` of llm.c: 256 int32, of which the first are the magic, the version and the number of tokens; then these.
- `.bin` of nanoGPT: nothing but tokens, uint16 unless another dtype is given.
"""

import logging
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import StoreError, one_line, place_of_io, shown
from streamdata.recipe.limits import open_regular
from streamdata.stores.dtypes import stored_dtype
from streamdata.stores.mmap_store import META
from streamdata.stores.segments import Even, Offsets, Segment, Shard, StoredArray
from streamdata.stores.store import Store, store_files, suffixed
from streamdata.stores.stored_values import has_sums

logger = logging.getLogger("streamdata")

TOKEN_SUFFIXES: Final = (".npy", ".ds")
"""Suffixes of files of bare tokens that are known by their names; a `.bin` alone is one, too."""
_NPY_MAGIC: Final = b"\x93NUMPY"
_LLMC_HEADER: Final = 1024
_LLMC_EVAL: Final = 20240522
_LLMC: Final = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""The version and the dtype of each magic."""
_DS_METADATA: Final = re.compile(r".*\|([24])\n([0-9]{1,18})(\n|\Z)")
_COPY_BOTH: Final = "One of the two was cut short or belongs to another: copy both again."


class TokenLayout(NamedTuple):
    """How tokens lie in a file.

    Attributes:
        dtype: Of each.
        offset: The byte at which they begin.
        shape: How many there are, or of an array of several dimensions its shape; None where the file does not say.
    """

    dtype: np.dtype[Any]
    offset: int = 0
    shape: tuple[int, ...] | None = None


class TokenFileStore(Store):
    """Reads files that hold tokens and little else, as the key `sequence`: one, or all `.npy` or `.ds` of a directory.

    A file is one document, unless an index beside it says more; a `.ds` with a `.loss` has the key `loss_mask`, too.

    Args:
        dtype: Of the tokens, for a file that does not say it.
    """

    storage_type = "tokens"

    def __init__(self, dtype: str | None = None) -> None:
        super().__init__()
        self._dtype = None if dtype is None else stored_dtype(dtype, "dtype")

    def read_shards(self, path: Path) -> list[Shard]:
        root, files = store_files(path)
        if path.is_dir():  # a directory may have a .bin for training and one for evaluation
            files = suffixed(files, *TOKEN_SUFFIXES)
            if len({os.path.splitext(file)[1] for file in files}) > 1:
                remedy = "Give each its own directory, or name a file."
                raise StoreError.mismatch(f"store '{path}'", "*.npy or *.ds", "both", remedy)
        return [self._shard(str(root / file)) for file in files]

    def _shard(self, file: str) -> Shard:
        layout, size_bytes, is_ds = self._layout(file), os.path.getsize(file), file.endswith(".ds")
        if layout.shape is not None and len(layout.shape) != 1:
            remedy = "Save it flat: array.reshape(-1)."
            raise StoreError.mismatch(f"file '{file}'", "one array of tokens", f"shape {layout.shape}", remedy)
        count, rest = divmod(size_bytes - layout.offset, layout.dtype.itemsize)
        if rest or layout.shape not in (None, (count,)):
            wanted = "whole tokens" if layout.shape is None else f"{layout.shape[0]} tokens"
            raise StoreError.mismatch(
                f"file '{file}'", f"{wanted} of {layout.dtype.name} after {layout.offset} bytes of header",
                f"{size_bytes} bytes in all", "It was cut short, or has another dtype: copy it again, or give dtype.",
            )  # fmt: skip
        data = StoredArray(file, layout.dtype, count, layout.offset, has_sums=has_sums(file))
        ends, index = None, f"{file}.index"
        if is_ds and os.path.exists(index):
            size_of_index = os.path.getsize(index)
            stored = StoredArray(index, np.dtype("<u8"), size_of_index // 8, has_sums=has_sums(index))
            if not stored.count or size_of_index % 8:
                expected = "8 bytes for the end of each document"
                raise StoreError.mismatch(f"file '{index}'", expected, f"{size_of_index} bytes")
            if (last := self.values(stored)[-1]) != count:
                expected = f"documents that end with the {count} tokens of '{file}'"
                raise StoreError.mismatch(f"file '{index}'", expected, f"an end at {last}", _COPY_BOTH)
            ends = Offsets(stored.count, stored, count, f"index '{index}'", has_zero=False)
        sequence = Segment(data, ends or Even(1, count), documents=ends, is_undivided=ends is None)
        segments, loss = {"sequence": [sequence]}, f"{file}.loss"
        if is_ds and os.path.exists(loss):
            if (found := os.path.getsize(loss)) != count:
                expected = f"{count} bytes, one for each token of '{file}'"
                raise StoreError.mismatch(f"file '{loss}'", expected, found, _COPY_BOTH)
            mask = StoredArray(loss, np.dtype(np.bool_), count, has_sums=has_sums(loss))
            segments["loss_mask"] = [Segment(mask, sequence.records)]
        return Shard(file, segments)

    def _layout(self, file: str) -> TokenLayout:
        found = _LAYOUTS.get(os.path.splitext(file)[1], _bin_layout)(file)
        if found is None and file.endswith(TOKEN_SUFFIXES) and self._dtype is None:
            remedy = "Give it, such as dtype='uint16' for up to 65,536 token ids, else 'uint32'."
            expected, got = "a file that says the dtype of its tokens", "one that does not"
            raise StoreError.mismatch(f"file '{file}'", expected, got, remedy)
        if found is None:
            found = TokenLayout(self._dtype or np.dtype("<u2"))
            if not file.endswith(TOKEN_SUFFIXES):
                message = "file '%s': recognised as bare tokens of %s, as nanoGPT writes them"
                logger.info(message, one_line(file), found.dtype.name)
        if self._dtype not in (None, found.dtype):
            expected = f"tokens of {found.dtype.name}, as it says itself"
            raise StoreError.mismatch(f"file '{file}'", expected, f"dtype={self._dtype}", "Leave dtype out.")
        return found


def npy_layout(file: str) -> TokenLayout | None:
    """The layout of a `.npy`; None where it does not begin with numpy's magic.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: Its header is damaged, or its dtype is not one that a store can hold.
    """
    with open_regular(file, StoreError) as opened, place_of_io(file):
        if opened.read(len(_NPY_MAGIC)) != _NPY_MAGIC:
            return None
        opened.seek(0)
        try:
            version = np.lib.format.read_magic(opened)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(opened)
        except OSError:
            raise
        except Exception as error:  # Python's parser evaluates the header, and has many errors
            got = f"{type(error).__name__}: {one_line(error)}"
            raise StoreError.mismatch(f"file '{file}'", "numpy's header", got) from error
        return TokenLayout(stored_dtype(dtype.str, f"file '{file}'"), opened.tell(), shape)


def _ds_layout(file: str) -> TokenLayout | None:
    path = f"{file}.metadata"
    if not os.path.exists(path):
        return None
    with open_regular(path, StoreError) as opened, place_of_io(path):
        text = opened.read(1 << 16).decode("utf-8", "replace")
    if (found := _DS_METADATA.match(text)) is None:
        raise StoreError.mismatch(
            f"file '{path}'",
            "the bytes of a token (2 or 4) after the last | of its first line and a number of tokens in the second",
            shown(text), "Copy it again, or remove it and give dtype.",
        )  # fmt: skip
    return TokenLayout(np.dtype(f"<u{found[1]}"), 0, (int(found[2]),))


def _bin_layout(file: str) -> TokenLayout | None:
    who = f"file '{file}'"
    if os.path.exists(os.path.join(os.path.dirname(file), META)):
        remedy = "Name the directory that they are in."
        raise StoreError.mismatch(who, "a store", f"one of its arrays, with {META} beside it", remedy)
    with open_regular(file, StoreError) as opened, place_of_io(file):
        head = opened.read(_LLMC_HEADER)
    magic, version, count = np.frombuffer(head[:12].ljust(12, b"\0"), "<i4").tolist()
    if magic == _LLMC_EVAL:
        got = f"questions with choices of llm.c, by its magic {magic}"
        remedy = "Name a file of training or validation data."
        raise StoreError.mismatch(who, "tokens", got, remedy)
    if magic not in _LLMC:
        return None
    expected, dtype = _LLMC[magic]
    if version != expected or len(head) < _LLMC_HEADER:
        wanted = f"version {expected} of llm.c's magic {magic} and a header of {_LLMC_HEADER} bytes"
        raise StoreError.mismatch(who, wanted, f"version {version} and {len(head)} bytes")
    return TokenLayout(stored_dtype(dtype, who), _LLMC_HEADER, (count,))


_LAYOUTS: Final = {".npy": npy_layout, ".ds": _ds_layout}
