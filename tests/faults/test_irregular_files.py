"""What is no regular file in place of one: each opening ends in an error at once, and none waits for a writer."""

import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import streamdata
from streamdata.chats.media import decode_video
from streamdata.errors import StreamdataError
from streamdata.io.file_cache import FileCache
from streamdata.sources.functions.images import open_image
from streamdata.states.loading import read_states, read_step
from streamdata.stores.stored_values import publish_sums
from streamdata.text.messages import read_tool_file
from streamdata.text.tokenizer import load_directory, load_without_code
from tests.stores.tiny_stores import write
from tests.streams import Numbers

IRREGULAR: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}
STORES = {
    "bin": ["shard_0001/meta.json", "shard_0001/sequence.bin", "shard_0001/sequence.bin.sums"],
    "h5": ["data_0001.h5", "data_0001.h5.sums"],
    "megatron": ["data_0001.bin", "data_0001.idx", "data_0001.idx.sums"],
}
TOKENS = ["a.npy", "a.bin", "a.ds", "a.ds.metadata", "a.ds.index", "a.ds.loss", "a.ds.sums"]
ROWS = {"csv": "CsvDataset", "jsonl": "JsonlIterableDataset", "jsonl.gz": "JsonlIterableDataset",
        "parquet": "ParquetDataset", "tar": "MetaDistributedWebDataset"}  # fmt: skip
OPENED: dict[str, Callable[[Path], object]] = {
    "tools.yaml": lambda path: read_tool_file(str(path)),
    "skip.jsonl": lambda path: streamdata.MergedDataset([Numbers("a", 9)], skip=str(path)),
    "states.json": lambda path: read_states([path]),
    "step-1/rank-0.states": lambda path: read_step(path.parents[1], 1),
    "image.png": open_image,
    "video.mp4": lambda path: decode_video(str(path), {}, 28),
    "tokenizer.json": lambda path: load_directory(str(path.parent)),
    "tokenizer_config.json": lambda path: load_without_code(None, path.parent),
    "digest": lambda path: FileCache(str(path.parent / "cache")).digest(str(path)),
    "new.sums": lambda path: publish_sums(str(path)),
}


def of_store(path: Path) -> object:
    """All windows of the store below `store`."""
    root = next(folder for folder in path.parents if folder.name == "store")
    return list(streamdata.DatasetFactory.load("seq", root, 4))


def of_tokens(path: Path) -> object:
    """All windows of a file of tokens."""
    data = path.with_name(f"a{path.suffixes[0]}")
    return list(streamdata.DatasetFactory.load("seq", data, 4, dtype="uint16"))


def of_rows(path: Path) -> object:
    """All records of a source of one shard."""
    source = getattr(streamdata, ROWS[path.name.partition(".")[2]])(str(path), name="a", percent=1)
    return list(streamdata.MergedDataset([source], cyclic=False))


CASES = [
    *(pytest.param(f"store/{file}", of_store, id=f"{kind} {file}") for kind, files in STORES.items() for file in files),
    *(pytest.param(file, of_tokens, id=file) for file in TOKENS),
    *(pytest.param(f"rows.{suffix}", of_rows, id=suffix) for suffix in ROWS),
    *(pytest.param(file, read, id=file) for file, read in OPENED.items()),
]


class HungError(BaseException):
    """It was opened, and waited for a second: nobody else raises it or takes it for an error of data."""


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """Each opening has ten seconds: one that hangs has no end."""

    def end(*_: object) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, end)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def write_tokens(folder: Path) -> None:
    """The same eight tokens in each of the formats."""
    tokens = np.arange(8, dtype="<u2")
    np.save(folder / "a.npy", tokens)
    for name in ("a.bin", "a.ds"):
        tokens.tofile(folder / name)
    (folder / "a.ds.metadata").write_text("tokenizer|2\n8\n")
    np.array([8], "<u8").tofile(folder / "a.ds.index")
    (folder / "a.ds.loss").write_bytes(bytes(8))
    publish_sums(str(folder / "a.ds"))


@pytest.mark.parametrize(("file", "read"), CASES)
def test_it_is_an_error_at_once(tmp_path: Path, file: str, read: Callable[[Path], object]) -> None:
    """A fifo, a directory, a device, a socket."""
    for kind, make in IRREGULAR.items():
        path = tmp_path / kind / file
        if kind == "directory" and path.suffix == ".h5":
            continue  # a folder of a store may be called so
        if read is of_store:
            write(next(name for name in STORES if file[6:] in STORES[name]), tmp_path / kind / "store")
        path.parent.mkdir(parents=True, exist_ok=True)
        if read is of_tokens:
            write_tokens(path.parent)
        if path.exists():
            read(path)
            path.unlink()
        make(path)
        signal.setitimer(signal.ITIMER_REAL, 10)
        with pytest.raises((OSError, StreamdataError, ValueError)) as caught:
            read(path)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert path.stem in str(caught.value)
