"""The names of the fields that a record or sample carries beside its own, and what is done by them alone.

`__datasetname__` is the path of names below the top level, joined by dots; `__dprank__` and `__workerid__` name the
lane; `__seed__` is the seed of the source's order in its present epoch; `__url__` and `__key__` (shards) or
`__index__` (map-style) name the record, and `__record__` does so in numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from streamdata.errors import listing, shown

if TYPE_CHECKING:
    import torch

DATASET_NAME: Final = "__datasetname__"
DP_RANK: Final = "__dprank__"
WORKER_ID: Final = "__workerid__"
SEED: Final = "__seed__"
URL: Final = "__url__"
KEY: Final = "__key__"
INDEX: Final = "__index__"

RecordId: TypeAlias = tuple[int, int, int, int]
"""The number of a source among `source_names`; epoch; number of a record in the source; number of a sample among all
that were made of the record. Where a `single_process_fn` and then a stream function both give several samples, the
last one repeats; so it does in the parts of a sample that a packer splits."""

RECORD: Final = "__record__"
"""In a sample: the `RecordId` of the record that it was made of."""

NO_RECORD: Final[RecordId] = (-1, -1, -1, -1)
"""Stands for padding where it counts as a document."""

WEIGHT: Final = "__weight__"
"""Beside it, where some source has a `weight_field`: how much the record's tokens count in the loss, a float."""

SOURCE_IDS: Final = "source_ids"
"""In a packed row, or a batch that is a dict of tensors: the source of each document. Not private, see `provenance`."""
RECORD_IDS: Final = "record_ids"
"""Beside `SOURCE_IDS`: the record of each document."""
DOCUMENT_WEIGHTS: Final = "document_weights"
"""Beside `SOURCE_IDS`, where some source has a `weight_field`: the weight of each document."""
PROVENANCE: Final = (SOURCE_IDS, RECORD_IDS, DOCUMENT_WEIGHTS)
LOSS_WEIGHT: Final = "loss_weight"
"""The weight of each token: that of its document."""

CURSOR: Final = "__cursor__"
"""Private: where the stream stands after a sample, a tuple of entries; see `streamdata.states.cursor`."""

STATES: Final = "__states__"
"""In an output of a `customized_yield_fn`: the entries of all that was pulled for it, dropped samples included."""

TOKEN_FIELDS: Final = ("input_ids", "tokens")
"""Token ids of a sample, by the names that all that makes or packs tokens gives them. Not private."""

BOUNDS: Final = "cu_seqlens"
"""In a packed row, or a batch of them: where documents begin and the last ends, int32 (documents + 1,). Not private."""
PADDED_BOUNDS: Final = "cu_seqlens_padded"
"""Beside `BOUNDS`, where documents are padded: these index the row, and `BOUNDS` are sums of true lengths."""
LOCAL_BOUNDS: Final = "cu_seqlens_local"
"""In a slice for context parallelism: where the parts of documents begin in it, and the last ends."""

IGNORED_LABEL: Final = -100
"""The target where there is nothing to predict: what `torch.nn.functional.cross_entropy` ignores by default."""

SAMPLES: Final = "samples"
"""The samples of a group, in the one that `GroupByLength` gives."""

STATE: Final = "__state__"
"""In a batch that is a dict of tensors: what `to_state` gives of its samples, as one string."""

PADDING: Final = "__padding__"
"""In a batch of `StreamLoader(uneven="pad")`: whether a sample only fills the batch up, bool (B,)."""

SET_HERE: Final = frozenset([DATASET_NAME, DP_RANK, WORKER_ID, SEED, URL, KEY, INDEX, RECORD, WEIGHT, STATES])
"""Fields that no JSONL row may bring along: streamdata sets them, and reads them again."""


def provenance(documents: Sequence[Mapping[str, Any]]) -> "dict[str, torch.Tensor]":
    """Make the fields that say of which records documents are.

    Args:
        documents: The sample or record of each.

    Returns:
        `source_ids`, int64 (documents,), and `record_ids`, int64 (documents, 3): epoch, record, sample. And
        `document_weights` float32 (documents,), if they have weights. Nothing where one does not say of which record it
        is, as outside of a stream.
    """
    import numpy as np
    import torch

    try:
        numbers = chain.from_iterable(map(itemgetter(RECORD), documents))
        ids = np.fromiter(numbers, np.int64, 4 * len(documents)).reshape(-1, 4)
    except KeyError:
        return {}
    # Copies, which lie in a row: to send those that do not takes a worker five times as long.
    found = {SOURCE_IDS: torch.from_numpy(ids[:, 0].copy()), RECORD_IDS: torch.from_numpy(ids[:, 1:].copy())}
    if WEIGHT in documents[0]:
        found[DOCUMENT_WEIGHTS] = torch.from_numpy(np.array([document[WEIGHT] for document in documents], np.float32))
    return found


@lru_cache(maxsize=4096)
def is_reserved(name: object) -> bool:
    """Whether a field of this name would be streamdata's: it has two underscores at both ends."""
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


@lru_cache(maxsize=4096)  # asked for each sample that is packed; most of a source have the same fields
def own_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that are not reserved."""
    return tuple(name for name in fields if not is_reserved(name))


def lacks(fields: Iterable[object], name: str) -> str:
    """Says in a message that a record lacks a field, and which it has, without those of streamdata."""
    own = listing(str(field) for field in fields if not is_reserved(field))
    return f"the record has no field {shown(name)}; it has {own}"


def without_states(batch: Any) -> Any:
    """Return a batch without the fields that hold states, at any depth of lists."""
    if isinstance(batch, dict):
        rest = dict(batch)  # and then without them: to choose among all fields takes three times as long
        for name in (CURSOR, STATE, STATES):
            rest.pop(name, None)
        return rest
    if isinstance(batch, list | tuple):
        return type(batch)(map(without_states, batch))
    return batch


def samples_of(who: str, batch: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a batch's samples as a new list, for `who` to change.

    Raises:
        ValueError: `batch` is not a list of dicts.
    """
    if isinstance(batch, Mapping):
        raise ValueError(
            f"{who}: the batch is one sample, expected a list of them\n"
            "  Give the DataLoader a batch_size; with batch_size=None it collates nothing."
        )
    for index, sample in enumerate(batch):
        if not isinstance(sample, dict):
            raise ValueError(
                f"{who}: sample {index} of the batch is a {type(sample).__name__}, expected a dict\n"
                "  Let the dataset deliver dicts, as MergedDataset does."
            )
    return list(batch)
