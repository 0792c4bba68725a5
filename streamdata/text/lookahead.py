"""Packing tokenized samples into rows, or grouping them by length: pulls some, plans, gives what is full as one burst.

`samples → pieces of at most max_tokens → a plan for all that is held → rows or groups; the last are carried over`

What is carried over are the last samples pulled, so that the state says how many they are, and nothing else of them: a
resume is given them again.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from math import lcm
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch

from streamdata.errors import StateError, names_text, positive, shown
from streamdata.fields import BOUNDS, DOCUMENT_WEIGHTS, LOSS_WEIGHT, PADDED_BOUNDS, PROVENANCE, own_names, provenance
from streamdata.sources.source import Sample, describe_record
from streamdata.text.packing import checked_counts, padded_row, rounded
from streamdata.text.plan import Balance, Cost, Plan, plan_bfd, plan_bfd_head
from streamdata.text.truncation import check_choice

logger = logging.getLogger("streamdata")

Longer = Literal["error", "drop", "truncate", "split"]
_INTEGERS = frozenset([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
_ARRAYS = (np.ndarray, torch.Tensor)
_COUNTS = ("rewind", "offset", "overlong")


class TokenPiece(NamedTuple):
    """A sample that was pulled, or a part of one that was longer than is allowed."""

    sample: Sample
    names: tuple[str, ...]
    """The sample's own fields."""
    num_tokens: int
    """Tokens of the whole sample."""
    num_bytes: int
    """Size of the whole sample."""
    number: int
    """Number of samples pulled before it."""
    overlong: int
    """Number of these that were longer than is allowed."""
    begin: int
    end: int

    def part(self, name: str) -> Any:
        """The piece's values of a field that has one for each token."""
        values = self.sample[name]
        # Most pieces are whole samples: a slice of each would take as long as finding it.
        return values if self.end - self.begin == self.num_tokens else values[self.begin : self.end]


class Lookahead(ABC):
    """A stateful stream function that plans over many samples at once, and says of which each output is the last.

    Args:
        max_tokens: Of one output.
        lookahead: How many samples it holds at most when it plans; more, while all that it holds are less than one
            output.
        field: Token ids of a sample: a 1-D tensor, an array or a list of integers.
        longer: What becomes of a sample of more tokens than `max_tokens`.
        lookahead_bytes: It plans earlier, once the samples that it holds have about this size.
        balance: Plan by it, over as many samples as it needs, and not over `lookahead`.

    Raises:
        ValueError: A setting is out of range.
    """

    ended_pulls: Sequence[int] = ()
    """The samples of which the last output is the last, by how many it had pulled before each."""
    output_cost = 0.0
    """Cost of the last output, where it balances."""
    _multiple = 1
    """The length of a piece in an output is rounded up to a multiple of this."""

    def __init__(
        self,
        max_tokens: int,
        lookahead: int = 1000,
        field: str = "input_ids",
        longer: Longer = "error",
        *,
        lookahead_bytes: int = 1 << 28,
        balance: Balance | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "max_tokens": max_tokens,
            "lookahead": lookahead,
            "lookahead_bytes": lookahead_bytes,
            "field": field,
            "longer": longer,
        }
        for name in ("max_tokens", "lookahead", "lookahead_bytes"):
            remedy = "max_tokens is the size of an output; lookahead=1 takes samples as they come."
            positive(f"{self._who}: {name}", self._settings[name], remedy)
        remedy = "It says what becomes of a sample that has more tokens than one output may have."
        check_choice(f"{self._who}: longer", longer, get_args(Longer), remedy)
        self._max_tokens, self._lookahead, self._lookahead_bytes = max_tokens, lookahead, lookahead_bytes
        self._field, self._longer = field, longer
        self.balance = balance
        if balance is not None:
            if longer == "split":
                raise ValueError(
                    f"{self._who}: expected longer to be another than 'split' beside balance, of which no more than a "
                    "burst comes again\n  Let a single_process_fn cut samples: it returns a list of them."
                )
            self._settings |= {"balance": [balance.cost.linear, balance.cost.quadratic], "rows": balance.num_rows}
        self._start = dict.fromkeys(_COUNTS, 0)
        self._begin()

    @property
    def _who(self) -> str:
        return type(self).__name__

    @property
    def only_at_top(self) -> str | None:
        """Why it can only be the `customized_yield_fn` of the top mixture; None if it can be elsewhere, too."""
        if self.balance is None:
            return None
        return (
            f"{self._who} with balance, which is for the customized_yield_fn of the top mixture: elsewhere lanes draw "
            "different sources at one step, and first what an old number of ranks had begun, so that steps would not "
            "be of alike cost"
        )

    def _begin(self) -> None:
        self._num_pulled, self._overlong = 0, self._start["overlong"]
        self._hold([])

    def _hold(self, pieces: list[TokenPiece]) -> None:
        self._pieces = pieces
        # Counted on with each sample: to plan, or even to add up, for each of thousands would be quadratic.
        sizes = [rounded(piece.end - piece.begin, self._multiple) for piece in pieces]
        self._tokens, self._longest = sum(sizes), max(sizes, default=0)
        self._bytes = sum({piece.number: piece.num_bytes for piece in pieces}.values())

    @abstractmethod
    def _is_more_than_one(self) -> bool:
        """Whether one output cannot take all that is held."""

    @abstractmethod
    def _plan(self, sizes: npt.NDArray[np.int64], *, is_end: bool) -> Plan:
        """The outputs of pieces of these sizes, without balance: of all at the end of the stream, else of the first."""

    def _documents(self, samples: Sequence[Sample]) -> Mapping[str, npt.NDArray[Any]]:
        """Collect what outputs say of each of their samples, in arrays of a whole burst."""
        return {}

    @abstractmethod
    def _output(
        self, pieces: Sequence[TokenPiece], vectors: frozenset[str], documents: Mapping[str, npt.NDArray[Any]]
    ) -> Sample:
        """Make an output.

        Args:
            pieces: What it is made of.
            vectors: The fields that have a value for each token.
            documents: The part of `_documents` that is of these pieces.
        """

    def __call__(self, records: Iterable[Sample]) -> Iterator[Sample]:
        """Begin a stream of outputs; where the samples end, the last ones may be short."""
        self._begin()
        return self._outputs(records)

    def _outputs(self, records: Iterable[Sample]) -> Iterator[Sample]:
        records = iter(records)
        for record in records:
            self._take(record)
            # After a sample that is new alone: those given again were planned once. And once for each of these: what
            # groups leave may be enough again, and each burst is to begin with a pull.
            if self._num_pulled > self._start["rewind"] and self._is_enough():
                yield from self._planned(is_end=False)
        while self._pieces:
            yield from self._planned(is_end=True)
            next(records, None)  # there is none, but asking begins a burst

    def _is_enough(self) -> bool:
        """Whether it is time to plan."""
        if self.balance is not None:
            is_enough = self._tokens > self.balance.num_tokens
            if not is_enough and self._bytes >= self._lookahead_bytes:
                raise self.balance.lacks_room(self._tokens, self._bytes, self._lookahead_bytes)
            return is_enough
        is_enough = self._bytes >= self._lookahead_bytes or self._num_held() >= self._lookahead
        return is_enough and self._is_more_than_one()

    def _num_held(self) -> int:
        """How many of the last samples pulled are still needed; those without tokens among them count."""
        return self._num_pulled - self._pieces[0].number if self._pieces else 0

    def _take(self, sample: Sample) -> None:
        number, overlong = self._num_pulled, self._overlong
        sample, num_tokens = self._checked(sample)
        self._num_pulled = number + 1
        # A sample without tokens adds nothing, and still counts as pulled: the state counts back from the last one.
        parts: Sequence[tuple[int, int]] = ((0, num_tokens),) if num_tokens else ()
        if num_tokens > self._max_tokens:
            parts = self._parts_of_longer(sample, num_tokens)
        if not number and (offset := self._start["offset"]):
            # The first sample that is given again: its pieces before were in outputs.
            parts = [part for part in parts if part[0] >= offset]
            if not parts or parts[0][0] != offset:
                raise StateError(
                    f"{self._who}: {describe_record(sample)} has {num_tokens} tokens, of which {offset} were given "
                    "before\n  Its tokens have changed since the states were written; resume with "
                    "reload_from_url_level=True."
                )
        if not parts:
            return
        num_bytes, names = 0, own_names(tuple(sample))
        for name in names:
            value = sample[name]
            if value is not None:
                num_bytes += value.nbytes if isinstance(value, _ARRAYS) else _bytes_of(value)
        for begin, end in parts:
            self._pieces.append(TokenPiece(sample, names, num_tokens, num_bytes, number, overlong, begin, end))
            size = end - begin if self._multiple == 1 else rounded(end - begin, self._multiple)
            self._tokens, self._longest = self._tokens + size, max(self._longest, size)
        self._bytes += num_bytes

    def _checked(self, sample: Sample) -> tuple[Sample, int]:
        """The sample, its token ids a tensor or an array; and how many they are."""
        tokens = given = sample.get(self._field)
        if isinstance(tokens, list):
            tokens = np.asarray(tokens, dtype=None if tokens else np.int64)
            sample = {**sample, self._field: tokens}
        if isinstance(tokens, np.ndarray):
            is_ids = tokens.dtype.kind in "iu"
        else:
            is_ids = isinstance(tokens, torch.Tensor) and tokens.dtype in _INTEGERS
        if not is_ids or tokens is None or tokens.ndim != 1:
            raise ValueError(
                f"{self._who}: expected token ids in field {shown(self._field)}, a 1-D tensor, an array or a list of "
                f"integers, got {_told(given)} for {describe_record(sample)}; it has {names_text(sample)}\n"
                "  Set `field` to the one that holds them, or let a single_process_fn make it."
            )
        return sample, tokens.shape[0]

    def _parts_of_longer(self, sample: Sample, num_tokens: int) -> Sequence[tuple[int, int]]:
        """Where the pieces begin and end of a sample that has more tokens than one output may have."""
        if self._longer == "error":
            raise ValueError(
                f"{self._who}: expected at most {self._max_tokens} tokens, got {num_tokens} for "
                f"{describe_record(sample)}\n"
                "  Set longer to 'drop', 'truncate' or 'split', or let a single_process_fn shorten it."
            )
        if self._longer == "split":
            return list(pairwise([*range(0, num_tokens, self._max_tokens), num_tokens]))
        if not self._overlong:
            logger.warning(
                "%s: %s has %d tokens, more than %d: longer=%r; others are counted as 'overlong' in its state",
                self._who, describe_record(sample), num_tokens, self._max_tokens, self._longer,
            )  # fmt: skip
        self._overlong += 1
        return ((0, self._max_tokens),) if self._longer == "truncate" else ()

    def _planned(self, *, is_end: bool) -> Iterator[Sample]:
        pieces = self._pieces
        lengths = rounded(np.array([piece.end - piece.begin for piece in pieces], np.int64), self._multiple)
        plan = self._plan(lengths, is_end=is_end) if self.balance is None else self.balance.plan(lengths)
        samples, sizes = [piece.sample for piece in pieces], [piece.num_tokens for piece in pieces]
        columns = {name: [sample.get(name) for sample in samples] for name in _names(pieces)}
        vectors = frozenset(
            name for name, values in columns.items() if name == self._field or _are_vectors(values, sizes)
        )
        # Before the outputs: the function is asked what it carries over when it pulls again, after the last of them.
        self._hold(pieces[len(plan.document) :])
        order, is_split = plan.document.tolist(), self._longer == "split"
        documents = self._documents([samples[number] for number in order])  # asked for each row, it is half as fast
        rows = [(begin, end, 0.0) for begin, end in pairwise(plan.rows.tolist())]
        for begin, end, cost in self.balance.aligned(plan) if self.balance else rows:
            self.output_cost = cost
            held = [pieces[number] for number in order[begin:end]]
            output = self._output(held, vectors, {name: values[begin:end] for name, values in documents.items()})
            self.ended_pulls = [each.number for each in held if not is_split or each.end == each.num_tokens]
            yield output

    def state_dict(self) -> dict[str, Any]:
        """Say what is carried over, without its content; see `load_state_dict`."""
        # The settings too: others would plan the open burst otherwise, and what was given of it would come twice.
        if not self._num_pulled:  # not called yet: it stands where it was loaded
            return {**self._start, **self._settings}
        # As if the samples that are given again had not been pulled: those of them that are overlong count again then.
        first = self._pieces[0] if self._pieces else None
        counts = {
            "rewind": self._num_held(),
            "offset": first.begin if first else 0,
            "overlong": first.overlong if first else self._overlong,
        }
        return {**counts, **self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next call go on where the state was taken, given the last `rewind` samples again.

        Args:
            state: `rewind`, `offset` (tokens of the first of these samples that were given before), `overlong` (how
                many samples were longer than `max_tokens`), and all settings, which must not have changed.

        Raises:
            StateError: It was written with other settings, or is not such a state.
        """
        self._start = checked_counts(self._who, state, _COUNTS, {"balance": None, **self._settings})
        self._begin()


def _names(pieces: Sequence[TokenPiece]) -> Iterable[str]:
    """The fields that are the samples' own, each once."""
    return dict.fromkeys(chain.from_iterable(dict.fromkeys([piece.names for piece in pieces])))


def _are_vectors(values: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether a field has a value for each token in all samples that have it, given their numbers of tokens.

    By chance an image is as high as its document is long, so one sample is not enough to tell.
    """
    kinds = set(map(type, values))
    if kinds in ({np.ndarray}, {torch.Tensor}):
        return [value.shape[0] if value.ndim else None for value in values] == sizes
    found = [_length(value) == size for value, size in zip(values, sizes, strict=True) if value is not None]
    return len(found) > 0 and all(found)


def _length(value: Any) -> int | None:
    """The length of an array, or of a list that begins with a number."""
    if isinstance(value, _ARRAYS):
        return value.shape[0] if value.ndim else None
    return len(value) if isinstance(value, list) and value and isinstance(value[0], int | float | np.generic) else None


def _bytes_of(value: Any) -> int:
    """About how much memory a value takes; the same on any machine, since plans depend on it."""
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, list | tuple):
        is_flat = not value or isinstance(value[0], int | float)
        return 8 * len(value) if is_flat else sum(map(_bytes_of, value))
    if isinstance(value, str | bytes | bytearray | memoryview):
        return len(value)
    if hasattr(value, "nbytes"):  # tensors and arrays
        return int(value.nbytes)
    if hasattr(value, "getbands"):  # an image of Pillow
        return int(value.width * value.height * len(value.getbands()))
    return 8


def _told(value: object) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} {dtype} {tuple(shape)}"


_MADE_HERE: Final = (BOUNDS, PADDED_BOUNDS, "position_ids", *PROVENANCE)


class PackTokens(Lookahead):
    """Packs whole samples into rows of at most `max_tokens`; a `process_fn` or a `customized_yield_fn`.

    The function pulls up to `lookahead` samples, plans rows by best fit, and gives them as one burst. The last samples
    pulled, at most what fits into one row, are carried over to the next burst. A row is not padded, unless a multiple
    below asks for it. It has

    - `field`, the samples' token ids joined, (n,) with n at most `max_tokens`;
    - `cu_seqlens` int32 (documents + 1,), where documents begin in it, and n; of padded rows these are
      `cu_seqlens_padded`, and `cu_seqlens` are the sums of the documents' true lengths;
    - `position_ids` int64 (n,), from 0 at each document's start;
    - `source_ids` int64 (documents,), the number of each document's source in `MergedDataset.source_names`; and
      `record_ids` int64 (documents, 3): epoch, number of the record in its source, and of the sample among all that
      were made of the record, from 0 (see `MergedDataset.describe_record`);
    - `document_weights` float32 (documents,), where some source has a `weight_field`;
    - each other field with one value per token (labels, masks), joined in the same way. A field counts as one if its
      length equals that of the token ids in all samples of the burst that have it;
    - all other fields (media, texts) as a list with one entry for each document, None where it has none;
    - `__url__`, `__key__` and similar fields of the last sample pulled for the burst, as from any stream function.

    Labels are joined as they are. A model that shifts them itself predicts each document's first token from the end of
    the one before, unless its label is -100.

    A resume goes on exactly. After a change of size no token comes twice where this is a process function, and there is
    at most one short row for each old lane and source; where it is a yield function, samples of the burst under way, at
    most `lookahead` in each old lane, may come again whole.

    Args:
        max_tokens: The most tokens in a row.
        lookahead: How many samples it holds when it plans, or as many as do not fit into one row, if these are more:
            with 1, samples are packed in their sequence. Rows are fuller the more there are: about 0.998 of
            `max_tokens` where a hundred rows are planned at once.
        field: Token ids of a sample: a 1-D tensor, an array or a list of integers. A sample without tokens is in no
            row. Of this and the fields that are joined with it, lists become int64 or float32, unsigned arrays of 16
            bits or more int64; all else keeps its type.
        longer: How to treat a sample of more than `max_tokens` tokens. "error" raises; "drop" leaves it out and
            "truncate" its end, both counted in the state as `overlong`; "split" cuts it into whole rows and a rest,
            each of which is a document in its row.
        lookahead_bytes: Plan earlier, once the held samples reach this size, as samples with media may.
        loss_weights: Add `loss_weight` float32 (n,): that of the sample where it has one, as a window of a store may;
            else of each token the weight of its document, 1 where it has none.
        balance: What rows cost the model. A burst then has exactly `rows` rows, of as many samples as fill them
            (`lookahead` does not count), in a sequence in which all ranks have rows of alike cost at each step. Only as
            the top mixture's `customized_yield_fn`, and not with `longer="split"`. After a change of size up to `rows`
            rows per old lane come again.
        rows: Rows of a burst that is balanced: the more, the more alike are those of a step.
        document_multiple: Pad each document at its end to a multiple of this, such as `2 * cp` for `context_slice`:
            tokens by `pad_id`, `labels` and `target_ids` by -100, other fields by 0; `position_ids` run on. Rows are
            planned for the padded lengths.
        row_multiple: Pad each row to a multiple of this by a last document of padding alone, of which `source_ids` and
            `record_ids` are -1 and other fields None: `cp * 16` for FP8, `cp * 32` for MXFP8.
        pad_id: The token of padding.

    Raises:
        ValueError: A setting is out of range, `max_tokens` is no multiple of both multiples, or `longer` is "split"
            beside `balance`; or while it packs, `lookahead_bytes` do not hold `rows` rows.
    """

    def __init__(
        self,
        max_tokens: int,
        lookahead: int = 1000,
        field: str = "input_ids",
        longer: Longer = "error",
        *,
        lookahead_bytes: int = 1 << 28,
        loss_weights: bool = False,
        balance: Cost | None = None,
        rows: int = 128,
        document_multiple: int = 1,
        row_multiple: int = 1,
        pad_id: int = 0,
    ) -> None:
        multiples = {"document_multiple": document_multiple, "row_multiple": row_multiple}
        for name, value in multiples.items():
            positive(f"{self._who}: {name}", value, "1 pads nothing.")
        if type(pad_id) is not int or pad_id < 0:
            raise ValueError(f"{self._who}: expected a token id from 0 on as pad_id, got {shown(pad_id)}")
        self._multiple, self._row_multiple = document_multiple, lcm(document_multiple, row_multiple)
        aligned = None if balance is None else Balance(f"{self._who}: rows", balance, rows, max_tokens)
        super().__init__(max_tokens, lookahead, field, longer, lookahead_bytes=lookahead_bytes, balance=aligned)
        if max_tokens % self._row_multiple:
            remedy = f"Set it to {rounded(max_tokens, self._row_multiple)}."
            raise ValueError(
                f"{self._who}: expected max_tokens to be a multiple of {self._row_multiple}, as padded rows are, got "
                f"{max_tokens}\n  {remedy}"
            )
        # States of rows that are not padded need not say so.
        self._settings |= {name: value for name, value in multiples.items() if value > 1}
        self._loss_weights, self._pad_id = loss_weights, pad_id

    def _is_more_than_one(self) -> bool:
        return self._tokens > self._max_tokens

    def _plan(self, sizes: npt.NDArray[np.int64], *, is_end: bool) -> Plan:
        return (plan_bfd if is_end else plan_bfd_head)(sizes, self._max_tokens)

    def _documents(self, samples: Sequence[Sample]) -> Mapping[str, npt.NDArray[Any]]:
        return {name: values.numpy() for name, values in provenance(samples).items()}

    def _output(
        self, pieces: Sequence[TokenPiece], vectors: frozenset[str], documents: Mapping[str, npt.NDArray[Any]]
    ) -> Sample:
        names = _names(pieces)
        if BOUNDS in names:
            raise ValueError(
                f"{self._who}: a sample has the field {BOUNDS!r}, expected one document, not a packed row: "
                f"{describe_record(pieces[0].sample)}\n  Pack once, in the source or over the mixture."
            )
        samples = [piece.sample for piece in pieces]
        made = (*_MADE_HERE, LOSS_WEIGHT) if self._loss_weights else _MADE_HERE
        columns = {name: [sample.get(name) for sample in samples] for name in names if name not in made}
        row = {
            name: self._joined(name, values, pieces) if name in vectors else values for name, values in columns.items()
        }
        sizes = [piece.end - piece.begin for piece in pieces]
        marks = np.array([0, *accumulate(sizes)], np.int32)
        longest = np.arange(max(sizes))  # each document's positions are the first of these
        places = np.concatenate([longest[:size] for size in sizes])
        row |= {BOUNDS: torch.from_numpy(marks), "position_ids": torch.from_numpy(places)}
        if self._loss_weights:
            weights = documents.get(DOCUMENT_WEIGHTS, np.ones(len(pieces), np.float32))
            of_tokens = weights.repeat(sizes)
            for piece, begin in zip(pieces, marks.tolist(), strict=False):
                if (own := piece.sample.get(LOSS_WEIGHT)) is not None:
                    if (count := _length(own)) != piece.num_tokens:
                        where = f"{self._who}: field {LOSS_WEIGHT!r} of {describe_record(piece.sample)}"
                        got = f"got {_told(own) if count is None else count}\n  Give as many as it has tokens."
                        raise ValueError(f"{where}: expected {piece.num_tokens} values, {got}")
                    of_tokens[begin : begin + piece.end - piece.begin] = piece.part(LOSS_WEIGHT)
            row[LOSS_WEIGHT] = torch.from_numpy(of_tokens)
        # Copies: a worker would send the whole burst's with each row.
        row |= {name: torch.from_numpy(values.copy()) for name, values in documents.items()}
        if self._row_multiple == 1:
            return row
        return padded_row(row, np.array(sizes), self._multiple, self._row_multiple, {self._field: self._pad_id})

    def _joined(self, name: str, values: list[Any], pieces: Sequence[TokenPiece]) -> torch.Tensor:
        kinds = set(map(type, values))
        if type(None) in kinds:
            lacking = next(piece.sample for piece in pieces if piece.sample.get(name) is None)
            raise ValueError(
                f"{self._who}: expected field {shown(name)}, which has a value for each token, in all samples of a "
                f"row, got none for {describe_record(lacking)}\n"
                "  Let a single_process_fn add it there or drop it elsewhere, or pack each source by itself."
            )
        if self._longer in ("truncate", "split"):
            values = [piece.part(name) for piece in pieces]
        if not kinds.issubset(_ARRAYS):
            values = [_listed(value) if isinstance(value, list) else value for value in values]
        dtypes = {value.dtype for value in values}
        for dtype in dtypes:
            if isinstance(dtype, np.dtype) and dtype.kind not in "biufc":
                of = next(piece.sample for value, piece in zip(values, pieces, strict=True) if value.dtype == dtype)
                raise ValueError(
                    f"{self._who}: expected numbers in field {shown(name)}, which is as long as there are tokens, got "
                    f"{dtype} for {describe_record(of)}\n  Give a tensor or an array."
                )
        if len(dtypes) == 1 and isinstance(values[0], np.ndarray):
            return _as_tensor(np.concatenate(values))
        # By torch's rules for several types: NumPy makes float64 of int64 and float32, and of int64 and uint64.
        return torch.cat([value if isinstance(value, torch.Tensor) else _as_tensor(value.copy()) for value in values])


def _listed(values: list[Any]) -> npt.NDArray[Any]:
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _as_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    # What torch can hold, and hardly compute with.
    is_hard = array.dtype.kind == "u" and array.dtype.itemsize > 1
    return torch.from_numpy(array.astype(np.int64) if is_hard else array)
