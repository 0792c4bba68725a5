"""Sequences to records of a store: `documents' tokens → blocks: as they are, or packed into rows of one length`."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.prepare.config import PrepareConfig
from streamdata.prepare.documents import Tokens
from streamdata.stores.dtypes import SOURCES, Int64s
from streamdata.text.packing import positions
from streamdata.text.plan import Plan, plan_bfd, plan_bfd_split, plan_simple

_PLANS: Mapping[str, Callable[[Int64s, int], Plan]] = {
    "simple": plan_simple,
    "bfd": plan_bfd,
    "bfd_split": plan_bfd_split,
}
MAX_HELD = 1 << 25
"""Tokens that are packed together at most, so that a task of any size needs a bounded memory."""
_MAX_HELD_DOCUMENTS = 1 << 20
BLOCK_TOKENS = 1 << 20


class Block(NamedTuple):
    """Consecutive records: the values of all of them joined, per key, and the length of each.

    `documents`, for rows of one length, are the lengths of all documents in them, a row's padding counted as one.
    """

    flat: dict[str, npt.NDArray[Any]]
    lengths: Int64s
    documents: Int64s | None


class Packer:
    """Turns sequences into blocks of the keys that the train type reads.

    Args:
        config: How to pack.
        padding: The id that fills up rows.
        counts: Sequences, tokens and those trained are added to it; of packing rows, padding and documents cut.
        max_held: How many tokens it holds before it packs them.
        block_tokens: How many tokens are put into rows at once, or one row.
    """

    def __init__(
        self,
        config: PrepareConfig,
        padding: int,
        counts: Counter[str],
        *,
        max_held: int = MAX_HELD,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._max_held, self._block_tokens = max_held, block_tokens
        self._packing, self._row, self._has_rows = config.packing, config.max_packed_len or 0, config.has_rows()
        self._positions = config.stored_positions()
        self._keys = SOURCES[config.train_type]["sequence"]
        self._padding, self._counts = padding, counts
        self._held: list[Tokens] = []
        self._num_held = 0

    @property
    def load(self) -> float:
        """What it holds, as a share of what it may hold."""
        return max(self._num_held / self._max_held, len(self._held) / _MAX_HELD_DOCUMENTS)

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
        del held  # the arrays above are a second copy
        if self._packing == "none":
            self._counts["trained"] += int(np.count_nonzero(train))
            yield self._block(ids, train, lengths, lengths)
            return
        plan = _PLANS[self._packing](lengths, self._row)
        padding = plan.padding if self._has_rows else 0
        self._counts.update(rows=plan.num_rows, padding=padding, documents_cut=plan.num_cut)
        starts = np.cumsum(lengths) - lengths
        _mask_firsts(train, plan, starts)
        self._counts["trained"] += int(np.count_nonzero(train))
        step = max(1, self._block_tokens // self._row)
        for first in range(0, plan.num_rows, step):
            yield self._rows(plan, first, min(first + step, plan.num_rows), starts, ids, train)

    def _rows(self, plan: Plan, first: int, stop: int, starts: Int64s, ids: Any, train: Any) -> Block:
        """Rows `first` to `stop` of a plan over documents that begin at `starts`."""
        pieces = slice(int(plan.rows[first]), int(plan.rows[stop]))
        bounds = plan.rows[first : stop + 1] - plan.rows[first]
        sizes = (plan.end - plan.begin)[pieces]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        filled = ends[bounds[1:]] - ends[bounds[:-1]]
        row_of = np.repeat(np.arange(stop - first), np.diff(bounds))
        within = positions(sizes)
        source = np.repeat(starts[plan.document[pieces]] + plan.begin[pieces], sizes) + within
        if not self._has_rows:
            return self._block(ids[source], train[source], filled, sizes)
        target = np.repeat(row_of * self._row + ends[:-1] - ends[bounds[:-1]][row_of], sizes) + within
        out_ids = np.full((stop - first) * self._row, self._padding, ids.dtype)
        out_train = np.zeros(len(out_ids), np.bool_)
        out_ids[target], out_train[target] = ids[source], train[source]
        documents = np.insert(sizes, bounds[1:], self._row - filled)
        lengths = np.full(stop - first, self._row, np.int64)
        return self._block(out_ids, out_train, lengths, documents[documents > 0])

    def _block(self, ids: Any, train: Any, rows: Int64s, documents: Int64s) -> Block:
        """The tokens of rows; where the store has none, its records are the documents."""
        flat = {self._keys.tokens: ids}
        if self._keys.mask is not None:
            flat[self._keys.mask] = train
        if self._positions != "none":
            flat["position_ids"] = positions(documents if self._positions == "doc_reset" else rows)
        return Block(flat, rows, documents) if self._has_rows else Block(flat, documents, None)


def _mask_firsts(train: npt.NDArray[np.bool_], plan: Plan, starts: Int64s) -> None:
    """Each piece's first token is not trained, unless its document begins there or is plain text: see `train_from`."""
    is_text = np.logical_and.reduceat(train, starts)
    continues = (plan.begin > 0) & ~is_text[plan.document]
    train[(starts[plan.document] + plan.begin)[continues]] = False
