"""The names of the fields that a sample carries beside its own.

`__datasetname__` is the path of names below the top level, joined by dots; `__dprank__` and `__workerid__` name the
lane; `__seed__` is the seed of the source's order in its present epoch; `__url__` and `__key__` (shards) or
`__index__` (map-style) name the record.
"""

DATASET_NAME = "__datasetname__"
DP_RANK = "__dprank__"
WORKER_ID = "__workerid__"
SEED = "__seed__"
URL = "__url__"
KEY = "__key__"
INDEX = "__index__"

CURSOR = "__cursor__"
"""Private. In a sample: a tuple of entries, see `streamdata.progress.cursor`. In a record: its place in the
source, an int."""

STATES = "__states__"
"""In an output of a `customized_yield_fn`: the entries of all that was pulled for it, dropped samples included."""
