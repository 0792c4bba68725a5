"""Writes what a task makes: `documents → blocks: as they are, or rows of one length → shards, published by renames`.

Each domain has shards in a directory of its own.
"""

import errno
import hashlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from streamdata.errors import PrepareError, shown
from streamdata.fields import DOCUMENT_WEIGHTS
from streamdata.prepare.config import STREAMED, PrepareConfig
from streamdata.prepare.documents import TokenizedDocument, Tokens
from streamdata.prepare.encode import vocabulary_size
from streamdata.prepare.run_directory import RunDirectory
from streamdata.run.publish import publish_written, sync
from streamdata.stores.dtypes import SOURCES, Int64s, token_dtype
from streamdata.stores.writer import StoreWriter
from streamdata.text.packing import positions
from streamdata.text.plan import Plan, plan_bfd, plan_bfd_split, plan_simple

_PLANS: Final[Mapping[str, Callable[[Int64s, int], Plan]]] = {
    "simple": plan_simple,
    "bfd": plan_bfd,
    "bfd_split": plan_bfd_split,
}
MAX_HELD = 1 << 25
"""Tokens that are packed together at most, so that a task of any size needs a bounded memory."""
_MAX_HELD_DOCUMENTS = 1 << 20
BLOCK_TOKENS = 1 << 20
"""Tokens that are put into rows at once, or one row."""
MAX_DOMAINS = 1000
"""Domains of one task; more are an error."""


class Block(NamedTuple):
    """Consecutive records: the values of all of them joined, per key, and the length of each.

    `documents`, for rows of one length, are the lengths of all documents in them, a row's padding counted as one.
    `weights`, if they are stored, are those of all documents, float32 (documents,); padding has 0.
    """

    flat: dict[str, npt.NDArray[Any]]
    lengths: Int64s
    documents: Int64s | None
    weights: npt.NDArray[np.float32] | None


class Packer:
    """Turns sequences into blocks of the keys that the train type reads.

    Args:
        config: How to pack.
        padding: The id that fills up rows.
        counts: Sequences, tokens and those trained are added to it; of packing rows, padding and documents cut.
    """

    def __init__(self, config: PrepareConfig, padding: int, counts: Counter[str]) -> None:
        self._packing, self._row, self._has_rows = config.packing, config.max_packed_len or 0, config.has_rows()
        self._positions, self._has_weights = config.stored_positions(), config.weight_field is not None
        self._keys = SOURCES[config.train_type]["sequence"]
        self._padding, self._counts = padding, counts
        self._held: list[Tokens] = []
        self._num_held = 0

    @property
    def load(self) -> float:
        """The share of what it may hold that it holds."""
        return max(self._num_held / MAX_HELD, len(self._held) / _MAX_HELD_DOCUMENTS)

    def add(self, sequences: Sequence[Tokens]) -> Iterator[Block]:
        """Take some sequences, and yield what is complete."""
        num_tokens = sum(len(tokens.ids) for tokens in sequences)
        self._counts.update(sequences=len(sequences), tokens=num_tokens)
        self._held += sequences
        self._num_held += num_tokens
        if self._packing == "none" or self.load >= 1:
            yield from self.finish()

    def finish(self) -> Iterator[Block]:
        """Yield all that is held."""
        held, self._held, self._num_held = self._held, [], 0
        if not held:
            return
        lengths = np.array([len(tokens.ids) for tokens in held], np.int64)
        ids = np.concatenate([tokens.ids for tokens in held])
        train = np.concatenate([tokens.train for tokens in held])
        weights = np.array([tokens.weight for tokens in held], np.float32)
        del held  # the arrays above are a second copy
        if self._packing == "none":
            self._counts["trained"] += int(np.count_nonzero(train))
            yield self._block(ids, train, lengths, lengths, weights)
            return
        plan = _PLANS[self._packing](lengths, self._row)
        padding = plan.padding if self._has_rows else 0
        self._counts.update(rows=plan.num_rows, padding=padding, documents_cut=plan.num_cut)
        starts = np.cumsum(lengths) - lengths
        # A piece's first token is not trained, unless its document begins there or is plain text: see `train_from`.
        continues = (plan.begin > 0) & ~np.logical_and.reduceat(train, starts)[plan.document]
        train[(starts[plan.document] + plan.begin)[continues]] = False
        self._counts["trained"] += int(np.count_nonzero(train))
        step = max(1, BLOCK_TOKENS // self._row)
        for first in range(0, plan.num_rows, step):
            yield self._rows(plan, first, min(first + step, plan.num_rows), starts, ids, train, weights)

    def _rows(self, plan: Plan, first: int, stop: int, starts: Int64s, ids: Any, train: Any, weights: Any) -> Block:
        """Rows `first` to `stop` of a plan over documents that begin at `starts`."""
        pieces = slice(int(plan.rows[first]), int(plan.rows[stop]))
        bounds = plan.rows[first : stop + 1] - plan.rows[first]
        sizes = (plan.end - plan.begin)[pieces]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        filled = ends[bounds[1:]] - ends[bounds[:-1]]
        within = positions(sizes)
        source = np.repeat(starts[plan.document[pieces]] + plan.begin[pieces], sizes) + within
        weights = weights[plan.document[pieces]]
        if not self._has_rows:
            return self._block(ids[source], train[source], filled, sizes, weights)
        row_of = np.repeat(np.arange(stop - first), np.diff(bounds))
        target = np.repeat(row_of * self._row + ends[:-1] - ends[bounds[:-1]][row_of], sizes) + within
        out_ids = np.full((stop - first) * self._row, self._padding, ids.dtype)
        out_train = np.zeros(len(out_ids), np.bool_)
        out_ids[target], out_train[target] = ids[source], train[source]
        documents, weights = np.insert(sizes, bounds[1:], self._row - filled), np.insert(weights, bounds[1:], 0)
        lengths = np.full(stop - first, self._row, np.int64)
        return self._block(out_ids, out_train, lengths, documents[documents > 0], weights[documents > 0])

    def _block(self, ids: Any, train: Any, rows: Int64s, documents: Int64s, weights: Any) -> Block:
        """The tokens of rows; where the store has none, its records are the documents."""
        flat = {self._keys.tokens: ids}
        if self._keys.mask is not None:
            flat[self._keys.mask] = train
        if self._positions != "none":
            flat["position_ids"] = positions(documents if self._positions == "doc_reset" else rows)
        weights = weights if self._has_weights else None
        return Block(flat, rows, documents, weights) if self._has_rows else Block(flat, documents, None, weights)


class Staging:
    """The output of one task while it is written, in a directory that no reader looks into.

    Args:
        config: Keys, format and sizes.
        tokenizer: Gives the largest id, and the padding of rows.
        directory: Where the run writes.
        task: The task's number.
        counts: Tokens, rows and the like are added to it.

    Raises:
        PrepareError: The tokenizer has neither a padding nor an end of sequence, and there are rows to fill up.
    """

    def __init__(
        self, config: PrepareConfig, tokenizer: Any, directory: RunDirectory, task: int, counts: Counter[str]
    ) -> None:
        self._config, self._counts = config, counts
        self._keys = store_keys(config, vocabulary_size(tokenizer))
        fillers = [found for found in (tokenizer.pad_token_id, tokenizer.eos_token_id) if found is not None]
        if config.has_rows() and not fillers:
            raise PrepareError("tokenizer: expected a padding or end-of-sequence token to fill up rows, got neither")
        self._padding = int(fillers[0]) if fillers else 0
        self._data, self._name = directory.finished_data, f"task_{task:05d}"
        self._root = directory.staging / f"{self._name}.{os.getpid()}.{secrets.token_hex(4)}"
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
        domains: dict[str, list[Tokens]] = {}
        for document in documents:
            domains.setdefault(document.domain, []).extend(document.sequences["sequence"])
        for domain, sequences in domains.items():
            if domain not in self._packers:
                self._packers[domain] = Packer(self._config, self._padding, self._counts)
            self._write(domain, self._packers[domain].add(sequences))
        # All domains together hold no more tokens than one may: those with the most are packed first.
        while sum(packer.load for packer in self._packers.values()) >= 1:
            domain = max(self._packers, key=lambda name: self._packers[name].load)
            self._write(domain, self._packers[domain].finish())

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
            try:
                publish_written(self._root / domain / self._name, directory)
            except OSError as error:
                # On a cluster two processes may do one task, each taken for dead by the scheduler. Both write the same,
                # and the rename publishes all of it: what is there stays, since the other's marker may name it already.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            for path in sorted(path for path in directory.rglob("*") if path.is_file()):
                files[str(path.relative_to(self._data))] = [path.stat().st_size, sha256(path)]
        return files

    def _write(self, domain: str, blocks: Iterator[Block]) -> None:
        for block in blocks:
            flat, lengths = dict(block.flat), dict.fromkeys(block.flat, block.lengths)
            if block.weights is not None:
                flat[DOCUMENT_WEIGHTS] = block.weights
                lengths[DOCUMENT_WEIGHTS] = np.ones_like(block.lengths)
                if block.documents is not None:
                    lasts = np.searchsorted(np.cumsum(block.documents), np.cumsum(block.lengths))
                    lengths[DOCUMENT_WEIGHTS] = np.diff(lasts, prepend=-1)
            self._writer(domain).extend(flat, lengths, documents=block.documents)

    def _append(self, document: TokenizedDocument) -> None:
        """Write the record of a pair or of rollouts."""
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
            config = self._config
            if len(self._writers) == MAX_DOMAINS:
                raise PrepareError(
                    f"domain_key {shown(config.domain_key)}: expected at most {MAX_DOMAINS} domains in a task, "
                    f"got {shown(domain)} too\n  Take a field with few values."
                )
            self._writers[domain] = StoreWriter(
                config.format,
                self._root / domain / self._name,
                self._keys,
                items=("responses", "masks") if config.train_type == "grpo" else (),
                rows=config.has_rows(),
                max_tokens_per_shard=config.max_tokens_per_shard,
            )
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
    if config.weight_field is not None:
        keys[DOCUMENT_WEIGHTS] = "float32"
    return keys


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
