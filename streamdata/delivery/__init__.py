"""From samples to batches.

1. list of samples → `mixed_collate` → one shared buffer per batch → list of samples in the trainer
2. list of samples → `TensorCollate` → one shared buffer per batch → dict of tensors in the trainer, with `__state__`
3. `MergedDataset` → `StreamLoader` → plain batches; number of batches → states after them
4. `StreamLoader` → `GroupLoader` → the same batches in all processes of a group, of which one reads
5. `StreamLoader` → `StreamState` → one entry of a checkpoint, for all ranks
6. group of samples → `GroupCollate` → a batch of its samples, by any collate
7. map-style dataset → `ResumableDistributedSampler` → this replica's indices of an epoch, from where the job stood

| file | what is in it |
|---|---|
| `segments.py` | shared memory that a worker lends to its trainer |
| `collate.py` | batches as lists of samples, and of groups |
| `tensor_collate.py` | batches as dicts of tensors |
| `even_ranks.py` | as many batches on every rank of a finite stream |
| `stream_loader.py` | the loader |
| `recent_states.py` | the states after each of its last batches |
| `agree.py` | whether all ranks set the same weights |
| `context_slice.py` | what a rank of a context-parallel group works on |
| `group_loader.py` | one process that reads for a group of them, and its messages to the others |
| `losses.py` | the loss of each source |
| `to_device.py` | batches that are moved to a device ahead |
| `stream_state.py` | the states of all ranks in a checkpoint |
| `sampler.py` | a resumable sampler of map-style datasets |
"""

from streamdata.delivery.collate import mixed_collate
from streamdata.delivery.group_loader import GroupLoader
from streamdata.delivery.sampler import ResumableDistributedSampler
from streamdata.delivery.stream_loader import StreamLoader
from streamdata.delivery.stream_state import StreamState
from streamdata.delivery.tensor_collate import Pad, TensorCollate, to_float

__all__ = [
    "GroupLoader",
    "Pad",
    "ResumableDistributedSampler",
    "StreamLoader",
    "StreamState",
    "TensorCollate",
    "mixed_collate",
    "to_float",
]
