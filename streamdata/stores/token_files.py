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
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import StoreError, one_line, place_of_io
from streamdata.recipe.regular_files import open_regular
from streamdata.stores.bounds import Ends, Even, StoredArray
from streamdata.stores.dtypes import stored_dtype
from streamdata.stores.files import META, TOKEN_SUFFIXES, store_files, suffixed
from streamdata.stores.npy import read_npy_header
from streamdata.stores.segments import Segment, Shard
from streamdata.stores.store import Store
from streamdata.stores.sums import has_sums

logger = logging.getLogger("streamdata")

_LLMC_HEADER: Final = 1024
_LLMC_EVAL: Final = 20240522
_LLMC: Final = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""The version and the dtype of each magic."""
_DS_DTYPES: Final = {2: "uint16", 4: "uint32"}


class TokenLayout(NamedTuple):
    """How tokens lie in a file.

    Attributes:
        dtype: Of each.
        offset: The byte at which they begin.
        stated: How many there are; None where the file does not say.
    """

    dtype: np.dtype[Any]
    offset: int = 0
    stated: int | None = None


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
                raise StoreError(
                    f"store '{path}': expected *.npy or *.ds, got both\n  Give each its own directory, or name a file."
                )
        return [self._shard(str(root / file)) for file in files]

    def _shard(self, file: str) -> Shard:
        size_bytes = os.path.getsize(file)
        layout = self._layout(file, size_bytes)
        count, rest = divmod(size_bytes - layout.offset, layout.dtype.itemsize)
        if rest or layout.stated not in (None, count):
            wanted = f"{layout.stated} tokens" if layout.stated is not None else "whole tokens"
            raise StoreError(
                f"file '{file}': expected {wanted} of {layout.dtype.name} after {layout.offset} bytes of header, "
                f"got {size_bytes} bytes in all\n"
                "  It was cut short, or has another dtype: copy it again, or give dtype."
            )
        data = StoredArray(file, layout.dtype, count, layout.offset, has_sums=has_sums(file))
        ends = _document_ends(file, count) if file.endswith(".ds") else None
        sequence = Segment(data, ends or Even(1, count), documents=ends, is_undivided=ends is None)
        loss = f"{file}.loss"
        if not file.endswith(".ds") or not os.path.exists(loss):
            return Shard(file, {"sequence": [sequence]})
        _check_bytes(loss, count, f"one for each token of '{file}'")
        mask = StoredArray(loss, np.dtype(np.bool_), count, has_sums=has_sums(loss))
        return Shard(file, {"sequence": [sequence], "loss_mask": [Segment(mask, sequence.records)]})

    def _layout(self, file: str, size_bytes: int) -> TokenLayout:
        if file.endswith(".npy"):
            found = _npy_layout(file)
        elif file.endswith(".ds"):
            found = _ds_layout(file)
        else:
            found = self._bin_layout(file, size_bytes)
        if found is None:
            if self._dtype is None:
                raise StoreError(
                    f"file '{file}': expected a file that says the dtype of its tokens, got one that does not\n"
                    "  Give it, such as dtype='uint16' for up to 65,536 token ids, else 'uint32'."
                )
            return TokenLayout(self._dtype)
        if self._dtype not in (None, found.dtype):
            raise StoreError(
                f"file '{file}': expected tokens of {found.dtype.name}, as it says itself, got dtype={self._dtype}\n"
                "  Leave dtype out."
            )
        return found

    def _bin_layout(self, file: str, size_bytes: int) -> TokenLayout:
        if os.path.exists(os.path.join(os.path.dirname(file), META)):
            raise StoreError(
                f"file '{file}': expected a store, got one of its arrays, with {META} beside it\n"
                "  Name the directory that they are in."
            )
        with open_regular(file, StoreError) as opened, place_of_io(file):
            head = opened.read(_LLMC_HEADER)
        magic, version, count = np.frombuffer(head[:12].ljust(12, b"\0"), "<i4").tolist()
        if magic == _LLMC_EVAL:
            raise StoreError(
                f"file '{file}': expected tokens, got questions with choices of llm.c, by its magic {magic}\n"
                "  Name a file of training or validation data."
            )
        if magic not in _LLMC:
            layout = TokenLayout(self._dtype or np.dtype("<u2"))
            logger.info(
                "file '%s': recognised as bare tokens of %s, as nanoGPT writes them", one_line(file), layout.dtype.name
            )
            return layout
        expected, dtype = _LLMC[magic]
        if version != expected or len(head) < _LLMC_HEADER:
            raise StoreError(
                f"file '{file}': expected version {expected} of llm.c's magic {magic} and a header of {_LLMC_HEADER} "
                f"bytes, got version {version} and {size_bytes} bytes\n  Copy it again."
            )
        return TokenLayout(np.dtype(dtype).newbyteorder("<"), _LLMC_HEADER, count)


def _npy_layout(file: str) -> TokenLayout | None:
    header = read_npy_header(file)
    if header is None:
        return None
    if len(header.shape) != 1:
        raise StoreError(
            f"file '{file}': expected one array of tokens, got shape {header.shape}\n  Save it flat: array.reshape(-1)."
        )
    return TokenLayout(header.dtype, header.offset, header.shape[0])


def _ds_layout(file: str) -> TokenLayout | None:
    path = f"{file}.metadata"
    if not os.path.exists(path):
        return None
    with open_regular(path, StoreError) as opened, place_of_io(path):
        lines = [*opened.read(1 << 16).decode("utf-8", "replace").split("\n"), ""]
    size, count = lines[0].rpartition("|")[2], lines[1]
    if not (size.isdecimal() and int(size) in _DS_DTYPES and count.isdecimal()):
        raise StoreError(
            f"file '{path}': expected the bytes of a token (2 or 4) after the last | of its first line and a number of "
            f"tokens in the second, got {lines[:2]}\n  Copy it again, or remove it and give dtype."
        )
    return TokenLayout(np.dtype(_DS_DTYPES[int(size)]).newbyteorder("<"), 0, int(count))


def _document_ends(file: str, count: int) -> Ends | None:
    path = f"{file}.index"
    if not os.path.exists(path):
        return None
    documents, rest = divmod(os.path.getsize(path), 8)
    if rest or not documents:
        raise StoreError(
            f"file '{path}': expected 8 bytes for the end of each document, got {os.path.getsize(path)} bytes\n"
            "  Copy it again."
        )
    ends = StoredArray(path, np.dtype("<u8"), documents, has_sums=has_sums(path))
    with open_regular(path, StoreError) as opened, place_of_io(path):
        opened.seek(-8, os.SEEK_END)
        last = int.from_bytes(opened.read(8), "little")
    if last != count:
        raise StoreError(
            f"file '{path}': expected documents that end with the {count} tokens of '{file}', got an end at {last}\n"
            "  One of the two was cut short or belongs to another: copy both again."
        )
    return Ends(documents, ends, count, f"index '{path}'")


def _check_bytes(file: str, expected: int, of_what: str) -> None:
    size_bytes = os.path.getsize(file)
    if size_bytes != expected:
        raise StoreError(
            f"file '{file}': expected {expected} bytes, {of_what}, got {size_bytes}\n"
            "  One of the two was cut short or belongs to another: copy both again."
        )
