"""From many sources to one stream, in one lane.

1. datasets → `tree_of` → `Node`s, one walk of the tree for all that is asked of it
2. percents, sizes → `resolved_weights` → weights; schedules among them → `Shares` over time
   names, weights, lane, states → `Clocks` (`start_clocks`, `begin_clocks`) → where each source's clock stands
3. a source of records → `Leaf` → its samples in one lane, each with a cursor
4. clocks, samples → `Mixture` → the source with the lowest clock is next; the entry of each node joins the sample
5. datasets → `MergedDataset` → a torch dataset: ranks, workers, passes, states; a source alone → `top_of` → the same
"""

from streamdata.mixing.merged import MergedDataset

__all__ = ["MergedDataset"]
