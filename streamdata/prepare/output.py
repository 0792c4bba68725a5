"""What a task writes: `blocks of each domain → shards in a directory of its own → all of it published by renames`."""

import errno
import hashlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from streamdata.errors import shown
from streamdata.prepare.config import STREAMED, PrepareConfig
from streamdata.prepare.documents import TokenizedDocument
from streamdata.prepare.encode import vocabulary_size
from streamdata.prepare.errors import PrepareError
from streamdata.prepare.layout import Layout, task_name
from streamdata.prepare.pack import Block, Packer
from streamdata.run.publish import publish_written, sync
from streamdata.stores.dtypes import SOURCES, token_dtype
from streamdata.stores.writer import StoreWriter

MAX_DOMAINS = 1000


class Staging:
    """The output of one task while it is written, in a directory that no reader looks into.

    Args:
        config: Keys, format and sizes.
        tokenizer: Gives the largest id, and what fills up rows.
        layout: Where the run writes.
        task: The task's number.
        counts: Tokens, rows and the like are added to it.
        max_domains: More are an error.
    """

    def __init__(
        self,
        config: PrepareConfig,
        tokenizer: Any,
        layout: Layout,
        task: int,
        counts: Counter[str],
        *,
        max_domains: int = MAX_DOMAINS,
    ) -> None:
        self._config, self._counts, self._max_domains = config, counts, max_domains
        self._keys = store_keys(config, vocabulary_size(tokenizer))
        self._padding = padding_id(tokenizer) if config.has_rows() else 0
        self._data, self._name = layout.finished_data, task_name(task)
        self._root = layout.staging / f"{self._name}.{os.getpid()}.{secrets.token_hex(4)}"
        self._packers: dict[str, Packer] = {}
        self._writers: dict[str, StoreWriter] = {}

    def __enter__(self) -> Self:
        # Not its parents: a worker that is late would make the directory of a run that has ended look unfinished.
        self._root.parent.mkdir(exist_ok=True)
        self._root.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.discard()
        shutil.rmtree(self._root)

    def add(self, documents: Sequence[TokenizedDocument]) -> None:
        """Write some documents, or hold them until rows are planned."""
        if self._config.train_type not in STREAMED:
            for document in documents:
                self._append(document)
            return
        domains: dict[str, list[TokenizedDocument]] = {}
        for document in documents:
            domains.setdefault(document.domain, []).append(document)
        for domain, found in domains.items():
            if domain not in self._packers:
                self._packers[domain] = Packer(self._config, self._padding, self._counts)
            sequences = [tokens for document in found for tokens in document.sequences["sequence"]]
            self._write(domain, self._packers[domain].add(sequences))
        self._pack_fullest()

    def publish(self) -> dict[str, list[int | str]]:
        """Finish all shards, and rename them to where the data of finished tasks are, below their domains.

        Returns:
            Size and SHA-256 of each file, by its path there.
        """
        for domain, packer in self._packers.items():
            self._write(domain, packer.finish())
        files: dict[str, list[int | str]] = {}
        self._data.mkdir(exist_ok=True)
        for domain, writer in sorted(self._writers.items()):
            writer.close()
            directory = self._data / domain / self._name
            directory.parent.mkdir(exist_ok=True)
            # Whoever made them, another process or this one: a marker must not be on the disk before what it names.
            for folder in (self._data.parent, self._data):
                sync(folder)
            _publish_once(self._root / domain / self._name, directory)
            for path in sorted(path for path in directory.rglob("*") if path.is_file()):
                files[str(path.relative_to(self._data))] = [path.stat().st_size, sha256(path)]
        return files

    def _write(self, domain: str, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self._writer(domain).extend(block.flat, block.lengths, documents=block.documents)

    def _pack_fullest(self) -> None:
        """Pack what the domains with the most tokens hold, until all of them together hold no more than one may."""
        while sum(packer.load for packer in self._packers.values()) >= 1:
            domain = max(self._packers, key=lambda name: self._packers[name].load)
            self._write(domain, self._packers[domain].finish())

    def _append(self, document: TokenizedDocument) -> None:
        record: dict[str, Any] = {}
        for name, keys in SOURCES[self._config.train_type].items():
            if name in document.values:
                record[keys.tokens] = np.array(document.values[name], np.float32)
                continue
            rows = document.sequences[name]
            is_list = name == "responses"
            record[keys.tokens] = [row.ids for row in rows] if is_list else rows[0].ids
            if keys.mask is not None:
                record[keys.mask] = [row.train for row in rows] if is_list else rows[0].train
            trained = sum(int(row.train.sum()) for row in rows)
            self._counts.update(sequences=len(rows), tokens=sum(len(row.ids) for row in rows), trained=trained)
        self._writer(document.domain).append(record)

    def _writer(self, domain: str) -> StoreWriter:
        if domain not in self._writers:
            if len(self._writers) == self._max_domains:
                raise PrepareError(
                    f"domain_key {shown(self._config.domain_key)}: expected at most {self._max_domains} domains "
                    "in a task, "
                    f"got {shown(domain)} too\n  Take a field with few values."
                )
            config, path = self._config, self._root / domain / self._name
            items, rows = ("responses", "masks") if config.train_type == "grpo" else (), config.has_rows()
            size = config.max_tokens_per_shard
            writer = StoreWriter(config.format, path, self._keys, items=items, rows=rows, max_tokens_per_shard=size)
            self._writers[domain] = writer
        return self._writers[domain]


def store_keys(config: PrepareConfig, vocabulary: int) -> dict[str, str]:
    """The keys of the store, and the dtype of each."""
    dtype = token_dtype(vocabulary - 1, config.format)
    keys: dict[str, str] = {}
    for name, found in SOURCES[config.train_type].items():
        keys[found.tokens] = "float32" if name == "rewards" else dtype
        if found.mask is not None:
            keys[found.mask] = "bool"
    if config.stored_positions() != "none":
        max_length = config.max_packed_len or config.max_seq_len
        keys["position_ids"] = token_dtype(max_length - 1) if max_length else "uint32"
    return keys


def padding_id(tokenizer: Any) -> int:
    """What fills up rows: the tokenizer's padding, else its end of sequence.

    Raises:
        PrepareError: It has neither.
    """
    for found in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if found is not None:
            return int(found)
    raise PrepareError("tokenizer: expected a padding or end-of-sequence token to fill up rows, got neither")


def _publish_once(written: Path, directory: Path) -> None:
    """Rename what was written, unless another process has done the same task."""
    try:
        publish_written(written, directory)
    except OSError as error:
        # On a cluster two processes may do one task, each taken for dead by the scheduler. Both write the same, and the
        # rename publishes all of it: what is there stays, since the other's marker may name it already.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
