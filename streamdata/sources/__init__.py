"""From records to samples, in one lane.

1. dataset → `Source` → records in numbered blocks
2. seed, epoch, lane → `BlockOrder` → which blocks, in which order
3. blocks, position → `Source.read` → records, each with the position after it; their numbers → `Source.fetch` → again
4. records → process functions (`call_per_record`, `run_bursts`) → samples

- `source.py`: the contract of a source, and `ReadTask`, who reads it
- `alone.py`: a source that is iterated by itself
- `skip.py`: records that a run leaves out
- `order/`, `files/`, `foreign/`, `functions/`: which records in which order; the sources; what is made of records

A process function is one of three kinds:

- per record, `single_process_fn`: `fn(record) -> sample | None | list of samples`;
- stream, `process_fn`: `fn(iterator of records) -> iterator of samples`, which holds nothing from one burst to the
  next; a list of such functions is applied in its order;
- stateful stream: one that does, and has `state_dict()` (small JSON, with `"rewind": n`, how many of the last records
  it still needs) and `load_state_dict(state)`.

A lane works on a copy of its stream function from each start: lists, dicts, sets and deques are the copy's own, other
objects that it holds something in are to be made in `__call__`.

A record that a function sees carries its fields, `__url__` and `__key__` or `__index__`, and draws its randomness from
`record_rng(record)`.
"""

from streamdata.run.seeds import record_rng
from streamdata.sources.foreign.map_style import MapStyleSource
from streamdata.sources.order.blocks import BlockOrder
from streamdata.sources.order.deal import Deal
from streamdata.sources.order.dealt_lane import Burst, DealtLane, DealtSource, DealtStretch
from streamdata.sources.source import Source

__all__ = [
    "BlockOrder",
    "Burst",
    "Deal",
    "DealtLane",
    "DealtSource",
    "DealtStretch",
    "MapStyleSource",
    "Source",
    "record_rng",
]
