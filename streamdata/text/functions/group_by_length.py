"""Batches bounded by their tokens, of samples of alike length."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamdata.fields import CURSOR, SAMPLES, STATES
from streamdata.sources.source import Sample
from streamdata.text.functions.lookahead import Longer, Lookahead, TokenPiece
from streamdata.text.plan import Plan, plan_alike, plan_alike_head


class GroupByLength(Lookahead):
    """Groups samples of alike length into batches of at most `max_tokens_per_batch` tokens, padding included.

    It is the `process_fn` of a source, or the `customized_yield_fn` of a mixture. It pulls up to `lookahead` samples,
    sorts them by length, and gives groups as one burst, in the order of their first samples. The longest sample of a
    group, times their number, is at most `max_tokens_per_batch`. The last samples pulled, at most what fits into one
    group, are carried over to the next burst. A group is a dict with its samples under `samples`, in the order in which
    they came. `GroupCollate` makes a batch of it:

        collate = GroupCollate(TensorCollate(fields={"input_ids": Pad(value=0)}))
        StreamLoader(dataset, batch_size=1, collate=collate)  # one group is one batch

    Resume and change of size: as for `PackTokens`, with groups in place of rows.

    Args:
        max_tokens_per_batch: Tokens in a group at most, once its samples are padded to the longest of them.
        lookahead: How many samples it holds when it sorts, or as many as do not fit into one group, if these are more:
            with 1, samples are grouped in their sequence.
        field: Token ids of a sample: a 1-D tensor, an array or a list of integers. A sample without tokens is in no
            group.
        longer: What becomes of a sample of more tokens than that. "error" raises; "drop" leaves it out and "truncate"
            its end, both counted in the state as `overlong`; "split" cuts it into several samples. Each field that has
            a value for each token is cut alike, as `PackTokens` finds them.
        lookahead_bytes: It sorts earlier, once the samples that it holds have this size, as those with media do.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        max_tokens_per_batch: int,
        lookahead: int = 1000,
        field: str = "input_ids",
        longer: Longer = "error",
        *,
        lookahead_bytes: int = 1 << 28,
    ) -> None:
        super().__init__(max_tokens_per_batch, lookahead, lookahead_bytes, field, longer)

    def _is_more_than_one(self) -> bool:
        return self._longest * len(self._pieces) > self._max_tokens

    def _plan(self, sizes: npt.NDArray[np.int64], *, is_end: bool) -> Plan:
        return (plan_alike if is_end else plan_alike_head)(sizes, self._max_tokens)

    def _output(self, pieces: Sequence[TokenPiece], vectors: frozenset[str]) -> Sample:
        return {SAMPLES: [_sample(piece, vectors) for piece in pieces]}


def _sample(piece: TokenPiece, vectors: frozenset[str]) -> Sample:
    sample = piece.document.sample
    parts = {name: piece.part(name) for name in vectors if sample.get(name) is not None}
    # The group has the state of all of them.
    return {name: value for name, value in sample.items() if name not in (CURSOR, STATES)} | parts
