"""The names of the fields that a record or sample carries beside its own.

`__datasetname__` is the path of names below the top level, joined by dots; `__dprank__` and `__workerid__` name the
lane; `__seed__` is the seed of the source's order in its present epoch; `__url__` and `__key__` (shards) or
`__index__` (map-style) name the record.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from streamdata.errors import listing, shown

DATASET_NAME: Final = "__datasetname__"
DP_RANK: Final = "__dprank__"
WORKER_ID: Final = "__workerid__"
SEED: Final = "__seed__"
URL: Final = "__url__"
KEY: Final = "__key__"
INDEX: Final = "__index__"

CURSOR: Final = "__cursor__"
"""Private, and of two types. In a record that process functions see: its index in the source, an int. In a sample that
is delivered: a tuple of entries, see `streamdata.states.cursor`."""

STATES: Final = "__states__"
"""In an output of a `customized_yield_fn`: the entries of all that was pulled for it, dropped samples included."""

TOKEN_FIELDS: Final = ("input_ids", "tokens")
"""Token ids of a sample, by the names that all that makes or packs tokens gives them. Not private."""

SAMPLES: Final = "samples"
"""The samples of a group, in the one that `GroupByLength` gives."""

STATE: Final = "__state__"
"""In a batch that is a dict of tensors: what `to_state` gives of its samples, as one string."""

PADDING: Final = "__padding__"
"""In a batch of `StreamLoader(uneven="pad")`: whether a sample only fills the batch up, bool (B,)."""

SET_HERE: Final = frozenset([DATASET_NAME, DP_RANK, WORKER_ID, SEED, URL, KEY, INDEX, STATES])
"""Fields that no JSONL row may bring along: streamdata sets them, and reads them again."""


@lru_cache(maxsize=4096)  # asked of each field of each sample that is packed
def is_reserved(name: object) -> bool:
    """Whether a field of this name would be streamdata's: it has two underscores at both ends."""
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def lacks(fields: Iterable[object], name: str) -> str:
    """Says in a message that a record lacks a field, and which it has, without those of streamdata."""
    own = listing(str(field) for field in fields if not is_reserved(field))
    return f"the record has no field {shown(name)}; it has {own}"
