"""From many sources to one stream, in one lane.

1. datasets → `tree_of` → `Node`s, one walk of the tree for all that is asked of it
2. percents, sizes → `Node.weights` → weights; schedules among them → `Shares` over time
   names, weights, lane, states → `Clocks` (`start_clocks`, `begin_clocks`) → where each source's clock stands
3. a source of records → `Leaf` → its samples in one lane, each with a cursor
4. clocks, samples → `Mixture` → the source with the lowest clock is next; the entry of each node joins the sample
5. datasets → `MergedDataset` → a torch dataset: ranks, workers, passes, states; a source alone → `top_of` → the same

| file | what is in it |
|---|---|
| `schedule.py` | shares that change over time, and how fast clocks run by them |
| `tree.py` | the tree of sources, with their weights and shares |
| `checks.py` | what is refused: sources and readers that do not fit |
| `deals.py` | the blocks of each lane; what another number of ranks or workers begins with |
| `control.py` | shared memory of trainer and workers: passes begun and ended, records that workers are at |
| `leaf.py` | a source in one lane, and what all nodes share there; samples that are read again |
| `clock.py` | where a mixture's clocks stand |
| `mixture.py` | the merged stream of a mixture |
| `lengths.py` | how often a run reads each source; how many samples are left |
| `live_weights.py` | weights that are set while a run goes on |
| `reading.py` | which pass a lane reads, and how its samples tell that it ends |
| `lane_iterator.py` | the iterator of a lane, with a state of its own |
| `merged.py` | `MergedDataset`, and what makes one of a recipe or a source |
"""

from streamdata.mixing.merged import MergedDataset

__all__ = ["MergedDataset"]
