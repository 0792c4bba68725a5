"""Batches that are a dict of tensors, made in the DataLoader's worker.

`list of samples → one value for each field, and their states → one buffer (worker) → dict (trainer)`
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Literal, NoReturn, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from streamdata.delivery.collate import pack
from streamdata.delivery.losses import documents_of
from streamdata.errors import did_you_mean, names_text, shown
from streamdata.fields import (
    BOUNDS,
    CURSOR,
    DATASET_NAME,
    DOCUMENT_WEIGHTS,
    LOSS_WEIGHT,
    PADDED_BOUNDS,
    PROVENANCE,
    SOURCE_IDS,
    STATE,
    STATES,
    TOKEN_FIELDS,
    is_reserved,
    provenance,
    samples_of,
)
from streamdata.states.cursor import links_of, number_batch, state_text

_WHO: Final = "TensorCollate"
_NUMBERS: Final = (bool, int, float, np.bool_, np.integer, np.floating)
_ARRAY_KINDS: Final = "biufc"
"""NumPy's kinds of dtypes that torch has."""
_BATCHED_IMAGE_DIMS: Final = 4


@dataclass(frozen=True)
class Pad:
    """Pads a field's values along their first dimension to the longest value of the batch.

    Args:
        value: The value of the padding.
        side: On which side, "right" or "left".
        multiple_of: The padded length is rounded up to a multiple of this number.

    Raises:
        ValueError: An argument is invalid.
    """

    value: float = 0
    side: Literal["right", "left"] = "right"
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.value, bool | int | float):
            raise ValueError(f"Pad: expected a number as value, got {shown(self.value)}")
        if self.side not in ("right", "left"):
            raise ValueError(f'Pad: expected side to be "right" or "left", got {shown(self.side)}')
        if type(self.multiple_of) is not int or self.multiple_of < 1:
            raise ValueError(f"Pad: expected an int >= 1 as multiple_of, got {shown(self.multiple_of)}")

    def length(self, longest: int) -> int:
        """The padded length of a batch whose longest value has length `longest`."""
        return -(-longest // self.multiple_of) * self.multiple_of

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether the dtype can hold the padding value."""
        if dtype.is_floating_point or dtype.is_complex:
            return True
        info = None if dtype == torch.bool else torch.iinfo(dtype)
        low, high = (info.min, info.max) if info else (0, 1)
        return low <= self.value <= high and self.value == int(self.value)


Rule: TypeAlias = Pad | Literal["stack", "list", "drop"]
_RULES: Final = ("stack", "list", "drop")


class TensorCollate:
    """Collates samples into a plain dict of tensors and lists, with the samples' states under `__state__`.

    Under "stack" tensors and arrays are stacked, numbers and lists of numbers become int64, float32 or bool, and all
    else (strings, bytes, dicts) is a list, with an entry for each sample. Under a `Pad` values are filled up to one
    length before. Under "list" values stay as they are, in a list; under "drop" there are none.

    Packed rows, which have `cu_seqlens`, are joined end to end: these run on over all rows (int32), and a field that
    has in every row one value for each token is joined alike, and filled up at its end if it has a `Pad`. So do
    `cu_seqlens_padded`, which then say how many values a row has. Where the rule for `cu_seqlens` itself is not
    "stack", rows stay apart.

    `source_ids` int64 (documents,) and `record_ids` int64 (documents, 3) say what the batch is made of, row after row:
    a sample is one document, a packed row as many as it has; see `PackTokens`. So do `document_weights` float32
    (documents,), where some source has a `weight_field`, of how much each counts in the loss.

    The fields `__…__` of streamdata are left out, unless they are named. Tensors share one buffer in the trainer:
    clone one that you keep for long.

    Args:
        fields: The rules of fields, by name. Each that is not dropped must be in every sample.
        default: The rule of all other fields: "stack", "list" or "drop".
        provenance: Whether there are `source_ids`, `record_ids` and `document_weights`.
        loss_weights: Add `loss_weight` float32, of the shape of `input_ids` (or `tokens`): that of samples which have
            one, as windows of a store may; else of each token the weight of its document, 1 where it has none.

    Raises:
        ValueError: A rule is unknown; in a batch, a field that some samples lack, or that differs in shape, dtype or
            kind where it is to be stacked.
    """

    def __init__(
        self,
        fields: Mapping[str, Rule] | None = None,
        default: Literal["stack", "list", "drop"] = "stack",
        *,
        provenance: bool = True,
        loss_weights: bool = False,
    ) -> None:
        self._fields = dict(fields or {})
        self._default, self._provenance, self._loss_weights = default, provenance, loss_weights
        for name in (CURSOR, STATES, STATE):
            if name in self._fields:
                raise ValueError(
                    f"{_WHO}: {shown(name)} has no rule: what it says is in {STATE!r}\n  Remove it from fields."
                )
        for name in PROVENANCE:
            if name in self._fields:
                raise ValueError(f"{_WHO}: {shown(name)} has no rule\n  To leave it out, give provenance=False.")
        if isinstance(default, Pad):
            raise ValueError(f"{_WHO}: expected default to be one of {_RULES}, got {default}\n  Pad fields by name.")
        rules = {"default": default, **{f"fields[{shown(name)}]": rule for name, rule in self._fields.items()}}
        for where, rule in rules.items():
            if not isinstance(rule, Pad) and rule not in _RULES:
                guess = did_you_mean(rule, _RULES) if isinstance(rule, str) else ""
                raise ValueError(
                    f'{_WHO}: {where}: expected a Pad(…), "stack", "list" or "drop", got {shown(rule)}{guess}\n'
                    "  Write Pad(), in a recipe {target: streamdata.Pad, params: {}}: without params that is the class."
                )

    def __call__(self, batch: Sequence[dict[str, Any]]) -> Any:
        """Collates a batch.

        Returns:
            The dict in the main process. In a worker, an opaque parcel that unpickles as that dict.
        """
        samples = samples_of(_WHO, batch)
        if not samples:
            raise ValueError(f"{_WHO}: expected at least one sample, got none\n  Leave empty batches out.")
        if self._loss_weights and any(LOSS_WEIGHT in sample for sample in samples):
            samples = [
                {LOSS_WEIGHT: _loss_weights(sample | _documents([sample], sample)), **sample} for sample in samples
            ]
        columns: list[_Column] = []
        run_on: dict[str, tuple[list[int], torch.Tensor]] = {}
        bounds: _Column | None = None
        names = dict.fromkeys(chain(chain.from_iterable(samples), self._fields))
        for name in names:
            # Padded bounds are treated as those beside them.
            own = BOUNDS if name == PADDED_BOUNDS and name not in self._fields else name
            rule = self._fields.get(own, "drop" if is_reserved(name) else self._default)
            if rule == "drop" or name in PROVENANCE:
                continue
            columns.append(_Column(name, rule, samples))
            if name in (BOUNDS, PADDED_BOUNDS) and rule == "stack":
                run_on[name] = columns[-1].run_on()
                bounds = columns[-1] if bounds is None or name == PADDED_BOUNDS else bounds
        # Before tensors are copied: what the samples say of themselves is in the CPU's caches until then.
        documents = _documents(samples, names) if self._provenance or self._loss_weights else {}
        lengths = None if bounds is None else run_on[bounds.name][0]
        collated = {
            column.name: run_on[column.name][1] if column.name in run_on else column.value(lengths)
            for column in columns
        }
        if bounds is not None and not any(column.is_joined for column in columns):
            bounds.refuse(
                f"says that the rows have {lengths} tokens, but no field has so many values",
                f'Give rows that are not padded, or keep them apart with fields={{{BOUNDS!r}: "list"}}.',
            )
        if self._loss_weights and LOSS_WEIGHT not in collated:
            collated[LOSS_WEIGHT] = _loss_weights(collated | documents)
        if self._provenance:
            collated |= documents
        if any(isinstance(sample.get(CURSOR), tuple) for sample in samples):
            number_batch(samples)
            collated[STATE] = state_text(samples)
        return collated if get_worker_info() is None else pack(collated, links_of(samples))


def _documents(samples: list[dict[str, Any]], names: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The provenance of a batch: of samples, or of the documents of packed rows; nothing where one does not say."""
    if names.keys().isdisjoint((SOURCE_IDS, BOUNDS)):
        return provenance(samples)
    rows = []
    for sample in samples:
        own: dict[str, torch.Tensor] = {name: sample[name] for name in PROVENANCE if name in sample}
        if SOURCE_IDS not in own:  # it is of one record, as all documents of a window of a store are
            own = provenance([sample] * (len(sample[BOUNDS]) - 1 if BOUNDS in sample else 1)) | own
        rows.append(own)
    return {name: torch.cat([row[name] for row in rows]) for name in PROVENANCE if all(name in row for row in rows)}


def _loss_weights(batch: Mapping[str, Any]) -> torch.Tensor:
    """The weight of each token of a batch."""
    found: Iterator[torch.Tensor] = (batch[name] for name in TOKEN_FIELDS if name in batch)
    tokens = next((ids for ids in found if isinstance(ids, torch.Tensor)), None)
    if tokens is None or SOURCE_IDS not in batch:
        raise ValueError(
            f"{_WHO}: loss_weights: expected samples of a stream with a tensor under one of {TOKEN_FIELDS}, got "
            f"{names_text(batch)}\n  Give token ids a rule that makes one tensor of them, such as Pad()."
        )
    if DOCUMENT_WEIGHTS not in batch:
        return torch.ones(tokens.shape, dtype=torch.float32)
    weights: torch.Tensor = batch[DOCUMENT_WEIGHTS]
    return weights[documents_of(tokens, batch)].view(tokens.shape)


def to_float(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a batch's uint8 images, in which form they are read and moved, to float32 in [0, 1].

    Call it where the batch is needed, on the device: float32 is four times as many bytes.

    Args:
        batch: What `TensorCollate` made. Images are its uint8 tensors of four dimensions or more, such as (B, C, H, W),
            and in lists those of three or more.

    Returns:
        A new dict; all other values are the batch's own objects.
    """
    return {name: _as_float(value, _BATCHED_IMAGE_DIMS) for name, value in batch.items()}


def _as_float(value: Any, least_dims: int) -> Any:
    if isinstance(value, list):
        return [_as_float(each, _BATCHED_IMAGE_DIMS - 1) for each in value]
    if isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.dim() >= least_dims:
        return value.to(torch.float32).div_(255)
    return value


class _Column:
    """The values that a batch's samples have in one field, and the rule by which one is made of them, not "drop"."""

    def __init__(self, name: str, rule: Rule, samples: list[dict[str, Any]]) -> None:
        self.name, self.rule, self._samples = name, rule, samples
        self.is_joined = False
        """Whether the batch's value is joined end to end."""
        self._values = [sample[name] for sample in samples if name in sample]
        if len(self._values) < len(samples):
            lacking = next(index for index, sample in enumerate(samples) if name not in sample)
            having = next((self._of(index) for index, sample in enumerate(samples) if name in sample), "no sample")
            self.refuse(
                f"is missing in {self._of(lacking)}, and is in {having}",
                f'Write {_WHO}(fields={{{shown(name)}: "drop"}}), let each source\'s process function set it, or give '
                "StreamLoader collate=mixed_collate, which keeps a list of samples.",
            )

    def value(self, lengths: list[int] | None = None) -> Any:
        """Collate the field's values; `lengths` holds the number of tokens of each row where rows are joined."""
        rule = self.rule
        if rule == "list":
            return self._values
        tensors = self._tensors()
        found = [each for each in tensors if each is not None]
        if not found and rule == "stack":
            return self._values
        if len(found) < len(tensors):
            pairs = zip(tensors, self._values, strict=True)
            kinds = [type(value).__name__ if each is None else "numbers" for each, value in pairs]
            self._check_alike("kinds", kinds)
            self.refuse(f"expected tensors, arrays or numbers to pad, got {kinds[0]}")
        self._check_alike("dtypes", [each.dtype for each in found])
        dtype = found[0].dtype
        if isinstance(rule, Pad) and not rule.fits(dtype):
            self.refuse(
                f"{shown(rule.value)} is no value of {dtype}, which the field has", "Write Pad(value=…) with another."
            )
        if lengths is not None and [len(each) if each.dim() else None for each in found] == lengths:
            self.is_joined = True
            return self._join(found, rule)
        if isinstance(rule, Pad):
            return self._pad(found, rule)
        remedy = (
            f'Write {_WHO}(fields={{{shown(self.name)}: Pad()}}), which fills them up, or "list" in place of Pad().'
        )
        # Of images a `Pad`, which fills up the first dimension, would make none of one size.
        self._check_alike("shapes", [tuple(each.shape) for each in found], remedy if found[0].dim() == 1 else None)
        return torch.stack(found)

    def run_on(self) -> tuple[list[int], torch.Tensor]:
        """Return the number of tokens of each packed row, and the document bounds of all rows joined end to end."""
        rows = [torch.as_tensor(value) for value in self._values]
        for index, row in enumerate(rows):
            bounds = row.tolist()
            if row.dim() != 1 or not bounds or bounds[0] != 0 or any(end < begin for begin, end in pairwise(bounds)):
                self.refuse(
                    f"expected where the documents of a packed row begin, from 0 on, got {bounds} in {self._of(index)}",
                    self._as_list(),
                )
        lengths = [int(row[-1]) for row in rows]
        begins = accumulate(lengths, initial=0)
        run_on = [rows[0][:1], *(row[1:] + begin for row, begin in zip(rows, begins, strict=False))]
        return lengths, torch.cat(run_on).to(torch.int32)

    def _tensors(self) -> list[torch.Tensor | None]:
        """The values as tensors, None for each that is none."""
        dtype = _dtype_of(self._values)
        try:
            if dtype is not None and not any(isinstance(value, list | tuple) for value in self._values):
                return list(torch.tensor(self._values, dtype=dtype).unbind())
            return [_as_tensor(value, dtype) for value in self._values]
        except Exception as error:  # such as lists of lists of several lengths, or a number beyond int64
            error.add_note(f"{_WHO}: field {shown(self.name)}\n  {self._as_list()}")
            raise

    def _pad(self, tensors: list[torch.Tensor], pad: Pad) -> torch.Tensor:
        if not all(each.dim() for each in tensors):
            self.refuse("expected values with a length to pad, got a number", "Remove its Pad.")
        self._check_alike("shapes beyond the first dimension", [tuple(each.shape[1:]) for each in tensors])
        length = pad.length(max(map(len, tensors)))
        if all(len(each) == length for each in tensors):
            return torch.stack(tensors)
        padded = tensors[0].new_full((len(tensors), length, *tensors[0].shape[1:]), pad.value)
        for row, tensor in zip(padded, tensors, strict=True):
            begin = 0 if pad.side == "right" else length - len(tensor)
            row[begin : begin + len(tensor)] = tensor
        return padded

    def _join(self, tensors: list[torch.Tensor], rule: Rule) -> torch.Tensor:
        self._check_alike("shapes beyond the first dimension", [tuple(each.shape[1:]) for each in tensors])
        joined = torch.cat(tensors)
        if not isinstance(rule, Pad):
            return joined
        if rule.side == "left":
            self.refuse(
                f"expected packed rows to be filled up at their end, where {BOUNDS!r} stays right, got {rule}",
                'Write side="right".',
            )
        end = joined.new_full((rule.length(len(joined)) - len(joined), *joined.shape[1:]), rule.value)
        return torch.cat([joined, end])

    def _check_alike(self, what: str, facts: Sequence[Hashable], remedy: str | None = None) -> None:
        other = next((index for index, fact in enumerate(facts) if fact != facts[0]), None)
        if other is not None:
            self.refuse(
                f"several {what}, {facts[0]} in {self._of(0)} and {facts[other]} in {self._of(other)}",
                remedy or f"Make them alike in the process functions. Or: {self._as_list()}",
            )

    def refuse(self, problem: str, remedy: str | None = None) -> NoReturn:
        """Raise a ValueError that names the field."""
        raise ValueError(f"{_WHO}: field {shown(self.name)}: {problem}\n  {remedy or self._as_list()}")

    def _as_list(self) -> str:
        return f'Write {_WHO}(fields={{{shown(self.name)}: "list"}}), or "drop".'

    def _of(self, index: int) -> str:
        source = self._samples[index].get(DATASET_NAME)
        return f"sample {index}" if source is None else f"sample {index} of source {shown(source)}"


def _dtype_of(values: Iterable[Any]) -> torch.dtype | None:
    """The dtype that holds all values, also those in lists of lists; None where there are none, or not only numbers."""
    kinds: set[type] = set(map(type, values))
    while not kinds.isdisjoint((list, tuple)):
        values = [item for value in values if isinstance(value, list | tuple) for item in value]
        kinds = (kinds - {list, tuple}).union(map(type, values))
    for kind in kinds:
        if not issubclass(kind, _NUMBERS):
            return None
    if not kinds:
        return None
    if any(issubclass(kind, float | np.floating) for kind in kinds):
        return torch.float32
    return torch.bool if all(issubclass(kind, bool | np.bool_) for kind in kinds) else torch.int64


def _as_tensor(value: Any, dtype: torch.dtype | None) -> torch.Tensor | None:
    """A value as a tensor, None if it is none; that of numbers is given if all of the batch are numbers."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        # A copy where torch would warn, or refuse: of an array that may not be written, or has negative strides.
        is_plain = value.flags.writeable and min(value.strides, default=0) >= 0
        return torch.from_numpy(value if is_plain else value.copy()) if value.dtype.kind in _ARRAY_KINDS else None
    own = _dtype_of([value])
    if own is not None:
        return torch.tensor(value, dtype=dtype or own)
    return torch.tensor(value, dtype=dtype) if dtype is not None and value == [] else None
