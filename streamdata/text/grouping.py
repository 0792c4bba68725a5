"""Grouping tokenized samples by length: `samples → groups of alike length → each a batch with little padding`."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamdata.fields import CURSOR, SAMPLES, STATES
from streamdata.sources.source import Sample
from streamdata.text.lookahead import Longer, Lookahead, TokenPiece
from streamdata.text.plan import Balance, Cost, Plan, plan_alike, plan_alike_head


class GroupByLength(Lookahead):
    """Groups samples of similar length into batches of at most `max_tokens_per_batch` tokens, padding included.

    Use it as the `process_fn` of a source, or the `customized_yield_fn` of a mixture. It pulls up to `lookahead`
    samples, sorts them by length, and gives groups as one burst, in the order of their first samples. The longest
    sample of a group, times their number, is at most `max_tokens_per_batch`. The last samples pulled, at most what fits
    into one group, are carried over to the next burst. A group is a dict with its samples under `samples`, in the order
    in which they came. `GroupCollate` makes a batch of it:

        collate = GroupCollate(TensorCollate(fields={"input_ids": Pad(value=0)}))
        StreamLoader(dataset, batch_size=1, collate=collate)  # one group is one batch

    Resume and change of size work as in `PackTokens`, with groups in place of rows.

    Args:
        max_tokens_per_batch: The most tokens in a group, once its samples are padded to the longest of them.
        lookahead: How many samples it holds when it sorts, or as many as do not fit into one group, if these are more:
            with 1, samples are grouped in their sequence.
        field: Token ids of a sample: a 1-D tensor, an array or a list of integers. A sample without tokens is in no
            group.
        longer: How to treat a sample of more than `max_tokens_per_batch` tokens. "error" raises; "drop" leaves it out
            and "truncate" its end, both counted in the state as `overlong`; "split" cuts it into several samples. Each
            field that has a value for each token is cut alike, as `PackTokens` finds them.
        lookahead_bytes: Sort earlier, once the held samples reach this size, as samples with media may.
        balance: What a sample costs the model, padded to the longest of its group. A burst then has exactly `groups`
            groups, as rows of `PackTokens`.
        groups: Groups of a burst that is balanced.

    Raises:
        ValueError: A setting is out of range; or while it groups, `lookahead_bytes` do not hold `groups` groups.
    """

    def __init__(
        self,
        max_tokens_per_batch: int,
        lookahead: int = 1000,
        field: str = "input_ids",
        longer: Longer = "error",
        *,
        lookahead_bytes: int = 1 << 28,
        balance: Cost | None = None,
        groups: int = 64,
    ) -> None:
        most, what = max_tokens_per_batch, f"{self._who}: groups"
        aligned = None if balance is None else Balance(what, balance, groups, most, is_padded=True)
        super().__init__(most, lookahead, field, longer, lookahead_bytes=lookahead_bytes, balance=aligned)

    def _is_more_than_one(self) -> bool:
        return self._longest * len(self._pieces) > self._max_tokens

    def _plan(self, sizes: npt.NDArray[np.int64], *, is_end: bool) -> Plan:
        return (plan_alike if is_end else plan_alike_head)(sizes, self._max_tokens)

    def _output(self, pieces: Sequence[TokenPiece], vectors: frozenset[str], documents: object) -> Sample:
        return {SAMPLES: [_sample(piece, vectors) for piece in pieces]}


def _sample(piece: TokenPiece, vectors: frozenset[str]) -> Sample:
    sample = piece.sample
    parts = {name: piece.part(name) for name in vectors if sample.get(name) is not None}
    # The group has the state of all of them.
    return {name: value for name, value in sample.items() if name not in (CURSOR, STATES)} | parts
